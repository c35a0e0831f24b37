"""Docstrings of functions that other functions make: a summary, and the sections that all functions of a kind share."""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

INPUT = "input : Tensor\n    Of any shape."
OPERANDS = "input, other : Tensor or number\n    Their shapes broadcast, and their dtypes promote to one."
OUT = "out : Tensor, optional\n    Tensor that takes the result."
INPLACE = "inplace : bool, default False\n    Whether to overwrite the input."
OPTIONS = "**options : Any\n    PyTorch's `layout` (strided), `memory_format` and `pin_memory`, which change nothing."

_QUOTED = re.compile(r"(`+)([^`]+)\1")
_WORD = re.compile(r"[A-Za-z_]\w*")


def composed(summary: str, *parameters: str, returns: str, raises: str = "", notes: str = "") -> str:
    """Return a docstring in numpydoc's form.

    `returns` and each of `parameters` are entries: a line with the type, then the description, indented.
    """
    sections = {"Parameters": "\n".join(parameters), "Returns": returns, "Raises": raises, "Notes": notes}
    parts = [f"{title}\n{'-' * len(title)}\n{text}" for title, text in sections.items() if text]
    return "\n\n".join([summary, *parts]) + "\n"


def summary_of(function: Callable[..., Any], names: Mapping[str, str]) -> str:
    """Return the first line of a function's docstring, in which parameters have other names: {name: new name}."""
    return renamed((inspect.getdoc(function) or "").partition("\n")[0], names)


def returns_of(function: Callable[..., Any], names: Mapping[str, str]) -> str:
    """Return the entry of what a function returns, in which parameters have other names; "" if there is none."""
    text = (inspect.getdoc(function) or "").partition("\nReturns\n-------\n")[2]
    return renamed(text.partition("\n\n")[0].rstrip(), names)


def renamed(text: str, names: Mapping[str, str]) -> str:
    """Return a text with other names in its backquoted parts: {name: new name}."""

    def quoted(match: re.Match[str]) -> str:
        inside = _WORD.sub(lambda word: names.get(word[0], word[0]), match[2])
        return f"{match[1]}{inside}{match[1]}"

    return _QUOTED.sub(quoted, text)


def in_place(of: str) -> str:
    """Return the docstring of the in-place form of the function called `of`."""
    return composed(
        f"Do `{of}` in place; return the tensor.",
        f"*arguments : Any\n    Further arguments of `{of}`, by position.",
        f"**options : Any\n    Further arguments of `{of}`, by name.",
        returns="Tensor\n    The tensor itself, changed.",
    )
