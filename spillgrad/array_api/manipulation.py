"""Arrays in other shapes and orders, by the array API standard."""

from typing import Any

from spillgrad.errors import ArgumentError, ShapeError
from spillgrad.ops import array_api_names, convert, join_split, rearrange
from spillgrad.ops import shape as shape_ops
from spillgrad.ops.array_api_names import repeat
from spillgrad.ops.declaration import declare
from spillgrad.tensor import Tensor

__all__ = [
    "broadcast_arrays", "broadcast_to", "concat", "flip", "moveaxis", "repeat", "reshape", "roll", "squeeze", "stack",
    "tile",
]  # fmt: skip


def broadcast_arrays(*arrays: Tensor) -> list[Tensor]:
    """Return views of the tensors in the shape that they broadcast to.

    Parameters
    ----------
    *arrays : Tensor
        Tensors whose shapes broadcast.

    Returns
    -------
    list of Tensor
        A view of each.
    """
    return list(array_api_names.broadcast_arrays(*arrays))


@declare(numpy=True)
def broadcast_to(x: Tensor, /, shape: tuple[int, ...]) -> Tensor:
    """Return a view in the given shape, repeated along new dimensions and along dimensions of size 1.

    Parameters
    ----------
    x : Tensor
        Of a shape that broadcasts to `shape`.
    shape : tuple of int
        Shape of the result.

    Returns
    -------
    Tensor
        Of shape `shape`.
    """
    return shape_ops.broadcast_to(x, shape)


@declare(numpy="concatenate")
def concat(arrays: Any, /, *, axis: int | None = 0) -> Tensor:
    """Return tensors joined along an existing dimension.

    Parameters
    ----------
    arrays : sequence of Tensor
        Tensors that differ at most in the size of this dimension.
    axis : int or None, default 0
        Dimension; None joins the flattened tensors.

    Returns
    -------
    Tensor
        With the elements of all.
    """
    parts = list(arrays)
    return join_split.cat([shape_ops.reshape(x, -1) for x in parts] if axis is None else parts, axis or 0)


@declare(numpy=True)
def stack(arrays: Any, /, *, axis: int = 0) -> Tensor:
    """Return tensors of one shape joined along a new dimension.

    Parameters
    ----------
    arrays : sequence of Tensor
        Tensors of one shape.
    axis : int, default 0
        Place of the new dimension.

    Returns
    -------
    Tensor
        Of one dimension more.
    """
    return join_split.stack(list(arrays), axis)


@declare(numpy=True)
def flip(x: Tensor, /, *, axis: Any = None) -> Tensor:
    """Return a copy with the order of elements reversed along dimensions.

    Parameters
    ----------
    x : Tensor
        Of any shape.
    axis : int or tuple of int, optional
        Dimension, or dimensions, to reverse; all, by default.

    Returns
    -------
    Tensor
        Of the shape of `x`.
    """
    return rearrange.flip(x, dims=tuple(range(x.ndim)) if axis is None else axis)


@declare(numpy=True)
def moveaxis(x: Tensor, source: Any, destination: Any, /) -> Tensor:
    """Return a view with dimensions moved; the others keep their order.

    Parameters
    ----------
    x : Tensor
        Of any shape.
    source : int or tuple of int
        Dimensions to move.
    destination : int or tuple of int
        Their places in the result.

    Returns
    -------
    Tensor
        View of the memory of `x`.
    """
    return shape_ops.movedim(x, source, destination)


@declare(numpy=True)
def reshape(x: Tensor, /, shape: Any, *, copy: bool | None = None) -> Tensor:
    """Return the elements in another shape.

    Parameters
    ----------
    x : Tensor
        Of any shape.
    shape : tuple of int
        Shape of the result; one size may be -1, which fits the others.
    copy : bool, optional
        True always copies; None gives a view if the strides allow one; False gives only a view.

    Returns
    -------
    Tensor
        Of shape `shape`.

    Raises
    ------
    ArgumentError
        If `copy` is False and the strides allow no view.
    """
    result = shape_ops.reshape(x, shape)
    if copy is False and x.numel() and result.storage is not x.storage:
        raise ArgumentError(f"reshape: got copy=False for strides {x.stride()}, of which {shape} is no view")
    return convert.clone(result) if copy and result.storage is x.storage else result


@declare(numpy=True)
def roll(x: Tensor, /, shift: Any, *, axis: Any = None) -> Tensor:
    """Return a copy with the elements rolled along dimensions.

    Parameters
    ----------
    x : Tensor
        Of any shape.
    shift : int or tuple of int
        By how many places, for all dimensions or each of them.
    axis : int or tuple of int, optional
        Dimension, or dimensions; by default, the flattened tensor is rolled.

    Returns
    -------
    Tensor
        Of the shape of `x`.
    """
    several = isinstance(axis, tuple) and not isinstance(shift, tuple)
    return rearrange.roll(x, (shift,) * len(axis) if several else shift, axis)


def squeeze(x: Tensor, /, axis: Any) -> Tensor:
    """Return a view without dimensions of size 1.

    Parameters
    ----------
    x : Tensor
        Of any shape.
    axis : int or tuple of int
        Dimension, or dimensions, to remove.

    Returns
    -------
    Tensor
        View of the memory of `x`.

    Raises
    ------
    ShapeError
        If the size of one of the dimensions is not 1.
    """
    dims = shape_ops.normalize_dims("squeeze", axis, x.ndim)
    if wrong := [d for d in dims if x.shape[d] != 1]:
        raise ShapeError(f"squeeze: got axis={axis} for shape {x.shape}; dimension {wrong[0]} is not of size 1")
    return shape_ops.squeeze(x, dims)


@declare(numpy=True)
def tile(x: Tensor, repetitions: tuple[int, ...], /) -> Tensor:
    """Return the tensor repeated along its last dimensions.

    Parameters
    ----------
    x : Tensor
        Of any shape.
    repetitions : tuple of int
        How often, for each of the last dimensions.

    Returns
    -------
    Tensor
        With the repeated elements.
    """
    return rearrange.tile(x, repetitions)
