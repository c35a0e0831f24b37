"""Views of a tensor's memory with other shapes and strides, and functions that turn the tensor itself into a view."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spillgrad.autograd.core.grad_mode import is_recording
from spillgrad.errors import ArgumentError, GraphError
from spillgrad.ops import inplace, shape
from spillgrad.ops.arithmetic import mul
from spillgrad.ops.declaration import declare
from spillgrad.ops.inplace import Geometry
from spillgrad.ops.operation import operation
from spillgrad.ops.shape import shape_arguments
from spillgrad.tensor import Tensor
from spillgrad_kernels.device_array import is_on_device, strided_view

__all__ = ["as_strided"]

# --- Views -----------------------------------------------------------------------------------------------------------


def _read(self: np.ndarray, memory: np.ndarray, place: Geometry, own: Geometry) -> np.ndarray:
    size, strides, offset = place
    steps = tuple(s * self.itemsize for s in strides)
    if is_on_device(memory):
        return strided_view(memory, offset * self.itemsize, size, self.dtype, steps)
    return np.ndarray(size, self.dtype, memory.view(np.uint8).data, offset * self.itemsize, steps)


def _span(place: Geometry) -> tuple[int, int]:
    """Return the storage elements that `place` (size, strides, offset) covers: the first, and one after the last."""
    size, strides, offset = place
    if 0 in size:
        return offset, offset
    reach = [(n - 1) * s for n, s in zip(size, strides, strict=True)]
    return offset + sum(r for r in reach if r < 0), offset + sum(r for r in reach if r > 0) + 1


def _gradient(g: Tensor, place: Geometry, own: Geometry) -> Tensor:
    """Return the input's gradient: sum `g`, which lies at `place`, into memory, and view that memory at `own`."""
    spans = _span(place), _span(own)
    first, last = min(low for low, _ in spans), max(high for _, high in spans)
    length = (max(last - first, 0),)
    here, there = ((size, strides, offset - first) for size, strides, offset in (own, place))
    sums = inplace.strided_gradient(g, there, length)
    result = inplace.as_strided(sums, here)
    if not inplace.repeats_places(here[0], here[1]):
        return result
    # Elements of the input at one place share the gradient that arrives there.
    positions = inplace.strided(np.arange(*length), here)
    counts = np.bincount(positions.reshape(-1), minlength=length[0])[positions]
    return mul(result, Tensor.wrap((1 / counts).astype(g.dtype)))


_as_strided: Callable[..., Tensor] = operation("as_strided", _read, view=True, self=_gradient)


@declare(method=True)
def as_strided(input: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Tensor:
    """Return a view of the storage of a given size and stride.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    size : sequence of int
        Shape of the view.
    stride : sequence of int
        Step in elements from one index to the next, for each dimension.
    storage_offset : int, optional
        Number of elements before the first one; by default, the view begins where `input` does.

    Returns
    -------
    Tensor
        A view; several of its elements may share memory.

    Raises
    ------
    ArgumentError
        For negative strides, or elements outside the storage.
    GraphError
        For a storage that is not dense.

    Notes
    -----
    Gradients of elements outside the input are dropped.
    """
    wanted, steps = shape_arguments((size,)), shape_arguments((stride,))
    offset = input.storage_offset() if storage_offset is None else storage_offset
    if len(wanted) != len(steps):
        raise ArgumentError(f"as_strided: got size {wanted} and stride {steps}; mismatch in length: give one of each")
    if min((*wanted, *steps, offset), default=0) < 0:
        raise ArgumentError(
            f"as_strided: got size {wanted}, stride {steps} and storage_offset {offset}; Negative strides, sizes and "
            "offsets are not supported"
        )
    memory = input.storage.array
    if not memory.flags.c_contiguous:
        raise GraphError("as_strided: the tensor's storage is not dense; use contiguous() first")
    place = (wanted, steps, offset)
    if _span(place)[1] * input.itemsize > memory.nbytes and 0 not in wanted:
        raise ArgumentError(
            f"as_strided: size {wanted}, stride {steps} and storage_offset {offset} are out of bounds for a storage of "
            f"{memory.nbytes // input.itemsize} elements"
        )
    own = (input.shape, input.stride(), input.storage_offset())
    return _as_strided(input, memory.reshape(-1), place, own)


# --- In place --------------------------------------------------------------------------------------------------------


def _become(tensor: Tensor, name: str, view: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """Turn the tensor itself into the view that the function `view` returns of it; return the tensor.

    Raises GraphError for a leaf that requires a gradient, and for a view of such a leaf.
    """
    if is_recording() and tensor.requires_grad:
        inplace.refuse(tensor, name)
    result = view(tensor.alias(tensor.gradient_edge()), *arguments)
    tensor.bump_version()
    tensor._array = result._array
    if result.grad_fn is not None:
        inplace.move(tensor, result.gradient_edge())
    else:
        tensor._accumulator = None
    return tensor


@declare(method=True)
def squeeze_(tensor: Tensor, dim: int | Sequence[int] | None = None, *, axis: Any = None) -> Tensor:
    """Do `squeeze` in place; return the tensor.

    Parameters
    ----------
    tensor : Tensor
        The tensor to change.
    dim : int or sequence of int, optional
        Dimensions to remove, of those of size 1; all, by default.
    axis : int or sequence of int, optional
        Another name of `dim`.

    Returns
    -------
    Tensor
        The tensor itself.
    """
    return _become(tensor, "squeeze_", shape.squeeze, axis if dim is None else dim)


@declare(method=True)
def unsqueeze_(tensor: Tensor, dim: int | None = None, *, axis: int | None = None) -> Tensor:
    """Do `unsqueeze` in place; return the tensor.

    Parameters
    ----------
    tensor : Tensor
        The tensor to change.
    dim : int
        Position of the new dimension.
    axis : int, optional
        Another name of `dim`.

    Returns
    -------
    Tensor
        The tensor itself.
    """
    return _become(tensor, "unsqueeze_", shape.unsqueeze, axis if dim is None else dim)


@declare(method=True)
def t_(tensor: Tensor) -> Tensor:
    """Do `t` in place; return the tensor.

    Parameters
    ----------
    tensor : Tensor
        The tensor to change, of at most two dimensions.

    Returns
    -------
    Tensor
        The tensor itself.
    """
    return _become(tensor, "t_", shape.t)


@declare(method=True)
def transpose_(tensor: Tensor, dim0: int, dim1: int) -> Tensor:
    """Do `transpose` in place; return the tensor.

    Parameters
    ----------
    tensor : Tensor
        The tensor to change.
    dim0, dim1 : int
        The dimensions to swap.

    Returns
    -------
    Tensor
        The tensor itself.
    """
    return _become(tensor, "transpose_", shape.transpose, dim0, dim1)


swapaxes_ = swapdims_ = transpose_
