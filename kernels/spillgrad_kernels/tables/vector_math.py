"""Vectorised exponentials, logarithms, hyperbolic and error functions: polynomials in float32 and float64.

The functions have no branches, so that LLVM vectorises the loops around them. They agree with NumPy to 2 ulp at every
value, including ±0, ±inf, NaN and subnormal numbers.

Source: range reduction and coefficients after Moshier, Cephes (exp, log, tanh in float32; tanh in float64), Sun's
fdlibm (log in float64), and a minimax fit in powers of |x| (erf in float32).
"""

import math
from typing import Any

import numpy as np

from spillgrad_kernels.tables.vector_code import (
    F32,
    F64,
    I32,
    I64,
    INF32,
    NAN32,
    ROUND32,
    ROUND64,
    bits,
    jitable,
    polynomial,
    select,
    through_float64,
)

# exp and expm1: x = n log 2 + r, n a whole number.

_exp_tail32 = polynomial(
    1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1
)  # fmt: skip
# exp(r) itself, with one power fewer: a minimax fit with a relative error of 3e-9.
_exp_rest32 = polynomial(1.38143206e-3, 8.36885162e-3, 4.16684002e-2, 1.66665196e-1, 4.99999940e-1, 1.0, 1.0)
_exp_tail64 = polynomial(*(1 / math.factorial(k) for k in range(13, 1, -1)))


@jitable
def clamp(x: Any, low: Any, high: Any) -> Any:
    """Return x limited to [low, high]; NaN stays NaN."""
    raised = select(x < low, low, x)
    return select(raised > high, high, raised)


@jitable
def _exp_parts32(x: Any) -> Any:
    """Return n and exp(r) - 1 for x = n log 2 + r. The caller must have clamped x."""
    shifted = x * F32(1.44269504088896341) + ROUND32
    n = shifted - ROUND32
    r = x - n * F32(0.693359375) + n * F32(2.12194440e-4)
    return I32(bits(shifted) - I32(0x4B400000)), _exp_tail32(r) * (r * r) + r


@jitable
def exp_parts64(x: Any, low: Any) -> Any:
    """Return n and exp(r) - 1 for x + `low` = n log 2 + r. The caller must have clamped x."""
    shifted = x * 1.44269504088896340736 + ROUND64
    n = shifted - ROUND64
    r = x - n * 6.93147180369123816490e-01 - n * 1.90821492927058770002e-10 + low
    return bits(shifted) - I64(0x4338000000000000), _exp_tail64(r) * (r * r) + r


@jitable
def _scale32(x: Any, n: Any) -> Any:
    """Return x * 2**n. x is multiplied by two factors, since 2**n itself could overflow or underflow."""
    half = I32(n >> 1)
    return x * bits(I32((half + I32(127)) << 23)) * bits(I32((n - half + I32(127)) << 23))


@jitable
def scale64(x: Any, n: Any) -> Any:
    half = n >> 1
    return x * bits(I64((half + 1023) << 52)) * bits(I64((n - half + 1023) << 52))


@jitable
def _exp32(x: Any) -> Any:
    n, p = _exp_parts32(clamp(x, F32(-104.0), F32(89.0)))
    return _scale32(p + F32(1.0), n)


@jitable
def _exp64(x: Any) -> Any:
    n, p = exp_parts64(clamp(x, -746.0, 710.0), 0.0)
    return scale64(p + 1.0, n)


@jitable
def _normal_exp32(x: Any) -> Any:
    shifted = x * F32(1.44269504088896341) + (ROUND32 + F32(127.0))  # its low bits hold n + 127: 2**n's exponent
    n = shifted - (ROUND32 + F32(127.0))
    r = x - n * F32(0.693359375) + n * F32(2.12194440e-4)
    return select(x < F32(-87.336544), F32(0.0), _exp_rest32(r) * bits(I32(bits(shifted) << 23)))


@jitable
def _expm1_32(x: Any) -> Any:
    n, p = _exp_parts32(clamp(x, F32(-20.0), F32(89.0)))
    scale = bits(I32((n + I32(126)) << 23))  # half of 2**n: 2**n itself could overflow
    result = F32(2.0) * (p * scale + (scale - F32(0.5)))
    return select(x == F32(0.0), x, result)


