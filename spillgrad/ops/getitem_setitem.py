"""Indexing with brackets: basic indices give views, advanced indices copies; both can be assigned to."""

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad import dtypes
from spillgrad.autograd.core.grad_mode import is_recording
from spillgrad.device.device import CPU, CUDA, filled
from spillgrad.errors import DeviceError, DimensionError, OperandError, ShapeError, SpillgradError
from spillgrad.ops import inplace
from spillgrad.ops.arithmetic import add
from spillgrad.ops.array_casts import as_own, cast, contiguous, of_number, on_floats
from spillgrad.ops.broadcast import expand_to, sum_to
from spillgrad.ops.convert import to_dtype
from spillgrad.ops.operation import operation
from spillgrad.ops.placement import require_one_device
from spillgrad.tensor import Tensor
from spillgrad.tensor_data import native
from spillgrad_kernels.cpu import indexing as kernels
from spillgrad_kernels.device_array import ARRAYS, beside, is_on_device, zeros_beside

_PLAIN = frozenset({int, type(None)})  # the types of most slices' parts


def _parsed(index: Any) -> tuple[tuple[Any, ...], bool]:
    """Return the index in NumPy's form, and whether it is basic. Raises DimensionError for a part that cannot index."""
    parts = [_part(p) for p in (index if isinstance(index, tuple) else (index,))]
    return tuple(parts), not any(isinstance(p, ARRAYS) for p in parts)


def _part(part: Any) -> Any:
    """Return a part of an index in NumPy's form: int, slice, None, Ellipsis, or an array in an advanced index."""
    if part is None or part is Ellipsis:
        return part
    if isinstance(part, slice):
        if _PLAIN.issuperset((type(part.start), type(part.stop), type(part.step))):
            return part
        return slice(*(None if v is None else operator.index(v) for v in (part.start, part.stop, part.step)))
    if isinstance(part, Tensor):
        part = part.array
    if isinstance(part, list | range):
        part = np.asarray([p.host_array() if isinstance(p, Tensor) else p for p in part])
        part = part.astype(np.int64) if part.size == 0 else part
    elif isinstance(part, bool | np.bool_):
        part = np.asarray(part)
    if isinstance(part, ARRAYS):
        if part.dtype.kind not in "iub":
            raise DimensionError(f"index: got an index tensor of {part.dtype}; wanted integers or bool")
        return int(part) if part.ndim == 0 and part.dtype.kind != "b" else part
    if not hasattr(part, "__index__"):
        raise DimensionError(
            f"index: got {type(part).__name__}; wanted integers, slices, None, ..., or integer or bool tensors"
        )
    return operator.index(part)


