"""Building blocks of vectorised functions: bits, selection, polynomials, and calls of libm for large arguments."""

from typing import Any

import numpy as np
from llvmlite import ir

from spillgrad_kernels.jit.compile import CONTRACT, emitted, intrinsic, register_jitable, types

# With NumPy's error model, division by zero gives inf or NaN. Python's error model would put a branch into every loop.
# All functions are inlined, whatever their size: LLVM does not vectorise a loop around a call.
OPTIONS: dict[str, Any] = {"error_model": "numpy", "fastmath": CONTRACT, "nogil": True, "forceinline": True}

jitable = register_jitable(**OPTIONS)


_SAME_BITS = {"float32": "int32", "float64": "int64", "int32": "float32", "int64": "float64"}


@intrinsic
def bits(typing_context: Any, x: Any) -> Any:
    """Return a float's bits as an integer of the same size; for an integer, return the float with these bits."""
    signature = getattr(types, _SAME_BITS[x.name])(x)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(signature.return_type))

    return signature, codegen


@intrinsic
def select(typing_context: Any, condition: Any, chosen: Any, otherwise: Any) -> Any:
    """Return `chosen` or `otherwise` without a branch: LLVM might not vectorise a loop that has branches."""
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


F32, I32 = np.float32, np.int32
F64, I64 = np.float64, np.int64


@emitted(lambda a, b, c: a(a, b, c))
def fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """Return a * b + c, rounded once. With c = -0.0, return a product that LLVM does not fuse with an addition."""
    return builder.fma(a, b, c)


def polynomial(*coefficients: float) -> Any:
    """Return a compiled function that evaluates a polynomial in its argument's dtype.

    `coefficients` begin with the highest power.
    """

    @emitted(lambda x: x(x))
    def evaluate(builder: Any, x: Any) -> Any:
        result = ir.Constant(x.type, coefficients[0])
        for coefficient in coefficients[1:]:
            product = builder.fmul(result, x, flags=("contract",))
            result = builder.fadd(product, ir.Constant(x.type, coefficient), flags=("contract",))
        return result

    return evaluate


def beyond(limit: float, name: str) -> Any:
    """Return a compiled function of (x, result) that returns libm's `name`(x) if |x| > `limit`, else `result`.

    A call keeps LLVM from vectorising a loop, unless the called function has vector variants. The returned function
    has variants, which take one comparison if no lane is beyond the limit.
    Source: LLVM Language Reference, "vector-function-abi-variant".
    """

    @emitted(lambda x, result: x(x, x))
    def correct(builder: Any, x: Any, result: Any) -> Any:
        return builder.call(_with_vector_variants(builder.module, x.type, limit, name), [x, result])

    return correct


_VECTOR_LANES = (2, 4, 8, 16)


def _with_vector_variants(module: Any, scalar: Any, limit: float, name: str) -> Any:
    full_name = f"spillgrad.{name}.{scalar.intrinsic_name}"
    if full_name in module.globals:
        return module.globals[full_name]
    libm = module.declare_intrinsic(f"llvm.{name}", [scalar])

    def define(function_name: str, value: Any) -> tuple[Any, Any]:
        function = ir.Function(module, ir.FunctionType(value, [value, value]), function_name)
        # Several kernels may contain this function. Unlike linkonce_odr, weak_odr keeps a function that is not called
        # yet.
        function.linkage = "weak_odr"
        function.attributes.update(("noinline", "nounwind", "readnone"))
        return function, ir.IRBuilder(function.append_basic_block())

    def is_beyond(builder: Any, x: Any, bound: Any, negative_bound: Any) -> Any:
        return builder.or_(builder.fcmp_ordered(">", x, bound), builder.fcmp_ordered("<", x, negative_bound))

    function, builder = define(full_name, scalar)
    variants = ",".join(f"_ZGV_LLVM_N{lanes}vv_{full_name}({full_name}.{lanes})" for lanes in _VECTOR_LANES)
    # The set's own `add` refuses attributes with a value.
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


# Adding this constant to a float rounds the float to a whole number, which the low bits of the sum hold.
ROUND32, ROUND64 = F32(1.5 * 2.0**23), F64(1.5 * 2.0**52)
INF32, NAN32 = F32(np.inf), F32(np.nan)


def through_float64(function: Any) -> Any:
    """Return a float32 function that computes `function` in float64: in half as many lanes, but accurately."""

    @jitable
    def narrow(x: Any) -> Any:
        return F32(function(F64(x)))

    return narrow


def of_two_through_float64(function: Any) -> Any:
    """Return a float32 function that computes `function`, which has two arguments, in float64."""

    @jitable
    def narrow(x: Any, y: Any) -> Any:
        return F32(function(F64(x), F64(y)))

    return narrow


@jitable
def two_difference(a: Any, b: Any) -> Any:
    """Return the rounded a - b and its rounding error.

    Source: Knuth, "The Art of Computer Programming", volume 2, 4.2.2.
    """
    high = a - b
    taken = a - high
    return high, (a - (high + taken)) + (taken - b)


@jitable
def is_negative64(x: Any) -> Any:
    """Return whether the sign bit of x is set, as it is in -0."""
    return bits(x) < 0
