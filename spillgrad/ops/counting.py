"""Distinct values, their counts, and positions in sorted sequences. Only the weights of `bincount` get a gradient."""

from typing import Any

import numpy as np

from spillgrad import dtypes
from spillgrad.device.device import filled, moved
from spillgrad.errors import ArgumentError, DtypeError, ShapeError
from spillgrad.ops.array_casts import as_own, compute_dtype, contiguous, refuse_complex
from spillgrad.ops.convert import to_dtype
from spillgrad.ops.declaration import declare
from spillgrad.ops.indexing import index_add
from spillgrad.ops.placement import or_by_host
from spillgrad.ops.promotion import RealNumber, as_operand
from spillgrad.ops.shape import normalize_dim
from spillgrad.tensor import Tensor
from spillgrad_kernels.device_array import on_device

__all__ = ["bincount", "bucketize", "histc", "isin", "searchsorted", "unique", "unique_consecutive"]


def _comparable(array: np.ndarray) -> np.ndarray:
    """Return the array in a dtype that NumPy can sort: float32 for half precision."""
    refuse_complex("unique or search", array.dtype)
    return array.astype(compute_dtype(array.dtype), copy=False)


def _distinguishable(array: np.ndarray) -> np.ndarray:
    """Return the array in a dtype whose values NumPy can tell apart: as `_comparable`, but complex numbers stay."""
    return array if dtypes.is_complex(array.dtype) else _comparable(array)


# --- Different values ------------------------------------------------------------------------------------------------


def _with_extras(values: np.ndarray, inverse: Any, counts: Any, return_inverse: bool, return_counts: bool) -> Any:
    results = [Tensor.wrap(values)]
    if return_inverse:
        results.append(Tensor.wrap(inverse.astype(np.int64, copy=False)))
    if return_counts:
        results.append(Tensor.wrap(counts.astype(np.int64, copy=False)))
    return tuple(results) if len(results) > 1 else results[0]


@declare(method=True)
@or_by_host
def unique(
    input: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False,
    dim: int | None = None, *, axis: int | None = None,
) -> Any:  # fmt: skip
    """Return the distinct elements in ascending order, or the distinct slices; every NaN counts as distinct.

    Complex numbers are ordered by their real parts, then their imaginary parts.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    sorted : bool, default True
        Has no effect: the result is always sorted.
    return_inverse : bool, default False
        Whether to return also the index of each input element in the result.
    return_counts : bool, default False
        Whether to return also how often each distinct element occurs.
    dim : int, optional
        Dimension of the slices; by default, elements are compared.
    axis : int, optional
        Another name of `dim`.

    Returns
    -------
    Tensor or tuple of Tensor
        The distinct elements, then indices and counts of int64 if asked for.

    Examples
    --------
    >>> import spillgrad as sg
    >>> values, counts = sg.unique(sg.tensor([3, 1, 3]), return_counts=True)
    >>> values.tolist(), counts.tolist()
    ([1, 3], [1, 2])
    """
    dim = axis if dim is None else dim
    dim = dim if dim is None else normalize_dim("unique", dim, input.ndim)
    array = _distinguishable(input.array)
    found, inverse, counts = np.unique(array, return_inverse=True, return_counts=True, axis=dim, equal_nan=False)
    values = contiguous(found).astype(input.dtype, copy=False)
    inverse = inverse.reshape(input.shape if dim is None else -1)
    return _with_extras(values, inverse, counts, return_inverse, return_counts)


