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
    """Return the indices that sort the tensor along a dimension.

    Parameters
    ----------
    x : Tensor
        Of any shape.
    axis : int, default -1
        Dimension to sort along.
    descending : bool, default False
        Whether the largest elements come first.
    stable : bool, default True
        Whether equal elements keep their order.

    Returns
    -------
    Tensor
        Of int64, of the shape of `x`.
    """
    return sorting.argsort(x, axis, descending, stable)


def sort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """Return the elements in order along a dimension.

    Parameters
    ----------
    x : Tensor
        Of any shape.
    axis : int, default -1
        Dimension to sort along.
    descending : bool, default False
        Whether the largest elements come first.
    stable : bool, default True
        Whether equal elements keep their order.

    Returns
    -------
    Tensor
        Of the shape of `x`.
    """
    return sorting.sort(x, axis, descending, stable).values


@declare(numpy=True)
def nonzero(x: Tensor, /) -> tuple[Tensor, ...]:
    """Return the indices of the nonzero elements.

    Parameters
    ----------
    x : Tensor
        Of at least one dimension.

    Returns
    -------
    tuple of Tensor
        A vector of int64 for each dimension.

    Raises
    ------
    ShapeError
        If `x` has no dimension.
    """
    if not x.ndim:
        raise ShapeError("nonzero: got a 0-d tensor; wanted at least one dimension")
    return indexing.nonzero(x, as_tuple=True)  # type: ignore[no-any-return]


@declare(numpy=True)
def searchsorted(x1: Tensor, x2: Any, /, *, side: str = "left", sorter: Tensor | None = None) -> Tensor:
    """Return the indices at which to insert elements into a sorted vector.

    Parameters
    ----------
    x1 : Tensor
        Sorted vector.
    x2 : Tensor or number
        Elements to insert.
    side : {"left", "right"}, default "left"
        Whether an element is inserted before or after equal ones.
    sorter : Tensor, optional
        Indices that sort a vector that is not sorted.

    Returns
    -------
    Tensor
        Of int64, of the shape of `x2`.
    """
    return counting.searchsorted(x1, x2, side=side, sorter=sorter)


def isin(x1: Any, x2: Any, /, *, invert: bool = False) -> Tensor:
    """Return whether each element of `x1` occurs in `x2`.

    Parameters
    ----------
    x1, x2 : Tensor or number
        They are promoted to one dtype.
    invert : bool, default False
        Whether to return the opposite.

    Returns
    -------
    Tensor
        Of bool, of the shape of `x1`.
    """
    return counting.isin(*promoted("isin", x1, x2), invert=invert)


def take(x: Tensor, indices: Tensor, /, *, axis: int | None = None) -> Tensor:
    """Return the elements at indices along a dimension.

    Parameters
    ----------
    x : Tensor
        Of at least one dimension.
    indices : Tensor
        Of integers.
    axis : int, optional
        Dimension of the indices; a vector needs none.

    Returns
    -------
    Tensor
        With the dimensions of `indices` in place of the dimension.

    Raises
    ------
    ArgumentError
        If there is no `axis`, and `x` is not a vector.
    """
    if axis is None and x.ndim != 1:
        raise ArgumentError(f"take: got a tensor of {x.ndim} dimensions and no axis; give one")
    dim = shape.normalize_dim("take", axis or 0, x.ndim)
    return getitem(x, (*(slice(None),) * dim, indices))


@declare(numpy=True)
def take_along_axis(x: Tensor, indices: Tensor, /, *, axis: int = -1) -> Tensor:
    """Return the elements at indices along one dimension; the other dimensions broadcast.

    Parameters
    ----------
    x : Tensor
        Of at least one dimension.
    indices : Tensor
        Of integers, with as many dimensions as `x`; negative ones count from the end.
    axis : int, default -1
        Dimension of the indices.

    Returns
    -------
    Tensor
        Of the shape of `indices`, broadcast.
    """
    size = x.shape[shape.normalize_dim("take_along_axis", axis, x.ndim)]
    counted = clamp_where.where(comparison.lt(indices, 0), arithmetic.add(indices, size), indices)
    return array_api_names.take_along_axis(x, counted, axis=axis)
