"""Sorting, and functions that sort: the k-th value, medians, quantiles, the most frequent value.

Indices have no gradient; a value's gradient goes to the element it came from.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad import dtypes
from spillgrad.device.device import filled
from spillgrad.errors import ArgumentError, DimensionError, ShapeError
from spillgrad.ops.arithmetic import lerp
from spillgrad.ops.array_casts import refuse_complex, require_floats
from spillgrad.ops.autocast import float32_in_autocast
from spillgrad.ops.declaration import declare
from spillgrad.ops.indexing import gather, spread_into_zeros
from spillgrad.ops.operation import operation
from spillgrad.ops.reduce import ValuesAndIndices, gradient_at_indices, shared_among_ties
from spillgrad.ops.shape import movedim, normalize_dim, reshape
from spillgrad.tensor import Tensor
from spillgrad_kernels.device_array import arange_beside, on_device

__all__ = ["argsort", "kthvalue", "median", "mode", "msort", "nanmedian", "nanquantile", "quantile", "sort", "topk"]

Shape = tuple[int, ...]

# --- Sorting ---------------------------------------------------------------------------------------------------------


def _order(array: np.ndarray, dim: int) -> Any:
    """Return the indices that sort an array along a dimension, in stable ascending order."""
    return in_order(array, dim, False, array.shape[dim])[1]


@on_device("sorting")
def in_order(a: np.ndarray, axis: int, descending: bool, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first `count` elements along `axis` in stable sorted order, and their indices; NaN is the largest."""
    keys = a.astype(np.float32) if dtypes.is_floating_point(a.dtype) and a.itemsize == 2 else a
    if descending:
        order = a.shape[axis] - 1 - np.flip(np.argsort(np.flip(keys, axis), axis, kind="stable"), axis)
    else:
        order = np.argsort(keys, axis, kind="stable")
    indices = np.ascontiguousarray(order[(slice(None),) * axis + (slice(count),)])
    return np.take_along_axis(a, indices, axis), indices


def _sorted_forward(self: np.ndarray, dim: int, descending: bool, count: int) -> tuple[np.ndarray, np.ndarray]:
    return in_order(self, dim, descending, count)


_sort, _topk = (
    operation(
        name, _sorted_forward, outputs=("values", "indices"),
        self=lambda g, indices, dim, self_shape: spread_into_zeros(g, dim, indices, self_shape[dim]),
    )
    for name in ("sort", "topk")
)  # fmt: skip


def _ordered(name: str, input: Tensor, dim: int, descending: bool, count: int | None) -> ValuesAndIndices:
    refuse_complex(name, input.dtype)
    dim = normalize_dim(name, dim, input.ndim)
    if not input.ndim:
        values, indices = _ordered(name, reshape(input, 1), 0, descending, count)
        return ValuesAndIndices(reshape(values, ()), reshape(indices, ()))
    size = input.shape[dim]
    if count is not None and not 0 <= count <= size:
        raise ArgumentError(
            f"{name}: got k={count}; dimension {dim} of a tensor of shape {input.shape} has {size} elements"
        )
    if count is None:
        return ValuesAndIndices(*_sort(input, dim, descending, size))
    return ValuesAndIndices(*_topk(input, dim, descending, count))


@declare(method=True)
def sort(
    input: Tensor, dim: int = -1, descending: bool = False, stable: bool = True, *, axis: int | None = None
) -> ValuesAndIndices:
    """Return the elements sorted along a dimension, and their indices.

    Equal elements keep their order; NaN counts as the largest.

    Parameters
    ----------
    input : Tensor
        Of any shape, of real numbers.
    dim : int, default -1
        Dimension to sort along.
    descending : bool, default False
        Whether the largest element comes first.
    stable : bool, default True
        Accepted as in PyTorch; every sort is stable.
    axis : int, optional
        Another name of `dim`.

    Returns
    -------
    named tuple of Tensor
        (values, indices), both of the shape of `input`.

    Raises
    ------
    DtypeError
        For complex numbers.
    DimensionError
        If the dimension is out of range.

    Examples
    --------
    >>> import spillgrad as sg
    >>> values, indices = sg.sort(sg.tensor([3.0, 1.0, 2.0]))
    >>> values.tolist(), indices.tolist()
    ([1.0, 2.0, 3.0], [1, 2, 0])
    """
    return _ordered("sort", input, dim if axis is None else axis, descending, None)


