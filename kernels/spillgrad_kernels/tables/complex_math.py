"""Functions of complex numbers for kernels: C99's values at infinities, zeros and on branch cuts, as in NumPy.

They compute in complex128; complex64 is converted to complex128 and back, so that nothing overflows or cancels in
between. They branch, except `quotient` and `magnitude`, which LLVM vectorises.

Source: ISO C99, annex G; CPython's cmathmodule.c for the inverse functions, which Numba's `cmath` follows.
"""

import cmath
import math
from typing import Any

import numpy as np

from spillgrad_kernels.jit.compile import register_jitable
from spillgrad_kernels.tables.vector_code import select

# Not contracted: z * conj(z) has no imaginary part only if both products are rounded alike.
OPTIONS: dict[str, Any] = {"error_model": "numpy", "nogil": True, "forceinline": True}
# Large functions are called: inlined, some would compile for a second in every loop.
_FUNCTION: dict[str, Any] = {"error_model": "numpy", "nogil": True}
_inlined = register_jitable(**OPTIONS)
_jitable = register_jitable(**_FUNCTION)

_LARGE = 700.0  # e to this power is finite in float64, and so is twice that
_LOG_2, _LOG_10 = math.log(2), math.log(10)


@_inlined
def quotient(x: Any, y: Any) -> Any:
    """Return x / y without needless overflow; x / 0 is infinite, as in NumPy. Source: Smith 1962."""
    a, b, c, d = x.real, x.imag, y.real, y.imag
    flat = abs(c) >= abs(d)
    larger, smaller = select(flat, c, d), select(flat, d, c)
    ratio = smaller / larger
    scale = 1.0 / (larger + smaller * ratio)
    real = select(flat, a + b * ratio, a * ratio + b) * scale
    imag = select(flat, b - a * ratio, b * ratio - a) * scale
    is_zero = (c == 0) & (d == 0)
    return complex(select(is_zero, a / abs(c), real), select(is_zero, b / abs(c), imag))


@_inlined
def magnitude(x: Any) -> Any:
    """Return |x| without overflow; that of an infinity is infinite, even if the other part is NaN."""
    a, b = abs(x.real), abs(x.imag)
    larger, smaller = select(a > b, a, b), select(a > b, b, a)
    ratio = smaller / select((larger == 0) | (larger == math.inf), 1.0, larger)
    return select((a == math.inf) | (b == math.inf), math.inf, larger * math.sqrt(1.0 + ratio * ratio))


@_inlined
def conj(x: Any) -> Any:
    """Return the complex conjugate."""
    return complex(x.real, -x.imag)


@_jitable
def _cis(size: Any, angle: Any) -> Any:
    """Return size (cos + i sin)(angle); the imaginary part of an angle of 0 is 0, even if `size` is infinite."""
    if angle == 0:
        return complex(size, angle)
    return complex(size * math.cos(angle), size * math.sin(angle))


@_jitable
def exp(x: Any) -> Any:
    """Return e to the power x."""
    a, b = x.real, x.imag
    if math.isinf(a) and not math.isfinite(b):
        return complex(0.0, 0.0) if a < 0 else complex(a, math.nan)
    if _LARGE < a < math.inf:  # the exponential may overflow, and the product not
        half = _cis(math.exp(a - _LARGE), b)
        return complex(half.real * math.exp(_LARGE), half.imag * math.exp(_LARGE))
    return _cis(math.exp(a), b)


@_jitable
def expm1(x: Any) -> Any:
    """Return exp(x) - 1, accurate near 0."""
    a, b = x.real, x.imag
    if b == 0:
        return complex(math.expm1(a), b)
    if abs(a) > 1 or not math.isfinite(b):
        power = exp(x)
        return complex(power.real - 1, power.imag)
    half = math.sin(b / 2)
    return complex(math.expm1(a) * math.cos(b) - 2 * half * half, math.exp(a) * math.sin(b))


@_jitable
def _log_magnitude(a: Any, b: Any) -> Any:
    a, b = abs(a), abs(b)
    if a < b:
        a, b = b, a
    if 0.7 < a < 1.5 and b < 1.5:  # near the unit circle the logarithm cancels
        return math.log1p((a - 1) * (a + 1) + b * b) / 2
    if 1e300 < a < math.inf:
        return math.log(math.hypot(a / 2, b / 2)) + _LOG_2
    return math.log(math.hypot(a, b))


