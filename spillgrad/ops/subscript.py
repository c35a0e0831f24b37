"""Indexing with brackets: basic indices give views, advanced ones copies; both can be assigned to."""

import math
from typing import Any

import numpy as np

from spillgrad.errors import DimensionError, OperandError, ShapeError
from spillgrad.ops import inplace
from spillgrad.ops.broadcast import sum_to
from spillgrad.ops.convert import to_dtype
from spillgrad.ops.define import operation
from spillgrad.ops.numeric import on_floats
from spillgrad.tensor import Tensor
from spillgrad_kernels import indexing as kernels
from spillgrad_kernels.memory import empty, zeros


def _parsed(index: Any) -> tuple[tuple[Any, ...], bool]:
    """Return the index as NumPy takes it, and whether it is basic. Raises OperandError for what is no index."""
    parts = index if isinstance(index, tuple) else (index,)
    parsed: list[Any] = []
    basic = True
    for part in parts:
        if isinstance(part, Tensor):
            part = part.array
            if part.ndim == 0 and part.dtype.kind in "iu":
                part = int(part)
        if isinstance(part, list | range):
            part = np.asarray([p.item() if isinstance(p, Tensor) else p for p in part])
            part = part.astype(np.int64) if part.size == 0 else part
        if isinstance(part, np.ndarray):
            if part.dtype.kind not in "iub":
                raise OperandError(f"index: got an index tensor of {part.dtype}; wanted integers or bool")
            basic = False
        elif isinstance(part, bool):
            part, basic = np.asarray(part), False
        elif isinstance(part, slice):
            part = slice(*(None if v is None else int(v) for v in (part.start, part.stop, part.step)))
        elif part is not None and part is not Ellipsis:
            if not hasattr(part, "__index__"):
                raise OperandError(
                    f"index: got {type(part).__name__}; wanted integers, slices, None, ..., or integer or bool tensors"
                )
            part = int(part)
        parsed.append(part)
    return tuple(parsed), basic


def _picked(self: np.ndarray, index: Any) -> np.ndarray:
    return self[index]


def _view_forward(self: np.ndarray, index: Any) -> np.ndarray:
    return np.asarray(self[index]) if Ellipsis in index else np.asarray(self[(*index, Ellipsis)])


def _basic_gradient(g: Tensor, index: Any, self_shape: tuple[int, ...]) -> Tensor:
    return _place(g, index, self_shape)  # type: ignore[no-any-return]


def _placed(self: np.ndarray, index: Any, shape: tuple[int, ...]) -> np.ndarray:
    out = zeros(shape, self.dtype)
    out[index] = self
    return out


_place: Any = operation("place", _placed, self=lambda g, index: _basic(g, index))
_basic: Any = operation("slice", _view_forward, view=True, self=_basic_gradient)


def _accumulated(self: np.ndarray, index: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Add values into zeros at an advanced index; positions named twice receive both."""
    positions = np.arange(math.prod(shape)).reshape(shape)[index]

    def add_up(values: np.ndarray) -> np.ndarray:
        out = zeros(shape, values.dtype)
        kernels.index_add_flat(out.reshape(-1), positions.reshape(-1), values.reshape(-1))
        return out

    return on_floats(add_up, np.ascontiguousarray(self))  # type: ignore[no-any-return]


_accumulate: Any = operation("index_accumulate", _accumulated, self=lambda g, index: _advanced(g, index))
_advanced: Any = operation("index", _picked, self=lambda g, index, self_shape: _accumulate(g, index, self_shape))


def getitem(tensor: Tensor, index: Any) -> Tensor:
    """Return the elements at an index: a view for integers, slices, None and ..., a copy for index tensors and masks.

    Raises DimensionError when an index is out of range.
    """
    parsed, basic = _parsed(index)
    try:
        return (_basic if basic else _advanced)(tensor, parsed)  # type: ignore[no-any-return]
    except IndexError as error:
        raise DimensionError(f"index: {error} (the tensor has shape {tensor.shape})") from error


def _assigned(self: np.ndarray, value: np.ndarray, index: Any) -> np.ndarray:
    out = empty(self.shape, self.dtype)
    np.copyto(out, self)
    out[index] = value
    return out


def _kept_gradient(g: Tensor, index: Any) -> Tensor:
    return _assign(g, Tensor.wrap(np.zeros((), g.dtype)), index)  # type: ignore[no-any-return]


def _value_gradient(g: Tensor, index: Any, value_shape: tuple[int, ...]) -> Tensor:
    return sum_to(_advanced(g, index), value_shape)


_assign: Any = operation("index_put", _assigned, self=_kept_gradient, value=_value_gradient)


def setitem(tensor: Tensor, index: Any, value: Any) -> None:
    """Overwrite the elements at an index with a broadcast value; gradients flow to the value.

    Raises DimensionError when an index is out of range, ShapeError when the value does not broadcast.
    """
    parsed, basic = _parsed(index)
    source = (
        value if isinstance(value, Tensor) else Tensor.wrap(np.asarray(value, None if np.ndim(value) else tensor.dtype))
    )
    try:
        if basic:
            inplace.copy_(getitem(tensor, index), _leading_ones_dropped(source, tensor.array[parsed].ndim))
        else:
            inplace.change(tensor, "setitem", lambda t, v: _assign(t, to_dtype(v, t.dtype), parsed), source)
    except IndexError as error:
        raise DimensionError(f"index: {error} (the tensor has shape {tensor.shape})") from error
    except ValueError as error:
        if isinstance(error, ShapeError):
            raise
        raise ShapeError(f"setitem: got a value of shape {source.shape}: {error}") from error


def _leading_ones_dropped(value: Tensor, ndim: int) -> Tensor:
    """NumPy and PyTorch let an assigned value have more leading dimensions of size 1 than its place."""
    extra = value.ndim - ndim
    return value.reshape(value.shape[extra:]) if extra > 0 and all(s == 1 for s in value.shape[:extra]) else value  # type: ignore[attr-defined, no-any-return]
