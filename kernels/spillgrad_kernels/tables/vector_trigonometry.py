"""Vectorised trigonometric functions: polynomials in float32 and float64, without branches."""

import math
from typing import Any

import numpy as np

from spillgrad_kernels.tables.vector_code import (
    F32,
    I32,
    ROUND32,
    ROUND64,
    beyond,
    bits,
    fma,
    is_negative64,
    jitable,
    of_two_through_float64,
    polynomial,
    select,
    through_float64,
    two_difference,
)

# sin, cos and tan: x = q pi/2 + r. Source: Cody and Waite, "Software Manual for the Elementary Functions", 1980.

_sin_tail32 = polynomial(-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
_cos_tail32 = polynomial(2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
_sin_tail64 = polynomial(
    1.58969099521155010221e-10, -2.50507602534068634195e-08, 2.75573137070700676789e-06, -1.98412698298579493134e-04,
    8.33333333332248946124e-03,
)  # fmt: skip
_cos_tail64 = polynomial(
    -1.13596475577881948265e-11, 2.08757232129817482790e-09, -2.75573143513906633035e-07, 2.48015872894767294178e-05,
    -1.38888888888741095749e-03, 4.16666666666666019037e-02,
)  # fmt: skip
# Beyond these limits, arguments near a multiple of pi/2 would need more digits of pi than the constants below have.
_TRIGONOMETRIC_LIMIT32, _TRIGONOMETRIC_LIMIT64 = 2.0**18, 2.0**20
_sin_beyond32, _cos_beyond32 = (beyond(_TRIGONOMETRIC_LIMIT32, name) for name in ("sin", "cos"))
_sin_beyond64, _cos_beyond64, _tan_beyond64 = (beyond(_TRIGONOMETRIC_LIMIT64, name) for name in ("sin", "cos", "tan"))


@jitable
def _sin_and_cos32(x: Any) -> Any:
    """Return q, sin(r) and cos(r) for x = q pi/2 + r."""
    shifted = x * F32(0.636619772367581343) + ROUND32
    n = shifted - ROUND32
    # The three numbers add up to pi/2.
    r = fma(-n, F32(1.570796251296997), x)
    r = fma(-n, F32(7.549789415861596e-08), r)
    r = fma(-n, F32(5.390302529957765e-15), r)
    z = r * r
    sine = r + r * (z * _sin_tail32(z))
    cosine = F32(1.0) - (F32(0.5) * z - z * z * _cos_tail32(z))
    return bits(shifted), sine, cosine


@jitable
def _sin_and_cos64(x: Any) -> Any:
    """Return q, sin(r) and cos(r) for x = q pi/2 + r; r has twice the digits of a float64."""
    shifted = x * 0.636619772367581343 + ROUND64
    n = shifted - ROUND64
    # The four numbers add up to pi/2. The products of n with the first and with the second are exact.
    r, low = two_difference(fma(-n, 1.5707963267341256, x), fma(n, 6.077100506303966e-11, -0.0))
    product = fma(n, 2.0222662487959506e-21, -0.0)
    product_low = fma(n, 2.0222662487959506e-21, -product)
    r, lower = two_difference(r, product)
    low = low + (lower - product_low - n * 1.0085854035872481e-37)
    h = r + low
    low = low - (h - r)
    z = h * h
    v = z * h
    sine = h - ((z * (0.5 * low - v * _sin_tail64(z)) - low) - v * -1.66666666666666324348e-01)
    half = 0.5 * z
    w = 1.0 - half
    cosine = w + (((1.0 - w) - half) + (z * (z * _cos_tail64(z)) - h * low))
    return bits(shifted), sine, cosine


@jitable
def _sin32(x: Any) -> Any:
    q, sine, cosine = _sin_and_cos32(x)
    size = select((q & I32(1)) == I32(0), sine, cosine)
    return _sin_beyond32(x, select(x == F32(0.0), x, select((q & I32(2)) == I32(0), size, -size)))


@jitable
def _cos32(x: Any) -> Any:
    q, sine, cosine = _sin_and_cos32(x)
    size = select((q & I32(1)) == I32(0), cosine, sine)
    return _cos_beyond32(x, select(((q + I32(1)) & I32(2)) == I32(0), size, -size))


@jitable
def _sin64(x: Any) -> Any:
    q, sine, cosine = _sin_and_cos64(x)
    size = select((q & 1) == 0, sine, cosine)
    return _sin_beyond64(x, select(x == 0.0, x, select((q & 2) == 0, size, -size)))


@jitable
def _cos64(x: Any) -> Any:
    q, sine, cosine = _sin_and_cos64(x)
    size = select((q & 1) == 0, cosine, sine)
    return _cos_beyond64(x, select(((q + 1) & 2) == 0, size, -size))


@jitable
def _tan64(x: Any) -> Any:
    q, sine, cosine = _sin_and_cos64(x)
    even = (q & 1) == 0
    ratio = select(even, sine, -cosine) / select(even, cosine, sine)
    return _tan_beyond64(x, select(x == 0.0, x, ratio))


_asin_numerator64 = polynomial(
    3.47933107596021167570e-05, 7.91534994289814532176e-04, -4.00555345006794114027e-02, 2.01212532134862925881e-01,
    -3.25565818622400915405e-01, 1.66666666666666657415e-01,
)  # fmt: skip
_asin_denominator64 = polynomial(
    7.70381505559019352791e-02, -6.88283971605453293030e-01, 2.02094576023350569471e00, -2.40339491173441421878e00, 1.0
)  # fmt: skip
_atan_numerator64 = polynomial(
    -8.750608600031904122785e-1, -1.615753718733365076637e1, -7.500855792314704667340e1, -1.228866684490136173410e2,
    -6.485021904942025371773e1,
)  # fmt: skip
_atan_denominator64 = polynomial(
    1.0, 2.485846490142306297962e1, 1.650270098316988542046e2, 4.328810604912902668951e2, 4.853903996359136964868e2,
    1.945506571482613964425e2,
)  # fmt: skip
_PI_LOW = 1.2246467991473532e-16


@jitable
def _asin_parts64(size: Any) -> Any:
    """Return s and asin(s) - s, where s is `size` if `size` < 1/2, else sqrt((1 - size) / 2)."""
    near = size < 0.5
    z = select(near, size * size, 0.5 - 0.5 * size)
    root = np.sqrt(z)
    s = select(near, size, root)
    lost = select(near | (z == 0.0), 0.0, fma(-root, root, z) / (root + root))
    return s, s * (z * _asin_numerator64(z) / _asin_denominator64(z)) + lost


@jitable
def _asin64(x: Any) -> Any:
    size = abs(x)
    s, tail = _asin_parts64(size)
    result = select(size < 0.5, s + tail, (math.pi / 2 - 2.0 * s) + (_PI_LOW / 2 - 2.0 * tail))
    return select(x < 0.0, -result, select(x == 0.0, x, result))


@jitable
def _acos64(x: Any) -> Any:
    size = abs(x)
    s, tail = _asin_parts64(size)
    signed = select(x < 0.0, -s, s)
    signed_tail = select(x < 0.0, -tail, tail)
    near = math.pi / 2 - (signed - (_PI_LOW / 2 - signed_tail))
    far = select(x < 0.0, math.pi - 2.0 * (s + (tail - _PI_LOW / 2)), 2.0 * (s + tail))
    return select(size < 0.5, near, far)


@jitable
def _atan64(x: Any) -> Any:
    size = abs(x)
    big, middle = size > 2.41421356237309504880, size > 0.66
    r = select(big, -1.0, select(middle, size - 1.0, size)) / select(big, size, select(middle, size + 1.0, 1.0))
    z = r * r
    tail = r * (z * _atan_numerator64(z) / _atan_denominator64(z))
    low = select(big, _PI_LOW / 2, select(middle, _PI_LOW / 4, 0.0))
    result = select(big, math.pi / 2, select(middle, math.pi / 4, 0.0)) + (r + (tail + low))
    return select(x < 0.0, -result, select(x == 0.0, x, result))


@jitable
def _atan2_64(y: Any, x: Any) -> Any:
    height, width = abs(y), abs(x)
    ratio = select(height == 0.0, 0.0, select((height == np.inf) & (width == np.inf), 1.0, height / width))
    angle = _atan64(ratio)
    angle = select(is_negative64(x), math.pi - (angle - _PI_LOW), angle)
    return select((x != x) | (y != y), x + y, select(is_negative64(y), -angle, angle))


_tan32, _asin32, _acos32, _atan32 = map(through_float64, (_tan64, _asin64, _acos64, _atan64))


# For each name in `scalar_math`: the functions for float32 and for float64.
IMPLEMENTATIONS: dict[str, tuple[Any, Any]] = {
    "sin": (_sin32, _sin64), "cos": (_cos32, _cos64), "tan": (_tan32, _tan64), "asin": (_asin32, _asin64),
    "acos": (_acos32, _acos64), "atan": (_atan32, _atan64), "atan2": (of_two_through_float64(_atan2_64), _atan2_64),
}  # fmt: skip