@_jitable
def log(x: Any) -> Any:
    """Return the natural logarithm; the imaginary part is from -pi to pi."""
    return complex(_log_magnitude(x.real, x.imag), math.atan2(x.imag, x.real))


@_jitable
def log2(x: Any) -> Any:
    """Return the base-2 logarithm."""
    found = log(x)
    return complex(found.real / _LOG_2, found.imag / _LOG_2)


@_jitable
def log10(x: Any) -> Any:
    """Return the base-10 logarithm."""
    found = log(x)
    return complex(found.real / _LOG_10, found.imag / _LOG_10)


@_jitable
def log1p(x: Any) -> Any:
    """Return log(1 + x), accurate near 0."""
    a, b = x.real, x.imag
    if abs(a) < 0.5 and abs(b) < 1:
        return complex(math.log1p(a * (2 + a) + b * b) / 2, math.atan2(b, 1 + a))
    return log(complex(1 + a, b))


@_jitable
def sqrt(x: Any) -> Any:
    """Return the square root in the right half-plane."""
    return cmath.sqrt(x)


@_jitable
def sinh(x: Any) -> Any:
    """Return the hyperbolic sine."""
    a, b = x.real, x.imag
    if b == 0:
        return complex(math.sinh(a), b)
    if a == 0:
        return complex(a * math.cos(b) if math.isfinite(b) else a, math.sin(b))
    if not math.isfinite(b):
        return complex(a if math.isinf(a) else math.nan, math.nan)
    if abs(a) > _LARGE:
        half = exp(complex(abs(a), b))
        return complex(math.copysign(0.5, a) * half.real, 0.5 * half.imag)
    return complex(math.sinh(a) * math.cos(b), math.cosh(a) * math.sin(b))


@_jitable
def cosh(x: Any) -> Any:
    """Return the hyperbolic cosine."""
    a, b = x.real, x.imag
    if b == 0:
        return complex(math.cosh(a), b * math.copysign(1.0, a))
    if a == 0:
        return complex(math.cos(b), a * math.copysign(1.0, b) if not math.isfinite(b) else a * math.sin(b))
    if not math.isfinite(b):
        return complex(math.inf if math.isinf(a) else math.nan, math.nan)
    if abs(a) > _LARGE:
        half = exp(complex(abs(a), b))
        return complex(0.5 * half.real, math.copysign(0.5, a) * half.imag)
    return complex(math.cosh(a) * math.cos(b), math.sinh(a) * math.sin(b))


@_jitable
def tanh(x: Any) -> Any:
    """Return the hyperbolic tangent."""
    a, b = x.real, x.imag
    if b == 0:
        return complex(math.tanh(a), b)
    if a == 0:
        return complex(a, math.tan(b))
    if math.isinf(a):
        return complex(math.copysign(1.0, a), math.copysign(0.0, math.sin(2 * b) if math.isfinite(b) else b))
    return cmath.tanh(x)


@_jitable
def sin(x: Any) -> Any:
    """Return the sine, -i sinh(i x)."""
    found = sinh(complex(-x.imag, x.real))
    return complex(found.imag, -found.real)


@_jitable
def cos(x: Any) -> Any:
    """Return the cosine, cosh(i x)."""
    return cosh(complex(-x.imag, x.real))


@_jitable
def tan(x: Any) -> Any:
    """Return the tangent, -i tanh(i x)."""
    found = tanh(complex(-x.imag, x.real))
    return complex(found.imag, -found.real)


@_jitable
def asinh(x: Any) -> Any:
    """Return the inverse hyperbolic sine."""
    if math.isnan(x.real) and x.imag == 0:
        return x
    return cmath.asinh(x)


@_jitable
def acosh(x: Any) -> Any:
    """Return the inverse hyperbolic cosine in the right half-plane."""
    if x.real == 0 and math.isnan(x.imag):
        return complex(math.nan, math.pi / 2)
    return cmath.acosh(x)


@_jitable
def atanh(x: Any) -> Any:
    """Return the inverse hyperbolic tangent."""
    if x.real == 0 and math.isnan(x.imag):
        return x
    if math.isnan(x.real) and not math.isinf(x.imag):
        return complex(math.nan, math.nan)
    return cmath.atanh(x)


