"""Comparisons of elements, and tests for infinity, NaN and signs."""

from typing import Any

import numpy as np

from spillgrad.device.device import moved
from spillgrad.ops.declaration import declare
from spillgrad.ops.elementwise import by_numpy, common_function, row_function
from spillgrad.ops.promotion import Operand, as_operand
from spillgrad.tensor import Tensor
from spillgrad_kernels.device_array import ARRAYS

__all__ = [
    "allclose", "eq", "equal", "equal_all", "ge", "greater", "greater_equal", "gt", "isclose", "isfinite", "isinf",
    "isnan", "isneginf", "isposinf", "le", "less", "less_equal", "lt", "ne", "not_equal", "signbit",
]  # fmt: skip

eq = common_function("eq", "Return whether elements are equal.", numpy="equal", standard="equal")
ne = not_equal = common_function("ne", "Return whether elements differ.", standard="not_equal")
lt = less = common_function("lt", "Return whether elements of `input` are less than those of `other`.", standard="less")
le = less_equal = common_function(
    "le", "Return whether elements of `input` are at most those of `other`.", standard="less_equal"
)
gt = greater = common_function(
    "gt", "Return whether elements of `input` are greater than those of `other`.", standard="greater"
)
ge = greater_equal = common_function(
    "ge", "Return whether elements of `input` are at least those of `other`.", standard="greater_equal"
)
isnan = row_function("isnan", "Return whether elements are not a number.", method=True, numpy=True, standard=True)
isinf = row_function("isinf", "Return whether elements are infinite.", method=True, numpy=True, standard=True)
isposinf = row_function("isposinf", "Return whether elements are positive infinity.", method=True, numpy=True)
isneginf = row_function("isneginf", "Return whether elements are negative infinity.", method=True, numpy=True)
isfinite = row_function(
    "isfinite", "Return whether elements are neither infinite nor not a number.", method=True, numpy=True, standard=True
)
signbit = row_function(
    "signbit", "Return whether elements are negative, or -0.", method=True, numpy=True, standard=True
)


@declare(method=True, numpy=True)
def isclose(input: Tensor, other: Operand, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Tensor:
    """Return whether elements are close: ``|input - other| <= atol + rtol * |other|``.

    Infinities are close only if they are equal.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    other : Tensor or number
        What `input` should be; the shapes broadcast.
    rtol : float, default 1e-5
        Tolerance relative to `other`.
    atol : float, default 1e-8
        Absolute tolerance.
    equal_nan : bool, default False
        Whether NaN is close to NaN.

    Returns
    -------
    Tensor
        Of bool, of the shape that the operands broadcast to.
    """

    def are_close(*values: Any) -> Any:
        is_complex = any(x.dtype.kind == "c" if isinstance(x, ARRAYS) else isinstance(x, complex) for x in values)
        wide = np.complex128 if is_complex else np.float64
        a, b = [x.astype(wide) if isinstance(x, ARRAYS) else wide(x) for x in values]
        with np.errstate(all="ignore"):
            close = (np.abs(a - b) <= atol + rtol * np.abs(b)) & np.isfinite(b) | (a == b)
        return close | np.isnan(a) & np.isnan(b) if equal_nan else close

    return by_numpy("isclose", are_close, as_operand("isclose", input), as_operand("isclose", other))


@declare(method=True)
def allclose(input: Tensor, other: Operand, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    """Return whether all elements are close (see `isclose`).

    Parameters
    ----------
    input : Tensor
        Of any shape.
    other : Tensor or number
        What `input` should be; the shapes broadcast.
    rtol : float, default 1e-5
        Tolerance relative to `other`.
    atol : float, default 1e-8
        Absolute tolerance.
    equal_nan : bool, default False
        Whether NaN is close to NaN.

    Returns
    -------
    bool
        Whether no element differs by more.
    """
    return bool(np.all(isclose(input, other, rtol, atol, equal_nan).array))


@declare(method=True)
def equal(input: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same shape and the same elements.

    Parameters
    ----------
    input, other : Tensor
        Of any shape.

    Returns
    -------
    bool
        Whether they are equal.
    """
    return input.shape == other.shape and bool(np.all(eq(input, other).array))


@declare(method=True)
def equal_all(x: Tensor, y: Tensor) -> Tensor:
    """Return whether two tensors have the same shape and the same elements, as a tensor (Paddle's name).

    Parameters
    ----------
    x, y : Tensor
        Of any shape.

    Returns
    -------
    Tensor
        One bool.
    """
    return Tensor.wrap(moved(np.array(equal(x, y)), x.device))
