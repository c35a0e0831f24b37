"""Nested tuples, lists and dicts of values: their leaves, and the same structure of other leaves."""

from collections.abc import Callable, Iterator
from typing import Any


def mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return the tree with `function(leaf)` in place of each leaf."""
    if isinstance(tree, dict):
        return type(tree)((key, mapped(function, value)) for key, value in tree.items())
    if isinstance(tree, tuple | list):
        parts = [mapped(function, value) for value in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return function(tree)


def leaves(tree: Any) -> list[Any]:
    """Return the leaves in order."""
    found: list[Any] = []
    mapped(found.append, tree)
    return found


def rebuilt(tree: Any, values: Iterator[Any]) -> Any:
    """Return the tree with the next of `values` in place of each leaf."""
    return mapped(lambda _: next(values), tree)
