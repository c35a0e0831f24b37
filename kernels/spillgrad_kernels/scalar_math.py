"""Scalar functions for kernels: branch-free, so that LLVM vectorises the loops around them.

In plain Python each name is NumPy's function (it also takes arrays) and serves as the oracle; inside compiled code
float32 and float64 arguments get the polynomials below, because Numba from PyPI carries no vector math library and
calls libm one value at a time. Every value, ±0, ±inf, NaN and subnormals included, agrees with NumPy to 2 ulp
(`tests/kernels/test_scalar_math.py`).

Source: range reduction and coefficients after Moshier, Cephes (exp, log, tanh in float32; tanh in float64), Sun's
fdlibm (log in float64), and a minimax fit in powers of |x| (erf in float32).
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic, overload, register_jitable

from spillgrad_kernels.compile import CONTRACT

# Division by zero gives inf or NaN as in NumPy; Python's error model would put a branch into every loop.
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "fastmath": CONTRACT, "nogil": True}

_TWIN = {types.float32: types.int32, types.float64: types.int64, types.int32: types.float32, types.int64: types.float64}


@intrinsic
def _bits(typing_context: Any, x: Any) -> Any:
    """Reinterpret a float's bits as the integer of its size, or the other way round."""
    signature = _TWIN[x](x)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(signature.return_type))

    return signature, codegen


@intrinsic
def _select(typing_context: Any, condition: Any, chosen: Any, otherwise: Any) -> Any:
    """Choose without a branch, which LLVM might keep and then not vectorise around."""
    common = typing_context.unify_types(chosen, otherwise)
    signature = common(types.boolean, chosen, otherwise)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        condition, chosen, otherwise = arguments
        _, chosen_type, otherwise_type = signature.args
        return builder.select(
            condition,
            context.cast(builder, chosen, chosen_type, signature.return_type),
            context.cast(builder, otherwise, otherwise_type, signature.return_type),
        )

    return signature, codegen


_F32, _I32 = np.float32, np.int32
_F64, _I64 = np.float64, np.int64


def where(condition: Any, chosen: Any, otherwise: Any) -> Any:
    """Return `chosen` where `condition` holds, else `otherwise`; both are evaluated."""
    return np.where(condition, chosen, otherwise)


@overload(where, jit_options=_OPTIONS)
def _where(condition: Any, chosen: Any, otherwise: Any) -> Any:
    def select(condition: Any, chosen: Any, otherwise: Any) -> Any:
        return _select(condition, chosen, otherwise)

    return select


@register_jitable
def _exp32(x: Any) -> Any:
    clamped = min(max(x, _F32(-104.0)), _F32(89.0))
    n = np.floor(clamped * _F32(1.44269504088896341) + _F32(0.5))
    r = clamped - n * _F32(0.693359375) + n * _F32(2.12194440e-4)
    p = _F32(1.9875691500e-4)
    p = p * r + _F32(1.3981999507e-3)
    p = p * r + _F32(8.3334519073e-3)
    p = p * r + _F32(4.1665795894e-2)
    p = p * r + _F32(1.6666665459e-1)
    p = p * r + _F32(5.0000001201e-1)
    p = p * (r * r) + r + _F32(1.0)
    # 2**n in two factors: one alone would overflow or flush where the result is still finite or subnormal.
    exponent = _I32(n)
    half = _I32(exponent >> 1)
    first = _bits(_I32((half + _I32(127)) << 23))
    second = _bits(_I32((exponent - half + _I32(127)) << 23))
    return _select(x != x, x, p * first * second)


@register_jitable
def _exp64(x: Any) -> Any:
    clamped = min(max(x, -746.0), 710.0)
    n = np.floor(clamped * 1.44269504088896340736 + 0.5)
    r = clamped - n * 6.93147180369123816490e-01 - n * 1.90821492927058770002e-10
    p = 1.0 / 6227020800.0
    p = p * r + 1.0 / 479001600.0
    p = p * r + 1.0 / 39916800.0
    p = p * r + 1.0 / 3628800.0
    p = p * r + 1.0 / 362880.0
    p = p * r + 1.0 / 40320.0
    p = p * r + 1.0 / 5040.0
    p = p * r + 1.0 / 720.0
    p = p * r + 1.0 / 120.0
    p = p * r + 1.0 / 24.0
    p = p * r + 1.0 / 6.0
    p = p * r + 0.5
    p = p * (r * r) + r + 1.0
    exponent = _I64(n)
    half = exponent >> 1
    first = _bits(_I64((half + 1023) << 52))
    second = _bits(_I64((exponent - half + 1023) << 52))
    return _select(x != x, x, p * first * second)


