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
    """Return the elements of `input` where a condition holds, and those of `other` elsewhere.

    Parameters
    ----------
    condition : Tensor
        Of bool; without `input` and `other`, of any dtype.
    input, other : Tensor or number, optional
        Values to choose from, both or neither; all shapes broadcast.
    out : Tensor, optional
        Tensor that takes the result.

    Returns
    -------
    Tensor or tuple of Tensor
        Of the shape that the operands broadcast to. With the condition alone, the indices of its true elements: a
        vector for each dimension.

    Raises
    ------
    ArgumentError
        If one of `input` and `other` is given without the other.
    DtypeError
        If the condition is not of bool.

    Examples
    --------
    >>> import spillgrad as sg
    >>> x = sg.tensor([1.0, -2.0, 3.0])
    >>> sg.where(x > 0, x, 0.0).tolist()
    [1.0, 0.0, 3.0]
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
    """Return each element clamped to [min, max]; the result is `max` if `min` exceeds `max`.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    min, max : Tensor or number, optional
        Bounds, at least one; None is no bound. Shapes broadcast.
    out : Tensor, optional
        Tensor that takes the result.

    Returns
    -------
    Tensor
        Of the shape that the operands broadcast to.

    Raises
    ------
    ArgumentError
        If neither bound is given.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.clamp(sg.tensor([-2.0, 0.5, 3.0]), 0.0, 1.0).tolist()
    [0.0, 0.5, 1.0]
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
    """Return each element, with elements below `min` replaced by `min`.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    min : Tensor or number
        Lower bound.
    out : Tensor, optional
        Tensor that takes the result.

    Returns
    -------
    Tensor
        Of the shape that the operands broadcast to.
    """
    return clamp(input, min, out=out)


@declare(in_place=True)
def clamp_max(input: Tensor, max: Operand, *, out: Tensor | None = None) -> Tensor:
    """Return each element, with elements above `max` replaced by `max`.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    max : Tensor or number
        Upper bound.
    out : Tensor, optional
        Tensor that takes the result.

    Returns
    -------
    Tensor
        Of the shape that the operands broadcast to.
    """
    return clamp(input, None, max, out=out)


@declare(in_place=True, numpy=True)
def nan_to_num(
    input: Tensor, nan: float | None = 0.0, posinf: float | None = None, neginf: float | None = None,
    *, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return each element, with NaN and infinities replaced by numbers.

    Real and imaginary parts of complex numbers are replaced apart; the gradient is 0 where one of them is not finite.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    nan : float or None, default 0.0
        What replaces NaN; None is 0.
    posinf : float, optional
        What replaces infinity; by default, the largest number of the dtype.
    neginf : float, optional
        What replaces -infinity; by default, the lowest number of the dtype.
    out : Tensor, optional
        Tensor that takes the result.

    Returns
    -------
    Tensor
        Of the shape of `input`.
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
