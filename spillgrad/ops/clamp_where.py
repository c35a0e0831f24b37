"""Choices between elements: by a condition (`where`), by size (`maximum`, `minimum`), by bounds (`clamp`)."""

import math
from typing import Any

import numpy as np

from spillgrad import dtypes
from spillgrad.errors import ArgumentError, DtypeError
from spillgrad.ops.complex_views import view_as_complex, view_as_real
from spillgrad.ops.declaration import declare
from spillgrad.ops.elementwise import call, common_function, row_function
from spillgrad.ops.placement import or_by_host
from spillgrad.ops.promotion import Number, Operand, result_type
from spillgrad.tensor import Tensor

__all__ = ["clamp", "clamp_max", "clamp_min", "clip", "fmax", "fmin", "maximum", "minimum", "nan_to_num", "where"]


def where(
    condition: Tensor, input: Operand | None = None, other: Operand | None = None, *, out: Tensor | None = None
) -> Any:  # fmt: skip
    """Return the elements of `input` where `condition` holds, and those of `other` elsewhere.

    With `condition` alone, return the indices of its true elements, as one index tensor per dimension.
    """
    condition = condition if isinstance(condition, Tensor) else Tensor.wrap(np.asarray(condition))
    if (input is None) != (other is None):
        raise ArgumentError("where: got one of input and other; give both, or the condition alone")
    if input is None or other is None:
        return _true_places(condition)
    if condition.numpy_dtype != dtypes.bool_:
        raise DtypeError(f"where: got a condition of {condition.dtype}; wanted bool, such as x > 0")
    return call("where", condition, input, other, out=out)


@or_by_host
def _true_places(condition: Tensor) -> tuple[Tensor, ...]:
    return tuple(Tensor.wrap(index) for index in np.nonzero(condition.array))


maximum = common_function("maximum", "Return the larger of two elements; NaN where either is.")
minimum = common_function("minimum", "Return the smaller of two elements; NaN where either is.")
fmax = row_function(
    "fmax", "Return the larger of two elements; of a number and NaN the number.", method=True, numpy=True
)
fmin = row_function(
    "fmin", "Return the smaller of two elements; of a number and NaN the number.", method=True, numpy=True
)


@declare(in_place=True)
def clamp(
    input: Tensor, min: Operand | None = None, max: Operand | None = None, *, out: Tensor | None = None
) -> Tensor:  # fmt: skip
    """Return each element clamped to [min, max]; the result is max if min exceeds max.

    Raises ArgumentError if neither bound is given.
    """
    if min is None and max is None:
        raise ArgumentError("clamp: got neither min nor max; give at least one")
    lowest, highest = bounds(result_type(input, *(b for b in (min, max) if b is not None)))
    return call("clamp", input, lowest if min is None else min, highest if max is None else max, out=out)


clip = clamp


def bounds(dtype: dtypes.DType) -> tuple[Number, Number]:
    """Return the least and the greatest number of a dtype; clamping to these two changes no element."""
    if dtypes.category(dtype) == 1:
        limits = dtypes.iinfo(dtype)
        return limits.min, limits.max
    return (-math.inf, math.inf) if dtypes.category(dtype) > 1 else (False, True)


@declare(in_place=True)
def clamp_min(input: Tensor, min: Operand, *, out: Tensor | None = None) -> Tensor:
    """Return each element, with elements below `min` replaced by `min`."""
    return clamp(input, min, out=out)


@declare(in_place=True)
def clamp_max(input: Tensor, max: Operand, *, out: Tensor | None = None) -> Tensor:
    """Return each element, with elements above `max` replaced by `max`."""
    return clamp(input, None, max, out=out)


@declare(in_place=True, numpy=True)
def nan_to_num(
    input: Tensor, nan: float | None = 0.0, posinf: float | None = None, neginf: float | None = None,
    *, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return each element, NaN replaced by `nan`, and ±infinity by `posinf` and `neginf` (None: the finite limits).

    Real and imaginary parts of complex numbers are replaced apart; the gradient is 0 where one of them is not finite.
    """
    if input.is_complex():
        pairs = nan_to_num(view_as_real(input.detach()), nan, posinf, neginf)
        return call("where", call("isfinite", input), input, view_as_complex(pairs), out=out)
    if not input.is_floating_point():
        return call("nan_to_num", input, 0, 0, 0, out=out)
    limits = dtypes.finfo(input.dtype)
    return call(
        "nan_to_num", input, 0.0 if nan is None else nan, limits.max if posinf is None else posinf,
        limits.min if neginf is None else neginf, out=out,
    )  # fmt: skip
