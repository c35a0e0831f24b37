"""Arithmetic: sums, products, quotients, powers and roots, exponentials and logarithms, signs, rounding."""

from typing import Any, NamedTuple

import numpy as np

from spillgrad import dtypes
from spillgrad.errors import ArgumentError, DtypeError
from spillgrad.ops.array_casts import compute_dtype
from spillgrad.ops.comparison import lt, ne
from spillgrad.ops.convert import to_dtype
from spillgrad.ops.declaration import declare
from spillgrad.ops.elementwise import OPERATIONS, by_numpy, call, common_function, row_function
from spillgrad.ops.logic import logical_and
from spillgrad.ops.operation import operation
from spillgrad.ops.promotion import Number, Operand, as_operand, result_type
from spillgrad.tensor import Tensor

__all__ = [
    "abs", "absolute", "add", "addcdiv", "addcmul", "ceil", "div", "divide", "exp", "exp2", "expm1", "fix",
    "float_power", "floor", "floor_divide", "fmod", "frac", "frexp", "gcd", "hypot", "lcm", "ldexp", "lerp", "log",
    "log1p", "log2", "log10", "logaddexp", "logaddexp2", "mod", "mul", "multiply", "neg", "negative", "positive", "pow",
    "reciprocal", "remainder", "round", "rsqrt", "rsub", "sgn", "sign", "sqrt", "square", "sub", "subtract",
    "true_divide", "trunc",
]  # fmt: skip

neg = negative = common_function("neg", "Return each element with the other sign.", standard="negative")
abs = absolute = common_function("abs", "Return the absolute value of each element.", numpy="absolute fabs")


@declare(method=True, numpy=True, standard=True)
def positive(input: Tensor) -> Tensor:
    """Return `input` itself.

    Parameters
    ----------
    input : Tensor
        Of any shape.

    Returns
    -------
    Tensor
        `input` itself.

    Raises
    ------
    DtypeError
        If the dtype is bool.
    """
    if input.dtype == dtypes.bool_:
        raise DtypeError("positive: got bool, which has no sign; convert with .to(int64)")
    return input


sign = row_function("sign", "Return -1, 0 or 1 for each element.", in_place=True)
sgn = row_function(
    "sgn", "Return the sign of each element; for a complex number z, ``z / abs(z)``, or 0.", in_place=True
)


@declare(in_place=True, numpy=True, standard=True)
def add(input: Operand, other: Operand, *, alpha: Number = 1, out: Tensor | None = None) -> Tensor:
    """Return the elementwise sum.

    With `alpha`, it is ``input + alpha * other``.

    Parameters
    ----------
    input, other : Tensor or number
        Their shapes broadcast, and their dtypes promote to one.
    alpha : number, default 1
        Factor of `other`.
    out : Tensor, optional
        Tensor that takes the result.

    Returns
    -------
    Tensor
        Of the shape that the operands broadcast to.

    Raises
    ------
    ArgumentError
        If `alpha` is complex, and the operands are real.
    ShapeError
        If the shapes do not broadcast.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.add(sg.tensor([1.0, 2.0]), 10, alpha=2).tolist()
    [21.0, 22.0]
    """
    if alpha == 1 and out is None:
        return OPERATIONS["add"].run(input, other)  # type: ignore[no-any-return]
    return call("add", input, other if alpha == 1 else _scaled("add", input, other, alpha), out=out)


@declare(in_place=True, numpy=True, standard="subtract")
def sub(input: Operand, other: Operand, *, alpha: Number = 1, out: Tensor | None = None) -> Tensor:
    """Return the elementwise difference.

    With `alpha`, it is ``input - alpha * other``.

    Parameters
    ----------
    input, other : Tensor or number
        Their shapes broadcast, and their dtypes promote to one.
    alpha : number, default 1
        Factor of `other`.
    out : Tensor, optional
        Tensor that takes the result.

    Returns
    -------
    Tensor
        Of the shape that the operands broadcast to.

    Raises
    ------
    ArgumentError
        If `alpha` is complex, and the operands are real.
    ShapeError
        If the shapes do not broadcast.
    """
    if alpha == 1 and out is None:
        return OPERATIONS["sub"].run(input, other)  # type: ignore[no-any-return]
    return call("sub", input, other if alpha == 1 else _scaled("sub", input, other, alpha), out=out)


