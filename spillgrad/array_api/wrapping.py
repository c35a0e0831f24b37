"""Turn functions of `sg` into functions of the array API standard: its promotion, names and docstrings."""

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
    """Return the operands with all tensors in one dtype, promoted whatever their dimensions; numbers stay unchanged.

    Raises OperandError for an operand that is neither tensor nor number, and if no operand is a tensor.
    """
    found = {x.numpy_dtype for x in operands if isinstance(x, Tensor)}
    if not found or not all(isinstance(x, (Tensor, *NUMBERS)) for x in operands):
        got = ", ".join(type(x).__name__ for x in operands)
        raise OperandError(f"{name}: got {got}; wanted tensors, or a tensor and Python numbers")
    if len(found) == 1:
        return list(operands)
    dtype = functools.reduce(dtypes.promote, found)
    return [to_dtype(x, dtype) if isinstance(x, Tensor) else x for x in operands]


def called(function: Function, like: Callable[..., Any], name: str | None = None) -> Function:
    """Give `function` the docstring of `like`, and the name `name`, by default that of `like`; return `function`."""
    return named(function, name or like.__name__, like.__doc__)


def unary(function: Callable[..., Any], name: str | None = None) -> Callable[..., Tensor]:
    """Return a function of the standard that calls `function`, a function of `sg`, on one tensor."""

    def of_one(x: Tensor, /) -> Tensor:
        return function(x)  # type: ignore[no-any-return]

    of_one.__module__ = sys._getframe(1).f_globals["__name__"]  # where unpickling finds it
    return called(of_one, function, name)


def binary(function: Callable[..., Any], name: str | None = None) -> Callable[..., Tensor]:
    """Return a function of the standard that calls `function`, a function of `sg`, on two promoted operands."""

    def of_two(x1: Any, x2: Any, /) -> Tensor:
        return function(*promoted(of_two.__name__, x1, x2))  # type: ignore[no-any-return]

    of_two.__module__ = sys._getframe(1).f_globals["__name__"]
    return called(of_two, function, name)
