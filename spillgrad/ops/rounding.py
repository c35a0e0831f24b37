"""Rounding, and fractions."""

from spillgrad.ops.declaration import declare
from spillgrad.ops.elementwise import call, row_function
from spillgrad.tensor import Tensor

__all__ = ["ceil", "fix", "floor", "frac", "round", "trunc"]

floor = row_function(
    "floor", "Return the largest integer not above each element.", in_place=True, numpy=True, standard=True
)
ceil = row_function(
    "ceil", "Return the smallest integer not below each element.", in_place=True, numpy=True, standard=True
)
trunc = fix = row_function(
    "trunc", "Return each element without its fraction.", in_place=True, numpy=True, standard=True
)
frac = row_function("frac", "Return the fraction of each element, with its sign.", in_place=True)


@declare(in_place=True, numpy="rint", standard=True)
def round(input: Tensor, decimals: int = 0, *, out: Tensor | None = None) -> Tensor:
    """Return the nearest integer, halves to the even one; with `decimals`, the nearest multiple of 10**-decimals."""
    if decimals == 0:
        return call("round", input, out=out)
    return call("div", call("round", input * 10.0**decimals), 10.0**decimals, out=out)