@_jitable
def asin(x: Any) -> Any:
    """Return the inverse sine, -i asinh(i x)."""
    found = asinh(complex(-x.imag, x.real))
    return complex(found.imag, -found.real)


@_jitable
def acos(x: Any) -> Any:
    """Return the inverse cosine; the real part is from 0 to pi."""
    if x.real == 0 and math.isnan(x.imag):
        return complex(math.pi / 2, math.nan)
    return cmath.acos(x)


@_jitable
def atan(x: Any) -> Any:
    """Return the inverse tangent, -i atanh(i x)."""
    found = atanh(complex(-x.imag, x.real))
    return complex(found.imag, -found.real)


@_jitable
def sigmoid(x: Any) -> Any:
    """Return 1 / (1 + exp(-x)) without needless overflow."""
    if x.real >= 0:
        return quotient(complex(1.0, 0.0), 1.0 + exp(-x))
    power = exp(x)
    return quotient(power, 1.0 + power)


@_jitable
def logaddexp(x: Any, y: Any) -> Any:
    """Return log(exp(x) + exp(y)) without needless overflow; the imaginary part may lie beyond pi, as in PyTorch."""
    if x.real != x.real or x.imag != x.imag or y.real != y.real or y.imag != y.imag:
        return complex(math.nan, math.nan)
    smaller, larger = (x, y) if x.real < y.real else (y, x)
    if smaller.real == larger.real and math.isinf(larger.real):
        return smaller if larger.real < 0 else log(exp(smaller) + exp(larger))
    return larger + log1p(exp(smaller - larger))


@_jitable
def pow(x: Any, y: Any) -> Any:
    """Return x to the power y: by products for a small whole y, otherwise exp(y log(x)). Source: NumPy's npy_cpow."""
    c, d = y.real, y.imag
    if c == 0 and d == 0:
        return complex(1.0, 0.0)
    if x.real == 0 and x.imag == 0:
        return complex(0.0, 0.0) if c > 0 else complex(math.nan, math.nan)
    if d == 0 and abs(c) < 100 and c == math.floor(c):
        count, factor, power = int(abs(c)), x, complex(1.0, 0.0)
        while True:
            if count & 1:
                power = power * factor if power != 1 else factor
            count >>= 1
            if count == 0:
                break
            factor = factor * factor
        return quotient(complex(1.0, 0.0), power) if c < 0 else power
    return exp(y * log(x))


def _of_one(function: Any) -> tuple[Any, Any]:
    """Return `function` for complex64 and for complex128."""

    @_inlined
    def narrow(x: Any) -> Any:
        return np.complex64(function(np.complex128(x)))

    return narrow, function


def _of_two(function: Any) -> tuple[Any, Any]:
    """Return `function` of complex64 and of complex128 numbers, of which one may be real."""

    @_inlined
    def narrow(x: Any, y: Any) -> Any:
        return np.complex64(function(np.complex128(x), np.complex128(y)))

    @_inlined
    def wide(x: Any, y: Any) -> Any:
        return function(np.complex128(x), np.complex128(y))

    return narrow, wide


@_inlined
def _magnitude64(x: Any) -> Any:
    a, b = np.float64(x.real), np.float64(x.imag)
    size = math.sqrt(a * a + b * b)
    return np.float32(select((abs(a) == math.inf) | (abs(b) == math.inf), math.inf, size))


@_inlined
def _conj64(x: Any) -> Any:
    return np.complex64(complex(x.real, -x.imag))


# For each name in `scalar_math`: the functions for complex64 and for complex128.
IMPLEMENTATIONS: dict[str, tuple[Any, Any]] = {
    **{
        function.__name__: _of_one(function)
        for function in (
            exp, expm1, log, log2, log10, log1p, sqrt, sinh, cosh, tanh, sin, cos, tan, asinh, acosh, atanh, asin, acos,
            atan, sigmoid,
        )
    },
    "logaddexp": _of_two(logaddexp), "pow": _of_two(pow), "quotient": _of_two(quotient),
    "magnitude": (_magnitude64, magnitude), "conj": (_conj64, conj),
}  # fmt: skip
