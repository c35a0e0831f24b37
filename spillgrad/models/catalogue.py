"""Models by name."""

import dataclasses
import difflib
from typing import Any

from spillgrad.errors import ArgumentError, UnknownModelError
from spillgrad.models.gpt import GPT, GPTConfig

# Parameters: tiny 0.12 M, small 3.3 M (both of bytes), gpt2 124 M, gpt2-medium 355 M, gpt2-large 774 M, gpt2-xl 1558 M.
_CONFIGS = {
    "tiny": GPTConfig(vocab_size=256, context=64, n_layer=2, n_head=4, n_embd=64),
    "small": GPTConfig(vocab_size=256, context=256, n_layer=4, n_head=4, n_embd=256),
    "gpt2": GPTConfig(),
    "gpt2-medium": GPTConfig(n_layer=24, n_head=16, n_embd=1024),
    "gpt2-large": GPTConfig(n_layer=36, n_head=20, n_embd=1280),
    "gpt2-xl": GPTConfig(n_layer=48, n_head=25, n_embd=1600),
}


def names() -> list[str]:
    """Return the names `build` knows."""
    return list(_CONFIGS)


def config(name: str, context: int | None = None, **overrides: Any) -> GPTConfig:
    """Return the sizes of a model, with some replaced.

    Raises UnknownModelError for a name that is not in the list, ArgumentError for a size that does not exist.
    """
    if name not in _CONFIGS:
        near = difflib.get_close_matches(name, _CONFIGS, n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UnknownModelError(f"models: got {name!r}; known are {', '.join(_CONFIGS)}{hint}")
    if context is not None:
        overrides["context"] = context
    fields = [field.name for field in dataclasses.fields(GPTConfig)]
    unknown = [key for key in overrides if key not in fields]
    if unknown:
        raise ArgumentError(f"models: got {', '.join(unknown)}; what may be set is {', '.join(fields)}")
    return dataclasses.replace(_CONFIGS[name], **overrides)


def build(name: str, context: int | None = None, **overrides: Any) -> GPT:
    """Build a freshly initialised model by name; keywords replace fields of its `GPTConfig`.

    Raises UnknownModelError for a name that is not in the list, ArgumentError for a size that does not exist.
    """
    return GPT(config(name, context, **overrides))
