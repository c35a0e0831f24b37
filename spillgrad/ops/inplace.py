"""In-place changes in the graph: gradients stay right for the changed tensor, its base and its other views.

An in-place operation runs the ordinary operation on a snapshot of the tensor, then copies the result into the tensor's
memory.
"""

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad import dtypes
from spillgrad.autograd.core.grad_mode import is_recording
from spillgrad.autograd.core.node import Edge, Node, OutputMeta
from spillgrad.device.device import filled
from spillgrad.errors import DtypeError, GraphError, ShapeError
from spillgrad.ops import docstrings
from spillgrad.ops.array_casts import assign, by_parts, cast, contiguous, of_number
from spillgrad.ops.broadcast import sum_to
from spillgrad.ops.complex_views import as_numbers, as_pairs, view_as_real
from spillgrad.ops.convert import gradient_as, to_device, warn_of_real_parts
from spillgrad.ops.declaration import declare, named
from spillgrad.ops.operation import operation
from spillgrad.tensor import Tensor, register_view_again
from spillgrad.tensor_data import native
from spillgrad_kernels.cpu.indexing import index_add_flat
from spillgrad_kernels.device_array import address_of, beside, byte_bounds, is_on_device, strided_view, zeros_beside
from spillgrad_kernels.jit.compile import FLOATS

# Shape, strides and offset, in elements of the base; in real numbers if only one of view and base is complex.
Geometry = tuple[tuple[int, ...], tuple[int, ...], int]


def change(tensor: Tensor, name: str, function: Callable[..., Tensor], *arguments: Any, **options: Any) -> Tensor:
    """Replace the tensor's values by `function(tensor, *arguments, **options)` and record it; return the tensor.

    Raises GraphError if the change cannot be recorded, as for a leaf that requires a gradient, and for a view or the
    base of such a leaf. Raises ShapeError or DtypeError if the result does not fit into the tensor.
    """
    if not is_recorded(tensor, *arguments, *options.values()):
        if _takes_out(function) and computes_in_place(tensor, arguments, options):
            return function(tensor, *arguments, **options, out=tensor)
        write(tensor, name, function(tensor, *arguments, **options).array)
        return tensor
    refuse(tensor, name)
    # Derivatives may need the value that is overwritten, and arguments may be the tensor itself: they see a snapshot.
    snapshot = Tensor.wrap(tensor.array.copy())
    if tensor.requires_grad:
        snapshot.attach(*tensor.gradient_edge())  # type: ignore[arg-type]
    arguments = tuple(snapshot if a is tensor else a for a in arguments)
    options = {key: snapshot if a is tensor else a for key, a in options.items()}
    result = function(snapshot, *arguments, **options)
    write(tensor, name, result.array)
    if not result.requires_grad:
        result = _copy(snapshot, result)  # no derivative leads to the old values: their gradient is zero
    if result.requires_grad:
        record_change(tensor, result.gradient_edge())
    return tensor