subtract = sub


def _scaled(name: str, input: Operand, other: Operand, alpha: Number) -> Tensor:
    """Return alpha * other, for the sum of this and `input`."""
    if isinstance(alpha, complex) and not dtypes.is_complex(result_type(input, other)):
        raise ArgumentError(
            f"{name}: got alpha={alpha}; For non-complex input tensors, argument alpha must not be a complex number"
        )
    return mul(other, alpha)


def rsub(input: Operand, other: Operand, *, alpha: Number = 1, out: Tensor | None = None) -> Tensor:
    """Return ``other - alpha * input``.

    Parameters
    ----------
    input, other : Tensor or number
        Their shapes broadcast, and their dtypes promote to one.
    alpha : number, default 1
        Factor of `input`.
    out : Tensor, optional
        Tensor that takes the result.

    Returns
    -------
    Tensor
        Of the shape that the operands broadcast to.
    """
    return sub(other, input, alpha=alpha, out=out)


mul = multiply = common_function("mul", "Return the elementwise product.", standard="multiply")


@declare(in_place=True, numpy=True, standard="divide")
def div(input: Operand, other: Operand, *, rounding_mode: str | None = None, out: Tensor | None = None) -> Tensor:
    """Return the elementwise quotient ``input / other``.

    Parameters
    ----------
    input, other : Tensor or number
        Their shapes broadcast, and their dtypes promote to one.
    rounding_mode : {"floor", "trunc"}, optional
        Whether the quotient is rounded down or towards 0, exactly for integers, which stay integers; by default, not at
        all.
    out : Tensor, optional
        Tensor that takes the result.

    Returns
    -------
    Tensor
        Of the shape that the operands broadcast to; a quotient of integers is in the default dtype.

    Raises
    ------
    ArgumentError
        If `rounding_mode` is another word.
    ShapeError
        If the shapes do not broadcast.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.div(sg.tensor([7, -7]), 2, rounding_mode="floor").tolist()
    [3, -4]
    """
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


floor_divide = common_function(
    "floor_divide", "Return the largest integer not above ``input / other``; integers stay integers."
)
remainder = mod = common_function(
    "remainder",
    "Return `input` modulo `other`, with the sign of `other` (Python's ``%``).",
    method=True,
    in_place="remainder",
)
fmod = row_function(
    "fmod", "Return `input` modulo `other`, with the sign of `input` (C's fmod).", in_place=True, numpy=True
)
reciprocal = common_function("reciprocal", "Return ``1 / x`` for each element x.")


@declare(in_place=True)
def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1, out: Tensor | None = None) -> Tensor:
    """Return ``input + value * tensor1 * tensor2``.

    Parameters
    ----------
    input : Tensor
        First term; all shapes broadcast.
    tensor1, tensor2 : Tensor
        Factors.
    value : number, default 1
        Factor of the product.
    out : Tensor, optional
        Tensor that takes the result.

    Returns
    -------
    Tensor
        Of the shape that the operands broadcast to.
    """
    return add(input, mul(tensor1, tensor2), alpha=value, out=out)


@declare(in_place=True)
def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1, out: Tensor | None = None) -> Tensor:
    """Return ``input + value * tensor1 / tensor2``.

    Parameters
    ----------
    input : Tensor
        First term; all shapes broadcast.
    tensor1, tensor2 : Tensor
        Dividend and divisor.
    value : number, default 1
        Factor of the quotient.
    out : Tensor, optional
        Tensor that takes the result.

    Returns
    -------
    Tensor
        Of the shape that the operands broadcast to.
    """
    return add(input, div(tensor1, tensor2), alpha=value, out=out)


