"""The tokenizer of a Hugging Face folder, with its special tokens and its chat template."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from spillgrad.data.bpe import BPETokenizer
from spillgrad.data.records import Record, checked_messages
from spillgrad.errors import ArgumentError, DataError

if TYPE_CHECKING:
    from spillgrad.data.chat_template import ChatTemplate

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class MarkedText(NamedTuple):
    """A document before it becomes tokens."""

    text: str
    learned: list[tuple[int, int]] | None  # spans of characters, in order; None: all of the text
    is_whole: bool  # whether the text has its first and last tokens, as a chat template writes them


class Tokens(NamedTuple):
    """A document."""

    tokens: np.ndarray
    counted: np.ndarray  # bool: the tokens that count in the loss


class ChatTokenizer(BPETokenizer):
    """Converts texts and conversations to token numbers, as the Hugging Face model that it comes with wants them.

    Parameters
    ----------
    tokenizer : tokenizers.Tokenizer
        What `train` and `load` make.
    chat_template : str, optional
        A chat template in Jinja.
    special_tokens : mapping of str to str, optional
        The texts of ``bos_token``, ``eos_token`` and others, which the chat template may name. Texts to train on end
        with ``eos_token``.

    Raises
    ------
    DataError
        For a chat template that is no Jinja template, and for an ``eos_token`` that the tokenizer does not have.
    ArgumentError
        For a chat template without the package ``jinja2``.

    Notes
    -----
    Texts and tokens of conversations equal those of ``apply_chat_template`` of Hugging Face's transformers. A chat
    template is a program: it runs in Jinja's sandbox.

    Examples
    --------
    >>> import spillgrad as sg
    >>> template = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    >>> template += "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    >>> special = ["<|user|>", "<|assistant|>", "<|end|>"]
    >>> trained = sg.data.BPETokenizer.train("What is 1 + 1? It is 2.", 300, special)
    >>> tokenizer = sg.data.ChatTokenizer(trained.tokenizer, template, {"eos_token": "<|end|>"})
    >>> tokenizer.render([{"role": "user", "content": "What is 1 + 1?"}])
    '<|user|>What is 1 + 1?<|end|><|assistant|>'
    """

    def __init__(
        self, tokenizer: Any, chat_template: str | None = None, special_tokens: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(tokenizer)
        self.special_tokens = dict(special_tokens or {})
        self.chat_template = chat_template
        known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
        named = [token for token in self.special_tokens.values() if token not in known]
        # As in transformers: a special token is one token also where the text has it.
        tokenizer.add_special_tokens([token for token in named if tokenizer.token_to_id(token) is not None])
        self._end = self.eos_id
        # What the tokenizer's own rules put around a text.
        encoding = tokenizer.encode("a", add_special_tokens=True)
        is_text = np.flatnonzero(np.array(encoding.special_tokens_mask) == 0)
        first, last = (int(is_text[0]), int(is_text[-1])) if len(is_text) else (0, len(encoding.ids) - 1)
        self._before, self._after = encoding.ids[:first], encoding.ids[last + 1 :]
        if self._end is not None and self._after[-1:] != [self._end]:
            self._after.append(self._end)
        self._template = None if chat_template is None else self._compiled(chat_template)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read the tokenizer in a folder, as Hugging Face lays it out.

        Beside ``tokenizer.json``, the files ``tokenizer_config.json``, ``special_tokens_map.json``,
        ``chat_template.jinja`` and ``additional_chat_templates/`` count, as far as they are there.

        Parameters
        ----------
        path : str or path
            The folder, or its ``tokenizer.json``.

        Returns
        -------
        ChatTokenizer
            The tokenizer.

        Raises
        ------
        DataError
            For files that are not of this kind.
        ArgumentError
            Without the package ``tokenizers``, or for a chat template without ``jinja2``.
        """
        tokenizer = BPETokenizer.load(path).tokenizer
        folder = Path(path)
        if not folder.is_dir():
            if folder.name != "tokenizer.json":
                return cls(tokenizer)
            folder = folder.parent
        config = _json_file(folder / "tokenizer_config.json")
        named = config
        if "added_tokens_decoder" not in config:  # as transformers: files that older releases wrote
            named = {**config, **_json_file(folder / "special_tokens_map.json")}
        texts = {name: _content(named.get(name)) for name in _SPECIAL_TOKENS}
        special_tokens = {name: text for name, text in texts.items() if text is not None}
        try:
            return cls(tokenizer, _chat_template(folder, config), special_tokens)
        except DataError as error:
            raise DataError(f"{error} (of {folder})") from error

    @property
    def eos_token(self) -> str | None:
        """Return the text of the token that ends a text, if there is one."""
        return self.special_tokens.get("eos_token")

    @property
    def eos_id(self) -> int | None:
        """Return the number of the token that ends a text, if there is one."""
        if self.eos_token is None:
            return None
        number = self.tokenizer.token_to_id(self.eos_token)
        if number is None:
            raise DataError(
                f"data: got the eos_token {self.eos_token!r}, which is none of the tokenizer's tokens; name one of them"
            )
        return int(number)

    def render(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> str:
        """Return a conversation as text, as the chat template writes it.

        `encode` gives its tokens, which a model goes on from.

        Parameters
        ----------
        messages : sequence of dict
            The conversation: each message has a ``"role"`` and a ``"content"``.
        add_generation_prompt : bool, default True
            Whether the text ends with the beginning of an answer.

        Returns
        -------
        str
            The text.

        Raises
        ------
        DataError
            For messages of another form, for those that the template refuses, and without a chat template.
        """
        try:
            return self._chat().render(checked_messages(messages), add_generation_prompt)
        except DataError as error:
            raise DataError(f"render: {error}") from error

    def encode_prompt(self, text: str) -> np.ndarray:
        """Return the tokens of a text to go on from: with those that the tokenizer puts before texts.

        Parameters
        ----------
        text : str
            The text.

        Returns
        -------
        array
            Token numbers, int64 of shape (N,).
        """
        return np.concatenate([np.array(self._before, np.int64), self.encode(text)])

    def mark(self, record: Record) -> MarkedText:
        """Return a record as one text, and which parts of it are learned.

        Parameters
        ----------
        record : Record
            The record.

        Returns
        -------
        MarkedText
            What `encode_marked` takes.

        Raises
        ------
        DataError
            For messages that the chat template refuses, or without one; the message has no "who".
        """
        if record.messages is not None:
            return MarkedText(*self._chat().render_with_answers(record.messages), is_whole=True)
        return marked_text(record)

    def encode_marked(self, texts: Sequence[MarkedText]) -> Iterator[Tokens]:
        """Yield the tokens of texts, and which of them are learned.

        Parameters
        ----------
        texts : sequence of MarkedText
            What `mark` returns.

        Yields
        ------
        Tokens
            The tokens of a text, its first and last ones included.
        """
        plain = all(text.learned is None for text in texts)
        # Without offsets, where none is needed, it is quicker.
        encode = self.tokenizer.encode_batch_fast if plain else self.tokenizer.encode_batch
        encodings = encode([text.text for text in texts], add_special_tokens=False)
        for text, encoding in zip(texts, encodings, strict=True):
            tokens = np.array(encoding.ids, np.int64)
            if text.learned is None:
                counted = np.ones(len(tokens), np.bool_)
            else:
                counted = _overlapping(np.array(encoding.offsets, np.int64).reshape(-1, 2), text.learned)
            if not text.is_whole:
                tokens = np.concatenate([self._before, tokens, self._after]).astype(np.int64)
                counted = np.concatenate([
                    np.full(len(self._before), text.learned is None), counted, np.ones(len(self._after), np.bool_),
                ])  # fmt: skip
            yield Tokens(tokens, counted)

    def _chat(self) -> "ChatTemplate":
        if self._template is None:
            raise DataError(
                "got messages for a tokenizer without a chat template; wanted a chat_template.jinja beside "
                'tokenizer.json, or "text", or "prompt" and "completion"'
            )
        return self._template

    def _compiled(self, chat_template: str) -> "ChatTemplate":
        try:
            from spillgrad.data.chat_template import ChatTemplate
        except ImportError as error:
            raise ArgumentError(
                "data: chat templates need the package jinja2; pip install 'spillgrad[text]'"
            ) from error
        added = self.tokenizer.get_added_tokens_decoder().values()
        control = {token.content for token in added if token.special} | {self.eos_token or ""}
        return ChatTemplate(chat_template, self.special_tokens, control - {""})


def marked_text(record: Record) -> MarkedText:
    """Return a record without messages as one text, and which part of it is learned."""
    if record.prompt is not None and record.completion is not None:
        text = record.prompt + record.completion
        return MarkedText(text, [(len(record.prompt), len(text))], is_whole=False)
    if record.text is not None:
        return MarkedText(record.text, None, is_whole=False)
    raise DataError('got a record without values; wanted "text", "prompt" and "completion", or "messages"')


def _overlapping(offsets: np.ndarray, spans: Iterable[tuple[int, int]]) -> np.ndarray:
    """Return which tokens have a character of one of the spans."""
    counted = np.zeros(len(offsets), np.bool_)
    for start, end in spans:
        counted |= (offsets[:, 0] < end) & (offsets[:, 1] > start)
    return counted


def _json_file(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"data: {path} cannot be read ({error}); give the one that came with tokenizer.json") from error
    if not isinstance(found, dict):
        raise DataError(f"data: {path} holds no JSON object; give the one that came with tokenizer.json")
    return found


def _content(token: Any) -> str | None:
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else None


def _chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """Return the text of the chat template; a file of its own goes before one in the configuration."""
    try:
        paths = {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
        if (folder / "chat_template.jinja").exists():
            paths["default"] = folder / "chat_template.jinja"
        templates = {name: path.read_text(encoding="utf-8") for name, path in paths.items()}
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"data: a chat template in {folder} cannot be read ({error}); give one in UTF-8") from error
    if not templates:
        found = config.get("chat_template")
        if found is None or isinstance(found, str):
            return found
        try:
            templates = {str(entry["name"]): str(entry["template"]) for entry in found}
        except (TypeError, KeyError) as error:
            raise DataError(
                f"data: the chat_template in {folder}/tokenizer_config.json is neither a string nor a list of names "
                "and templates; write one to chat_template.jinja"
            ) from error
    if "default" not in templates:
        raise DataError(
            f"data: {folder} has the chat templates {', '.join(templates)}, none of them the default; copy one to "
            "chat_template.jinja"
        )
    return templates["default"]
