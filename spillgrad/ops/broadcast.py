"""Broadcasting, and the sum over broadcast dimensions: each is the other's derivative."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from spillgrad.errors import ShapeError
from spillgrad.ops.array_casts import by_parts
from spillgrad.ops.call_plan import CallOnDevice, CallPlan, Planned, new_plan
from spillgrad.ops.operation import operation
from spillgrad.tensor import Tensor
from spillgrad_kernels.cpu import reductions
from spillgrad_kernels.device_array import device_kernel
from spillgrad_kernels.layout import Layout

Shape = tuple[int, ...]


def shape_error(name: str, shapes: Iterable[Shape]) -> ShapeError:
    """Return (not raise) the error for shapes that do not broadcast."""
    found = " and ".join([str(shape) for shape in shapes if shape != ()])  # numbers and 0-d tensors fit any shape
    return ShapeError(
        f"{name}: got shapes {found}; sizes must match from the last dimension on, or be 1: "
        "reshape or unsqueeze one of them"
    )


def common_shape(name: str, shapes: Iterable[Any]) -> Shape:
    """Return the shape that `shapes` broadcast to. Raises ShapeError if they do not broadcast."""
    shapes = list(shapes)
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError as error:
        raise shape_error(name, shapes) from error


def _repeated(longer: Shape, shape: Shape) -> Shape:
    """Return the dimensions of `longer` along which an array of `shape` repeats when it is broadcast to `longer`."""
    lead = len(longer) - len(shape)
    return (*range(lead), *(i + lead for i, size in enumerate(shape) if size == 1 and longer[i + lead] != 1))


class _SumTo(Planned):
    """The sum over the dimensions along which an array of `shape` was broadcast."""

    def __init__(self) -> None:
        super().__init__("sum_to", ("self", "shape"), arrays=1)

    def plan(self, layouts: tuple[Layout, ...], shape: Shape) -> CallPlan:
        fold = reductions.prepare("sum", layouts[0], _repeated(layouts[0].shape, shape), False)
        code, large = (fold.code, None) if fold.direct else (None, fold)
        return new_plan(layouts, code, fold.units, fold.kept, shape, fold.dtype, large)

    def plan_on_device(self, operands: Any, out: Any, is_aligned: bool, shape: Shape) -> Any:
        array, fold = operands[0], device_kernel(reductions.sum)
        axes = _repeated(array.shape, shape)
        return CallOnDevice(lambda a: fold(a, axes).reshape(shape)), shape, array.dtype

    def converted(self, *arguments: Any, out: np.ndarray | None = None) -> np.ndarray:
        array, shape = arguments
        axes = _repeated(array.shape, shape)
        if array.dtype.kind in "biu":
            return np.sum(array, axes, dtype=array.dtype).reshape(shape)  # type: ignore[no-any-return]
        return by_parts(lambda a: reductions.sum(a, axes), array).reshape(shape)


def _expand(self: np.ndarray, shape: Shape) -> np.ndarray:
    view = np.broadcast_to(self, shape)
    view.flags.writeable = self.flags.writeable
    return view


_sum_to_operation: Callable[..., Tensor] = operation(
    "sum_to", _SumTo(), self=lambda g, self_shape: expand_to(g, self_shape)
)
_expand_operation: Callable[..., Tensor] = operation(
    "expand", _expand, view=True, self=lambda g, self_shape: sum_to(g, self_shape)
)


def sum_to(tensor: Tensor, shape: Shape) -> Tensor:
    """Return the tensor summed to `shape`: over the dimensions along which `shape` broadcasts to the tensor's shape."""
    return tensor if tensor.shape == shape else _sum_to_operation(tensor, shape)


def expand_to(tensor: Tensor, shape: Shape) -> Tensor:
    """Return a view of `shape` in which dimensions of size 1 repeat without copies.

    Raises ShapeError if the tensor does not broadcast to `shape`.
    """
    if tensor.shape == shape:
        return tensor
    try:
        return _expand_operation(tensor, shape)
    except ValueError as error:
        raise ShapeError(
            f"expand: got {tensor.shape}, wanted {shape}; only dimensions of size 1 can repeat, and new ones come first"
        ) from error
