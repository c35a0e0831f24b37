"""Copies of tensors in which some elements are replaced or combined: by index, by mask, along a diagonal or a slice.

`x[i] = y` is in `getitem_setitem`; `scatter`, `scatter_add` and `index_add` are in `indexing`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spillgrad import dtypes
from spillgrad.device.device import filled, moved
from spillgrad.errors import ArgumentError, OperandError, ShapeError
from spillgrad.ops import getitem_setitem, inplace
from spillgrad.ops.arithmetic import div, mul
from spillgrad.ops.array_casts import cast, on_floats, refuse_complex, require_one_dtype
from spillgrad.ops.broadcast import expand_to
from spillgrad.ops.clamp_where import bounds, where
from spillgrad.ops.convert import clone
from spillgrad.ops.declaration import declare
from spillgrad.ops.indexing import (
    check_index,
    check_places,
    corner,
    diagonal,
    gather,
    index_select,
    masked_shape,
    scatter,
    scatter_add,
    used_part,
)
from spillgrad.ops.join_split import cat, narrow, select
from spillgrad.ops.operation import operation
from spillgrad.ops.placement import require_one_device
from spillgrad.ops.promotion import Number
from spillgrad.ops.rearrange import flip
from spillgrad.ops.shape import flatten, normalize_dim, reshape
from spillgrad.tensor import Tensor
from spillgrad_kernels.device_array import arange_beside, is_on_device

__all__ = [
    "diagonal_scatter", "index_copy", "index_fill", "index_put", "index_reduce", "masked_scatter", "put",
    "scatter_reduce", "select_scatter", "slice_scatter",
]  # fmt: skip

Shape = tuple[int, ...]

# --- Whole slices ----------------------------------------------------------------------------------------------------


def _copied_slices(self: np.ndarray, dim: int, index: np.ndarray, source: np.ndarray) -> np.ndarray:
    out = cast(self, self.dtype)
    out[(slice(None),) * dim + (index,)] = source
    return out


def _without_slices(g: Tensor, dim: int, index: Tensor) -> Tensor:
    return index_fill(g, dim, index, 0.0)


_index_copy: Callable[..., Tensor] = operation(
    "index_copy", _copied_slices, self=_without_slices,
    source=lambda g, dim, index: index_select(g, dim, index),
)  # fmt: skip


def _check_slices(name: str, input: Tensor, dim: int, index: Tensor) -> tuple[int, Shape]:
    """Check `dim` and `index`; return `dim` counted from the front, and the shape of the slices at `index`."""
    dim = normalize_dim(name, dim, input.ndim)
    check_index(name, index, input.shape[dim] if input.ndim else 1, dim, input.shape)
    if index.ndim > 1:
        raise ShapeError(f"{name}: got an index of shape {index.shape}; wanted one dimension: flatten it")
    return dim, (*input.shape[:dim], index.numel(), *input.shape[dim + 1 :])


@declare(in_place=True)
def index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """Return `input` with the slices at some positions of one dimension replaced.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    dim : int
        Dimension of the slices.
    index : Tensor
        Of shape (n,), of integers from 0 on: the positions.
    source : Tensor
        The new slices: as `input`, with n in place of the size of `dim`.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ShapeError
        If shapes do not fit.
    DimensionError
        If a position or the dimension is out of range.
    DtypeError
        If the index does not hold integers, or the dtypes of `input` and `source` differ.

    Notes
    -----
    If an index appears twice, one of its slices in `source` is kept, and all of these slices receive the gradient, as
    in PyTorch.
    """
    dim, wanted = _check_slices("index_copy", input, dim, index)
    require_one_dtype("index_copy", input=input, source=source)
    if not input.ndim:
        return reshape(index_copy(reshape(input, 1), 0, flatten(index), reshape(source, -1)), ())
    if source.shape != wanted and not (source.ndim == 0 and len(wanted) == 1):
        raise ShapeError(
            f"index_copy: got a source of shape {source.shape} for an input of {input.shape} and {index.numel()} "
            f"indices; wanted {wanted}"
        )
    return _index_copy(input, dim, flatten(index), reshape(source, wanted))


@declare(in_place=True)
def index_fill(input: Tensor, dim: int, index: Tensor, value: Tensor | Number) -> Tensor:
    """Return `input` with the slices at some positions of one dimension replaced by one value.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    dim : int
        Dimension of the slices.
    index : Tensor
        Of shape (n,), of integers from 0 on: the positions.
    value : Tensor or float
        The value; a tensor has no dimensions.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ShapeError
        If the value is a tensor with dimensions.
    DimensionError
        If a position or the dimension is out of range.
    DtypeError
        If the index does not hold integers, or a tensor `value` has another dtype than `input`.
    """
    dim, wanted = _check_slices("index_fill", input, dim, index)
    if isinstance(value, Tensor) and value.ndim:
        raise ShapeError(f"index_fill: got a value of shape {value.shape}; wanted one number: index_copy takes slices")
    if isinstance(value, Tensor):
        source = value
    else:
        source = Tensor.wrap(moved(np.asarray(value).astype(input.dtype), input.device))
    require_one_dtype("index_fill", input=input, value=source)
    return index_copy(input, dim, index, expand_to(source, wanted if input.ndim else (index.numel(),)))


# --- Elements by their places ----------------------------------------------------------------------------------------


@declare(in_place=True)
def index_put(input: Tensor, indices: Sequence[Tensor | None], values: Any, accumulate: bool = False) -> Tensor:
    """Return a copy of `input` with the elements at some indices replaced or added to.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    indices : sequence of Tensor or None
        For each dimension an index tensor or a bool mask; None takes the whole dimension.
    values : Tensor or float
        What is written; broadcasts to the shape of ``input[indices]``.
    accumulate : bool, default False
        Whether to add `values` to the elements instead.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    DimensionError
        If an index is out of range.
    ShapeError
        If `values` do not broadcast.
    DtypeError
        If the dtypes of `input` and `values` differ.
    OperandError
        If `indices` is no sequence of tensors and None.
    """
    if not isinstance(indices, tuple | list) or not all(i is None or isinstance(i, Tensor) for i in indices):
        raise OperandError("index_put: wanted a tuple of index tensors (or None), one for each dimension")
    source = values if isinstance(values, Tensor) else Tensor.wrap(moved(np.asarray(values, input.dtype), input.device))
    require_one_dtype("index_put", input=input, values=source)
    return getitem_setitem.put(input, tuple(None if i is None else i.array for i in indices), source, accumulate)


@declare(in_place=True)
def put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Return `input` with values written at, or added at, positions of the flattened input.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    index : Tensor
        Of any shape, of integers: the positions; -1 is the last element.
    source : Tensor
        With as many elements as `index`.
    accumulate : bool, default False
        Whether to add the values instead.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ShapeError
        If the numbers of elements differ.
    DimensionError
        If a position is out of range.
    DtypeError
        If the index does not hold integers, or the dtypes of `input` and `source` differ.
    """
    count = input.numel()
    if isinstance(index, Tensor) and index.dtype.kind == "i":
        index = Tensor.wrap(np.where(index.array < 0, index.array + count, index.array))
    check_index("put", index, count, 0, (count,))
    if source.numel() != index.numel():
        raise ShapeError(f"put: got {index.numel()} indices and {source.numel()} values; give as many of each")
    written = index_put(flatten(input), (flatten(index),), flatten(source), accumulate)
    return reshape(written, input.shape)


