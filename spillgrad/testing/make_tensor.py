"""Random tensors for tests."""

import math
from typing import Any

from spillgrad import dtypes
from spillgrad.errors import ArgumentError
from spillgrad.ops.complex_views import view_as_complex
from spillgrad.ops.creation import rand, randint
from spillgrad.ops.shape import as_tuple
from spillgrad.tensor import Tensor

__all__ = ["make_tensor"]


def make_tensor(
    *shape: Any, dtype: Any, device: Any, low: float | None = None, high: float | None = None,
    requires_grad: bool = False, noncontiguous: bool = False, exclude_zero: bool = False, memory_format: Any = None,
) -> Tensor:  # fmt: skip
    """Return a tensor of numbers drawn evenly from a range.

    Complex numbers have both parts in the range.

    Parameters
    ----------
    *shape : int
        The shape: its sizes, or one sequence of them.
    dtype : dtype
        Data type.
    device : device
        Where the tensor is.
    low : float, optional
        The lowest number; by default -9, or the lowest of the data type.
    high : float, optional
        The end of the range, excluded; by default 9, 10 for integers, or the highest of the data type.
    requires_grad : bool, default False
        Whether to record operations on the result.
    noncontiguous : bool, default False
        Whether to return every second element of a larger tensor.
    exclude_zero : bool, default False
        Whether the smallest number above 0 takes the place of 0.
    memory_format : memory format, optional
        Order of the dimensions in memory.

    Returns
    -------
    Tensor
        Of the given shape.

    Raises
    ------
    ArgumentError
        For an empty range, and for integers that require a gradient; it is a ValueError.
    """
    kind = dtypes.as_dtype(dtype)
    sizes = as_tuple(shape[0] if len(shape) == 1 else shape)
    is_complex, is_float = dtypes.is_complex(kind), dtypes.is_floating_point(kind)
    if requires_grad and not (is_float or is_complex):
        raise ArgumentError(
            f"`requires_grad=True` is not supported for boolean and integral dtypes, but got dtype={kind}"
        )
    if noncontiguous and memory_format is not None:
        raise ArgumentError("make_tensor: `noncontiguous` and `memory_format` are mutually exclusive; give one")
    lowest, highest = (0, 2) if kind == dtypes.bool_ else _limits(kind)
    by_default = (0, 2) if kind == dtypes.bool_ else (-9, 9 if is_float or is_complex else 10)
    start, stop = (by_default[i] if given is None else given for i, given in enumerate((low, high)))
    if math.isnan(start) or math.isnan(stop):
        raise ArgumentError(f"`low` and `high` cannot be NaN, but got low={low} and high={high}")
    if start >= stop:
        raise ArgumentError(f"`low` must be less than `high`, but got {start} >= {stop}")
    if stop < lowest or start >= highest:
        raise ArgumentError(
            f"The value interval specified by `low` and `high` is [{start}, {stop}), but {kind} only supports "
            f"[{lowest}, {highest})"
        )
    start, stop = (min(max(x, lowest), highest) for x in (start, stop))
    noncontiguous = noncontiguous and math.prod(sizes) > 1
    drawn = (*sizes[:-1], 2 * sizes[-1]) if noncontiguous else sizes
    if is_complex:
        found = view_as_complex(_uniform((*drawn, 2), start, stop, dtypes.real_part(kind), device))
    elif is_float:
        found = _uniform(drawn, start, stop, kind, device)
    else:
        found = randint(math.ceil(start), math.ceil(stop), drawn, dtype=kind, device=device)
    if noncontiguous:
        found = found[..., 1::2]
    if exclude_zero:
        found[found == 0] = dtypes.finfo(kind).tiny if is_float or is_complex else 1
    return found.requires_grad_() if requires_grad else found


def _uniform(shape: tuple[int, ...], low: float, high: float, dtype: Any, device: Any) -> Tensor:
    drawn = rand(shape, dtype=dtype, device=device)
    return drawn * high + (1 - drawn) * low  # in two products, as high - low may overflow


def _limits(dtype: Any) -> tuple[float, float]:
    if dtypes.is_floating_point(dtype) or dtypes.is_complex(dtype):
        limits = dtypes.finfo(dtype)
        return limits.min, limits.max
    whole = dtypes.iinfo(dtype)
    return whole.min, whole.max + (dtype != dtypes.int64)