@declare(method=True)
@or_by_host
def unique_consecutive(
    input: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None,
    *, axis: int | None = None,
) -> Any:  # fmt: skip
    """Return the elements, or the slices, that differ from their predecessor.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    return_inverse : bool, default False
        Whether to return also the index of each input element in the result.
    return_counts : bool, default False
        Whether to return also how often each element is repeated.
    dim : int, optional
        Dimension of the slices; by default, elements are compared.
    axis : int, optional
        Another name of `dim`.

    Returns
    -------
    Tensor or tuple of Tensor
        The elements or slices, then indices and counts of int64 if asked for.
    """
    dim = axis if dim is None else dim
    array = input.array.reshape(-1) if dim is None else input.array
    place = 0 if dim is None else normalize_dim("unique_consecutive", dim, input.ndim)
    slices = np.moveaxis(array, place, 0) if array.ndim else array.reshape(1)
    begins = filled(input.device, (len(slices),), np.bool_, True)
    differs = slices[1:] != slices[:-1]
    begins[1:] = np.any(differs, tuple(range(1, slices.ndim))) if slices.ndim > 1 else differs
    inverse = np.cumsum(begins) - 1
    values = contiguous(np.moveaxis(slices[begins], 0, place))
    counts = np.bincount(inverse, minlength=0)
    shaped = inverse.reshape(input.shape) if dim is None else inverse
    return _with_extras(values, shaped, counts, return_inverse, return_counts)


