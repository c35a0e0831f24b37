"""Elementwise functions beyond arithmetic: hyperbolic, gamma and error functions, signs and parts of numbers.

Most are rows of the kernels' table; `spillgrad.special` shows some under the names of `torch.special`.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad import dtypes
from spillgrad.errors import ArgumentError, DtypeError
from spillgrad.ops.convert import to_dtype
from spillgrad.ops.define import operation
from spillgrad.ops.elementwise import (
    Number,
    Operand,
    as_operand,
    by_numpy,
    call,
    clamp,
    log,
    mul,
    neg,
    pow,
    row_function,
    sub,
)
from spillgrad.ops.elementwise import sign as sgn
from spillgrad.ops.elementwise import trunc as fix
from spillgrad.ops.numeric import on_floats, require_floats
from spillgrad.tensor import Tensor

__all__ = [
    "acosh", "arccosh", "arcsinh", "arctanh", "asinh", "atanh", "copysign", "deg2rad", "digamma", "entr", "erfc",
    "erfinv", "exp2", "fix", "float_power", "fmax", "fmin", "fmod", "frac", "gcd", "heaviside", "hypot", "isneginf",
    "isposinf", "lcm", "ldexp", "lgamma", "logaddexp2", "logit", "mvlgamma", "nan_to_num", "nextafter", "polygamma",
    "positive", "rad2deg", "sgn", "signbit", "sinc", "xlog1py", "xlogy",
]  # fmt: skip

asinh = arcsinh = row_function("asinh", "Return the inverse hyperbolic sine of each element.")
acosh = arccosh = row_function("acosh", "Return the inverse hyperbolic cosine of each element; NaN below 1.")
atanh = arctanh = row_function("atanh", "Return the inverse hyperbolic tangent of each element; NaN beyond -1 and 1.")
exp2 = row_function("exp2", "Return 2 raised to each element.")
logaddexp2 = row_function("logaddexp2", "Return log2(2**input + 2**other) without overflow.")
xlogy = row_function("xlogy", "Return input * log(other), 0 where input is 0 and other not NaN.")
xlog1py = row_function("xlog1py", "Return input * log(1 + other), 0 where input is 0 and other not NaN.")
hypot = row_function("hypot", "Return sqrt(input**2 + other**2) without overflow; its gradient at the origin is 0.")
sinc = row_function("sinc", "Return sin(πx) / (πx), 1 at 0.")
erfc = row_function("erfc", "Return 1 - erf(x), accurate where that is near 0.")
erfinv = row_function("erfinv", "Return the inverse of the error function; infinite at -1 and 1, NaN beyond.")
lgamma = row_function("lgamma", "Return the logarithm of the gamma function's absolute value.")
digamma = row_function("digamma", "Return the derivative of the gamma function's logarithm.")
frac = row_function("frac", "Return the fraction of each element, with its sign.")
fmod = row_function("fmod", "Return input modulo other, with the sign of input (C's fmod).")
fmax = row_function("fmax", "Return the larger of two elements; of a number and NaN the number.")
fmin = row_function("fmin", "Return the smaller of two elements; of a number and NaN the number.")
copysign = row_function("copysign", "Return the magnitude of input with the sign of other, which -0 has too.")
signbit = row_function("signbit", "Return whether elements are negative, or -0.")
isposinf = row_function("isposinf", "Return whether elements are positive infinity.")
isneginf = row_function("isneginf", "Return whether elements are negative infinity.")


def logit(input: Tensor, eps: float | None = None, *, out: Tensor | None = None) -> Tensor:
    """Return log(x / (1 - x)), of x moved into [eps, 1 - eps] where that is given; else NaN outside [0, 1]."""
    return call("logit", input if eps is None else clamp(input, eps, 1 - eps), out=out)


def polygamma(n: int, input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return the n-th derivative of digamma. Raises ArgumentError unless n is 0, 1, 2, …."""
    if not isinstance(n, int | np.integer) or n < 0:
        raise ArgumentError(f"polygamma: got n={n!r}; wanted a whole number from 0 on, then the tensor")
    return call("polygamma", int(n), input, out=out)


