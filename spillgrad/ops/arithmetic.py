"""Arithmetic: sums, products, quotients, powers and roots, signs."""

from typing import Any

import numpy as np

from spillgrad import dtypes
from spillgrad.errors import ArgumentError, DtypeError
from spillgrad.ops.comparison import lt, ne
from spillgrad.ops.convert import to_dtype
from spillgrad.ops.elementwise import OPERATIONS, by_numpy, call, row_function
from spillgrad.ops.logic import logical_and
from spillgrad.ops.promotion import Number, Operand, as_operand, result_type
from spillgrad.ops.rounding import trunc
from spillgrad.tensor import Tensor

neg = negative = row_function("neg", "Return each element with the other sign.")
abs = absolute = row_function("abs", "Return the absolute value of each element.")


def positive(input: Tensor) -> Tensor:
    """Return the input. Raises DtypeError for bool."""
    if input.dtype == dtypes.bool_:
        raise DtypeError("positive: got bool, which has no sign; convert with .to(int64)")
    return input


sign = sgn = row_function("sign", "Return -1, 0 or 1 for each element.")


def add(input: Operand, other: Operand, *, alpha: Number = 1, out: Tensor | None = None) -> Tensor:
    """Return input + alpha * other."""
    if alpha == 1 and out is None:
        return OPERATIONS["add"].run(input, other)  # type: ignore[no-any-return]
    return call("add", input, other if alpha == 1 else mul(other, alpha), out=out)


def sub(input: Operand, other: Operand, *, alpha: Number = 1, out: Tensor | None = None) -> Tensor:
    """Return input - alpha * other."""
    if alpha == 1 and out is None:
        return OPERATIONS["sub"].run(input, other)  # type: ignore[no-any-return]
    return call("sub", input, other if alpha == 1 else mul(other, alpha), out=out)


subtract = sub


def rsub(input: Operand, other: Operand, *, alpha: Number = 1, out: Tensor | None = None) -> Tensor:
    """Return other - alpha * input."""
    return sub(other, input, alpha=alpha, out=out)


mul = multiply = row_function("mul", "Return the elementwise product.")


def div(
    input: Operand, other: Operand, *, rounding_mode: str | None = None, out: Tensor | None = None
) -> Tensor:  # fmt: skip
    """Return input / other: true division, or rounded with `rounding_mode` "floor" or "trunc" (integers stay exact)."""
    if rounding_mode is None:
        return call("div", input, other, out=out)
    if rounding_mode == "floor":
        return floor_divide(input, other, out=out)
    if rounding_mode == "trunc":
        if dtypes.category(result_type(input, other)) == 2:
            return trunc(call("div", input, other), out=out)
        has_rest = ne(remainder(input, other), 0)
        up = logical_and(has_rest, ne(lt(input, 0), lt(other, 0)))
        return add(floor_divide(input, other), up, out=out)
    raise ArgumentError(f'div: got rounding_mode={rounding_mode!r}; accepted are None, "floor" and "trunc"')


divide = true_divide = div


def floor_divide(input: Operand, other: Operand, *, out: Tensor | None = None) -> Tensor:
    """Return the largest integer not above input / other; integers stay integers."""
    return call("floor_divide", input, other, out=out)


remainder = mod = row_function("remainder", "Return input modulo other, with the divisor's sign (Python's %).")
fmod = row_function("fmod", "Return input modulo other, with the sign of input (C's fmod).")
reciprocal = row_function("reciprocal", "Return 1 / x for each element.")


def addcmul(
    input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1, out: Tensor | None = None
) -> Tensor:  # fmt: skip
    """Return input + value * tensor1 * tensor2."""
    return add(input, mul(tensor1, tensor2), alpha=value, out=out)


def addcdiv(
    input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1, out: Tensor | None = None
) -> Tensor:  # fmt: skip
    """Return input + value * tensor1 / tensor2."""
    return add(input, div(tensor1, tensor2), alpha=value, out=out)


def lerp(input: Tensor, end: Tensor, weight: Operand, *, out: Tensor | None = None) -> Tensor:
    """Return input + weight * (end - input)."""
    return call("lerp", input, end, weight, out=out)


square = row_function("square", "Return the square of each element.")
sqrt = row_function("sqrt", "Return the square root of each element.")
rsqrt = row_function("rsqrt", "Return the reciprocal of the square root of each element.")


def pow(input: Operand, exponent: Operand, *, out: Tensor | None = None) -> Tensor:
    """Return input raised to `exponent`; common exponents take a product instead of a logarithm."""
    if isinstance(input, Tensor) and input.is_floating_point() and isinstance(exponent, int | float):
        if exponent == 1:
            return call("mul", input, 1, out=out)
        if exponent == 2:
            return square(input, out=out)
        if exponent == 3:
            return call("cube", input, out=out)
        if exponent == 0.5:
            return sqrt(input, out=out)
        if exponent == -1:
            return reciprocal(input, out=out)
    return call("pow", input, exponent, out=out)


def float_power(input: Operand, exponent: Operand) -> Tensor:
    """Return input raised to `exponent`, computed in float64."""
    first, second = (
        to_dtype(value, dtypes.float64) if isinstance(value, Tensor) else value
        for value in (as_operand("float_power", input), as_operand("float_power", exponent))
    )
    if not isinstance(first, Tensor) and not isinstance(second, Tensor):
        first = Tensor.wrap(np.asarray(first, np.float64))
    return pow(first, second)


hypot = row_function("hypot", "Return sqrt(input**2 + other**2) without overflow; its gradient at the origin is 0.")


def _whole(name: str, function: Any, input: Tensor, other: Tensor | Number) -> Tensor:
    operands = [as_operand(name, o) for o in (input, other)]
    found = [o.dtype if isinstance(o, Tensor) else np.asarray(o).dtype for o in operands]
    if any(dtype.kind not in "iu" for dtype in found):
        raise DtypeError(f"{name}: got {' and '.join(map(str, found))}; wanted integers")
    return by_numpy(name, function, *operands)


def gcd(input: Tensor, other: Tensor | Number) -> Tensor:
    """Return the greatest common divisors of integers. Raises DtypeError for others."""
    return _whole("gcd", np.gcd, input, other)


def lcm(input: Tensor, other: Tensor | Number) -> Tensor:
    """Return the least common multiples of integers. Raises DtypeError for others."""
    return _whole("lcm", np.lcm, input, other)
