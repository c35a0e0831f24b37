"""PyTorch's module `torch.compiler`: nothing is compiled, so that its controls return what they are given."""

from collections.abc import Callable
from typing import Any

from spillgrad.settings.compilation import compile

__all__ = ["allow_in_graph", "compile", "cudagraph_mark_step_begin", "disable", "is_compiling", "reset"]


def is_compiling() -> bool:
    """Return False: nothing is compiled."""
    return False


is_dynamo_compiling = is_exporting = is_compiling


def disable(fn: Callable[..., Any] | None = None, recursive: bool = True, **options: Any) -> Any:
    """Return the function itself, as nothing is compiled; without a function, return the decorator that does so."""
    return (lambda function: function) if fn is None else fn


def allow_in_graph(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function itself, as nothing is compiled."""
    return fn


def reset() -> None:
    """Do nothing: nothing is compiled."""


def cudagraph_mark_step_begin() -> None:
    """Do nothing: nothing is compiled."""
