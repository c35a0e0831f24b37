"""Vectorised logarithms to base 2 and 10, and powers: polynomials without branches, as in `vector_math`."""

import math
from typing import Any

import numpy as np

from spillgrad_kernels.tables.vector_code import (
    F32,
    F64,
    I32,
    I64,
    ROUND32,
    ROUND64,
    bits,
    fma,
    is_negative64,
    jitable,
    polynomial,
    select,
    through_float64,
    two_difference,
)
from spillgrad_kernels.tables.vector_math import clamp, exp_parts64, log64, scale64, split64

# Logarithms with twice the digits, and the functions that use them.

_atanh_tail64 = polynomial(*(2 / k for k in range(27, 4, -2)))


@jitable
def _two_product(a: Any, b: Any) -> Any:
    high = fma(a, b, -0.0)
    return high, fma(a, b, -high)


@jitable
def _fast_two_sum(a: Any, b: Any) -> Any:
    """Return the rounded sum a + b and its rounding error, for |a| >= |b|.

    Source: Dekker, "A floating-point technique for extending the available precision", 1971.
    """
    high = a + b
    return high, b - (high - a)


@jitable
def _log_twice64(x: Any) -> Any:
    """Return the logarithm of x > 0 as a sum of two numbers, exact to 2**-64; -inf for 0, x for inf and NaN."""
    subnormal = x < 2.2250738585072014e-308
    e, m = split64(select(subnormal, x * 18014398509481984.0, x))
    n = F64(e) - select(subnormal, 54.0, 0.0)
    m = m - 1.0
    # s = m / (2 + m), then log(1 + m) = 2 atanh(s) = 2 s + 2/3 s**3 + 2/5 s**5 + ...
    divisor, divisor_low = _fast_two_sum(2.0, m)
    s = m / divisor
    s_low = (fma(-s, divisor, m) - s * divisor_low) / divisor
    z, z_low = _two_product(s, s)
    z_low = z_low + (s + s) * s_low
    c, c_low = _fast_two_sum(0.6666666666666666, z * _atanh_tail64(z))
    c_low = c_low + 3.700743415417188e-17
    cube, cube_low = _two_product(s, z)
    cube_low = cube_low + (s * z_low + s_low * z)
    t, t_low = _two_product(cube, c)
    t_low = t_low + (cube * c_low + cube_low * c)
    a, a_low = _fast_two_sum(s + s, t)
    a_low = a_low + (t_low + (s_low + s_low))
    b, b_low = two_difference(n * 6.93147180369123816490e-01, -a)
    high, low = _fast_two_sum(b, b_low + (a_low + n * 1.90821492927058770002e-10))
    special = (x == 0.0) | (x == np.inf) | (x != x)
    return select(special, select(x == 0.0, -np.inf, x), high), select(special, 0.0, low)


def _log_to_base64(inverse: float, inverse_low: float) -> Any:
    @jitable
    def log_(x: Any) -> Any:
        high, low = _log_twice64(x)
        product, product_low = _two_product(high, inverse)
        result = product + (product_low + (low * inverse + high * inverse_low))
        # An infinite logarithm has no low part. Numbers below 0 have no logarithm.
        return select(x < 0.0, np.nan, select(abs(high) == np.inf, high, result))

    return log_


_log2_64 = _log_to_base64(1.4426950408889634, 2.0355273740931033e-17)
_log10_64 = _log_to_base64(0.4342944819032518, 1.098319650216765e-17)


@jitable
def _power_signs(x: Any, exponent: Any, power: Any) -> Any:
    """Return x**exponent, given `power` = |x|**exponent. Source: IEEE 754-2019, 9.2.1."""
    whole = np.floor(exponent) == exponent
    half = exponent * 0.5
    odd = whole & (np.floor(half) != half)
    result = select(is_negative64(x) & odd, -power, power)
    result = select((x < 0.0) & (x != -np.inf) & (not whole), np.nan, result)
    one = (exponent == 0.0) | (x == 1.0) | ((x == -1.0) & (abs(exponent) == np.inf))
    return select(one, 1.0, result)


