"""What the functions of `scalar_math` are inside compiled code: polynomials in float32 and float64.

They are free of branches, so that LLVM vectorises the loops around them, and agree with NumPy to 2 ulp at every value,
±0, ±inf, NaN and subnormals included.

Source: range reduction and coefficients after Moshier, Cephes (exp, log, tanh in float32; tanh in float64), Sun's
fdlibm (log in float64), and a minimax fit in powers of |x| (erf in float32).
"""

import math
from typing import Any

import numpy as np
from llvmlite import ir

from spillgrad_kernels.jit.compile import CONTRACT, intrinsic, register_jitable, types

# Division by zero gives inf or NaN as in NumPy; Python's error model would put a branch into every loop.
# Inlined whatever their size: what LLVM leaves a call, it does not vectorise around.
OPTIONS: dict[str, Any] = {"error_model": "numpy", "fastmath": CONTRACT, "nogil": True, "forceinline": True}

_jitable = register_jitable(**OPTIONS)


_TWIN = {"float32": "int32", "float64": "int64", "int32": "float32", "int64": "float64"}


@intrinsic
def bits(typing_context: Any, x: Any) -> Any:
    """Reinterpret a float's bits as the integer of its size, or the other way round."""
    signature = getattr(types, _TWIN[x.name])(x)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(signature.return_type))

    return signature, codegen


@intrinsic
def select(typing_context: Any, condition: Any, chosen: Any, otherwise: Any) -> Any:
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


