"""`spillgrad generate`: write text with a model in RAM, or on disk where it does not fit."""

import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import spillgrad as sg
from spillgrad.errors import ArgumentError, BudgetError
from spillgrad.models.language_model import LanguageModel
from spillgrad.storage.counters import rss_bytes
from spillgrad.storage.sizes import format_bytes, parse_bytes
from spillgrad_kernels.memory.system_memory import system_memory
from spillgrad_tools.generate.options import GenerateOptions
from spillgrad_tools.generate.texts import TextStream, Words, words_for

# What a pass needs beside weights, keys and values: buffers, and logits in two precisions.
_WORKING_BYTES = 48 << 20
# Hidden states of a pass: as many arrays of a token's widest layer exist at a time.
_STATES = 6
# With a soft cap, as many arrays of all scores exist at a time.
_SCORES = 4


class Written(NamedTuple):
    """What was written: its text, and how long it took. Units: seconds."""

    text: str
    tokens: int
    first_s: float
    others_s: float
    stopped: bool

    @property
    def tokens_per_s(self) -> float | None:
        """The speed, without the first token, whose pass takes the whole prompt."""
        return (self.tokens - 1) / self.others_s if self.tokens > 1 and self.others_s else None


def run(options: GenerateOptions) -> None:
    """Generate, and print each piece of text as it comes; with `options.as_json`, an object at the end.

    Raises BudgetError if `options.ram` is too small; the message gives the least memory that suffices.
    """
    prompt = _prompt(options)
    found = sg.models.describe(options.weights, options.base)
    words = words_for(found, options, prompt)
    if not words.tokens.size:
        raise ArgumentError("generate: got an empty prompt; give some text")
    if len(words.tokens) >= found.config.context:
        raise ArgumentError(
            f"generate: got a prompt of {len(words.tokens)} tokens; the model has {found.config.context} positions"
        )
    with contextlib.ExitStack() as stack:
        model, place = _loaded(options, found, len(words.tokens), stack)
        written = _write(model, words, options)
    if options.as_json:
        print(json.dumps({"text": written.text, **_facts(written, words, place)}))
    elif sys.stderr.isatty():
        speed = "" if written.tokens_per_s is None else f", then {written.tokens_per_s:.1f} tokens/s"
        print(f"{written.tokens} tokens, the first after {written.first_s:.1f} s{speed}; {place}", file=sys.stderr)


def _prompt(options: GenerateOptions) -> str:
    """Return the prompt. Raises ArgumentError for one that is no text."""
    try:
        prompt = sys.stdin.read() if options.prompt == "-" else options.prompt
        prompt.encode()
    except UnicodeError as error:
        raise ArgumentError(f"generate: got a prompt that is not UTF-8 ({error}); convert it") from error
    return prompt


def _write(model: LanguageModel, words: Words, options: GenerateOptions) -> Written:
    stream = TextStream(words.decode)
    text, began_s = "", time.perf_counter()
    first_s, count, stopped = 0.0, 0, False
    tokens = model.stream(
        words.tokens[np.newaxis], options.max_tokens, options.temperature, options.top_k, options.seed,
        options.top_p, words.stop,
    )  # fmt: skip
    for (token,) in tokens:
        count += 1
        if count == 1:
            first_s = time.perf_counter() - began_s
        stopped = int(token) in words.stop
        if not stopped:
            text += _shown(stream.add(int(token)), options)
    text += _shown(stream.rest(), options)
    if not options.as_json:
        print(flush=True)
    return Written(text, count, first_s, time.perf_counter() - began_s - first_s, stopped)


def _shown(piece: str, options: GenerateOptions) -> str:
    if piece and not options.as_json:
        # A terminal would obey control characters.
        visible = "".join(letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in piece)
        encoding = sys.stdout.encoding or "utf-8"
        print(visible.encode(encoding, "replace").decode(encoding), end="", flush=True)
    return piece


def _facts(written: Written, words: Words, place: str) -> dict[str, Any]:
    return {
        "prompt_tokens": len(words.tokens), "tokens": written.tokens, "stopped": written.stopped,
        "first_token_s": written.first_s, "tokens_per_s": written.tokens_per_s, "weights": place,
    }  # fmt: skip


def _loaded(
    options: GenerateOptions, found: sg.models.ModelFiles, prompt: int, stack: contextlib.ExitStack
) -> tuple[LanguageModel, str]:  # fmt: skip
    """Return the model, and where it is in words: in RAM if that suffices, else on disk."""
    beside_bytes = rss_bytes() + _beside_bytes(found.config, prompt, options.max_tokens)
    ram_bytes = _ram_bytes(options)
    if beside_bytes + found.weight_bytes <= ram_bytes:
        return found.load(), f"{format_bytes(found.weight_bytes)} of weights in RAM"
    budget = ram_bytes - beside_bytes
    directory = options.directory or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spillgrad-")))
    try:
        offload = sg.disk_offload(
            lambda: found.load().requires_grad_(False), None, directory, ram_budget=max(budget, 0)
        )  # fmt: skip
    except BudgetError as error:
        least = "" if error.least_bytes is None else f"; the least is {format_bytes(error.least_bytes + beside_bytes)}"
        raise BudgetError(f"generate: got {format_bytes(ram_bytes)} of RAM, which is too little{least}") from error
    model: Any = offload.model
    return model, f"{format_bytes(found.weight_bytes)} of weights on disk, {format_bytes(budget)} of them in RAM"


def _ram_bytes(options: GenerateOptions) -> int:
    if options.ram is not None:
        return parse_bytes(options.ram)
    memory = system_memory()
    if memory is None:
        return sys.maxsize
    # Other programs need some, too.
    free_bytes: int = min(memory.available_bytes + rss_bytes(), memory.total_bytes)
    return free_bytes * 9 // 10


def _beside_bytes(config: Any, prompt: int, more: int) -> int:
    """Return the bytes of all that passes need beside weights, for a prompt and so many more tokens."""
    positions = min(prompt + more, config.context)
    # A pass has the prompt, then one token; beyond the context, all positions again.
    at_once = prompt if prompt + more <= config.context else positions
    scores = 0
    if isinstance(config, sg.models.GPTConfig):
        layers, kept, widest = config.n_layer, config.n_embd, 4 * config.n_embd
    else:
        layers, kept = config.num_hidden_layers, config.key_value_heads * config.head_width
        widest = max(config.intermediate_size, config.num_attention_heads * config.head_width)
        if config.attn_logit_softcapping is not None:
            scores = _SCORES * config.num_attention_heads * at_once**2
    # Room for twice as many positions is made ahead, and a layer's is copied when it grows.
    caches = 2 * kept * 2 * positions * (layers + 1)
    return int(_WORKING_BYTES + 4 * (caches + _STATES * widest * at_once + scores) + 3 * 8 * config.vocab_size)