@jitable
def _pow64(x: Any, exponent: Any) -> Any:
    high, low = _log_twice64(abs(x))
    product, product_low = _two_product(high, exponent)
    product_low = product_low + low * exponent
    clamped = clamp(product, -746.0, 710.0)
    n, p = exp_parts64(clamped, select(clamped == product, product_low, 0.0))
    return _power_signs(x, exponent, scale64(p + 1.0, n))


# log2(1 + m) / m for 1 + m in [sqrt(1/2), sqrt(2)), to 2**-35; (2**r - 1) / r for r in [-1/2, 1/2], to 2**-28.
_log2_tail_for_pow32 = polynomial(
    0.0773156735986556, -0.14279921692438646, 0.14475548322110565, -0.14316625777785158, 0.15876998897992586,
    -0.18029971322120372, 0.2061753056841607, -0.24045320138673695, 0.2885372945631481, -0.3606736742060341,
    0.48089836145612685, -0.7213475208729462, 1.4426950408679016,
)  # fmt: skip
_exp2_tail_for_pow32 = polynomial(
    0.00015355063374901683, 0.001339881759275904, 0.009618432914143854, 0.055503326523239596, 0.24022647914711928,
    0.6931472026802478,
)  # fmt: skip


@jitable
def _pow32(x: Any, exponent: Any) -> Any:
    """Return x**exponent, computed in float64, in which no float32 is subnormal and no clamped power overflows."""
    base, power = F64(x), F64(exponent)
    size = abs(base)
    e, m = split64(size)
    m = m - 1.0
    logarithm = select(size < np.inf, F64(e) + m * _log2_tail_for_pow32(m), size)
    product = clamp(select(size == 0.0, -np.inf, logarithm) * power, -500.0, 500.0)
    shifted = product + ROUND64
    r = product - (shifted - ROUND64)
    scale = bits(I64((bits(shifted) - I64(0x4338000000000000) + 1023) << 52))
    return F32(_power_signs(base, power, (r * _exp2_tail_for_pow32(r) + 1.0) * scale))


def _plain_log_to_base64(inverse: float) -> Any:
    @jitable
    def log_(x: Any) -> Any:
        return log64(x) * inverse

    return log_


_log2_32 = through_float64(_plain_log_to_base64(1 / math.log(2)))
_log10_32 = through_float64(_plain_log_to_base64(1 / math.log(10)))


# 2**(n + r) for whole n and r in [-1/2, 1/2]: 2**r, interpolated at Chebyshev's points.
_exp2_32 = polynomial(
    0.00015453162945, 0.00133908633655, 0.00961808255728, 0.05550357114219, 0.24022650760568, 0.69314718802623, 1.0
)  # fmt: skip
_exp2_64 = polynomial(
    4.454945547842242e-10, 7.07258646795143e-09, 1.017806253298163e-07, 1.3215442585889058e-06, 1.5252733829686257e-05,
    0.00015403530441737684, 0.0013333558146417, 0.00961812910760689, 0.0555041086648216, 0.24022650695910097,
    0.6931471805599453, 1.0,
)  # fmt: skip


@jitable
def _normal_exp2_32(x: Any) -> Any:
    clamped = select(x < F32(-127.0), F32(-127.0), x)
    shifted = clamped + (ROUND32 + F32(127.0))  # its low bits hold n + 127, the exponent of 2**n
    return _exp2_32(clamped - (shifted - (ROUND32 + F32(127.0)))) * bits(I32(bits(shifted) << 23))


@jitable
def _normal_exp2_64(x: Any) -> Any:
    clamped = select(x < -1023.0, -1023.0, x)
    shifted = clamped + (ROUND64 + 1023.0)
    return _exp2_64(clamped - (shifted - (ROUND64 + 1023.0))) * bits(I64(bits(shifted) << 52))


# For each name in `scalar_math`: the functions for float32 and for float64.
IMPLEMENTATIONS: dict[str, tuple[Any, Any]] = {
    "log2": (_log2_32, _log2_64), "log10": (_log10_32, _log10_64), "pow": (_pow32, _pow64),
    "normal_exp2": (_normal_exp2_32, _normal_exp2_64),
}  # fmt: skip