@declare(method=True)
def argsort(
    input: Tensor, dim: int = -1, descending: bool = False, stable: bool = True, *, axis: int | None = None
) -> Tensor:
    """Return the indices that sort the tensor along a dimension.

    Parameters
    ----------
    input : Tensor
        Of any shape, of real numbers.
    dim : int, default -1
        Dimension to sort along.
    descending : bool, default False
        Whether the largest element comes first.
    stable : bool, default True
        Accepted as in PyTorch; every sort is stable.
    axis : int, optional
        Another name of `dim`.

    Returns
    -------
    Tensor
        The indices, of the shape of `input`.

    Raises
    ------
    DtypeError
        For complex numbers.
    DimensionError
        If the dimension is out of range.
    """
    return sort(input, dim, descending, stable, axis=axis).indices


@declare(method=True)
def msort(input: Tensor) -> Tensor:
    """Return the tensor sorted along its first dimension.

    Parameters
    ----------
    input : Tensor
        Of any shape, of real numbers.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    DtypeError
        For complex numbers.
    """
    return sort(input, 0).values


@declare(method=True)
def topk(
    input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True, *, axis: int | None = None
) -> ValuesAndIndices:
    """Return the k largest or smallest elements along a dimension, sorted, and their indices.

    Parameters
    ----------
    input : Tensor
        Of any shape, of real numbers.
    k : int
        Number of elements.
    dim : int, default -1
        Dimension to choose along.
    largest : bool, default True
        Whether to choose the largest elements instead of the smallest.
    sorted : bool, default True
        Accepted as in PyTorch; the result is always sorted.
    axis : int, optional
        Another name of `dim`.

    Returns
    -------
    named tuple of Tensor
        (values, indices), both with size k along `dim`.

    Raises
    ------
    ArgumentError
        If the dimension has fewer than `k` elements.
    DtypeError
        For complex numbers.

    Examples
    --------
    >>> import spillgrad as sg
    >>> values, indices = sg.topk(sg.tensor([3.0, 1.0, 2.0]), 2)
    >>> values.tolist(), indices.tolist()
    ([3.0, 2.0], [0, 2])
    """
    return _ordered("topk", input, dim if axis is None else axis, largest, k)


# --- One element of those in order -----------------------------------------------------------------------------------


def _kth_position(array: np.ndarray, dim: int, k: int) -> Any:
    return in_order(array, dim, False, k)[1][(slice(None),) * dim + (slice(k - 1, k),)]