def mvlgamma(input: Tensor, p: int) -> Tensor:
    """Return the logarithm of the gamma function of p × p matrices. Raises ArgumentError unless x > (p - 1) / 2."""
    if p < 1 or bool((input.array <= (p - 1) / 2).any()):
        raise ArgumentError(f"mvlgamma: got p={p}; wanted p >= 1 and all elements above (p - 1) / 2")
    total: Any = p * (p - 1) / 4 * math.log(math.pi)
    for j in range(p):
        total = lgamma(input - j / 2) + total
    return total  # type: ignore[no-any-return]


def heaviside(input: Tensor, values: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return 0 below 0, 1 above, and of `values` at 0, which get its gradient."""
    return call("heaviside", input, values, out=out)


def nan_to_num(
    input: Tensor, nan: float | None = 0.0, posinf: float | None = None, neginf: float | None = None,
    *, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return each element, NaN and infinities replaced: by default by 0 and the dtype's largest finite numbers."""
    if not input.is_floating_point():
        return call("nan_to_num", input, 0, 0, 0, out=out)
    limits = dtypes.finfo(input.dtype)
    return call(
        "nan_to_num", input, 0.0 if nan is None else nan, limits.max if posinf is None else posinf,
        limits.min if neginf is None else neginf, out=out,
    )  # fmt: skip


_entr: Callable[..., Tensor] = operation(
    "special_entr", lambda self: on_floats(_entropy, self), self=lambda g, self: mul(g, sub(neg(log(self)), 1))
)


def _entropy(x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(np.where(x > 0, -x * np.log(x), np.where(x == 0, 0, np.where(x < 0, -np.inf, x))), x.dtype)


def entr(input: Tensor) -> Tensor:
    """Return -x log(x), 0 at 0 and -inf below. Raises DtypeError for integers."""
    require_floats("entr", input.dtype)
    return _entr(input)


def positive(input: Tensor) -> Tensor:
    """Return the input. Raises DtypeError for bool."""
    if input.dtype == dtypes.bool_:
        raise DtypeError("positive: got bool, which has no sign; convert with .to(int64)")
    return input


def deg2rad(input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return angles in radians of angles in degrees."""
    return mul(input, math.pi / 180, out=out)


def rad2deg(input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return angles in degrees of angles in radians."""
    return mul(input, 180 / math.pi, out=out)


def float_power(input: Operand, exponent: Operand) -> Tensor:
    """Return input raised to `exponent`, computed in float64."""
    first, second = (
        to_dtype(value, dtypes.float64) if isinstance(value, Tensor) else value
        for value in (as_operand("float_power", input), as_operand("float_power", exponent))
    )
    if not isinstance(first, Tensor) and not isinstance(second, Tensor):
        first = Tensor.wrap(np.asarray(first, np.float64))
    return pow(first, second)


def ldexp(input: Tensor, other: Operand, *, out: Tensor | None = None) -> Tensor:
    """Return input times 2 to the power `other`."""
    power = exp2(to_dtype(other, input.dtype)) if isinstance(other, Tensor) else 2.0**other
    return mul(input, power, out=out)


def _whole(name: str, function: Any, input: Tensor, other: Tensor | Number) -> Tensor:
    operands = [as_operand(name, o) for o in (input, other)]
    arrays = [o.array if isinstance(o, Tensor) else o for o in operands]
    if any(np.asarray(a).dtype.kind not in "iu" for a in arrays):
        raise DtypeError(f"{name}: got {' and '.join(str(np.asarray(a).dtype) for a in arrays)}; wanted integers")
    return by_numpy(name, function, *arrays)


def gcd(input: Tensor, other: Tensor | Number) -> Tensor:
    """Return the greatest common divisors of integers. Raises DtypeError for others."""
    return _whole("gcd", np.gcd, input, other)


def lcm(input: Tensor, other: Tensor | Number) -> Tensor:
    """Return the least common multiples of integers. Raises DtypeError for others."""
    return _whole("lcm", np.lcm, input, other)


def nextafter(input: Tensor, other: Tensor) -> Tensor:
    """Return the number next to each element of `input` in the direction of `other`; it has no gradient."""
    return by_numpy("nextafter", np.nextafter, input.array, other.array)