@register_jitable
def _log32(x: Any) -> Any:
    subnormal = x < _F32(1.17549435e-38)
    scaled = _select(subnormal, x * _F32(8388608.0), x)
    bits = _bits(scaled)
    # The mantissa in [sqrt(1/2), sqrt(2)): subtract the bits of sqrt(1/2) so that the exponent rounds the right way.
    shifted = _I32(bits - _I32(0x3F3504F3))
    exponent = _I32(shifted >> 23)
    m = _bits(_I32((shifted & _I32(0x007FFFFF)) + _I32(0x3F3504F3))) - _F32(1.0)
    e = _F32(exponent) - _select(subnormal, _F32(23.0), _F32(0.0))
    z = m * m
    p = _F32(7.0376836292e-2)
    p = p * m - _F32(1.1514610310e-1)
    p = p * m + _F32(1.1676998740e-1)
    p = p * m - _F32(1.2420140846e-1)
    p = p * m + _F32(1.4249322787e-1)
    p = p * m - _F32(1.6668057665e-1)
    p = p * m + _F32(2.0000714765e-1)
    p = p * m - _F32(2.4999993993e-1)
    p = p * m + _F32(3.3333331174e-1)
    y = p * m * z - e * _F32(2.12194440e-4) - _F32(0.5) * z
    result = m + y + e * _F32(0.693359375)
    result = _select((x == _F32(np.inf)) | (x != x), x, result)
    result = _select(x == _F32(0.0), _F32(-np.inf), result)
    return _select(x < _F32(0.0), _F32(np.nan), result)


@register_jitable
def _log64(x: Any) -> Any:
    subnormal = x < 2.2250738585072014e-308
    scaled = _select(subnormal, x * 18014398509481984.0, x)
    bits = _bits(scaled)
    shifted = bits - _I64(0x3FE6A09E667F3BCD)
    exponent = shifted >> 52
    m = _bits(_I64((shifted & _I64(0x000FFFFFFFFFFFFF)) + _I64(0x3FE6A09E667F3BCD)))
    f = m - 1.0
    e = _F64(exponent) - _select(subnormal, 54.0, 0.0)
    s = f / (2.0 + f)
    z = s * s
    p = 1.479819860511658591e-01
    p = p * z + 1.531383769920937332e-01
    p = p * z + 1.818357216161805012e-01
    p = p * z + 2.222219843214978396e-01
    p = p * z + 2.857142874366239149e-01
    p = p * z + 3.999999999940941908e-01
    p = p * z + 6.666666666666735130e-01
    half = 0.5 * f * f
    result = e * 6.93147180369123816490e-01 - ((half - (s * (half + p * z) + e * 1.90821492927058770002e-10)) - f)
    result = _select((x == np.inf) | (x != x), x, result)
    result = _select(x == 0.0, -np.inf, result)
    return _select(x < 0.0, np.nan, result)


@register_jitable
def _tanh32(x: Any) -> Any:
    z = x * x
    p = _F32(-5.70498872745e-3)
    p = p * z + _F32(2.06390887954e-2)
    p = p * z - _F32(5.37397155531e-2)
    p = p * z + _F32(1.33314422036e-1)
    p = p * z - _F32(3.33332819422e-1)
    near = x * (p * z + _F32(1.0))  # a product, which keeps the sign of -0
    size = abs(x)
    far = _F32(1.0) - _F32(2.0) / (_exp32(size + size) + _F32(1.0))
    return _select(size < _F32(0.625), near, _select(x < _F32(0.0), -far, far))


