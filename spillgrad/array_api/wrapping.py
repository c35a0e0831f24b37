"""What makes functions of the array API standard of those of `sg`: its promotion, and names and docstrings."""

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from spillgrad import dtypes
from spillgrad.errors import OperandError
from spillgrad.ops.convert import to_dtype
from spillgrad.ops.declaration import named
from spillgrad.tensor import Tensor

Function = TypeVar("Function", bound=Callable[..., Any])
NUMBERS = (bool, int, float, complex)


def promoted(name: str, *operands: Any) -> list[Any]:
    """Return tensors in their common dtype, whatever their dimensions, and numbers as they are.

    Raises OperandError for anything else, and for numbers alone.
    """
    found = {x.dtype for x in operands if isinstance(x, Tensor)}
    if not found or not all(isinstance(x, (Tensor, *NUMBERS)) for x in operands):
        got = ", ".join(type(x).__name__ for x in operands)
        raise OperandError(f"{name}: got {got}; wanted tensors, or a tensor and Python numbers")
    if len(found) == 1:
        return list(operands)
    dtype = functools.reduce(dtypes.promote, found)
    return [to_dtype(x, dtype) if isinstance(x, Tensor) else x for x in operands]


def called(function: Function, like: Callable[..., Any], name: str | None = None) -> Function:
    """Return a function after giving it the docstring of another, and its name if no name is given."""
    return named(function, name or like.__name__, like.__doc__)


def unary(function: Callable[..., Any], name: str | None = None) -> Callable[..., Tensor]:
    """Return the standard's function of one tensor that is a function of `sg`."""

    def of_one(x: Tensor, /) -> Tensor:
        return function(x)  # type: ignore[no-any-return]

    of_one.__module__ = sys._getframe(1).f_globals["__name__"]  # where unpickling finds it
    return called(of_one, function, name)


def binary(function: Callable[..., Any], name: str | None = None) -> Callable[..., Tensor]:
    """Return the standard's function of two operands, promoted, that is a function of `sg`."""

    def of_two(x1: Any, x2: Any, /) -> Tensor:
        return function(*promoted(of_two.__name__, x1, x2))  # type: ignore[no-any-return]

    of_two.__module__ = sys._getframe(1).f_globals["__name__"]
    return called(of_two, function, name)