@declare(in_place=True)
def lerp(input: Tensor, end: Tensor, weight: Operand, *, out: Tensor | None = None) -> Tensor:
    """Return ``input + weight * (end - input)``.

    Parameters
    ----------
    input : Tensor
        Result for the weight 0; all shapes broadcast.
    end : Tensor
        Result for the weight 1.
    weight : Tensor or number
        How far the result lies from `input` to `end`.
    out : Tensor, optional
        Tensor that takes the result.

    Returns
    -------
    Tensor
        Of the shape that the operands broadcast to.
    """
    return call("lerp", input, end, weight, out=out)


square = common_function("square", "Return the square of each element.")
sqrt = common_function("sqrt", "Return the square root of each element.")
rsqrt = row_function("rsqrt", "Return the reciprocal of the square root of each element.", in_place=True)


@declare(in_place=True, numpy="power", standard=True)
def pow(input: Operand, exponent: Operand, *, out: Tensor | None = None) -> Tensor:
    """Return `input` raised to the power `exponent`.

    For tensors of floating-point numbers, the exponents 1, 2, 3, 0.5 and -1 are computed without a logarithm.

    Parameters
    ----------
    input, exponent : Tensor or number
        Their shapes broadcast, and their dtypes promote to one.
    out : Tensor, optional
        Tensor that takes the result.

    Returns
    -------
    Tensor
        Of the shape that the operands broadcast to.

    Raises
    ------
    ShapeError
        If the shapes do not broadcast.
    """
    if isinstance(input, Tensor) and dtypes.is_differentiable(input.dtype) and isinstance(exponent, int | float):
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


@declare(in_place=True, numpy=True)
def float_power(input: Operand, exponent: Operand) -> Tensor:
    """Return `input` raised to the power `exponent`, computed in float64 or complex128.

    Parameters
    ----------
    input, exponent : Tensor or number
        Their shapes broadcast.

    Returns
    -------
    Tensor
        Of float64 or complex128, of the shape that the operands broadcast to.
    """
    wide = dtypes.complex128 if dtypes.is_complex(result_type(input, exponent)) else dtypes.float64
    first, second = (
        to_dtype(value, wide) if isinstance(value, Tensor) else value
        for value in (as_operand("float_power", input), as_operand("float_power", exponent))
    )
    if not isinstance(first, Tensor) and not isinstance(second, Tensor):
        first = Tensor.wrap(np.asarray(first, wide))
    return pow(first, second)


hypot = common_function(
    "hypot", "Return ``sqrt(input**2 + other**2)`` without overflow; its gradient at the origin is 0."
)
exp = common_function("exp", "Return e raised to each element.")
exp2 = row_function("exp2", "Return 2 raised to each element.", in_place=True, numpy=True)
expm1 = common_function("expm1", "Return ``exp(x) - 1`` for each element x, accurate near 0.")
log = common_function("log", "Return the natural logarithm of each element.")
log2 = common_function("log2", "Return the base-2 logarithm of each element.")
log10 = common_function("log10", "Return the base-10 logarithm of each element.")
log1p = common_function("log1p", "Return ``log(1 + x)`` for each element x, accurate near 0.")
logaddexp = row_function(
    "logaddexp", "Return ``log(exp(input) + exp(other))`` without overflow.", method=True, numpy=True, standard=True
)
logaddexp2 = row_function(
    "logaddexp2", "Return ``log2(2**input + 2**other)`` without overflow.", method=True, numpy=True
)


@declare(in_place=True, numpy=True)
def ldexp(input: Tensor, other: Operand, *, out: Tensor | None = None) -> Tensor:
    """Return `input` times 2 to the power `other`.

    Parameters
    ----------
    input : Tensor
        Factor.
    other : Tensor or number
        Exponent; the shapes broadcast.
    out : Tensor, optional
        Tensor that takes the result.

    Returns
    -------
    Tensor
        Of the shape that the operands broadcast to.
    """
    if not isinstance(other, Tensor):
        return mul(input, 2.0**other, out=out)
    whole = not (dtypes.is_floating_point(other.dtype) or other.is_complex())
    return mul(input, exp2(to_dtype(other, input.dtype) if whole else other), out=out)


