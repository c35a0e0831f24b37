"""Exponentials and logarithms."""

from spillgrad.ops.arithmetic import mul
from spillgrad.ops.convert import to_dtype
from spillgrad.ops.declaration import declare
from spillgrad.ops.elementwise import row_function
from spillgrad.ops.promotion import Operand
from spillgrad.tensor import Tensor

__all__ = ["exp", "exp2", "expm1", "ldexp", "log", "log1p", "log2", "log10", "logaddexp", "logaddexp2"]

exp = row_function("exp", "Return e raised to each element.", in_place=True, numpy=True, standard=True)
exp2 = row_function("exp2", "Return 2 raised to each element.", in_place=True, numpy=True)
expm1 = row_function("expm1", "Return exp(x) - 1, accurate near 0.", in_place=True, numpy=True, standard=True)
log = row_function("log", "Return the natural logarithm of each element.", in_place=True, numpy=True, standard=True)
log2 = row_function("log2", "Return the base-2 logarithm of each element.", in_place=True, numpy=True, standard=True)
log10 = row_function("log10", "Return the base-10 logarithm of each element.", in_place=True, numpy=True, standard=True)
log1p = row_function("log1p", "Return log(1 + x), accurate near 0.", in_place=True, numpy=True, standard=True)
logaddexp = row_function(
    "logaddexp", "Return log(exp(input) + exp(other)) without overflow.", method=True, numpy=True, standard=True
)
logaddexp2 = row_function("logaddexp2", "Return log2(2**input + 2**other) without overflow.", method=True, numpy=True)


@declare(in_place=True, numpy=True)
def ldexp(input: Tensor, other: Operand, *, out: Tensor | None = None) -> Tensor:
    """Return input times 2 to the power `other`."""
    power = exp2(to_dtype(other, input.dtype)) if isinstance(other, Tensor) else 2.0**other
    return mul(input, power, out=out)
