"""Functions with names of their own: gamma and error functions, entropies, sinc and steps.

Most are rows of the kernels' table of elementwise functions; `spillgrad.special` has some under PyTorch's names.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad.errors import ArgumentError
from spillgrad.ops.arithmetic import log, mul, neg, sub
from spillgrad.ops.array_casts import on_floats, require_floats
from spillgrad.ops.clamp_where import clamp
from spillgrad.ops.declaration import declare
from spillgrad.ops.elementwise import by_numpy, call, common_function, row_function
from spillgrad.ops.operation import operation
from spillgrad.tensor import Tensor

__all__ = [
    "copysign", "digamma", "erf", "erfc", "erfinv", "heaviside", "lgamma", "logit", "mvlgamma", "nextafter",
    "polygamma", "sinc", "xlog1py", "xlogy",
]  # fmt: skip

erf = row_function("erf", "Return the error function of each element.", in_place=True)
erfc = row_function("erfc", "Return 1 - erf(x), accurate where that is near 0.", in_place=True)
erfinv = row_function(
    "erfinv", "Return the inverse of the error function; infinite at -1 and 1, NaN beyond.", in_place=True
)
normal_cdf = row_function("normal_cdf", "Return the standard normal distribution's Φ of each element.")


@declare(in_place=True)
def logit(input: Tensor, eps: float | None = None, *, out: Tensor | None = None) -> Tensor:
    """Return log(x / (1 - x)).

    Parameters
    ----------
    input : Tensor
        Of any shape: x, from 0 to 1.
    eps : float, optional
        If given, x is first clamped to [eps, 1 - eps].
    out : Tensor, optional
        Tensor that takes the result.

    Returns
    -------
    Tensor
        Of the shape of `input`; NaN outside [0, 1].
    """
    return call("logit", input if eps is None else clamp(input, eps, 1 - eps), out=out)


xlogy = row_function("xlogy", "Return input * log(other), 0 where input is 0 and other not NaN.", in_place=True)
xlog1py = row_function("xlog1py", "Return input * log(1 + other), 0 where input is 0 and other not NaN.")
_entr: Callable[..., Tensor] = operation(
    "special_entr", lambda self: on_floats(_entropy, self), self=lambda g, self: mul(g, sub(neg(log(self)), 1))
)


def _entropy(x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(np.where(x > 0, -x * np.log(x), np.where(x == 0, 0, np.where(x < 0, -np.inf, x))), x.dtype)


def entr(input: Tensor) -> Tensor:
    """Return -x log(x), the terms of an entropy.

    Parameters
    ----------
    input : Tensor
        Of any shape, of floating-point numbers.

    Returns
    -------
    Tensor
        Of the shape of `input`; 0 for x = 0, and -inf for negative x.

    Raises
    ------
    DtypeError
        For integers and complex numbers.
    """
    require_floats("entr", input.dtype)
    return _entr(input)


lgamma = row_function("lgamma", "Return the logarithm of the gamma function's absolute value.", in_place=True)
digamma = row_function("digamma", "Return the derivative of the gamma function's logarithm.", in_place=True)


def polygamma(n: int, input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return the n-th derivative of digamma.

    Parameters
    ----------
    n : int
        Order of the derivative: 0, 1, 2, and so on.
    input : Tensor
        Of any shape.
    out : Tensor, optional
        Tensor that takes the result.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ArgumentError
        If `n` is negative or not whole.
    """
    if not isinstance(n, int | np.integer) or n < 0:
        raise ArgumentError(f"polygamma: got n={n!r}; wanted a whole number from 0 on, then the tensor")
    return call("polygamma", int(n), input, out=out)


@declare(in_place=True)
def mvlgamma(input: Tensor, p: int) -> Tensor:
    """Return the logarithm of the multivariate gamma function.

    Parameters
    ----------
    input : Tensor
        Of any shape; all elements are above (p - 1) / 2.
    p : int
        Number of variables, from 1 on.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ArgumentError
        If `p` or an element is too small.
    """
    if p < 1 or bool((input.array <= (p - 1) / 2).any()):
        raise ArgumentError(f"mvlgamma: got p={p}; wanted p >= 1 and all elements above (p - 1) / 2")
    total: Any = p * (p - 1) / 4 * math.log(math.pi)
    for j in range(p):
        total = lgamma(input - j / 2) + total
    return total  # type: ignore[no-any-return]


sinc = row_function("sinc", "Return sin(πx) / (πx), 1 at 0.", in_place=True, numpy=True)


@declare(in_place=True, numpy=True)
def heaviside(input: Tensor, values: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return 0 for negative elements, 1 for positive elements, and given values for 0.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    values : Tensor
        Values for elements that are 0; broadcasts with `input`. Only they get a gradient.
    out : Tensor, optional
        Tensor that takes the result.

    Returns
    -------
    Tensor
        Of the broadcast shape.
    """
    return call("heaviside", input, values, out=out)


copysign = common_function("copysign", "Return the magnitude of input with the sign of other, which -0 has too.")


@declare(in_place=True, numpy=True, standard=True)
def nextafter(input: Tensor, other: Tensor) -> Tensor:
    """Return the number next to each element in the direction of another.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    other : Tensor
        Gives the directions; broadcasts with `input`.

    Returns
    -------
    Tensor
        Of the broadcast shape; it has no gradient.
    """
    return by_numpy("nextafter", np.nextafter, input, other)
