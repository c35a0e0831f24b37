"""The incomplete gamma functions, computed in float64.

Source: Press et al. 2007, "Numerical Recipes", 6.2: a power series below a + 1, a continued fraction above it.
"""

import math
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from spillgrad.errors import GraphError
from spillgrad.ops.arithmetic import exp, mul, neg, sub
from spillgrad.ops.array_casts import on_floats, require_floats
from spillgrad.ops.broadcast import sum_to
from spillgrad.ops.convert import to_dtype
from spillgrad.ops.declaration import declare
from spillgrad.ops.operation import operation
from spillgrad.ops.promotion import Operand, as_operand, result_type
from spillgrad.ops.special import lgamma, xlogy
from spillgrad.tensor import Tensor

__all__ = ["igamma", "igammac"]

_MOST_TERMS = 20_000  # an argument needs about six times its square root


def _lower_series(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    term = 1 / a
    total = term.copy()
    for n in range(1, _MOST_TERMS):
        term = term * x / (a + n)
        total += term
        if (np.abs(term) <= np.abs(total) * 1e-17).all():
            break
    return total


def _upper_fraction(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return the continued fraction of the upper incomplete gamma function, by Lentz's method."""
    b = x + 1 - a
    c = np.full_like(x, 1e300)
    d = 1 / b
    total = d.copy()
    for n in range(1, _MOST_TERMS):
        factor = -n * (n - a)
        b = b + 2
        d = 1 / (factor * d + b)
        c = b + factor / c
        step = c * d
        total *= step
        if (np.abs(step - 1) <= 1e-16).all():
            break
    return np.asarray(total)


_lgamma = np.vectorize(math.lgamma, otypes=[np.float64])


def _regularized(a: np.ndarray, x: np.ndarray, upper: bool) -> np.ndarray:
    a, x = np.broadcast_arrays(a.astype(np.float64), x.astype(np.float64))
    result = np.full(a.shape, np.nan)
    result[(a >= 0) & (x >= 0) & (a + x > 0) & ((x == 0) | (a == np.inf))] = float(upper)
    result[(a >= 0) & (x > 0) & ((a == 0) | (x == np.inf)) & (a < np.inf)] = float(not upper)
    result[np.isinf(a) & np.isinf(x)] = np.nan
    inside = (a > 0) & (x > 0) & (a < np.inf) & (x < np.inf)
    for low in (True, False):
        chosen = inside & ((x < a + 1) == low)
        if chosen.any():
            some_a, some_x = a[chosen], x[chosen]
            sums = (_lower_series if low else _upper_fraction)(some_a, some_x)
            part = np.exp(some_a * np.log(some_x) - some_x - _lgamma(some_a)) * sums
            result[chosen] = part if low != upper else 1 - part
    return result


def _forward(upper: bool) -> Callable[[np.ndarray, np.ndarray], Any]:
    def function(self: np.ndarray, other: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return _regularized(self, other, upper)

    return lambda self, other: on_floats(lambda a, x: np.asarray(function(a, x), a.dtype), self, other)


def _no_gradient(name: str) -> Callable[..., NoReturn]:
    def derivative(g: Tensor) -> NoReturn:
        raise GraphError(
            f"{name}: the derivative for '{name}: input' is not implemented, only that by `other`; detach() it"
        )

    return derivative


def _density(self: Any, other: Any) -> Tensor:
    return exp(sub(sub(xlogy(sub(self, 1), other), other), lgamma(self)))


_igamma: Callable[..., Tensor] = operation(
    "igamma", _forward(False), self=_no_gradient("igamma"),
    other=lambda g, self, other: sum_to(mul(g, _density(self, other)), other.shape),
)  # fmt: skip
_igammac: Callable[..., Tensor] = operation(
    "igammac", _forward(True), self=_no_gradient("igammac"),
    other=lambda g, self, other: sum_to(neg(mul(g, _density(self, other))), other.shape),
)  # fmt: skip


@declare(in_place=True)
def igamma(input: Operand, other: Operand) -> Tensor:
    """Return the regularized lower incomplete gamma function.

    Parameters
    ----------
    input : Tensor or float
        The parameter a.
    other : Tensor or float
        The argument x; broadcasts with `input`.

    Returns
    -------
    Tensor
        Of the broadcast shape.

    Raises
    ------
    DtypeError
        If the common dtype is not of floating-point numbers.
    GraphError
        In backward, if `input` needs a gradient: there is a derivative by `other` only.
    """
    return _of_pair("igamma", _igamma, input, other)


@declare(in_place=True)
def igammac(input: Operand, other: Operand) -> Tensor:
    """Return the regularized upper incomplete gamma function, 1 - igamma(input, other).

    Parameters
    ----------
    input : Tensor or float
        The parameter a.
    other : Tensor or float
        The argument x; broadcasts with `input`.

    Returns
    -------
    Tensor
        Of the broadcast shape.

    Raises
    ------
    DtypeError
        If the common dtype is not of floating-point numbers.
    GraphError
        In backward, if `input` needs a gradient: there is a derivative by `other` only.
    """
    return _of_pair("igammac", _igammac, input, other)


def _of_pair(name: str, function: Callable[..., Tensor], input: Operand, other: Operand) -> Tensor:
    dtype = result_type(input, other)
    require_floats(name, dtype)
    operands = [as_operand(name, value) for value in (input, other)]
    return function(*(
        to_dtype(value, dtype) if isinstance(value, Tensor) else Tensor.wrap(np.asarray(value, dtype))
        for value in operands
    ))  # fmt: skip
