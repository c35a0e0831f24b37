"""Modified Bessel functions of the first kind, of order 0 and 1, computed in float64.

Source: Abramowitz & Stegun 1964, 9.6.10 (the power series, whose terms are all positive) and 9.7.1 (for large x).
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad import dtypes
from spillgrad.ops import docstrings
from spillgrad.ops.arithmetic import div, mul, sign, sub
from spillgrad.ops.array_casts import on_floats
from spillgrad.ops.clamp_where import where
from spillgrad.ops.convert import to_dtype
from spillgrad.ops.declaration import declare, named
from spillgrad.ops.operation import operation
from spillgrad.tensor import Tensor

__all__ = ["i0", "i0e", "i1", "i1e"]

# Up to this x, 70 terms of the power series are enough; beyond, 30 terms of the other are exact to the last digit.
_LARGE = 30.0


def _scaled(order: int, size: np.ndarray) -> np.ndarray:
    """Return exp(-x) I(x) for every x >= 0 of the array `size`, where I is the Bessel function of the given order."""
    small = np.minimum(size, _LARGE)
    quarter = small * small / 4
    term = np.ones_like(small) if order == 0 else small / 2
    total = term.copy()
    for k in range(1, 70):
        term *= quarter / (k * (k + order))
        total += term
    large = np.maximum(size, _LARGE)
    part = np.ones_like(large)
    series = part.copy()
    for k in range(1, 30):
        part *= -(4 * order * order - (2 * k - 1) ** 2) / (8 * k * large)
        series += part
    return np.asarray(np.where(size > _LARGE, series / np.sqrt(2 * np.pi * large), total * np.exp(-small)))


def _forward(order: int, scaled: bool) -> Callable[[np.ndarray], Any]:
    def function(self: np.ndarray) -> Any:
        x = np.asarray(self, np.float64)
        size = np.abs(x)
        with np.errstate(all="ignore"):
            found = _scaled(order, size)
            if not scaled:  # in two steps: exp(x) alone overflows before I(x) does
                half = np.exp(size / 2)
                found = np.where(np.isinf(size), np.inf, found * half * half)
        found = found if order == 0 else np.copysign(found, x)
        return np.where(np.isnan(x), np.nan, found)

    return lambda self: on_floats(lambda x: np.asarray(function(x), x.dtype), self)


def _i1_gradient(g: Tensor, self: Any, result: Any) -> Any:
    near = self == 0
    return mul(g, where(near, 0.5, sub(_i0(self), div(result, where(near, 1.0, self)))))


def _i1e_gradient(g: Tensor, self: Any, result: Any) -> Any:
    near = self == 0
    slope = sub(sub(_i0e(self), mul(sign(self), result)), div(result, where(near, 1.0, self)))
    return mul(g, where(near, 0.5, slope))


_i0: Callable[..., Tensor] = operation("i0", _forward(0, False), self=lambda g, self: mul(g, _i1(self)))
_i1: Callable[..., Tensor] = operation("i1", _forward(1, False), self=_i1_gradient)
_i0e: Callable[..., Tensor] = operation(
    "special_i0e", _forward(0, True),
    self=lambda g, self, result: mul(g, sub(_i1e(self), mul(sign(self), result))),
)  # fmt: skip
_i1e: Callable[..., Tensor] = operation("special_i1e", _forward(1, True), self=_i1e_gradient)


def _of_floats(name: str, operation: Callable[..., Tensor], doc: str) -> Callable[..., Tensor]:
    def function(input: Tensor) -> Tensor:
        is_float = dtypes.category(input.dtype) > 1
        return operation(input if is_float else to_dtype(input, dtypes.get_default_dtype()))

    returns = "Tensor\n    Of the shape of `input`; of integers, in the default dtype."
    return named(function, name, docstrings.composed(doc, docstrings.INPUT, returns=returns))


i0 = _of_floats("i0", _i0, "Return the modified Bessel function of the first kind of order 0.")
i0e = _of_floats("i0e", _i0e, "Return ``exp(-|x|)`` times `i0` of each element x.")
i1 = _of_floats("i1", _i1, "Return the modified Bessel function of the first kind of order 1.")
i1e = _of_floats("i1e", _i1e, "Return ``exp(-|x|)`` times `i1` of each element x.")
declare(in_place=True, numpy=True)(i0)