@declare(method=True, numpy=True)
@or_by_host
def isin(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """Return whether each element is one of `test_elements`.

    Parameters
    ----------
    elements : Tensor or number
        Of any shape.
    test_elements : Tensor or number
        Of any shape.
    assume_unique : bool, default False
        Has no effect.
    invert : bool, default False
        Whether to return the opposite.

    Returns
    -------
    Tensor
        Of bool, of the shape of `elements`.
    """
    operands = [as_operand("isin", o) for o in (elements, test_elements)]
    first, second = (_distinguishable(o.array) if isinstance(o, Tensor) else np.asarray(o) for o in operands)
    return Tensor.wrap(as_own(np.isin(first, second, invert=invert)))


# --- How often -------------------------------------------------------------------------------------------------------


@declare(method=True, numpy=True)
def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """Return how often each integer from 0 on occurs in a vector.

    Parameters
    ----------
    input : Tensor
        Integers from 0 on, of shape (n,).
    weights : Tensor, optional
        What each integer counts, of shape (n,); by default, 1.
    minlength : int, default 0
        Least size of the result.

    Returns
    -------
    Tensor
        Of int64, or of the sums of `weights`; of shape (m,), with m above the largest integer.

    Raises
    ------
    DtypeError
        If `input` is not a vector of integers.
    ArgumentError
        If a number is negative.
    ShapeError
        If `weights` has another shape.
    """
    array = input.array
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise DtypeError(
            f"bincount: got a tensor of {input.dtype} and shape {input.shape}; wanted a vector of integers"
        )
    least, most = _least_and_most(array) if array.size else (0, -1)
    if least < 0:
        raise ArgumentError(f"bincount: got {least}; wanted numbers from 0 on")
    if minlength < 0:
        raise ArgumentError(f"bincount: got minlength={minlength}; wanted a number from 0 on")
    if weights is None:
        return Tensor.wrap(np.bincount(array, minlength=minlength).astype(np.int64, copy=False))
    if weights.shape != input.shape:
        raise ShapeError(f"bincount: got {input.shape} and weights of {weights.shape}; they must be equal")
    dtype = dtypes.float32 if weights.dtype == dtypes.float32 else dtypes.float64
    sums = Tensor.wrap(filled(input.device, (max(most + 1, minlength),), dtype, 0))
    return index_add(sums, 0, input, to_dtype(weights, dtype))


def _least_and_most(array: np.ndarray) -> tuple[Any, Any]:
    return Tensor.wrap(as_own(np.min(array))).item(), Tensor.wrap(as_own(np.max(array))).item()


@declare(method=True)
@or_by_host
def histc(input: Tensor, bins: int = 100, min: RealNumber = 0, max: RealNumber = 0) -> Tensor:
    """Return how many elements lie in each of several equally wide bins.

    Elements outside the bins are not counted.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    bins : int, default 100
        Number of bins.
    min, max : number, default 0
        Ends of the bins; if they are equal, the least and the greatest element.

    Returns
    -------
    Tensor
        Of the dtype of `input`, of shape (bins,).

    Raises
    ------
    ArgumentError
        If `bins` is below 1, `min` exceeds `max`, or the range is not finite.
    """
    array = _comparable(input.array).reshape(-1)
    if bins < 1:
        raise ArgumentError(f"histc: got bins={bins}; wanted at least 1")
    if min > max:
        raise ArgumentError(f"histc: got min={min} and max={max}; the lower bound comes first")
    low, high = (float(min), float(max))
    if low == high and array.size:
        low, high = map(float, _least_and_most(array))
    if low == high:
        low, high = low - 1, high + 1
    if not (np.isfinite(low) and np.isfinite(high)):
        raise ArgumentError(f"histc: got the range {low} to {high}; wanted finite numbers")
    inside = array[(array >= low) & (array <= high)].astype(np.float64)
    places = np.minimum(((inside - low) / (high - low) * bins).astype(np.int64), bins - 1)
    return Tensor.wrap(np.bincount(places, minlength=bins).astype(input.dtype))


# --- Where -----------------------------------------------------------------------------------------------------------


@or_by_host
def searchsorted(
    sorted_sequence: Tensor, input: Any, *, out_int32: bool = False, right: bool = False, side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return the indices at which elements would be inserted into sequences sorted along the last dimension.

    Parameters
    ----------
    sorted_sequence : Tensor
        Of shape (n,), or (..., n).
    input : Tensor or number
        Of any shape for one sequence, otherwise (..., k) with the same leading dimensions.
    out_int32 : bool, default False
        Whether the indices are int32 instead of int64.
    right : bool, default False
        Whether elements are inserted after equal ones, instead of before them.
    side : {"left", "right"}, optional
        Another form of `right`.
    sorter : Tensor, optional
        Indices that sort a sequence that is not sorted.

    Returns
    -------
    Tensor
        Indices, of the shape of `input`.

    Raises
    ------
    ArgumentError
        If `side` is another word, or contradicts `right`.
    ShapeError
        If the shapes do not fit together.
    """
    if side not in (None, "left", "right") or (side == "left" and right):
        raise ArgumentError(f'searchsorted: got side={side!r} and right={right}; accepted are "left" and "right"')
    value = as_operand("searchsorted", input)
    sought = value.array if isinstance(value, Tensor) else moved(np.asarray(value), sorted_sequence.device)
    keys, sought = _comparable(sorted_sequence.array), _comparable(sought)
    if sorter is not None:
        if sorter.shape != sorted_sequence.shape:
            raise ShapeError(f"searchsorted: got a sorter of {sorter.shape} for a sequence of {sorted_sequence.shape}")
        keys = np.take_along_axis(keys, sorter.array, -1)
    if keys.ndim != 1 and (not keys.ndim or keys.shape[:-1] != sought.shape[:-1]):
        raise ShapeError(
            f"searchsorted: got sequences of {keys.shape} and elements of {sought.shape}; wanted a vector, "
            "or the same leading dimensions"
        )
    places = places_among(keys, sought, right or side == "right")
    return Tensor.wrap(places.astype(np.int32 if out_int32 else np.int64, copy=False))


@on_device("sorting")
def places_among(keys: np.ndarray, sought: np.ndarray, after: bool) -> np.ndarray:
    """Return the indices at which `sought` would be inserted into sorted `keys`: before equal ones, or `after` them.

    Shapes: keys (n,) with any sought, or (..., n) with (..., k).
    """
    side: Any = "right" if after else "left"
    if keys.ndim == 1:
        return np.asarray(np.searchsorted(keys, sought, side))
    found = np.empty(sought.shape, np.int64)
    for place in np.ndindex(keys.shape[:-1]):
        found[place] = np.searchsorted(keys[place], sought[place], side)
    return found


def bucketize(input: Any, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """Return, for each element, how many of the sorted boundaries are below it.

    Parameters
    ----------
    input : Tensor or number
        Of any shape.
    boundaries : Tensor
        Sorted, of shape (n,).
    out_int32 : bool, default False
        Whether the numbers are int32 instead of int64.
    right : bool, default False
        Whether boundaries that equal the element count, too.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ShapeError
        If `boundaries` is not a vector.
    """
    if boundaries.ndim != 1:
        raise ShapeError(f"bucketize: got boundaries of shape {boundaries.shape}; wanted a vector: use searchsorted")
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)