@register_jitable
def _tanh64(x: Any) -> Any:
    z = x * x
    p = (-9.64399179425052238628e-1 * z - 9.92877231001918586564e1) * z - 1.61468768441708447952e3
    q = ((z + 1.12811678491632931402e2) * z + 2.23548839060100448583e3) * z + 4.84406305325125486048e3
    near = x * (z * (p / q) + 1.0)
    size = abs(x)
    far = 1.0 - 2.0 / (_exp64(size + size) + 1.0)
    return _select(size < 0.625, near, _select(x < 0.0, -far, far))


@register_jitable
def _erf32(x: Any) -> Any:
    size = abs(x)
    z = x * x
    p = (_F32(-1.72853470e-5) * size + _F32(3.83197126e-4)) * z + (_F32(-3.88396438e-3) * size + _F32(2.42546219e-2))
    p = p * size - _F32(1.06777877e-1)
    p = p * size - _F32(6.34846687e-1)
    p = p * size - _F32(1.28717512e-1)
    # Beyond 4 the result is 1 to the last bit, and the polynomial is no longer a fit.
    far = _select(size > _F32(4.0), _F32(1.0), _F32(1.0) - _exp32(p * size - size))
    q = _F32(-5.96761703e-4)
    q = q * z + _F32(4.99119423e-3)
    q = q * z - _F32(2.67681349e-2)
    q = q * z + _F32(1.12819925e-1)
    q = q * z - _F32(3.76125336e-1)
    q = q * z + _F32(1.28379166e-1)
    near = q * x + x
    result = _select(size <= _F32(0.927734375), near, _select(x < _F32(0.0), -far, far))
    return _select(x != x, x, result)


def _for_dtype(float_type: Any, exp_: Any, log_: Any) -> tuple[Any, Any, Any]:
    """Return sigmoid, log1p and expm1 built on one dtype's exp and log.

    Its own 1 too: Numba widens float32 + int to float64.
    """
    one = float_type(1)
    infinity = float_type(np.inf)

    @register_jitable
    def sigmoid_(x: Any) -> Any:
        e = exp_(-abs(x))  # never overflows
        return _select(x >= 0, one, e) / (one + e)

    @register_jitable
    def log1p_(x: Any) -> Any:
        u = one + x  # what rounding lost of x in u comes back as the factor x / (u - 1) (Kahan; HP-15C handbook, 1982)
        return _select(u == one, x, _select(x == infinity, x, log_(u) * (x / (u - one))))

    @register_jitable
    def expm1_(x: Any) -> Any:
        u = exp_(x)
        exact = (u - one) * (x / log_(u))
        return _select(u == one, x, _select((u == infinity) | (u - one == -one), u - one, exact))

    return sigmoid_, log1p_, expm1_


_sigmoid32, _log1p32, _expm1_32 = _for_dtype(_F32, _exp32, _log32)
_sigmoid64, _log1p64, _expm1_64 = _for_dtype(_F64, _exp64, _log64)


def exp(x: Any) -> Any:
    """Return e raised to x."""
    return np.exp(x)


def log(x: Any) -> Any:
    """Return the natural logarithm."""
    return np.log(x)


def tanh(x: Any) -> Any:
    """Return the hyperbolic tangent."""
    return np.tanh(x)


def sigmoid(x: Any) -> Any:
    """Return 1 / (1 + exp(-x)) without overflow."""
    e = np.exp(-np.abs(x))
    return np.where(np.asarray(x) >= 0, 1, e) / (1 + e)


def erf(x: Any) -> Any:
    """Return the error function, 2/sqrt(pi) times the integral of exp(-t²) from 0 to x."""
    return np.vectorize(math.erf, otypes=[np.result_type(x, np.float32)])(x)[()]


def sqrt(x: Any) -> Any:
    """Return the square root."""
    return np.sqrt(x)


def sin(x: Any) -> Any:
    """Return the sine of x in radians."""
    return np.sin(x)


def cos(x: Any) -> Any:
    """Return the cosine of x in radians."""
    return np.cos(x)


def tan(x: Any) -> Any:
    """Return the tangent of x in radians."""
    return np.tan(x)


def asin(x: Any) -> Any:
    """Return the inverse sine, in radians."""
    return np.arcsin(x)


def acos(x: Any) -> Any:
    """Return the inverse cosine, in radians."""
    return np.arccos(x)


def atan(x: Any) -> Any:
    """Return the inverse tangent, in radians."""
    return np.arctan(x)