def _integers_first(index: tuple[Any, ...], ndim: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Split an advanced index in two: a basic index with the integers, and the rest, for the view at the basic index.

    NumPy treats the integers as index arrays, which moves dimensions to the front; PyTorch applies the integers first.
    """
    taken = sum(p.ndim if isinstance(p, ARRAYS) and p.dtype == np.bool_ else 1 for p in index if p is not None)
    first: list[Any] = []
    rest: list[Any] = []
    for part in index:
        if isinstance(part, int):
            first.append(part)
        elif part is Ellipsis:
            first.extend([slice(None)] * (ndim - taken + 1))
            rest.append(part)
        else:
            is_mask = isinstance(part, ARRAYS) and part.dtype == np.bool_
            first.extend([slice(None)] * (0 if part is None else part.ndim if is_mask else 1))
            rest.append(part)
    return tuple(first), tuple(rest)


def _picked(self: np.ndarray, index: Any) -> np.ndarray:
    return self[index]  # type: ignore[no-any-return]


def _view_forward(self: np.ndarray, index: Any) -> np.ndarray:
    return as_own(self[index] if Ellipsis in index else self[(*index, Ellipsis)])


def _part_at(total: np.ndarray, _: np.ndarray, index: Any) -> np.ndarray:
    return _view_forward(total, index)


def _basic_gradient(g: Tensor, index: Any, self_shape: tuple[int, ...]) -> Tensor:
    return _place(g, index, self_shape)


def _placed(self: np.ndarray, index: Any, shape: tuple[int, ...]) -> np.ndarray:
    out = zeros_beside(self, shape, self.dtype)
    out[index] = self
    return out


_place: Callable[..., Tensor] = operation("place", _placed, self=lambda g, index: _basic(g, index))
_slice, _select = (
    operation(name, _view_forward, view=True, part_of=_part_at, self=_basic_gradient) for name in ("slice", "select")
)
_unsqueeze = operation("unsqueeze", _view_forward, view=True, self=_basic_gradient)


def _basic(tensor: Tensor, index: tuple[Any, ...]) -> Tensor:
    """Return the view at a basic index; its graph node is named after the kind of the last part, as in PyTorch."""
    last = next((p for p in reversed(index) if p is not Ellipsis and p != slice(None)), slice(None))
    return (_select if isinstance(last, int) else _unsqueeze if last is None else _slice)(tensor, index)  # type: ignore[no-any-return]


def _without_whole_end(index: tuple[Any, ...], ndim: int) -> tuple[tuple[Any, ...], int]:
    """Return the index without ":" and "..." at its end, and the number of dimensions that the other parts cover."""
    end = len(index)
    while index[end - 1] is Ellipsis or (isinstance(index[end - 1], slice) and index[end - 1] == slice(None)):
        end -= 1
    parts = index[:end]
    if any(part is Ellipsis for part in parts):
        return parts, ndim - (len(index) - end)
    return parts, sum(p.ndim if isinstance(p, ARRAYS) and p.dtype == np.bool_ else p is not None for p in parts)


def _accumulated(self: np.ndarray, index: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return zeros of `shape` with values added at an advanced index; values for one position add up."""

    def added_at(values: np.ndarray) -> np.ndarray:
        sums = zeros_beside(values, shape, values.dtype)
        np.add.at(sums, index, values)
        return sums

    if not dtypes.is_floating_point(self.dtype):
        return added_at(self)
    if is_on_device(self):
        return on_floats(added_at, self)
    chosen, lead = _without_whole_end(index, len(shape))
    rows, width = math.prod(shape[:lead]), math.prod(shape[lead:])
    positions = np.arange(rows).reshape(shape[:lead])[chosen].reshape(-1)

    def add_up(values: np.ndarray) -> np.ndarray:
        if lead < len(shape):
            return kernels.embedding_backward(values.reshape(positions.size, width), positions, rows).reshape(shape)
        out = zeros_beside(values, shape, values.dtype)
        kernels.index_add_flat(out.reshape(-1), positions, values.reshape(-1))
        return out

    return on_floats(add_up, contiguous(self))


_accumulate: Callable[..., Tensor] = operation(
    "index_accumulate", _accumulated, self=lambda g, index: _advanced(g, index)
)
_advanced: Callable[..., Tensor] = operation(
    "index", _picked, self=lambda g, index, self_shape: _accumulate(g, index, self_shape)
)


def _kept(index: tuple[Any, ...], *tensors: Tensor) -> tuple[Any, ...]:
    """Return the index; arrays that backward will need are copied, as the caller may change them before backward."""
    if not (is_recording() and any(t.requires_grad for t in tensors)):
        return index
    return tuple(p.copy() if isinstance(p, ARRAYS) else p for p in index)


def _require_reachable(name: str, tensor: Tensor, index: tuple[Any, ...]) -> None:
    """Raise DeviceError for index arrays on the device and a tensor on the host; the reverse is allowed."""
    if any([is_on_device(part) for part in index]) and tensor.device is CPU:
        raise DeviceError(f"{name}: got an index on '{CUDA}' for a tensor on '{CPU}'; move it with .cpu()")


def getitem(tensor: Tensor, index: Any) -> Tensor:
    """Return the elements at an index. Integers, slices, `None` and `...` give a view, index tensors and masks a copy.

    Raises DimensionError when an index is out of range.
    """
    if type(index) is int:
        parsed: tuple[Any, ...] = (index,)
        basic = True
    else:
        parsed, basic = _parsed(index)
    try:
        if basic:
            return _basic(tensor, parsed)
        _require_reachable("index", tensor, parsed)
        if any(isinstance(p, int) for p in parsed):
            first, parsed = _integers_first(parsed, tensor.ndim)
            tensor = _basic(tensor, first)
        return _advanced(tensor, _kept(parsed, tensor))
    except IndexError as error:
        raise DimensionError(f"index: {error} (the tensor has shape {tensor.shape})") from error


def _assigned(self: np.ndarray, value: np.ndarray, index: Any) -> np.ndarray:
    out = cast(self, self.dtype)
    out[index] = value
    return out


def _kept_gradient(g: Tensor, index: Any) -> Tensor:
    return _assign(g, Tensor.wrap(filled(g.device, (), g.dtype, 0)), index)


def _value_gradient(g: Tensor, index: Any, value_shape: tuple[int, ...]) -> Tensor:
    return sum_to(_advanced(g, index), value_shape)


_assign: Callable[..., Tensor] = operation("index_put", _assigned, self=_kept_gradient, value=_value_gradient)


def setitem(tensor: Tensor, index: Any, value: Any) -> None:
    """Overwrite the elements at an index with a broadcast value; gradients flow to the value.

    Raises DimensionError when an index is out of range, ShapeError when the value does not broadcast, OperandError for
    a value that is no tensor, array or number.
    """
    parsed, basic = _parsed(index)
    source = _source(value, tensor)
    try:
        if basic:
            inplace.copy_(_basic(tensor, parsed), _leading_ones_dropped(source, tensor.array[parsed].ndim))
            return
        _require_reachable("setitem", tensor, parsed)
        if any(isinstance(p, int) for p in parsed):
            first, parsed = _integers_first(parsed, tensor.ndim)
            tensor = _basic(tensor, first)
        if inplace.is_recorded(tensor, source):
            kept = _kept(parsed, tensor, source)
            inplace.change(tensor, "setitem", lambda t, v: _assign(t, to_dtype(v, t.dtype), kept), source)
            return
        require_one_device("setitem", (tensor, source))
        values = to_dtype(source, tensor.numpy_dtype).array
        inplace.begin_write(tensor, "setitem", tensor.shape, tensor.numpy_dtype)
        tensor.array[parsed] = values
    except IndexError as error:
        raise DimensionError(f"index: {error} (the tensor has shape {tensor.shape})") from error
    except ValueError as error:
        if isinstance(error, SpillgradError):
            raise
        raise ShapeError(f"setitem: got a value of shape {source.shape}: {error}") from error


def put(tensor: Tensor, index: tuple[np.ndarray | None, ...], values: Tensor, accumulate: bool) -> Tensor:
    """Return a copy with the elements at `index` replaced by `values`; `accumulate` adds `values` instead.

    A part of `index` is an index array, a mask, or None for a whole dimension. Raises DimensionError if an index is
    out of range, ShapeError if the values do not broadcast.
    """
    parsed = tuple(slice(None) if part is None else part for part in index)
    if any(part is not None and part.dtype.kind not in "iub" for part in index):
        raise DimensionError("index_put: wanted index tensors of integers or bool")
    require_one_device("index_put", (tensor, values))
    _require_reachable("index_put", tensor, parsed)
    try:
        place = np.broadcast_to(np.empty((), np.bool_), tensor.shape)[tuple(map(_shaped_alike, parsed))].shape
        kept = _kept(parsed, tensor, values)
        if not accumulate:
            return _assign(tensor, expand_to(values, place), kept)
        return add(tensor, _accumulate(expand_to(values, place), kept, tensor.shape))
    except IndexError as error:
        raise DimensionError(f"index_put: {error} (the tensor has shape {tensor.shape})") from error


def _shaped_alike(part: Any) -> Any:
    """Return an index part on the host that picks as many elements: a copy of a mask, or zeros for integers."""
    if not is_on_device(part):
        return part
    return part.to_host() if part.dtype == np.bool_ else np.broadcast_to(np.int64(0), part.shape)


def _source(value: Any, target: Tensor) -> Tensor:
    """Return a value as a tensor; arrays and lists are copied to the target's device."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, bool | int | float | complex):
        return Tensor.wrap(of_number("setitem", value, target.dtype))
    if isinstance(value, list | tuple | np.ndarray | np.generic):
        return Tensor.wrap(beside(target.array, native(np.asarray(value))))
    raise OperandError(f"setitem: got {type(value).__name__}; wanted a tensor, a number, a list or a NumPy array")


def _leading_ones_dropped(value: Tensor, ndim: int) -> Tensor:
    """Return an assigned value without leading dimensions of size 1 beyond `ndim`, as NumPy and PyTorch do."""
    extra = value.ndim - ndim
    return value.reshape(value.shape[extra:]) if extra > 0 and all(s == 1 for s in value.shape[:extra]) else value
