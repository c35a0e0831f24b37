"""Chat templates in Jinja, rendered as Hugging Face's transformers do."""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from spillgrad.errors import ArgumentError, DataError

_SAFE_JINJA = (3, 1, 6)  # earlier releases let a template, which is someone else's program, out of the sandbox
_REASONING = ("reasoning_content", "thinking", "reasoning")

Span = tuple[int, int]


class _Spans:
    """What a template has written so far, and the spans of it that the assistant says."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.spans: list[Span] = []


_current: ContextVar[_Spans | None] = ContextVar("answers", default=None)


class _GenerationTag(jinja2.ext.Extension):
    """The tag `{% generation %} … {% endgeneration %}` around what the assistant says."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller: Callable[[], str]) -> str:
        said = caller()
        spans = _current.get()
        if spans is not None:
            start = len("".join(spans.written))
            spans.spans.append((start, start + len(said)))
        return said


class ChatTemplate:
    """A chat template: writes conversations as text.

    `special_tokens` are texts that the template may name, such as `eos_token`. One of `control_tokens` ends a turn.
    """

    def __init__(self, template: str, special_tokens: Mapping[str, str], control_tokens: Collection[str]) -> None:
        release = tuple(int(part) for part in re.findall(r"\d+", jinja2.__version__)[:3])
        if release < _SAFE_JINJA:
            raise ArgumentError(
                f"data: got Jinja {jinja2.__version__}, from whose sandbox a chat template can escape; pip install "
                "'jinja2>=3.1.6'"
            )
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _now
        try:
            self._template = environment.from_string(template)
        except jinja2.TemplateSyntaxError as error:
            raise DataError(
                f"data: the chat template is no Jinja template ({error.message}, line {error.lineno}); correct it"
            ) from error
        self._special_tokens = dict(special_tokens)
        self._marks_answers = re.search(r"\{%-?\s*generation\s*-?%\}", template) is not None
        tokens = "|".join(re.escape(token) for token in sorted(control_tokens, key=len, reverse=True))
        self._control = re.compile(tokens) if tokens else None
        self._only_control = re.compile(rf"(?:\s|{tokens})*" if tokens else r"\s*")

    def render(self, messages: Sequence[dict[str, Any]], add_generation_prompt: bool) -> str:
        """Return a conversation as text, and with `add_generation_prompt` the beginning of an answer."""
        return self._render(messages, add_generation_prompt, _Spans())

    def render_with_answers(self, messages: Sequence[dict[str, Any]]) -> tuple[str, list[Span]]:
        """Return a conversation as text, and the spans of it that the assistant says, ends of turns included."""
        spans = _Spans()
        text = self._render(messages, False, spans)
        if self._marks_answers:
            return text, spans.spans
        answers = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
        return text, [self._span(messages, number, text) for number in answers]

    def _render(self, messages: Sequence[dict[str, Any]], add_generation_prompt: bool, spans: _Spans) -> str:
        before = _current.set(spans)
        try:
            for part in self._template.generate(
                messages=[_with_reasoning(message) for message in messages], tools=None, documents=None,
                add_generation_prompt=add_generation_prompt, **self._special_tokens,
            ):  # fmt: skip
                spans.written.append(part)
        except Exception as error:  # a template is a program, which may raise anything
            raise DataError(
                f"got messages that the chat template refuses ({' '.join(str(error).split())}); wanted the roles and "
                "their order as the template takes them"
            ) from error
        finally:
            _current.reset(before)
        return "".join(spans.written)

    def _span(self, messages: Sequence[dict[str, Any]], number: int, text: str) -> Span:
        """Return the span of an answer: what the messages up to it add to those before it and the prompt for it."""
        try:
            prompt = self.render(messages[:number], True)
            until = text if number == len(messages) - 1 else self.render(messages[: number + 1], False)
        except DataError as error:  # though it takes the whole
            raise _not_found(number) from error
        end = self._end_of_turn(text, until, len(prompt))
        if end is None or not text.startswith(prompt):
            raise _not_found(number)
        return len(prompt), end

    def _end_of_turn(self, text: str, until: str, start: int) -> int | None:
        """Return where a turn ends in the text, of which `until` is the beginning, but for what ends a conversation."""
        agreed = len(until)
        if not text.startswith(until):
            pairs = enumerate(zip(text, until, strict=False))
            agreed = next((place for place, (one, other) in pairs if one != other), min(len(text), agreed))
        tokens = [] if self._control is None else list(self._control.finditer(text, min(start, agreed), agreed))
        if tokens and self._only_control.fullmatch(until, tokens[-1].end()):
            return tokens[-1].end()
        return agreed if start <= agreed == len(until) else None


def _not_found(number: int) -> DataError:
    return DataError(
        f"got a chat template that writes message {number + 1} differently where others follow, so that answers cannot "
        "be found in its text; wanted {% generation %} and {% endgeneration %} around them in the template, or "
        '"prompt" and "completion"'
    )


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message whose reasoning has all names that templates read it under."""
    reasoning = next((message[key] for key in _REASONING if key in message), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None,
    separators: tuple[str, str] | None = None, sort_keys: bool = False,
) -> str:  # fmt: skip
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