@jitable
def _expm1_64(x: Any) -> Any:
    n, p = exp_parts64(clamp(x, -40.0, 710.0), 0.0)
    scale = bits(I64((n + 1022) << 52))
    return select(x == 0.0, x, 2.0 * (p * scale + (scale - 0.5)))


# log and log1p: x = 2**e (1 + m), 1 + m in [sqrt(1/2), sqrt(2)).

_log_tail32 = polynomial(
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
    2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
_log_tail64 = polynomial(
    1.479819860511658591e-01, 1.531383769920937332e-01, 1.818357216161805012e-01, 2.222219843214978396e-01,
    2.857142874366239149e-01, 3.999999999940941908e-01, 6.666666666666735130e-01,
)  # fmt: skip


@jitable
def _split32(x: Any) -> Any:
    """Return e and 1 + m for a normal x = 2**e (1 + m)."""
    # Subtracting the bits of sqrt(1/2) makes the exponent e such that 1 + m is at least sqrt(1/2).
    shifted = I32(bits(x) - I32(0x3F3504F3))
    return I32(shifted >> 23), bits(I32((shifted & I32(0x007FFFFF)) + I32(0x3F3504F3)))


@jitable
def split64(x: Any) -> Any:
    shifted = bits(x) - I64(0x3FE6A09E667F3BCD)
    return shifted >> 52, bits(I64((shifted & I64(0x000FFFFFFFFFFFFF)) + I64(0x3FE6A09E667F3BCD)))


@jitable
def _log_of_parts32(e: Any, m: Any) -> Any:
    z = m * m
    y = _log_tail32(m) * m * z - e * F32(2.12194440e-4) - F32(0.5) * z
    return m + y + e * F32(0.693359375)


@jitable
def _log_of_parts64(e: Any, m: Any) -> Any:
    s = m / (2.0 + m)
    z = s * s
    half = 0.5 * m * m
    rest = s * (half + _log_tail64(z) * z) + e * 1.90821492927058770002e-10
    return e * 6.93147180369123816490e-01 - ((half - rest) - m)


@jitable
def _log32(x: Any) -> Any:
    subnormal = x < F32(1.17549435e-38)
    e, m = _split32(select(subnormal, x * F32(8388608.0), x))
    result = _log_of_parts32(F32(e) - select(subnormal, F32(23.0), F32(0.0)), m - F32(1.0))
    result = select((x == INF32) | (x != x), x, result)
    result = select(x == F32(0.0), -INF32, result)
    return select(x < F32(0.0), NAN32, result)


@jitable
def log64(x: Any) -> Any:
    subnormal = x < 2.2250738585072014e-308
    e, m = split64(select(subnormal, x * 18014398509481984.0, x))
    result = _log_of_parts64(F64(e) - select(subnormal, 54.0, 0.0), m - 1.0)
    result = select((x == np.inf) | (x != x), x, result)
    result = select(x == 0.0, -np.inf, result)
    return select(x < 0.0, np.nan, result)


@jitable
def _log1p32(x: Any) -> Any:
    u = x + F32(1.0)
    e, m = _split32(u)
    # Scaling x itself keeps the digits that u lost in rounding. From 2**25 upwards, these digits no longer count.
    scale = bits(I32((I32(127) - e) << 23))
    m = select(e > I32(24), m - F32(1.0), x * scale + (scale - F32(1.0)))
    result = _log_of_parts32(F32(e), m)
    result = select((u == F32(1.0)) | (x == INF32) | (x != x), x, result)
    result = select(u == F32(0.0), -INF32, result)
    return select(u < F32(0.0), NAN32, result)


@jitable
def _log1p64(x: Any) -> Any:
    u = x + 1.0
    e, m = split64(u)
    scale = bits(I64((1023 - e) << 52))
    m = select(e > 53, m - 1.0, x * scale + (scale - 1.0))
    result = _log_of_parts64(F64(e), m)
    result = select((u == 1.0) | (x == np.inf) | (x != x), x, result)
    result = select(u == 0.0, -np.inf, result)
    return select(u < 0.0, np.nan, result)


# (log1p(x) - x) / x**2 for x in [0, 1]
_log1p_tail32 = polynomial(
    -3.316951569934035e-3, 2.019757587602773e-2, -5.765089113048332e-2, 1.067912758716616e-1, -1.5354505463975027e-1,
    1.9695065575766108e-1, -2.4958513480977826e-1, 3.33305024561907e-1, -4.999993229673907e-1,
)  # fmt: skip


@jitable
def _logaddexp32(x: Any, y: Any) -> Any:
    e = _exp32(-abs(x - y))
    result = select(x > y, x, y) + (e + e * e * _log1p_tail32(e))
    return select(x == y, x + F32(math.log(2)), result)  # the difference of equal infinities is NaN


@jitable
def _logaddexp64(x: Any, y: Any) -> Any:
    result = select(x > y, x, y) + _log1p64(_exp64(-abs(x - y)))
    return select(x == y, x + math.log(2), result)


# Hyperbolic functions

_tanh_tail32 = polynomial(-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
_tanh_numerator64 = polynomial(-9.64399179425052238628e-1, -9.92877231001918586564e1, -1.61468768441708447952e3)
_tanh_denominator64 = polynomial(1.0, 1.12811678491632931402e2, 2.23548839060100448583e3, 4.84406305325125486048e3)
_sinh_tail64 = polynomial(*(1 / math.factorial(k) for k in range(21, 2, -2)))


@jitable
def _tanh32(x: Any) -> Any:
    z = x * x
    near = x * (_tanh_tail32(z) * z + F32(1.0))  # a product keeps the sign of -0
    size = abs(x)
    n, p = _exp_parts32(clamp(size + size, F32(0.0), F32(40.0)))
    far = F32(1.0) - F32(2.0) / ((p + F32(1.0)) * bits(I32((n + I32(127)) << 23)) + F32(1.0))
    return select(size < F32(0.625), near, select(x < F32(0.0), -far, far))


@jitable
def _tanh64(x: Any) -> Any:
    z = x * x
    near = x * (z * (_tanh_numerator64(z) / _tanh_denominator64(z)) + 1.0)
    size = abs(x)
    n, p = exp_parts64(clamp(size + size, 0.0, 80.0), 0.0)
    far = 1.0 - 2.0 / ((p + 1.0) * bits(I64((n + 1023) << 52)) + 1.0)
    return select(size < 0.625, near, select(x < 0.0, -far, far))


@jitable
def _half_exp64(x: Any) -> Any:
    """Return exp(x) / 2 for x >= 0. The result stays finite for x slightly beyond the limit where exp(x) overflows."""
    n, p = exp_parts64(clamp(x, -746.0, 712.0), 0.0)
    return scale64(p + 1.0, n - 1)


@jitable
def _cosh64(x: Any) -> Any:
    half = _half_exp64(abs(x))
    return half + 0.25 / half


@jitable
def _sinh64(x: Any) -> Any:
    z = x * x
    near = x * (_sinh_tail64(z) * z + 1.0)
    half = _half_exp64(abs(x))
    far = half - 0.25 / half
    return select(abs(x) < 1.0, near, select(x < 0.0, -far, far))


# The error function and the normal distribution

_erf_near32 = polynomial(-5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1)
_erf_near64 = polynomial(
    -7.780569019665648e-10, 1.3711577768889817e-08, -1.6206453539677654e-07, 1.6447150016390012e-06,
    -1.4924713809465625e-05, 0.00012055293655787137, -0.0008548325931954765, 0.005223977606173268,
    -0.026866170643118054, 0.11283791670944225, -0.3761263890318352, 0.12837916709551256,
)  # fmt: skip
# log(erfc(x + 1)) for x + 1 in [1, 6], weighted so that erf has the same error everywhere.
_log_erfc64 = polynomial(
    1.7574219704014934e-11, -3.660570199265655e-10, 3.22949913228291e-09, -1.3995366604540209e-08,
    8.391832740820592e-09, 2.959675165813996e-07, -2.2538965088645955e-06, 9.79064525485034e-06,
    -2.7283813438530167e-05, 2.6339643138622748e-05, 0.0002373009210127624, -0.0019778974532124473,
    0.01003382459323012, -0.04156109797117, -0.8431072563619609, -2.638967514234729, -1.8496055099332485,
)  # fmt: skip
# log(Phi(-x)) for x in [0, 5.6], weighted so that Phi has the same error everywhere; for larger x it falls to -inf.
_log_normal_tail32 = polynomial(
    -8.7030124871e-7, 1.45093916256e-5, -7.10569907074e-5, -2.25854429221e-4, 5.05248734535e-3, -3.64846583363e-2,
    -3.18270496158e-1, -7.97888413901e-1, -6.93147118734e-1,
)  # fmt: skip


@jitable
def _erf32(x: Any) -> Any:
    size = abs(x)
    z = x * x
    p = (F32(-1.72853470e-5) * size + F32(3.83197126e-4)) * z + (F32(-3.88396438e-3) * size + F32(2.42546219e-2))
    p = p * size - F32(1.06777877e-1)
    p = p * size - F32(6.34846687e-1)
    p = p * size - F32(1.28717512e-1)
    # Beyond 4 the result is 1 to the last bit; the polynomial was fitted up to 4.
    far = select(size > F32(4.0), F32(1.0), F32(1.0) - _exp32(p * size - size))
    near = _erf_near32(z) * x + x
    result = select(size <= F32(0.927734375), near, select(x < F32(0.0), -far, far))
    return select(x != x, x, result)


@jitable
def _erfc_far64(size: Any) -> Any:
    """Return erfc(size) for `size` >= 1. From 6 upwards, where erf is 1 to the last bit, the result is constant."""
    return _exp64(_log_erfc64(select(size > 6.0, 6.0, size) - 1.0))


@jitable
def _erf64(x: Any) -> Any:
    size = abs(x)
    near = _erf_near64(x * x) * x + x
    far = 1.0 - _erfc_far64(size)
    return select(size < 1.0, near, select(x < 0.0, -far, far))


@jitable
def _normal_cdf32(x: Any) -> Any:
    tail = _exp32(_log_normal_tail32(abs(x)))
    return select(x > F32(0.0), F32(1.0) - tail, tail)


@jitable
def _normal_cdf64(x: Any) -> Any:
    scaled = x * math.sqrt(0.5)
    size = abs(scaled)
    near = 0.5 + 0.5 * (_erf_near64(scaled * scaled) * scaled + scaled)
    tail = select(size > 6.0, 0.0, 0.5 * _erfc_far64(size))
    return select(size < 1.0, near, select(x > 0.0, 1.0 - tail, tail))


def _sigmoid_with(exp_: Any, one: Any) -> Any:
    """Return a sigmoid made of the exponential `exp_`. `one` is 1 in its dtype: Numba widens float32 + 1 to float64."""

    @jitable
    def sigmoid_(x: Any) -> Any:
        e = exp_(-abs(x))  # never overflows
        return select(x >= 0, one, e) / (one + e)

    return sigmoid_


_sigmoid32, _sigmoid64 = _sigmoid_with(_exp32, F32(1.0)), _sigmoid_with(_exp64, F64(1.0))


# For each name in `scalar_math`: the functions for float32 and for float64.
IMPLEMENTATIONS: dict[str, tuple[Any, Any]] = {
    "exp": (_exp32, _exp64), "normal_exp": (_normal_exp32, _exp64), "expm1": (_expm1_32, _expm1_64),
    "log": (_log32, log64), "log1p": (_log1p32, _log1p64), "logaddexp": (_logaddexp32, _logaddexp64),
    "sinh": (through_float64(_sinh64), _sinh64), "cosh": (through_float64(_cosh64), _cosh64),
    "tanh": (_tanh32, _tanh64),
    "erf": (_erf32, _erf64), "normal_cdf": (_normal_cdf32, _normal_cdf64), "sigmoid": (_sigmoid32, _sigmoid64),
}  # fmt: skip