def atan2(y: Any, x: Any) -> Any:
    """Return the angle of the point (x, y), in radians."""
    return np.arctan2(y, x)


def sinh(x: Any) -> Any:
    """Return the hyperbolic sine."""
    return np.sinh(x)


def cosh(x: Any) -> Any:
    """Return the hyperbolic cosine."""
    return np.cosh(x)


def expm1(x: Any) -> Any:
    """Return exp(x) - 1, accurate near 0."""
    return np.expm1(x)


def log1p(x: Any) -> Any:
    """Return log(1 + x), accurate near 0."""
    return np.log1p(x)


def log2(x: Any) -> Any:
    """Return the base-2 logarithm."""
    return np.log2(x)


def log10(x: Any) -> Any:
    """Return the base-10 logarithm."""
    return np.log10(x)


def pow(x: Any, exponent: Any) -> Any:
    """Return x raised to the power `exponent`."""
    return np.power(x, exponent)


def floor(x: Any) -> Any:
    """Return the largest integer not above x."""
    return np.floor(x)


def ceil(x: Any) -> Any:
    """Return the smallest integer not below x."""
    return np.ceil(x)


def round(x: Any) -> Any:
    """Return the nearest integer; halves go to the even one."""
    return np.round(x)


def trunc(x: Any) -> Any:
    """Return x without its fraction."""
    return np.trunc(x)


def remainder(x: Any, divisor: Any) -> Any:
    """Return x modulo `divisor`, with the divisor's sign."""
    return np.remainder(x, divisor)


def floor_divide(x: Any, divisor: Any) -> Any:
    """Return the largest integer not above the exact quotient x / divisor."""
    return np.floor_divide(x, divisor)


def _compiled_as(function: Callable[..., Any], by_type: dict[Any, Callable[..., Any]], otherwise: Any) -> None:
    """Inside kernels, `function` of one argument means `by_type[dtype]`, or NumPy's `otherwise` for other dtypes."""

    @overload(function, jit_options=_OPTIONS)
    def _implementation(x: Any) -> Any:
        chosen = by_type.get(x, otherwise)

        def call(x: Any) -> Any:
            return chosen(x)

        return call


_compiled_as(exp, {types.float32: _exp32, types.float64: _exp64}, np.exp)
_compiled_as(log, {types.float32: _log32, types.float64: _log64}, np.log)
_compiled_as(tanh, {types.float32: _tanh32, types.float64: _tanh64}, np.tanh)
_compiled_as(sigmoid, {types.float32: _sigmoid32, types.float64: _sigmoid64}, None)
_compiled_as(log1p, {types.float32: _log1p32, types.float64: _log1p64}, np.log1p)
_compiled_as(expm1, {types.float32: _expm1_32, types.float64: _expm1_64}, np.expm1)
_compiled_as(erf, {types.float32: _erf32}, math.erf)
for _function, _numpy in (
    (sqrt, np.sqrt), (sin, np.sin), (cos, np.cos), (tan, np.tan), (asin, np.arcsin),
    (acos, np.arccos), (atan, np.arctan),
    (sinh, np.sinh), (cosh, np.cosh), (log2, np.log2), (log10, np.log10),
    (floor, np.floor), (ceil, np.ceil), (round, np.rint), (trunc, np.trunc),
):  # fmt: skip
    _compiled_as(_function, {}, _numpy)


@overload(pow, jit_options=_OPTIONS)
def _pow(x: Any, exponent: Any) -> Any:
    def call(x: Any, exponent: Any) -> Any:
        return x**exponent

    return call


@overload(atan2, jit_options=_OPTIONS)
def _atan2(y: Any, x: Any) -> Any:
    def call(y: Any, x: Any) -> Any:
        return np.arctan2(y, x)

    return call


@overload(remainder, jit_options=_OPTIONS)
def _remainder(x: Any, divisor: Any) -> Any:
    def call(x: Any, divisor: Any) -> Any:
        return x % divisor

    return call


@overload(floor_divide, jit_options=_OPTIONS)
def _floor_divide(x: Any, divisor: Any) -> Any:
    def call(x: Any, divisor: Any) -> Any:
        return x // divisor

    return call