class MantissaAndExponent(NamedTuple):
    """The parts of numbers that are mantissa * 2 ** exponent."""

    mantissa: Tensor
    exponent: Tensor


def _frexp_forward(self: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mantissa, exponent = map(np.asarray, np.frexp(self.astype(compute_dtype(self.dtype), copy=False)))
    return mantissa.astype(self.dtype, copy=False), np.where(np.isfinite(mantissa), exponent, 0).astype(np.int32)


_frexp: Any = operation(
    "frexp", _frexp_forward, outputs=("mantissa", "exponent"),
    self=lambda g, exponent: ldexp(g, neg(exponent)),
)  # fmt: skip


@declare(method=True)
def frexp(input: Tensor) -> MantissaAndExponent:
    """Return the mantissas and the exponents of 2 of floating-point numbers: ``input = mantissa * 2 ** exponent``.

    Parameters
    ----------
    input : Tensor
        Of floating-point numbers.

    Returns
    -------
    MantissaAndExponent
        Mantissas from 0.5 up to below 1, or their negatives, and exponents of int32. The exponent of zero, of
        infinities and of NaN is 0.

    Raises
    ------
    DtypeError
        If the numbers are not floating-point numbers.
    """
    if not dtypes.is_floating_point(input.dtype):
        raise DtypeError(f"torch.frexp() only supports floating-point dtypes, got {input.dtype}")
    return MantissaAndExponent(*_frexp(input))


floor = common_function("floor", "Return the largest integer not above each element.")
ceil = common_function("ceil", "Return the smallest integer not below each element.")
trunc = fix = common_function("trunc", "Return each element without its fraction.")
frac = row_function("frac", "Return the fraction of each element, with its sign.", in_place=True)


@declare(in_place=True, numpy="rint")
def round(input: Tensor, decimals: int = 0, *, out: Tensor | None = None) -> Tensor:
    """Return each element rounded to the nearest integer, halves to even.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    decimals : int, default 0
        The result is a multiple of ``10 ** -decimals``.
    out : Tensor, optional
        Tensor that takes the result.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.round(sg.tensor([0.5, 1.5, 2.4])).tolist()
    [0.0, 2.0, 2.0]
    """
    if decimals == 0:
        return call("round", input, out=out)
    return call("div", call("round", input * 10.0**decimals), 10.0**decimals, out=out)


def _whole(name: str, function: Any, input: Tensor, other: Tensor | Number) -> Tensor:
    operands = [as_operand(name, o) for o in (input, other)]
    found = [o.dtype if isinstance(o, Tensor) else np.asarray(o).dtype for o in operands]
    if any(dtype.kind not in "iu" for dtype in found):
        raise DtypeError(f"{name}: got {' and '.join(map(str, found))}; wanted integers")
    return by_numpy(name, function, *operands)


@declare(in_place=True, numpy=True)
def gcd(input: Tensor, other: Tensor | Number) -> Tensor:
    """Return the greatest common divisor of each pair of integers.

    Parameters
    ----------
    input : Tensor
        Of integers.
    other : Tensor or int
        Of integers; the shapes broadcast.

    Returns
    -------
    Tensor
        Of the shape that the operands broadcast to; without a gradient.

    Raises
    ------
    DtypeError
        If an operand is not of integers.
    """
    return _whole("gcd", np.gcd, input, other)


@declare(in_place=True, numpy=True)
def lcm(input: Tensor, other: Tensor | Number) -> Tensor:
    """Return the least common multiple of each pair of integers.

    Parameters
    ----------
    input : Tensor
        Of integers.
    other : Tensor or int
        Of integers; the shapes broadcast.

    Returns
    -------
    Tensor
        Of the shape that the operands broadcast to; without a gradient.

    Raises
    ------
    DtypeError
        If an operand is not of integers.
    """
    return _whole("lcm", np.lcm, input, other)