def _median_position(array: np.ndarray, dim: int, k: int) -> Any:
    """Return the index of the lower median, or of the first NaN if there is one."""
    nans = np.sum(array != array, dim, keepdims=True)
    size = array.shape[dim]
    return np.take_along_axis(_order(array, dim), np.where(nans > 0, size - nans, (size - 1) // 2), dim)


def _nanmedian_position(array: np.ndarray, dim: int, k: int) -> Any:
    numbers = np.sum(array == array, dim, keepdims=True)
    return np.take_along_axis(_order(array, dim), np.maximum(numbers - 1, 0) // 2, dim)


def _mode_position(array: np.ndarray, dim: int, k: int) -> Any:
    """Return the index of the last occurrence of the most frequent value, or of the smallest of several such values."""
    order = _order(array, dim)
    ordered = np.take_along_axis(array, order, dim)
    places = arange_beside(array, array.shape[dim]).reshape([-1 if i == dim else 1 for i in range(array.ndim)])
    lead = (slice(None),) * dim
    begins = np.ones_like(ordered, np.bool_)
    begins[(*lead, slice(1, None))] = ordered[(*lead, slice(1, None))] != ordered[(*lead, slice(None, -1))]
    length = places - np.maximum.accumulate(np.where(begins, places, 0), dim)
    return np.take_along_axis(order, np.argmax(length, dim, keepdims=True), dim)


def _chosen(name: str, position: Callable[..., Any]) -> Any:
    def forward(self: np.ndarray, dim: int, keepdim: bool, k: int) -> tuple[np.ndarray, np.ndarray]:
        indices = position(self, dim, k)
        values = np.take_along_axis(self, indices, dim)
        return (values, indices) if keepdim else (values.squeeze(dim), indices.squeeze(dim))

    return operation(name, forward, outputs=("values", "indices"), self=gradient_at_indices)


_kthvalue = _chosen("kthvalue", _kth_position)
_median = _chosen("median", _median_position)
_nanmedian = _chosen("nanmedian", _nanmedian_position)
_mode = _chosen("mode", _mode_position)


def _choose(name: str, operation: Any, input: Tensor, dim: int, keepdim: bool, k: int = 1) -> ValuesAndIndices:
    refuse_complex(name, input.dtype)
    dim = normalize_dim(name, dim, input.ndim)
    if not input.ndim:
        return ValuesAndIndices(*operation(reshape(input, 1), 0, False, k))
    size = input.shape[dim]
    if not size:
        raise DimensionError(
            f"{name}: got a tensor of shape {input.shape}; Expected reduction dim {dim} to have non-zero size: there "
            "are no elements to choose from"
        )
    if not 1 <= k <= size:
        raise ArgumentError(
            f"{name}: got k={k}; dimension {dim} of a tensor of shape {input.shape} has {size} elements"
        )
    return ValuesAndIndices(*operation(input, dim, keepdim, k))


@declare(method=True)
def kthvalue(
    input: Tensor, k: int, dim: int = -1, keepdim: bool = False, *, axis: int | None = None
) -> ValuesAndIndices:
    """Return the k-th smallest element along a dimension, and its index.

    Parameters
    ----------
    input : Tensor
        Of any shape, of real numbers.
    k : int
        Which element, counted from 1.
    dim : int, default -1
        Dimension to choose along.
    keepdim : bool, default False
        Whether the reduced dimension stays, with size 1.
    axis : int, optional
        Another name of `dim`.

    Returns
    -------
    named tuple of Tensor
        (values, indices), without the dimension unless `keepdim`.

    Raises
    ------
    ArgumentError
        If the dimension has fewer than `k` elements.
    DimensionError
        If the dimension is empty or out of range.
    DtypeError
        For complex numbers.
    """
    return _choose("kthvalue", _kthvalue, input, dim if axis is None else axis, keepdim, k)


@declare(method=True)
def mode(input: Tensor, dim: int = -1, keepdim: bool = False, *, axis: int | None = None) -> ValuesAndIndices:
    """Return the most frequent element along a dimension, and the index of its last occurrence.

    Parameters
    ----------
    input : Tensor
        Of any shape, of real numbers.
    dim : int, default -1
        Dimension to choose along.
    keepdim : bool, default False
        Whether the reduced dimension stays, with size 1.
    axis : int, optional
        Another name of `dim`.

    Returns
    -------
    named tuple of Tensor
        (values, indices), without the dimension unless `keepdim`; of several most frequent elements, the smallest.

    Raises
    ------
    DimensionError
        If the dimension is empty or out of range.
    DtypeError
        For complex numbers.
    """
    return _choose("mode", _mode, input, dim if axis is None else axis, keepdim)


def _over_all(name: str, position: Callable[..., Any]) -> Any:
    def forward(self: np.ndarray, dims: Shape) -> np.ndarray:
        flat = self.reshape(-1)
        return np.take_along_axis(flat, position(flat, 0, 1), 0).reshape(())

    return operation(name, forward, self=shared_among_ties)


_median_of_all = _over_all("median", _median_position)
_nanmedian_of_all = _over_all("nanmedian", _nanmedian_position)


def _middle(name: str, of_all: Any, along: Any, input: Tensor, dim: int | None, keepdim: bool, axis: int | None) -> Any:
    refuse_complex(name, input.dtype)
    dim = axis if dim is None else dim
    if dim is not None:
        return _choose(name, along, input, dim, keepdim)
    if not input.numel():
        if not input.is_floating_point():
            raise ArgumentError(f"{name}: got a tensor of {input.dtype} without elements; there is no such integer")
        return Tensor.wrap(filled(input.device, (), input.dtype, np.nan))
    return of_all(input, tuple(range(input.ndim)))


@declare(method=True)
def median(input: Tensor, dim: int | None = None, keepdim: bool = False, *, axis: int | None = None) -> Any:
    """Return the median, or the medians and their indices along a dimension.

    Parameters
    ----------
    input : Tensor
        Of any shape, of real numbers.
    dim : int, optional
        Dimension to reduce; all, by default.
    keepdim : bool, default False
        Whether reduced dimensions stay, with size 1.
    axis : int, optional
        Another name of `dim`.

    Returns
    -------
    Tensor or named tuple of Tensor
        The lower of two middle elements, NaN if an element is NaN. Along a dimension, (values, indices).

    Raises
    ------
    DimensionError
        If the dimension is empty or out of range.
    ArgumentError
        For integers without elements and without `dim`.
    DtypeError
        For complex numbers.
    """
    return _middle("median", _median_of_all, _median, input, dim, keepdim, axis)


@declare(method=True)
def nanmedian(input: Tensor, dim: int | None = None, keepdim: bool = False, *, axis: int | None = None) -> Any:
    """Return the median of the elements that are not NaN, or the medians and their indices along a dimension.

    Parameters
    ----------
    input : Tensor
        Of any shape, of real numbers.
    dim : int, optional
        Dimension to reduce; all, by default.
    keepdim : bool, default False
        Whether reduced dimensions stay, with size 1.
    axis : int, optional
        Another name of `dim`.

    Returns
    -------
    Tensor or named tuple of Tensor
        The lower of two middle elements, NaN if all elements are NaN. Along a dimension, (values, indices).

    Raises
    ------
    DimensionError
        If the dimension is empty or out of range.
    ArgumentError
        For integers without elements and without `dim`.
    DtypeError
        For complex numbers.
    """
    return _middle("nanmedian", _nanmedian_of_all, _nanmedian, input, dim, keepdim, axis)


# --- Quantiles -------------------------------------------------------------------------------------------------------

_INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")


def _quantile(
    name: str, input: Tensor, q: Any, dim: int | None, keepdim: bool, interpolation: str, ignore_nan: bool
) -> Tensor:
    require_floats(name, input.dtype)
    if interpolation not in _INTERPOLATIONS:
        raise ArgumentError(f"{name}: got interpolation={interpolation!r}; accepted are {', '.join(_INTERPOLATIONS)}")
    parts = np.asarray(q.host_array() if isinstance(q, Tensor) else q, np.float64)
    if parts.ndim > 1:
        raise ShapeError(f"{name}: got q of shape {parts.shape}; wanted one number or a vector of them")
    if not bool(((parts >= 0) & (parts <= 1)).all()):
        raise ArgumentError(f"{name}: got q={q!r}; wanted numbers from 0 to 1")
    if not input.numel():
        raise ArgumentError(f"{name}: got a tensor of shape {input.shape}; it has no elements")
    ndim = input.ndim
    if dim is None:
        place, rows = 0, reshape(input, (1, -1))
        kept: Shape = (1,) * ndim
    else:
        place = normalize_dim(name, dim, ndim)
        rows = movedim(input, place, -1) if ndim else reshape(input, 1)
        kept = tuple(1 if i == place else size for i, size in enumerate(input.shape))
        rows = reshape(rows, (-1, rows.shape[-1]))
    ordered = sort(rows, -1).values
    size, numbers = ordered.shape[1], np.sum(rows.array == rows.array, 1, keepdims=True)
    if ignore_nan:
        ranks = parts.reshape(1, -1) * np.maximum(numbers - 1, 0)
    else:
        ranks = np.where(numbers < size, size - 1, parts.reshape(1, -1) * (size - 1))  # NaN stands last
    below = np.floor(ranks)
    above = np.ceil(ranks)
    if interpolation == "nearest":
        below = above = np.round(ranks)
    elif interpolation == "lower":
        above = below
    elif interpolation == "higher":
        below = above
    weight = np.full_like(ranks, 0.5) if interpolation == "midpoint" else ranks - below
    first = gather(ordered, 1, Tensor.wrap(below.astype(np.int64)))
    if below is not above:
        second = gather(ordered, 1, Tensor.wrap(above.astype(np.int64)))
        first = lerp(first, second, Tensor.wrap(weight.astype(input.dtype)))
    shape = kept if keepdim else tuple(s for i, s in enumerate(kept) if dim is not None and i != place)
    result = reshape(movedim(first, 1, 0), (parts.size, *shape))
    return result if parts.ndim else reshape(result, shape)


@declare(method=True, numpy=True)
@float32_in_autocast
def quantile(
    input: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear",
    axis: int | None = None,
) -> Tensor:  # fmt: skip
    """Return quantiles of all elements or along a dimension.

    Parameters
    ----------
    input : Tensor
        Of any shape, of floating-point numbers.
    q : float, sequence of float or Tensor
        Quantiles from 0 to 1: one number, or a vector of n.
    dim : int, optional
        Dimension to reduce; all, by default.
    keepdim : bool, default False
        Whether reduced dimensions stay, with size 1.
    interpolation : {"linear", "lower", "higher", "midpoint", "nearest"}, default "linear"
        How a quantile between two elements is computed.
    axis : int, optional
        Another name of `dim`.

    Returns
    -------
    Tensor
        The quantiles, NaN where an element is NaN; of a vector `q`, with a first dimension of size n.

    Raises
    ------
    ArgumentError
        If `q` is outside [0, 1], for another `interpolation`, or without elements.
    ShapeError
        If `q` has more than one dimension.
    DtypeError
        For integers and complex numbers.
    """
    return _quantile("quantile", input, q, axis if dim is None else dim, keepdim, interpolation, ignore_nan=False)


@declare(method=True, numpy=True)
@float32_in_autocast
def nanquantile(
    input: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear",
    axis: int | None = None,
) -> Tensor:  # fmt: skip
    """Return quantiles of the elements that are not NaN.

    Parameters
    ----------
    input : Tensor
        Of any shape, of floating-point numbers.
    q : float, sequence of float or Tensor
        Quantiles from 0 to 1: one number, or a vector of n.
    dim : int, optional
        Dimension to reduce; all, by default.
    keepdim : bool, default False
        Whether reduced dimensions stay, with size 1.
    interpolation : {"linear", "lower", "higher", "midpoint", "nearest"}, default "linear"
        How a quantile between two elements is computed.
    axis : int, optional
        Another name of `dim`.

    Returns
    -------
    Tensor
        The quantiles; of a vector `q`, with a first dimension of size n.

    Raises
    ------
    ArgumentError
        If `q` is outside [0, 1], for another `interpolation`, or without elements.
    ShapeError
        If `q` has more than one dimension.
    DtypeError
        For integers and complex numbers.
    """
    return _quantile("nanquantile", input, q, axis if dim is None else dim, keepdim, interpolation, ignore_nan=True)