@declare(in_place=True)
def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Return `input` with the elements where a mask holds replaced by the first elements of a tensor, in order.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    mask : Tensor
        Of bool, of a shape that broadcasts with that of `input`.
    source : Tensor
        Of any shape, with at least as many elements as the mask has places, and of the dtype of `input`.

    Returns
    -------
    Tensor
        Of the broadcast shape.

    Raises
    ------
    ShapeError
        If `source` has too few elements, or the mask does not broadcast.
    DtypeError
        If the mask is not of bool, or dtypes differ.
    """
    shape = masked_shape("masked_scatter", input, mask)
    require_one_dtype("masked_scatter", input=input, source=source)
    chosen = np.broadcast_to(mask.array, shape)
    count = int(chosen.sum())
    if count > source.numel():
        raise ShapeError(
            f"masked_scatter: got {source.numel()} elements in source, and {count} places in the mask; give as many"
        )
    if not count:
        return clone(expand_to(input, shape))
    places = np.maximum(np.cumsum(chosen.reshape(-1)) - 1, 0)
    values = reshape(index_select(flatten(source), 0, Tensor.wrap(places)), shape)
    return where(mask, values, input)  # type: ignore[no-any-return]


# --- Folds -----------------------------------------------------------------------------------------------------------

_FOLDS: dict[str, Any] = {"amax": np.maximum, "amin": np.minimum, "prod": np.multiply}


def _folded(self: np.ndarray, dim: int, index: np.ndarray, src: np.ndarray, reduce: str) -> np.ndarray:
    positions: list[Any] = list(np.ogrid[tuple(slice(size) for size in index.shape)])
    positions[dim] = index

    def fold(into: np.ndarray, values: np.ndarray) -> np.ndarray:
        out = cast(into, into.dtype)
        _FOLDS[reduce].at(out, tuple(positions), values)
        return out

    return on_floats(fold, self, src) if dtypes.is_floating_point(self.dtype) else fold(self, src)


def _fold_gradient(
    g: Any, self: Any, dim: int, index: Tensor, src: Any, reduce: str, result: Any, needs: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    if reduce == "prod":
        return _product_gradient(g, self, dim, index, src, needs)
    # Equal extremes share the gradient.
    own, theirs = self.detach() == result.detach(), src.detach() == gather(result.detach(), dim, index)
    ties = scatter_add(own.to(g.dtype), dim, index, theirs.to(g.dtype))
    share = div(g, ties)
    return (
        where(own, share, 0.0) if needs[0] else None,
        where(theirs, gather(share, dim, index), 0.0) if needs[1] else None,
    )


def _product_gradient(
    g: Any, self: Any, dim: int, index: Tensor, src: Any, needs: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """Return the gradients of "prod" as products of the other factors, which is exact for zeros and differentiable."""
    count = self.numel()
    places = arange_beside(index.array, count).reshape(self.shape)
    targets = np.take_along_axis(corner(places, dim, index.shape), index.array, dim)
    target = np.concatenate([places.reshape(-1), targets.reshape(-1)])
    order = np.argsort(target, kind="stable")  # factors of one product side by side
    ordered = target[order]
    position = arange_beside(order, ordered.size)
    begins = np.searchsorted(ordered, ordered)
    ends = np.searchsorted(ordered, ordered, "right")
    factors = index_select(cat([flatten(self), flatten(src)]), 0, Tensor.wrap(order))
    before = _products_before(factors, position - begins)
    after = flip(_products_before(flip(factors, 0), (ends - 1 - position)[::-1]), 0)
    gradients = mul(index_select(flatten(g), 0, Tensor.wrap(ordered)), mul(before, after))
    back = index_select(gradients, 0, Tensor.wrap(np.argsort(order)))
    return (
        reshape(narrow(back, 0, 0, count), self.shape) if needs[0] else None,
        reshape(narrow(back, 0, count, src.numel()), src.shape) if needs[1] else None,
    )


def _products_before(factors: Tensor, ranks: np.ndarray) -> Tensor:
    """Return, for each factor i, the product of the ranks[i] factors before it, by a scan with doubling distances."""
    position = arange_beside(ranks, ranks.size)
    # Reading the ranks would wait for the device, so there the loop takes some steps more than it must.
    highest = ranks.size - 1 if is_on_device(ranks) else ranks.max(initial=0)

    def earlier(values: Tensor, step: int) -> Tensor:
        there = Tensor.wrap(ranks >= step)
        return where(there, index_select(values, 0, Tensor.wrap(np.maximum(position - step, 0))), 1.0)  # type: ignore[no-any-return]

    products, step = factors, 1
    while step <= highest:
        products = mul(products, earlier(products, step))
        step *= 2
    return earlier(products, 1)


_fold: Callable[..., Tensor] = operation("scatter_reduce", _folded, joint=(("self", "src"), _fold_gradient))


@declare(in_place=True)
def scatter_reduce(
    input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """Return `input` with elements folded into those at indices along one dimension.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    dim : int
        Dimension that the indices count along.
    index : Tensor
        Of integers from 0 on, with as many dimensions as `input`; no larger than it, except along `dim`.
    src : Tensor
        What is folded in, at least as large as `index`.
    reduce : {"sum", "prod", "mean", "amax", "amin"}
        How elements for one index are folded.
    include_self : bool, default True
        Whether the old elements at `index` count, too.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ShapeError
        If shapes do not fit.
    DimensionError
        If an index or the dimension is out of range.
    ArgumentError
        For another `reduce`.
    DtypeError
        For the extremes of complex numbers, which have no order.

    Notes
    -----
    Equal extremes share the gradient.
    """
    if reduce not in ("sum", "mean", *_FOLDS):
        raise ArgumentError(
            f'scatter_reduce: got reduce={reduce!r}; accepted are "sum", "prod", "mean", "amax" and "amin"'
        )
    if reduce in ("amax", "amin"):
        refuse_complex(f"scatter_reduce with {reduce!r}", input.dtype)
    dim = check_places("scatter_reduce", input, dim, index)
    if not input.ndim:
        folded = scatter_reduce(
            reshape(input, 1), 0, reshape(index, 1), reshape(src, 1), reduce, include_self=include_self
        )
        return reshape(folded, ())
    src = used_part("scatter_reduce", input, index, src)
    if not include_self:
        lowest, highest = bounds(input.numpy_dtype)
        neutral = {"prod": 1, "amax": lowest, "amin": highest}.get(reduce, 0)
        input = scatter(input, dim, index, neutral)
    if reduce in _FOLDS:
        return _fold(input, dim, index, src, reduce)
    total = scatter_add(input, dim, index, src)
    if reduce == "sum":
        return total
    ones = Tensor.wrap(filled(input.device, index.shape, input.dtype, 1))
    start = Tensor.wrap(filled(input.device, input.shape, input.dtype, 1 if include_self else 0))
    counts = scatter_add(start, dim, index, ones)
    counts = Tensor.wrap(np.maximum(counts.array, 1).astype(input.dtype))
    divides_exactly = input.is_floating_point() or input.is_complex()
    return div(total, counts, rounding_mode=None if divides_exactly else "floor")


@declare(in_place=True)
def index_reduce(
    input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """Return `input` with slices folded into those at some positions of one dimension.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    dim : int
        Dimension of the slices.
    index : Tensor
        Of shape (n,), of integers from 0 on: the positions.
    source : Tensor
        As `input`, with n in place of the size of `dim`.
    reduce : {"prod", "mean", "amax", "amin"}
        How slices for one position are folded.
    include_self : bool, default True
        Whether the old slices at `index` count, too.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ShapeError
        If shapes do not fit.
    DimensionError
        If a position or the dimension is out of range.
    ArgumentError
        For another `reduce`.
    DtypeError
        For the extremes of complex numbers, which have no order.
    """
    dim, wanted = _check_slices("index_reduce", input, dim, index)
    if source.shape != wanted:
        raise ShapeError(
            f"index_reduce: got a source of shape {source.shape} for an input of {input.shape} and {index.numel()} "
            f"indices; wanted {wanted}"
        )
    column = reshape(index, (-1,) + (1,) * (input.ndim - 1 - dim))
    return scatter_reduce(input, dim, expand_to(column, wanted), source, reduce, include_self=include_self)


# --- Copies with another part ----------------------------------------------------------------------------------------


def _with_part(name: str, input: Tensor, src: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
    require_one_device(name, (input, src))
    result = clone(input)
    place = part(result)
    if place.shape != src.shape:
        raise ShapeError(f"{name}: got a src of shape {src.shape}; its place has {place.shape}: give that shape")
    inplace.copy_(place, src)
    return result


@declare(method=True)
def select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """Return `input` with the slice at an index along a dimension replaced.

    Parameters
    ----------
    input : Tensor
        Of at least one dimension.
    src : Tensor
        Of the shape of ``select(input, dim, index)``.
    dim : int
        Dimension of the slice.
    index : int
        Index of the slice; negative numbers count from the end.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ShapeError
        If `src` has another shape.
    """
    return _with_part("select_scatter", input, src, lambda x: select(x, dim, index))


@declare(method=True)
def slice_scatter(
    input: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """Return `input` with some slices along one dimension replaced.

    Parameters
    ----------
    input : Tensor
        Of at least one dimension.
    src : Tensor
        As `input`, but along `dim` of the size of the slices.
    dim : int, default 0
        Dimension of the slices.
    start : int, optional
        First index; by default, 0.
    end : int, optional
        Index behind the last one; by default, the size of the dimension.
    step : int, default 1
        Distance between indices.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ShapeError
        If `src` has another shape.
    """
    index = (slice(None),) * normalize_dim("slice_scatter", dim, input.ndim) + (slice(start, end, step),)
    return _with_part("slice_scatter", input, src, lambda x: getitem_setitem.getitem(x, index))


@declare(method=True)
def diagonal_scatter(input: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Return `input` with the diagonal of two dimensions replaced.

    Parameters
    ----------
    input : Tensor
        Of at least two dimensions.
    src : Tensor
        Of the shape of ``diagonal(input, offset, dim1, dim2)``.
    offset : int, default 0
        Which diagonal; positive numbers are above the main one, negative numbers below.
    dim1 : int, default 0
        Dimension of the rows.
    dim2 : int, default 1
        Dimension of the columns.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ShapeError
        If `src` has another shape.
    """
    return _with_part("diagonal_scatter", input, src, lambda x: diagonal(x, offset, dim1, dim2))


@declare(method=True)
def fill_diagonal_(tensor: Tensor, fill_value: Number, wrap: bool = False) -> Tensor:
    """Overwrite the main diagonal with one value; return the tensor.

    Parameters
    ----------
    tensor : Tensor
        A matrix, or of more dimensions, all of one size.
    fill_value : float
        The value.
    wrap : bool, default False
        Whether the diagonal of a tall matrix starts again below its end.

    Returns
    -------
    Tensor
        The tensor itself.

    Raises
    ------
    ShapeError
        For a vector, and for more than two dimensions of different sizes.
    """
    shape = tensor.shape
    if len(shape) < 2 or (len(shape) > 2 and len(set(shape)) > 1):
        raise ShapeError(f"fill_diagonal_: got a tensor of shape {shape}; wanted a matrix, or dimensions of one size")
    columns = min(shape)
    places: tuple[Any, ...] = (np.arange(columns),) * len(shape)
    if wrap and len(shape) == 2 and shape[0] > shape[1]:
        rows = np.array([r for r in range(shape[0]) if r % (shape[1] + 1) < shape[1]])
        places = (rows, rows % (shape[1] + 1))
    getitem_setitem.setitem(tensor, places, fill_value)
    return tensor
