"""Turn functions of `sg` into functions of the array API standard: its promotion, names and docstrings."""

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from spillgrad import dtypes
from spillgrad.errors import OperandError
from spillgrad.ops import docstrings
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


# Entries of docstrings that several families share.
X = "x : Tensor\n    Of any shape."
OPERANDS = "x1, x2 : Tensor or number\n    Operands, at least one a tensor; they are promoted to one dtype."
AXES = "axis : int or tuple of int, optional\n    Dimension, or dimensions, to reduce; all, by default."
KEEPDIMS = "keepdims : bool, default False\n    Whether reduced dimensions stay, with size 1."
REDUCED = "Tensor\n    Of the shape of `x` without the reduced dimensions."
DTYPE = "dtype : dtype, optional\n    Data type of the result; by default, that of `x`."
DEVICE = "device : Device or str, optional\n    Where the result is; by default, the default device."
_RAISES = """OperandError
    If no operand is a tensor, or one is neither a tensor nor a number.
ShapeError
    If the shapes do not fit together."""
# The standard's names of parameters of `sg`.
_NAMES = {"input": "x", "dim": "axis", "keepdim": "keepdims"}


def called(
    function: Function, like: Callable[..., Any], *parameters: str, returns: str = "", name: str | None = None
) -> Function:
    """Give `function` the name and the first line of the docstring of `like`, a function of `sg`; return `function`.

    `parameters` and `returns` are entries of the docstring, as in `docstrings.composed`.
    """
    doc = docstrings.composed(docstrings.summary_of(like, _NAMES), *parameters, returns=returns)
    return named(function, name or like.__name__, doc)


def unary(function: Callable[..., Any], name: str | None = None, operand: str = X) -> Callable[..., Tensor]:
    """Return a function of the standard that calls `function`, a function of `sg`, on one tensor.

    `operand` is the entry of the tensor in the docstring.
    """

    def of_one(x: Tensor, /) -> Tensor:
        return function(x)  # type: ignore[no-any-return]

    of_one.__module__ = sys._getframe(1).f_globals["__name__"]  # where unpickling finds it
    return _documented(of_one, function, name, operand, ("x",))


def binary(function: Callable[..., Any], name: str | None = None, operands: str = OPERANDS) -> Callable[..., Tensor]:
    """Return a function of the standard that calls `function`, a function of `sg`, on two promoted operands.

    `operands` is the entry of the operands in the docstring.
    """

    def of_two(x1: Any, x2: Any, /) -> Tensor:
        return function(*promoted(of_two.__name__, x1, x2))  # type: ignore[no-any-return]

    of_two.__module__ = sys._getframe(1).f_globals["__name__"]
    return _documented(of_two, function, name, operands, ("x1", "x2"))


def _documented(
    function: Function, like: Callable[..., Any], name: str | None, operands: str, names: tuple[str, ...]
) -> Function:
    """Give `function` a name, and what the docstring of `like` says first and of the result, with the given `names`."""
    renamed = dict(zip(inspect.signature(like).parameters, names, strict=False))
    returns = docstrings.returns_of(like, renamed) or "Tensor\n    The result."
    raises = "" if len(names) == 1 else _RAISES
    doc = docstrings.composed(docstrings.summary_of(like, renamed), operands, returns=returns, raises=raises)
    return named(function, name or like.__name__, doc)
