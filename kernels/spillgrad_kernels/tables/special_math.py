"""Gamma, error and inverse hyperbolic functions of one number, in float64; float32 is converted to float64 and back.

The functions branch and loop, so LLVM does not vectorise loops around them. They also run uncompiled: `scalar_math`
then applies them to each element of an array.

Source: Euler-Maclaurin's formula for the Hurwitz zeta function (Johansson 2014, "Rigorous high-precision computation of
the Hurwitz zeta function", equation 5); Giles 2012, "Approximating the erfinv function", refined by Halley's method.
"""

import math
from typing import Any

from spillgrad_kernels.jit.compile import register_jitable
from spillgrad_kernels.tables.vector_code import of_two_through_float64, through_float64

OPTIONS: dict[str, Any] = {"error_model": "numpy", "nogil": True}
_jitable = register_jitable(**OPTIONS)


@_jitable
def lgamma(x: Any) -> Any:
    """Return log|Gamma(x)|; infinite at 0, -1, -2, …."""
    if x > 2.5e305 or (x <= 0 and (x == -math.inf or x == math.floor(x))):
        return math.inf
    return math.lgamma(x)


@_jitable
def _positive_digamma(x: Any) -> Any:
    total = 0.0
    while x < 10:
        total -= 1 / x
        x += 1
    r = 1 / (x * x)
    series = r * (1 / 12 - r * (1 / 120 - r * (1 / 252 - r * (1 / 240 - r * (1 / 132 - r * (691 / 32760 - r / 12))))))
    return total + math.log(x) - 0.5 / x - series


@_jitable
def digamma(x: Any) -> Any:
    """Return the derivative of log Gamma(x): -inf at 0, NaN at -1, -2, …."""
    if x == 0:
        return -math.copysign(math.inf, x)
    if math.isinf(x) or math.isnan(x):
        return math.nan if x < 0 else x
    if x > 0:
        return _positive_digamma(x)
    fraction = x - math.floor(x)
    if fraction == 0:
        return math.nan
    return _positive_digamma(1 - x) - math.pi / math.tan(math.pi * fraction)


@_jitable
def _positive_zeta(s: Any, q: Any) -> Any:
    """Return the sum of (q + k)**-s over k = 0, 1, …, for s > 1 and q > 0."""
    if s * math.log(q) < -709:
        return math.inf
    total = 0.0
    while q < 10 + s:
        total += q**-s
        q += 1
    power = q**-s
    total += power * (q / (s - 1) + 0.5)
    factor = power * s / q
    for j, (number, below) in enumerate((
        (1.0, 12.0), (-1.0, 720.0), (1.0, 30240.0), (-1.0, 1209600.0), (1.0, 47900160.0),
        (-691.0, 1307674368000.0), (1.0, 74724249600.0), (-3617.0, 10670622842880000.0),
    )):  # fmt: skip
        total += factor * number / below
        factor *= (s + 2 * j + 1) * (s + 2 * j + 2) / (q * q)
    return total


@_jitable
def polygamma(n: Any, x: Any) -> Any:
    """Return the n-th derivative of digamma, n = 0, 1, …; infinite at 0, -1, -2, … for n > 0."""
    if n == 0:
        return digamma(x)
    if math.isnan(x) or x == -math.inf or n < 0 or n != math.floor(n):
        return math.nan
    s = n + 1
    sign = 1.0 if n % 2 == 1 else -1.0
    factorial = 1.0
    for k in range(2, int(s)):
        factorial *= k
    if x == math.inf:
        return sign * 0.0
    fraction = x - math.floor(x)
    if x > 0:
        total = _positive_zeta(s, x)
    elif fraction == 0:
        total = math.inf
    else:  # for x < 0, the terms below 0 are another zeta sum, up to sign
        total = _positive_zeta(s, fraction) + sign * (_positive_zeta(s, 1 - fraction) - _positive_zeta(s, 1 - x))
    return sign * factorial * total


@_jitable
def erfinv(x: Any) -> Any:
    """Return y with erf(y) = x: infinite at -1 and 1, NaN beyond."""
    size = abs(x)
    if not size < 1:
        return math.copysign(math.inf, x) if size == 1 else math.nan
    w = -math.log((1 - size) * (1 + size))
    if w < 5:
        w -= 2.5
        y = 2.81022636e-08
        y = 3.43273939e-07 + y * w
        y = -3.5233877e-06 + y * w
        y = -4.39150654e-06 + y * w
        y = 0.00021858087 + y * w
        y = -0.00125372503 + y * w
        y = -0.00417768164 + y * w
        y = 0.246640727 + y * w
        y = (1.50140941 + y * w) * size
    else:  # the first terms of the asymptotic series of erfc
        y = math.sqrt(w - 0.5 * math.log(math.pi * w / 2))
    for _ in range(3):
        # Where erf is near 1, only its complement has enough digits.
        excess = math.erf(y) - size if size < 0.5 else (1 - size) - math.erfc(y)
        step = excess * (math.sqrt(math.pi) / 2) * math.exp(y * y)
        y -= step / (1 + y * step)
    return math.copysign(y, x)


@_jitable
def asinh(x: Any) -> Any:
    """Return the inverse hyperbolic sine."""
    return math.asinh(x)


@_jitable
def acosh(x: Any) -> Any:
    """Return the inverse hyperbolic cosine: NaN below 1."""
    return math.nan if x < 1 else math.acosh(x)


@_jitable
def atanh(x: Any) -> Any:
    """Return the inverse hyperbolic tangent: infinite at -1 and 1, NaN beyond."""
    if not abs(x) < 1:
        return math.copysign(math.inf, x) if abs(x) == 1 else math.nan
    return math.atanh(x)


@_jitable
def erfc(x: Any) -> Any:
    """Return 1 - erf(x), accurate even where the result is near 0."""
    return math.erfc(x)


# For each name in `scalar_math`: the functions for float32 and for float64.
IMPLEMENTATIONS: dict[str, tuple[Any, Any]] = {
    **{f.__name__: (through_float64(f), f) for f in (lgamma, digamma, erfinv, erfc, asinh, acosh, atanh)},
    "polygamma": (of_two_through_float64(polygamma), polygamma),
}