def in_place_form(name: str, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the function called `name` that changes its first argument to what `function` gives, and returns it."""

    def method(self: Tensor, *arguments: Any, **options: Any) -> Tensor:
        return change(self, name, function, *arguments, **options)

    return named(method, name, docstrings.in_place(name.rstrip("_")))


def is_recorded(tensor: Tensor, *others: Any) -> bool:
    """Return whether the graph must record a change of the tensor that depends on `others`."""
    return is_recording() and any(isinstance(a, Tensor) and a.requires_grad for a in (tensor, tensor._base, *others))


@functools.cache
def _takes_out(function: Callable[..., Any]) -> bool:
    return "out" in inspect.signature(function).parameters


def computes_in_place(tensor: Tensor, arguments: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """Return whether the result surely fits into the tensor, so that it can be computed in the tensor's memory."""
    array = tensor._array
    flags = array.flags
    is_complex = dtypes.is_complex(array.dtype)
    if array.dtype not in FLOATS and not is_complex:
        return False
    if not flags.c_contiguous or not flags.writeable or "out" in options:
        return False
    for a in (*arguments, *options.values()):
        if isinstance(a, Tensor):
            if a._array.dtype != array.dtype or a._array.shape not in (array.shape, ()):
                return False
        elif not isinstance(a, int | float) and not (is_complex and isinstance(a, complex)):
            return False
    return True


def refuse(tensor: Tensor, name: str, of_a_leaf: type[Exception] = GraphError) -> None:
    """Raise GraphError (`of_a_leaf` if a leaf is the reason) if an in-place change of the tensor cannot be recorded."""
    base = tensor if tensor._base is None else tensor._base
    remedy = "wrap it in no_grad() or work on a clone()"
    if base is not tensor and base.requires_grad and not tensor.requires_grad:
        raise GraphError(
            f"{name}: A view was created in no_grad mode and is being modified inplace with grad mode enabled; make "
            "the view and change it in the same mode"
        )
    what = None
    if base.requires_grad and base.is_leaf:
        what = "leaf Variable" if base is tensor else "view of a leaf Variable"
    elif tensor.requires_grad and tensor.is_leaf:
        what = "view of a leaf Variable"
    elif base.leaf_views():  # the change would change these views, too, and end their being leaves
        what = "tensor that shares memory with a view of a leaf Variable"
    if what is not None:
        raise of_a_leaf(f"{name}: a {what} that requires grad is being used in an in-place operation; {remedy}")
    if base is tensor:
        return
    _refuse_custom_view(tensor, name)
    geometry(tensor, base)


def _refuse_custom_view(view: Tensor, name: str) -> None:
    node = view._grad_fn
    if node is not None and view.output_nr in node.custom_views:
        raise GraphError(
            f"{name}: Output {view.output_nr} of {node.name()} is a view and is being modified inplace, or its base. "
            "This view was created inside a custom Function (or because an input was returned as-is), and its gradient "
            "would bypass the custom backward; return a clone() from there"
        )


def write(tensor: Tensor, name: str, values: np.ndarray) -> None:
    """Copy values into the tensor's memory. Raises as `begin_write` does."""
    begin_write(tensor, name, values.shape, values.dtype)
    assign(tensor.array, values)


def begin_write(tensor: Tensor, name: str, shape: tuple[int, ...], dtype: dtypes.DType) -> None:
    """Check that a result of this shape and dtype may overwrite the tensor, and raise the tensor's version.

    The version is raised before the write: a concurrent reader can notice the change. Raises ShapeError or
    DtypeError if the result does not fit into the tensor, GraphError if the tensor's memory is read-only or expanded.
    """
    array = tensor._array
    if shape != array.shape:
        raise ShapeError(
            f"{name}: the result has shape {shape}; an in-place result must keep the tensor's {tensor.shape}"
        )
    if dtype is not array.dtype and dtypes.category(dtype) > dtypes.category(array.dtype):
        raise DtypeError(f"{name}: result type {dtype} can't be cast to the tensor's {tensor.dtype}; convert it first")
    if not array.flags.writeable:
        raise GraphError(f"{name}: the tensor's memory is read-only; clone() it first")
    if not array.flags.c_contiguous and repeats_places(shape, array.strides):
        raise GraphError(
            f"{name}: more than one element of the expanded tensor refers to one memory location; clone() it first"
        )
    tensor._storage.begin_change()


def repeats_places(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Return whether any elements at these strides share memory, as in an expanded or unfolded tensor."""
    steps = sorted((abs(stride), size) for stride, size in zip(strides, shape, strict=True) if size > 1)
    reach = 0
    for stride, size in steps:
        if stride <= reach or stride == 0:
            break
        reach += stride * (size - 1)
    else:
        return False
    if 0 in shape:
        return False
    if any(stride == 0 for stride, _ in steps):
        return True
    # Interleaved strides may still reach different places: strides 2 and 3 do, with sizes 3 and 2.
    places = sum(np.ogrid[tuple(slice(0, stride * size, stride) for stride, size in steps)])
    return bool(np.unique(places).size < math.prod(shape))


def record_change(tensor: Tensor, edge: Edge) -> None:
    """Attach the changed tensor to the graph at `edge`; the base of a changed view records the change, too."""
    base = tensor._base
    if base is not None:
        node = ChangedSlice(base, edge, geometry(tensor, base), tensor.is_complex())
        move(base, (node, 0))
        tensor._base_fn = node
    move(tensor, edge)


def move(tensor: Tensor, edge: Edge) -> None:
    """Attach the tensor to the graph at another edge; retained gradients move to that edge, too."""
    if tensor._grad_fn is not None:
        tensor._grad_fn.hand_over_retained(tensor._output_nr, edge)
    tensor.attach(*edge)  # type: ignore[arg-type]


def geometry(view: Tensor, base: Tensor) -> Geometry:
    """Return (shape, strides, offset) of a view in its base.

    Strides and offset count elements. If only one of view and base is complex, they count real numbers, and a complex
    view has a last dimension of two: its real and imaginary parts.

    Raises GraphError if the base is not contiguous, has another storage than the view, or does not hold the whole view.
    """
    if view.storage is not base.storage:
        raise GraphError("in-place: the view's base got other memory, by assigning its data; make the view again")
    if not base.is_contiguous():
        raise GraphError("in-place: cannot record a change of a view whose base is not contiguous; clone() it first")
    (first, last), (low, high) = byte_bounds(view.array), byte_bounds(base.array)
    if view.array.size and not low <= first <= last <= high:
        raise GraphError(
            "in-place: cannot record a change of a view that reaches beyond its base, as as_strided() makes them, or "
            "whose base got other data; clone() it first"
        )
    start = address_of(view.array) - address_of(base.array)
    if view.is_complex() and not base.is_complex():
        view = Tensor.wrap(as_pairs(view.array))
    return view.shape, view.stride(), start // (base if view.is_complex() else view).itemsize


class ChangedSlice(Node):
    """The node of a base whose view was changed: the view's elements are from the change, others from the old base."""

    def __init__(self, base: Tensor, changed: Edge, place: Geometry, is_complex: bool) -> None:
        super().__init__()
        self.edges = (base.gradient_edge(), changed)
        self.outputs = (OutputMeta(base.shape, base.numpy_dtype, base.device),)
        self._place = place
        self._is_complex = is_complex  # whether the view is

    def name(self) -> str:
        return "CopySlices"

    def apply(self, grads: list[Any]) -> list[Any]:
        (g,) = grads
        if g is None:
            return [None, None]
        part = rest = None
        of_reals = g.is_complex() and not self._is_complex
        elements = view_as_real(g) if of_reals else g
        if self.edges[1][0] is not None:
            part = as_strided(elements, self._place)
            part = as_numbers(part) if self._is_complex and not g.is_complex() else part
        if self.edges[0][0] is not None:
            rest = _rest_gradient(elements, self._place)
            rest = as_numbers(rest) if of_reals else rest
        return [rest, part]


def strided(self: np.ndarray, place: Geometry) -> np.ndarray:
    """Return a view of a dense array; `place` is (shape, strides, offset) in elements."""
    shape, strides, offset = place
    dense, steps = contiguous(self), tuple(s * self.itemsize for s in strides)
    if is_on_device(dense):
        return strided_view(dense, offset * self.itemsize, shape, self.dtype, steps)
    return np.lib.stride_tricks.as_strided(dense.reshape(-1)[offset:], shape, steps)


def _put(self: np.ndarray, part: np.ndarray, place: Geometry) -> np.ndarray:
    out = cast(self, self.dtype)
    strided(out, place)[...] = part
    return out


def _summed(self: np.ndarray, place: Geometry, shape: tuple[int, ...]) -> np.ndarray:
    """Return zeros of `shape` with the elements of `self` added at `place`; those for one position add up."""
    positions = strided(np.arange(math.prod(shape)).reshape(shape), place)

    def add_up(values: np.ndarray) -> np.ndarray:
        out = zeros_beside(values, shape, values.dtype)
        index_add_flat(out.reshape(-1), beside(values, positions), values)
        return out

    return by_parts(add_up, self)


def strided_gradient(g: Tensor, place: Geometry, self_shape: tuple[int, ...]) -> Tensor:
    """Return the gradient of a dense tensor of shape `self_shape` from the gradient `g` of its elements at `place`."""
    shape, strides, offset = place
    single = tuple(1 if stride == 0 else size for size, stride in zip(shape, strides, strict=True))
    if repeats_places(single, strides):
        return _sum_strided(sum_to(g, single), (single, strides, offset), self_shape)
    zeros = Tensor.wrap(filled(g.device, self_shape, g.dtype, 0))
    return _put_strided(zeros, sum_to(g, single), (single, strides, offset))


def _rest_gradient(g: Tensor, place: Geometry) -> Tensor:
    return _put_strided(g, Tensor.wrap(filled(g.device, place[0], g.dtype, 0)), place)


_sum_strided: Callable[..., Tensor] = operation("sum_strided", _summed, self=lambda g, place: as_strided(g, place))
_as_strided: Callable[..., Tensor] = operation("as_strided", strided, view=True, self=strided_gradient)
_put_strided: Callable[..., Tensor] = operation(
    "put_strided", _put, self=_rest_gradient, part=lambda g, place: as_strided(g, place)
)


def as_strided(tensor: Tensor, place: Geometry) -> Tensor:
    """Return a view of a dense tensor at (shape, strides, offset); elements of the view may share memory."""
    return _as_strided(tensor, place)


def _view_again(view: Tensor, base: Tensor) -> None:
    """Attach a view to the graph of its base again, after the base was changed in the graph."""
    _refuse_custom_view(view, "in-place")
    node = base._grad_fn
    view._base_fn = node
    if node is None:
        if view._grad_fn is not None:  # a view that is a leaf remains one
            view._grad_fn, view._requires_grad = None, base._requires_grad
        return
    source = base.alias((node, base._output_nr))
    move(view, (_StridedRead(source, view, geometry(view, base)), 0))


class _StridedRead(Node):
    """The node of a view whose base changed after the view was made."""

    def __init__(self, base: Tensor, view: Tensor, place: Geometry) -> None:
        super().__init__()
        self.edges = (base.gradient_edge(),)
        self.outputs = (OutputMeta(view.shape, view.numpy_dtype, view.device),)
        self._base_shape, self._is_complex = base.shape, base.is_complex()
        self._place = place

    def name(self) -> str:
        return "AsStridedBackward0"

    def apply(self, grads: list[Any]) -> list[Any]:
        (g,) = grads
        if g is None:
            return [None]
        if g.is_complex() and not self._is_complex:
            g = view_as_real(g)
        if self._is_complex and not g.is_complex():
            return [as_numbers(strided_gradient(g, self._place, (*self._base_shape, 2)))]
        return [strided_gradient(g, self._place, self._base_shape)]


register_view_again(_view_again)


@declare(method=True)
def copy_(tensor: Tensor, source: Any, non_blocking: bool = False) -> Tensor:
    """Overwrite the tensor with another, and return it.

    Parameters
    ----------
    tensor : Tensor
        The tensor to overwrite.
    source : Tensor or array_like
        Broadcast and converted to the tensor; gradients flow to it.
    non_blocking : bool, default False
        Not used.

    Returns
    -------
    Tensor
        The tensor itself.

    Raises
    ------
    ShapeError
        If the source does not broadcast to the tensor's shape.
    GraphError
        If the change cannot be recorded, as for a leaf that requires a gradient.
    """
    from_array = source if isinstance(source, Tensor) else Tensor.wrap(native(np.asarray(source)))
    from_array = to_device(from_array, tensor.device)
    warn_of_real_parts(from_array.dtype, tensor.dtype)
    if is_recorded(tensor, from_array):
        return change(tensor, "copy_", _copy, from_array)
    _check_source(from_array.shape, tensor.shape)
    begin_write(tensor, "copy_", tensor.shape, tensor.numpy_dtype)
    assign(tensor.array, from_array.array)
    return tensor


def _check_source(shape: tuple[int, ...], target: tuple[int, ...]) -> None:
    lead = len(target) - len(shape)
    if lead < 0 or any(size not in (1, wanted) for size, wanted in zip(shape, target[lead:], strict=True)):
        raise ShapeError(f"copy_: got a source of shape {shape}; it does not broadcast to {target}")


def _copy_forward(self: np.ndarray, source: np.ndarray) -> np.ndarray:
    _check_source(source.shape, self.shape)
    return cast(np.broadcast_to(source, self.shape), self.dtype)


def _copy_gradient(g: Tensor, source_shape: tuple[int, ...], source_dtype: dtypes.DType) -> Tensor:
    return gradient_as(sum_to(g, source_shape), source_dtype)


def _overwritten(g: Tensor) -> Tensor:
    return Tensor.wrap(filled(g.device, g.shape, g.dtype, 0))


_copy = operation("copy", _copy_forward, self=_overwritten, source=_copy_gradient)
_copy.node_name = "CopyBackwards"  # as PyTorch spells it


@declare(method=True)
def fill_(tensor: Tensor, value: Any) -> Tensor:
    """Overwrite the tensor with one value; return the tensor.

    Parameters
    ----------
    tensor : Tensor
        The tensor to overwrite.
    value : float or Tensor
        The value; a tensor has no dimensions.

    Returns
    -------
    Tensor
        The tensor itself.

    Raises
    ------
    GraphError
        If the change cannot be recorded, as for a leaf that requires a gradient.
    """
    return copy_(tensor, value if isinstance(value, Tensor) else of_number("fill_", value, tensor.numpy_dtype))


@declare(method=True)
def zero_(tensor: Tensor) -> Tensor:
    """Overwrite the tensor with zeros; return the tensor.

    Parameters
    ----------
    tensor : Tensor
        The tensor to overwrite.

    Returns
    -------
    Tensor
        The tensor itself.

    Raises
    ------
    GraphError
        If the change cannot be recorded, as for a leaf that requires a gradient.
    """
    return fill_(tensor, 0)
