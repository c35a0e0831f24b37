"""Choosing layers of a model by name, and putting other layers in their places."""

import re
from collections.abc import Mapping

from spillgrad.nn.module import Module

# The layer that a language model computes its outputs with; as in peers, it stays as it is unless it is named.
OUTPUT_LAYERS = ("lm_head",)


def matches(path: str, name: str, is_pattern: bool) -> bool:
    """Return whether a layer's path is a name, ends with it, or matches it as a pattern, if it is one."""
    return path == name or path.endswith(f".{name}") or (is_pattern and re.fullmatch(name, path) is not None)


def replaced(model: Module, others: Mapping[Module, Module]) -> Module:
    """Replace each module in `others` by its value, wherever it is registered; return the model or its replacement."""
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child is not None and child in others:
                parent.register_module(name, others[child])
    return others.get(model, model)
