"""Searching, sorting and indexing, by the array API standard."""

from collections.abc import Callable
from typing import Any

from spillgrad.array_api.wrapping import KEEPDIMS, X, called, promoted
from spillgrad.errors import ArgumentError, ShapeError
from spillgrad.ops import (
    arithmetic,
    array_api_names,
    clamp_where,
    comparison,
    counting,
    indexing,
    reduce,
    shape,
    sorting,
)
from spillgrad.ops.declaration import declare
from spillgrad.ops.getitem_setitem import getitem
from spillgrad.tensor import Tensor

__all__ = ["argmax", "argmin", "argsort", "isin", "nonzero", "searchsorted", "sort", "take", "take_along_axis"]


def _position(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def position(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
        return function(x, axis, keepdims)

    axis = "axis : int, optional\n    Dimension to search; by default, the flattened tensor."
    returns = "Tensor\n    Of int64, of the shape of `x` without `axis`."
    return declare(numpy=True)(called(position, function, X, axis, KEEPDIMS, returns=returns))


argmax, argmin = _position(reduce.argmax), _position(reduce.argmin)


def argsort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """Return the indices that sort the tensor along a dimension."""
    return sorting.argsort(x, axis, descending, stable)


def sort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """Return the elements in order along a dimension."""
    return sorting.sort(x, axis, descending, stable).values


@declare(numpy=True)
def nonzero(x: Tensor, /) -> tuple[Tensor, ...]:
    """Return the indices of the nonzero elements: a vector for each dimension. Raises ShapeError for a 0-d tensor."""
    if not x.ndim:
        raise ShapeError("nonzero: got a 0-d tensor; wanted at least one dimension")
    return indexing.nonzero(x, as_tuple=True)  # type: ignore[no-any-return]


@declare(numpy=True)
def searchsorted(x1: Tensor, x2: Any, /, *, side: str = "left", sorter: Tensor | None = None) -> Tensor:
    """Return the indices at which to insert elements of `x2` into the sorted `x1`, on the `side` of equal elements."""
    return counting.searchsorted(x1, x2, side=side, sorter=sorter)


def isin(x1: Any, x2: Any, /, *, invert: bool = False) -> Tensor:
    """Return whether each element of `x1` occurs in `x2`; with `invert`, whether it does not."""
    return counting.isin(*promoted("isin", x1, x2), invert=invert)


def take(x: Tensor, indices: Tensor, /, *, axis: int | None = None) -> Tensor:
    """Return the elements at `indices` along a dimension. `axis` may be None for a vector only."""
    if axis is None and x.ndim != 1:
        raise ArgumentError(f"take: got a tensor of {x.ndim} dimensions and no axis; give one")
    dim = shape.normalize_dim("take", axis or 0, x.ndim)
    return getitem(x, (*(slice(None),) * dim, indices))


@declare(numpy=True)
def take_along_axis(x: Tensor, indices: Tensor, /, *, axis: int = -1) -> Tensor:
    """Return the elements at `indices` along one dimension; the other dimensions of `x` and `indices` broadcast."""
    size = x.shape[shape.normalize_dim("take_along_axis", axis, x.ndim)]
    counted = clamp_where.where(comparison.lt(indices, 0), arithmetic.add(indices, size), indices)
    return array_api_names.take_along_axis(x, counted, axis=axis)