@intrinsic
def _fma(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """Return a * b + c rounded once; with c = -0.0, a product that is not fused with what follows."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return a(a, b, c), codegen


def _polynomial(*coefficients: float) -> Any:
    """Return a compiled function that evaluates a polynomial, highest power first, in its argument's dtype."""

    @intrinsic
    def evaluate(typing_context: Any, x: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            (value,) = arguments
            result = ir.Constant(value.type, coefficients[0])
            for coefficient in coefficients[1:]:
                product = builder.fmul(result, value, flags=("contract",))
                result = builder.fadd(product, ir.Constant(value.type, coefficient), flags=("contract",))
            return result

        return x(x), codegen

    return evaluate


def _beyond(limit: float, name: str) -> Any:
    """Return a compiled function of (x, result): libm's `name` of x where |x| > `limit`, else `result`.

    A call in a loop keeps LLVM from vectorising it, unless the called function has vector variants, which are one
    comparison where no lane is beyond the limit.
    Source: LLVM Language Reference, "vector-function-abi-variant".
    """

    @intrinsic
    def correct(typing_context: Any, x: Any, result: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.call(_with_vector_variants(builder.module, arguments[0].type, limit, name), arguments)

        return x(x, x), codegen

    return correct


_VECTOR_LANES = (2, 4, 8, 16)


def _with_vector_variants(module: Any, scalar: Any, limit: float, name: str) -> Any:
    full_name = f"spillgrad.{name}.{scalar.intrinsic_name}"
    if full_name in module.globals:
        return module.globals[full_name]
    libm = module.declare_intrinsic(f"llvm.{name}", [scalar])

    def define(function_name: str, value: Any) -> tuple[Any, Any]:
        function = ir.Function(module, ir.FunctionType(value, [value, value]), function_name)
        function.linkage = (
            "weak_odr"  # several kernels may hold it; unlike linkonce_odr it stays, though not yet called
        )
        function.attributes.update(("noinline", "nounwind", "readnone"))
        return function, ir.IRBuilder(function.append_basic_block())

    def is_beyond(builder: Any, x: Any, bound: Any, negative_bound: Any) -> Any:
        return builder.or_(builder.fcmp_ordered(">", x, bound), builder.fcmp_ordered("<", x, negative_bound))

    function, builder = define(full_name, scalar)
    variants = ",".join(f"_ZGV_LLVM_N{lanes}vv_{full_name}({full_name}.{lanes})" for lanes in _VECTOR_LANES)
    # llvmlite's set of attributes refuses those with a value.
    set.add(function.attributes, f'"vector-function-abi-variant"="{variants}"')
    x, result = function.args
    with builder.if_then(is_beyond(builder, x, ir.Constant(scalar, limit), ir.Constant(scalar, -limit)), likely=False):
        builder.ret(builder.call(libm, [x]))
    builder.ret(result)
    for lanes in _VECTOR_LANES:
        vector = ir.VectorType(scalar, lanes)
        variant, builder = define(f"{full_name}.{lanes}", vector)
        xs, results = variant.args
        mask = is_beyond(builder, xs, ir.Constant(vector, [limit] * lanes), ir.Constant(vector, [-limit] * lanes))
        some = builder.icmp_unsigned("!=", builder.bitcast(mask, ir.IntType(lanes)), ir.IntType(lanes)(0))
        with builder.if_then(some, likely=False):
            corrected = results
            for lane in map(ir.IntType(32), range(lanes)):
                pair = [builder.extract_element(xs, lane), builder.extract_element(results, lane)]
                corrected = builder.insert_element(corrected, builder.call(function, pair), lane)
            builder.ret(corrected)
        builder.ret(results)
    return function


# Adding it rounds a float to a whole number, which the low bits of the sum then hold.
_ROUND32, _ROUND64 = _F32(1.5 * 2.0**23), _F64(1.5 * 2.0**52)
_INF32, _NAN32 = _F32(np.inf), _F32(np.nan)


# exp and expm1: x = n log 2 + r

_exp_tail32 = _polynomial(
    1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1
)  # fmt: skip
# All of it, a power less: minimax in the relative error, 3e-9.
_exp_rest32 = _polynomial(1.38143206e-3, 8.36885162e-3, 4.16684002e-2, 1.66665196e-1, 4.99999940e-1, 1.0, 1.0)
_exp_tail64 = _polynomial(*(1 / math.factorial(k) for k in range(13, 1, -1)))


@_jitable
def _clamp(x: Any, low: Any, high: Any) -> Any:
    """Keep NaN, as min and max might not."""
    raised = select(x < low, low, x)
    return select(raised > high, high, raised)


@_jitable
def _exp_parts32(x: Any) -> Any:
    """Return n and exp(r) - 1 of a clamped x."""
    shifted = x * _F32(1.44269504088896341) + _ROUND32
    n = shifted - _ROUND32
    r = x - n * _F32(0.693359375) + n * _F32(2.12194440e-4)
    return _I32(bits(shifted) - _I32(0x4B400000)), _exp_tail32(r) * (r * r) + r


@_jitable
def _exp_parts64(x: Any, low: Any) -> Any:
    """Return n and exp(r) - 1 of a clamped x, to which `low` adds further digits."""
    shifted = x * 1.44269504088896340736 + _ROUND64
    n = shifted - _ROUND64
    r = x - n * 6.93147180369123816490e-01 - n * 1.90821492927058770002e-10 + low
    return bits(shifted) - _I64(0x4338000000000000), _exp_tail64(r) * (r * r) + r


@_jitable
def _scale32(x: Any, n: Any) -> Any:
    """Return x * 2**n, in two factors: one alone could overflow or flush where the result does not."""
    half = _I32(n >> 1)
    return x * bits(_I32((half + _I32(127)) << 23)) * bits(_I32((n - half + _I32(127)) << 23))


@_jitable
def _scale64(x: Any, n: Any) -> Any:
    half = n >> 1
    return x * bits(_I64((half + 1023) << 52)) * bits(_I64((n - half + 1023) << 52))


@_jitable
def _exp32(x: Any) -> Any:
    n, p = _exp_parts32(_clamp(x, _F32(-104.0), _F32(89.0)))
    return _scale32(p + _F32(1.0), n)


@_jitable
def _exp64(x: Any) -> Any:
    n, p = _exp_parts64(_clamp(x, -746.0, 710.0), 0.0)
    return _scale64(p + 1.0, n)


@_jitable
def _normal_exp32(x: Any) -> Any:
    shifted = x * _F32(1.44269504088896341) + (_ROUND32 + _F32(127.0))  # its low bits hold n + 127: 2**n's exponent
    n = shifted - (_ROUND32 + _F32(127.0))
    r = x - n * _F32(0.693359375) + n * _F32(2.12194440e-4)
    return select(x < _F32(-87.336544), _F32(0.0), _exp_rest32(r) * bits(_I32(bits(shifted) << 23)))


@_jitable
def _expm1_32(x: Any) -> Any:
    n, p = _exp_parts32(_clamp(x, _F32(-20.0), _F32(89.0)))
    scale = bits(_I32((n + _I32(126)) << 23))  # half of 2**n, which would overflow where the result does not
    result = _F32(2.0) * (p * scale + (scale - _F32(0.5)))
    return select(x == _F32(0.0), x, result)


@_jitable
def _expm1_64(x: Any) -> Any:
    n, p = _exp_parts64(_clamp(x, -40.0, 710.0), 0.0)
    scale = bits(_I64((n + 1022) << 52))
    return select(x == 0.0, x, 2.0 * (p * scale + (scale - 0.5)))


# log and log1p: x = 2**e (1 + m), 1 + m in [sqrt(1/2), sqrt(2))

_log_tail32 = _polynomial(
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
    2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
_log_tail64 = _polynomial(
    1.479819860511658591e-01, 1.531383769920937332e-01, 1.818357216161805012e-01, 2.222219843214978396e-01,
    2.857142874366239149e-01, 3.999999999940941908e-01, 6.666666666666735130e-01,
)  # fmt: skip


@_jitable
def _split32(x: Any) -> Any:
    """Return e and 1 + m of a normal x."""
    # Subtracting the bits of sqrt(1/2) makes the exponent round the right way.
    shifted = _I32(bits(x) - _I32(0x3F3504F3))
    return _I32(shifted >> 23), bits(_I32((shifted & _I32(0x007FFFFF)) + _I32(0x3F3504F3)))


@_jitable
def _split64(x: Any) -> Any:
    shifted = bits(x) - _I64(0x3FE6A09E667F3BCD)
    return shifted >> 52, bits(_I64((shifted & _I64(0x000FFFFFFFFFFFFF)) + _I64(0x3FE6A09E667F3BCD)))


@_jitable
def _log_of_parts32(e: Any, m: Any) -> Any:
    z = m * m
    y = _log_tail32(m) * m * z - e * _F32(2.12194440e-4) - _F32(0.5) * z
    return m + y + e * _F32(0.693359375)


@_jitable
def _log_of_parts64(e: Any, m: Any) -> Any:
    s = m / (2.0 + m)
    z = s * s
    half = 0.5 * m * m
    rest = s * (half + _log_tail64(z) * z) + e * 1.90821492927058770002e-10
    return e * 6.93147180369123816490e-01 - ((half - rest) - m)


@_jitable
def _log32(x: Any) -> Any:
    subnormal = x < _F32(1.17549435e-38)
    e, m = _split32(select(subnormal, x * _F32(8388608.0), x))
    result = _log_of_parts32(_F32(e) - select(subnormal, _F32(23.0), _F32(0.0)), m - _F32(1.0))
    result = select((x == _INF32) | (x != x), x, result)
    result = select(x == _F32(0.0), -_INF32, result)
    return select(x < _F32(0.0), _NAN32, result)


@_jitable
def _log64(x: Any) -> Any:
    subnormal = x < 2.2250738585072014e-308
    e, m = _split64(select(subnormal, x * 18014398509481984.0, x))
    result = _log_of_parts64(_F64(e) - select(subnormal, 54.0, 0.0), m - 1.0)
    result = select((x == np.inf) | (x != x), x, result)
    result = select(x == 0.0, -np.inf, result)
    return select(x < 0.0, np.nan, result)


@_jitable
def _log1p32(x: Any) -> Any:
    u = x + _F32(1.0)
    e, m = _split32(u)
    # Scaling x itself keeps the digits that rounding took from u; from 2**25 upwards they no longer count.
    scale = bits(_I32((_I32(127) - e) << 23))
    m = select(e > _I32(24), m - _F32(1.0), x * scale + (scale - _F32(1.0)))
    result = _log_of_parts32(_F32(e), m)
    result = select((u == _F32(1.0)) | (x == _INF32) | (x != x), x, result)
    result = select(u == _F32(0.0), -_INF32, result)
    return select(u < _F32(0.0), _NAN32, result)


@_jitable
def _log1p64(x: Any) -> Any:
    u = x + 1.0
    e, m = _split64(u)
    scale = bits(_I64((1023 - e) << 52))
    m = select(e > 53, m - 1.0, x * scale + (scale - 1.0))
    result = _log_of_parts64(_F64(e), m)
    result = select((u == 1.0) | (x == np.inf) | (x != x), x, result)
    result = select(u == 0.0, -np.inf, result)
    return select(u < 0.0, np.nan, result)


# (log1p(x) - x) / x**2 for x in [0, 1]
_log1p_tail32 = _polynomial(
    -3.316951569934035e-3, 2.019757587602773e-2, -5.765089113048332e-2, 1.067912758716616e-1, -1.5354505463975027e-1,
    1.9695065575766108e-1, -2.4958513480977826e-1, 3.33305024561907e-1, -4.999993229673907e-1,
)  # fmt: skip


@_jitable
def _logaddexp32(x: Any, y: Any) -> Any:
    e = _exp32(-abs(x - y))
    result = select(x > y, x, y) + (e + e * e * _log1p_tail32(e))
    return select(x == y, x + _F32(math.log(2)), result)  # infinities have no difference


@_jitable
def _logaddexp64(x: Any, y: Any) -> Any:
    result = select(x > y, x, y) + _log1p64(_exp64(-abs(x - y)))
    return select(x == y, x + math.log(2), result)


# Hyperbolic functions

_tanh_tail32 = _polynomial(
    -5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1
)  # fmt: skip
_tanh_numerator64 = _polynomial(-9.64399179425052238628e-1, -9.92877231001918586564e1, -1.61468768441708447952e3)
_tanh_denominator64 = _polynomial(
    1.0, 1.12811678491632931402e2, 2.23548839060100448583e3, 4.84406305325125486048e3
)  # fmt: skip
_sinh_tail64 = _polynomial(*(1 / math.factorial(k) for k in range(21, 2, -2)))


@_jitable
def _tanh32(x: Any) -> Any:
    z = x * x
    near = x * (_tanh_tail32(z) * z + _F32(1.0))  # a product, which keeps the sign of -0
    size = abs(x)
    n, p = _exp_parts32(_clamp(size + size, _F32(0.0), _F32(40.0)))
    far = _F32(1.0) - _F32(2.0) / ((p + _F32(1.0)) * bits(_I32((n + _I32(127)) << 23)) + _F32(1.0))
    return select(size < _F32(0.625), near, select(x < _F32(0.0), -far, far))


@_jitable
def _tanh64(x: Any) -> Any:
    z = x * x
    near = x * (z * (_tanh_numerator64(z) / _tanh_denominator64(z)) + 1.0)
    size = abs(x)
    n, p = _exp_parts64(_clamp(size + size, 0.0, 80.0), 0.0)
    far = 1.0 - 2.0 / ((p + 1.0) * bits(_I64((n + 1023) << 52)) + 1.0)
    return select(size < 0.625, near, select(x < 0.0, -far, far))


@_jitable
def _half_exp64(x: Any) -> Any:
    """Return exp(x) / 2 of x >= 0, finite a little beyond where exp overflows."""
    n, p = _exp_parts64(_clamp(x, -746.0, 712.0), 0.0)
    return _scale64(p + 1.0, n - 1)


@_jitable
def _cosh64(x: Any) -> Any:
    half = _half_exp64(abs(x))
    return half + 0.25 / half


@_jitable
def _sinh64(x: Any) -> Any:
    z = x * x
    near = x * (_sinh_tail64(z) * z + 1.0)
    half = _half_exp64(abs(x))
    far = half - 0.25 / half
    return select(abs(x) < 1.0, near, select(x < 0.0, -far, far))


# Trigonometry: x = q pi/2 + r (Cody and Waite, "Software Manual for the Elementary Functions", 1980)

_sin_tail32 = _polynomial(-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
_cos_tail32 = _polynomial(2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
_sin_tail64 = _polynomial(
    1.58969099521155010221e-10, -2.50507602534068634195e-08, 2.75573137070700676789e-06, -1.98412698298579493134e-04,
    8.33333333332248946124e-03,
)  # fmt: skip
_cos_tail64 = _polynomial(
    -1.13596475577881948265e-11, 2.08757232129817482790e-09, -2.75573143513906633035e-07, 2.48015872894767294178e-05,
    -1.38888888888741095749e-03, 4.16666666666666019037e-02,
)  # fmt: skip
# Beyond these the digits of pi below would not suffice for the arguments nearest to a multiple of pi/2.
_TRIGONOMETRIC_LIMIT32, _TRIGONOMETRIC_LIMIT64 = 2.0**18, 2.0**20
_sin_beyond32, _cos_beyond32 = (_beyond(_TRIGONOMETRIC_LIMIT32, name) for name in ("sin", "cos"))
_sin_beyond64, _cos_beyond64, _tan_beyond64 = (_beyond(_TRIGONOMETRIC_LIMIT64, name) for name in ("sin", "cos", "tan"))


@_jitable
def _sin_and_cos32(x: Any) -> Any:
    """Return q, sin(r) and cos(r)."""
    shifted = x * _F32(0.636619772367581343) + _ROUND32
    n = shifted - _ROUND32
    # pi/2 in three parts.
    r = _fma(-n, _F32(1.570796251296997), x)
    r = _fma(-n, _F32(7.549789415861596e-08), r)
    r = _fma(-n, _F32(5.390302529957765e-15), r)
    z = r * r
    sine = r + r * (z * _sin_tail32(z))
    cosine = _F32(1.0) - (_F32(0.5) * z - z * z * _cos_tail32(z))
    return bits(shifted), sine, cosine


@_jitable
def _two_difference(a: Any, b: Any) -> Any:
    """Return a - b and what rounding took from it (Knuth)."""
    high = a - b
    taken = a - high
    return high, (a - (high + taken)) + (taken - b)


@_jitable
def _sin_and_cos64(x: Any) -> Any:
    """Return q, sin(r) and cos(r); r has twice the digits."""
    shifted = x * 0.636619772367581343 + _ROUND64
    n = shifted - _ROUND64
    # pi/2 in four parts; n times the first or the second is exact.
    r, low = _two_difference(_fma(-n, 1.5707963267341256, x), _fma(n, 6.077100506303966e-11, -0.0))
    product = _fma(n, 2.0222662487959506e-21, -0.0)
    product_low = _fma(n, 2.0222662487959506e-21, -product)
    r, lower = _two_difference(r, product)
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


@_jitable
def _sin32(x: Any) -> Any:
    q, sine, cosine = _sin_and_cos32(x)
    size = select((q & _I32(1)) == _I32(0), sine, cosine)
    return _sin_beyond32(x, select(x == _F32(0.0), x, select((q & _I32(2)) == _I32(0), size, -size)))


@_jitable
def _cos32(x: Any) -> Any:
    q, sine, cosine = _sin_and_cos32(x)
    size = select((q & _I32(1)) == _I32(0), cosine, sine)
    return _cos_beyond32(x, select(((q + _I32(1)) & _I32(2)) == _I32(0), size, -size))


@_jitable
def _sin64(x: Any) -> Any:
    q, sine, cosine = _sin_and_cos64(x)
    size = select((q & 1) == 0, sine, cosine)
    return _sin_beyond64(x, select(x == 0.0, x, select((q & 2) == 0, size, -size)))


@_jitable
def _cos64(x: Any) -> Any:
    q, sine, cosine = _sin_and_cos64(x)
    size = select((q & 1) == 0, cosine, sine)
    return _cos_beyond64(x, select(((q + 1) & 2) == 0, size, -size))


@_jitable
def _tan64(x: Any) -> Any:
    q, sine, cosine = _sin_and_cos64(x)
    even = (q & 1) == 0
    ratio = select(even, sine, -cosine) / select(even, cosine, sine)
    return _tan_beyond64(x, select(x == 0.0, x, ratio))


_asin_numerator64 = _polynomial(
    3.47933107596021167570e-05, 7.91534994289814532176e-04, -4.00555345006794114027e-02, 2.01212532134862925881e-01,
    -3.25565818622400915405e-01, 1.66666666666666657415e-01,
)  # fmt: skip
_asin_denominator64 = _polynomial(
    7.70381505559019352791e-02, -6.88283971605453293030e-01, 2.02094576023350569471e00, -2.40339491173441421878e00, 1.0
)  # fmt: skip
_atan_numerator64 = _polynomial(
    -8.750608600031904122785e-1, -1.615753718733365076637e1, -7.500855792314704667340e1, -1.228866684490136173410e2,
    -6.485021904942025371773e1,
)  # fmt: skip
_atan_denominator64 = _polynomial(
    1.0, 2.485846490142306297962e1, 1.650270098316988542046e2, 4.328810604912902668951e2, 4.853903996359136964868e2,
    1.945506571482613964425e2,
)  # fmt: skip
_PI_LOW = 1.2246467991473532e-16


@_jitable
def _asin_parts64(size: Any) -> Any:
    """Return s and asin(s) - s: s is `size` where that is below 1/2, else sqrt((1 - size) / 2)."""
    near = size < 0.5
    z = select(near, size * size, 0.5 - 0.5 * size)
    root = np.sqrt(z)
    s = select(near, size, root)
    lost = select(near | (z == 0.0), 0.0, _fma(-root, root, z) / (root + root))
    return s, s * (z * _asin_numerator64(z) / _asin_denominator64(z)) + lost


@_jitable
def _asin64(x: Any) -> Any:
    size = abs(x)
    s, tail = _asin_parts64(size)
    result = select(size < 0.5, s + tail, (math.pi / 2 - 2.0 * s) + (_PI_LOW / 2 - 2.0 * tail))
    return select(x < 0.0, -result, select(x == 0.0, x, result))


@_jitable
def _acos64(x: Any) -> Any:
    size = abs(x)
    s, tail = _asin_parts64(size)
    signed = select(x < 0.0, -s, s)
    signed_tail = select(x < 0.0, -tail, tail)
    near = math.pi / 2 - (signed - (_PI_LOW / 2 - signed_tail))
    far = select(x < 0.0, math.pi - 2.0 * (s + (tail - _PI_LOW / 2)), 2.0 * (s + tail))
    return select(size < 0.5, near, far)


@_jitable
def _atan64(x: Any) -> Any:
    size = abs(x)
    big, middle = size > 2.41421356237309504880, size > 0.66
    r = select(big, -1.0, select(middle, size - 1.0, size)) / select(big, size, select(middle, size + 1.0, 1.0))
    z = r * r
    tail = r * (z * _atan_numerator64(z) / _atan_denominator64(z))
    low = select(big, _PI_LOW / 2, select(middle, _PI_LOW / 4, 0.0))
    result = select(big, math.pi / 2, select(middle, math.pi / 4, 0.0)) + (r + (tail + low))
    return select(x < 0.0, -result, select(x == 0.0, x, result))


@_jitable
def _is_negative64(x: Any) -> Any:
    """Return whether the sign bit is set, as in -0."""
    return bits(x) < 0


@_jitable
def _atan2_64(y: Any, x: Any) -> Any:
    height, width = abs(y), abs(x)
    ratio = select(height == 0.0, 0.0, select((height == np.inf) & (width == np.inf), 1.0, height / width))
    angle = _atan64(ratio)
    angle = select(_is_negative64(x), math.pi - (angle - _PI_LOW), angle)
    return select((x != x) | (y != y), x + y, select(_is_negative64(y), -angle, angle))


# The error function and the normal distribution

_erf_near32 = _polynomial(
    -5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1
)  # fmt: skip
_erf_near64 = _polynomial(
    -7.780569019665648e-10, 1.3711577768889817e-08, -1.6206453539677654e-07, 1.6447150016390012e-06,
    -1.4924713809465625e-05, 0.00012055293655787137, -0.0008548325931954765, 0.005223977606173268,
    -0.026866170643118054, 0.11283791670944225, -0.3761263890318352, 0.12837916709551256,
)  # fmt: skip
# log(erfc(x + 1)) for x + 1 in [1, 6], weighted so that the error of erf is even
_log_erfc64 = _polynomial(
    1.7574219704014934e-11, -3.660570199265655e-10, 3.22949913228291e-09, -1.3995366604540209e-08,
    8.391832740820592e-09, 2.959675165813996e-07, -2.2538965088645955e-06, 9.79064525485034e-06,
    -2.7283813438530167e-05, 2.6339643138622748e-05, 0.0002373009210127624, -0.0019778974532124473,
    0.01003382459323012, -0.04156109797117, -0.8431072563619609, -2.638967514234729, -1.8496055099332485,
)  # fmt: skip
# log(Phi(-x)) for x in [0, 5.6], weighted so that the error of Phi is even; beyond it falls on, down to -inf
_log_normal_tail32 = _polynomial(
    -8.7030124871e-7, 1.45093916256e-5, -7.10569907074e-5, -2.25854429221e-4, 5.05248734535e-3, -3.64846583363e-2,
    -3.18270496158e-1, -7.97888413901e-1, -6.93147118734e-1,
)  # fmt: skip


@_jitable
def _erf32(x: Any) -> Any:
    size = abs(x)
    z = x * x
    p = (_F32(-1.72853470e-5) * size + _F32(3.83197126e-4)) * z + (_F32(-3.88396438e-3) * size + _F32(2.42546219e-2))
    p = p * size - _F32(1.06777877e-1)
    p = p * size - _F32(6.34846687e-1)
    p = p * size - _F32(1.28717512e-1)
    # Beyond 4 the result is 1 to the last bit, and the polynomial is no longer a fit.
    far = select(size > _F32(4.0), _F32(1.0), _F32(1.0) - _exp32(p * size - size))
    near = _erf_near32(z) * x + x
    result = select(size <= _F32(0.927734375), near, select(x < _F32(0.0), -far, far))
    return select(x != x, x, result)


@_jitable
def _erfc_far64(size: Any) -> Any:
    """Return erfc from 1 upwards; constant from 6, where erf is 1 to the last bit."""
    return _exp64(_log_erfc64(select(size > 6.0, 6.0, size) - 1.0))


@_jitable
def _erf64(x: Any) -> Any:
    size = abs(x)
    near = _erf_near64(x * x) * x + x
    far = 1.0 - _erfc_far64(size)
    return select(size < 1.0, near, select(x < 0.0, -far, far))


@_jitable
def _normal_cdf32(x: Any) -> Any:
    tail = _exp32(_log_normal_tail32(abs(x)))
    return select(x > _F32(0.0), _F32(1.0) - tail, tail)


@_jitable
def _normal_cdf64(x: Any) -> Any:
    scaled = x * math.sqrt(0.5)
    size = abs(scaled)
    near = 0.5 + 0.5 * (_erf_near64(scaled * scaled) * scaled + scaled)
    tail = select(size > 6.0, 0.0, 0.5 * _erfc_far64(size))
    return select(size < 1.0, near, select(x > 0.0, 1.0 - tail, tail))


def _sigmoid_with(exp_: Any, one: Any) -> Any:
    """Numba widens float32 + int to float64: the 1 must come in the dtype."""

    @_jitable
    def sigmoid_(x: Any) -> Any:
        e = exp_(-abs(x))  # never overflows
        return select(x >= 0, one, e) / (one + e)

    return sigmoid_


_sigmoid32, _sigmoid64 = _sigmoid_with(_exp32, _F32(1.0)), _sigmoid_with(_exp64, _F64(1.0))


# Logarithms in twice the digits, and what needs them

_atanh_tail64 = _polynomial(*(2 / k for k in range(27, 4, -2)))


@_jitable
def _two_product(a: Any, b: Any) -> Any:
    high = _fma(a, b, -0.0)
    return high, _fma(a, b, -high)


@_jitable
def _fast_two_sum(a: Any, b: Any) -> Any:
    """Return a + b and what rounding took from it, for |a| >= |b| (Dekker)."""
    high = a + b
    return high, b - (high - a)


@_jitable
def _log_twice64(x: Any) -> Any:
    """Return the logarithm of x > 0 as a sum of two numbers, good to 2**-64: infinite or NaN with x, -inf for 0."""
    subnormal = x < 2.2250738585072014e-308
    e, m = _split64(select(subnormal, x * 18014398509481984.0, x))
    n = _F64(e) - select(subnormal, 54.0, 0.0)
    m = m - 1.0
    # s = m / (2 + m), then log(1 + m) = 2 atanh(s) = 2 s + 2/3 s**3 + 2/5 s**5 + ...
    divisor, divisor_low = _fast_two_sum(2.0, m)
    s = m / divisor
    s_low = (_fma(-s, divisor, m) - s * divisor_low) / divisor
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
    b, b_low = _two_difference(n * 6.93147180369123816490e-01, -a)
    high, low = _fast_two_sum(b, b_low + (a_low + n * 1.90821492927058770002e-10))
    special = (x == 0.0) | (x == np.inf) | (x != x)
    return select(special, select(x == 0.0, -np.inf, x), high), select(special, 0.0, low)


def _log_to_base64(inverse: float, inverse_low: float) -> Any:
    @_jitable
    def log_(x: Any) -> Any:
        high, low = _log_twice64(x)
        product, product_low = _two_product(high, inverse)
        result = product + (product_low + (low * inverse + high * inverse_low))
        # Infinities have no second part, and neither sign of what is below 0 has a logarithm.
        return select(x < 0.0, np.nan, select(abs(high) == np.inf, high, result))

    return log_


_log2_64 = _log_to_base64(1.4426950408889634, 2.0355273740931033e-17)
_log10_64 = _log_to_base64(0.4342944819032518, 1.098319650216765e-17)


@_jitable
def _power_signs(x: Any, exponent: Any, power: Any) -> Any:
    """Return x**exponent from |x|**exponent: IEEE 754-2019, 9.2.1."""
    whole = np.floor(exponent) == exponent
    half = exponent * 0.5
    odd = whole & (np.floor(half) != half)
    result = select(_is_negative64(x) & odd, -power, power)
    result = select((x < 0.0) & (x != -np.inf) & (not whole), np.nan, result)
    one = (exponent == 0.0) | (x == 1.0) | ((x == -1.0) & (abs(exponent) == np.inf))
    return select(one, 1.0, result)


@_jitable
def _pow64(x: Any, exponent: Any) -> Any:
    high, low = _log_twice64(abs(x))
    product, product_low = _two_product(high, exponent)
    product_low = product_low + low * exponent
    clamped = _clamp(product, -746.0, 710.0)
    n, p = _exp_parts64(clamped, select(clamped == product, product_low, 0.0))
    return _power_signs(x, exponent, _scale64(p + 1.0, n))


# log2(1 + m) / m for 1 + m in [sqrt(1/2), sqrt(2)), to 2**-35, and (2**r - 1) / r for r in [-1/2, 1/2], to 2**-28
_log2_tail_for_pow32 = _polynomial(
    0.0773156735986556, -0.14279921692438646, 0.14475548322110565, -0.14316625777785158, 0.15876998897992586,
    -0.18029971322120372, 0.2061753056841607, -0.24045320138673695, 0.2885372945631481, -0.3606736742060341,
    0.48089836145612685, -0.7213475208729462, 1.4426950408679016,
)  # fmt: skip
_exp2_tail_for_pow32 = _polynomial(
    0.00015355063374901683, 0.001339881759275904, 0.009618432914143854, 0.055503326523239596, 0.24022647914711928,
    0.6931472026802478,
)  # fmt: skip


@_jitable
def _pow32(x: Any, exponent: Any) -> Any:
    """Compute in float64, where a float32 is never subnormal and its powers neither overflow nor underflow."""
    base, power = _F64(x), _F64(exponent)
    size = abs(base)
    e, m = _split64(size)
    m = m - 1.0
    logarithm = select(size < np.inf, _F64(e) + m * _log2_tail_for_pow32(m), size)
    product = _clamp(select(size == 0.0, -np.inf, logarithm) * power, -500.0, 500.0)
    shifted = product + _ROUND64
    r = product - (shifted - _ROUND64)
    scale = bits(_I64((bits(shifted) - _I64(0x4338000000000000) + 1023) << 52))
    return _F32(_power_signs(base, power, (r * _exp2_tail_for_pow32(r) + 1.0) * scale))


def _through_float64(function: Any) -> Any:
    """Return a float32 function that computes in float64: half the lanes, but no accuracy to fight for."""

    @_jitable
    def narrow(x: Any) -> Any:
        return _F32(function(_F64(x)))

    return narrow


_tan32, _sinh32, _cosh32 = map(_through_float64, (_tan64, _sinh64, _cosh64))
_asin32, _acos32, _atan32 = map(_through_float64, (_asin64, _acos64, _atan64))


def _plain_log_to_base64(inverse: float) -> Any:
    @_jitable
    def log_(x: Any) -> Any:
        return _log64(x) * inverse

    return log_


_log2_32 = _through_float64(_plain_log_to_base64(1 / math.log(2)))
_log10_32 = _through_float64(_plain_log_to_base64(1 / math.log(10)))


@_jitable
def _atan2_32(y: Any, x: Any) -> Any:
    return _F32(_atan2_64(_F64(y), _F64(x)))


# For float32 and for float64, by the names of `scalar_math`.
IMPLEMENTATIONS: dict[str, tuple[Any, Any]] = {
    "exp": (_exp32, _exp64), "normal_exp": (_normal_exp32, _exp64), "expm1": (_expm1_32, _expm1_64),
    "log": (_log32, _log64), "log1p": (_log1p32, _log1p64), "log2": (_log2_32, _log2_64),
    "log10": (_log10_32, _log10_64), "logaddexp": (_logaddexp32, _logaddexp64), "pow": (_pow32, _pow64),
    "sin": (_sin32, _sin64), "cos": (_cos32, _cos64), "tan": (_tan32, _tan64), "asin": (_asin32, _asin64),
    "acos": (_acos32, _acos64), "atan": (_atan32, _atan64), "atan2": (_atan2_32, _atan2_64),
    "sinh": (_sinh32, _sinh64), "cosh": (_cosh32, _cosh64), "tanh": (_tanh32, _tanh64),
    "erf": (_erf32, _erf64), "normal_cdf": (_normal_cdf32, _normal_cdf64), "sigmoid": (_sigmoid32, _sigmoid64),
}  # fmt: skip
