"""Making arrays, by the array API standard."""

from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad import dtypes
from spillgrad.array_api.wrapping import DEVICE, DTYPE, X, called
from spillgrad.errors import ArgumentError, ExportError
from spillgrad.ops import array_api_names, convert, diagonals, join_split
from spillgrad.ops import creation as ops
from spillgrad.ops.declaration import declare
from spillgrad.tensor import Tensor

__all__ = [
    "arange", "asarray", "empty", "empty_like", "eye", "from_dlpack", "full", "full_like", "linspace", "meshgrid",
    "ones", "ones_like", "tril", "triu", "zeros", "zeros_like",
]  # fmt: skip


def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Tensor:
    """Return `obj` as a tensor. With `copy` True, it is always a copy; with None, only if a copy is necessary.

    Raises ArgumentError if `copy` is False and a copy is necessary.
    """
    return array_api_names.asarray(obj, dtype, device, copy)


@declare(numpy=True)
def arange(start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return the values from `start` (0 if only one bound is given) up to `stop`, excluded, in steps of `step`."""
    if stop is None:
        start, stop = 0, start
    if (stop - start) * step < 0:
        start = stop = (stop - start) * 0  # no elements, and a float if a bound is one
    return ops.arange(start, stop, step, dtype, device)


def linspace(
    start: Any, stop: Any, /, num: int, *, dtype: Any = None, device: Any = None, endpoint: bool = True
) -> Tensor:
    """Return `num` evenly spaced values from `start` to `stop`; without `endpoint`, `stop` is excluded."""
    if num < 0:
        raise ArgumentError(f"linspace: got num={num}; give 0 or more")
    kind = complex if any(np.iscomplexobj(getattr(end, "array", end)) for end in (start, stop)) else float
    values = np.linspace(kind(start), kind(stop), num, endpoint)
    default = dtypes.get_default_dtype()
    if kind is complex:
        default = dtypes.complex128 if default == dtypes.float64 else dtypes.complex64
    return ops.tensor(values, default if dtype is None else dtype, device)


@declare(numpy=True)
def eye(n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: Any = None) -> Tensor:
    """Return a matrix with ones on its k-th diagonal and zeros elsewhere."""
    return ops.tensor(np.eye(n_rows, n_cols, k), dtypes.get_default_dtype() if dtype is None else dtype, device)


@declare(numpy=True)
def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return a tensor filled with one value; by default, its dtype is the dtype of the value."""
    return ops.full(shape, fill_value, dtype, device)


def _filled(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def function(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
        return make(shape=shape, dtype=dtype, device=device)

    shape = "shape : int or tuple of int\n    Shape of the result."
    dtype = "dtype : dtype, optional\n    Data type of the result; by default, the default floating-point dtype."
    return declare(numpy=True)(called(function, make, shape, dtype, DEVICE, returns="Tensor\n    Of shape `shape`."))


def _filled_like(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def function(x: Tensor, /, *, dtype: Any = None, device: Any = None) -> Tensor:
        return make(x, dtype=dtype, device=device)

    device = "device : Device or str, optional\n    Where the result is; by default, where `x` is."
    returns = "Tensor\n    Of the shape of `x`."
    return declare(numpy=True)(called(function, make, X, DTYPE, device, returns=returns))


empty, ones, zeros = map(_filled, (ops.empty, ops.ones, ops.zeros))
empty_like, ones_like, zeros_like = map(_filled_like, (ops.empty_like, ops.ones_like, ops.zeros_like))


@declare(numpy=True)
def full_like(x: Tensor, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return a tensor filled with one value, in the shape of `x` and by default in its dtype."""
    return ops.full_like(x, fill_value, dtype=dtype, device=device)


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """Return a tensor over the memory of an object with `__dlpack__`; copy it if necessary, or if `copy` is True.

    Raises ExportError if `copy` is False and `device` is not the device of the memory.
    """
    taken = ops.from_dlpack(x)
    moved = taken if device is None else convert.to(taken, device=device)
    if copy is False and moved is not taken:
        raise ExportError(f"from_dlpack: got copy=False and device={device!r} for memory on '{taken.device}'")
    return convert.clone(moved) if copy and moved is taken else moved


def meshgrid(*arrays: Tensor, indexing: str = "xy") -> list[Tensor]:
    """Return views in the shape of the grid; vector i lies along dimension i. "xy" swaps the first two dimensions."""
    return list(join_split.meshgrid(*arrays, indexing=indexing))


@declare(numpy=True)
def tril(x: Tensor, /, *, k: int = 0) -> Tensor:
    """Return matrices with zeros above the k-th diagonal."""
    return diagonals.tril(x, k)


@declare(numpy=True)
def triu(x: Tensor, /, *, k: int = 0) -> Tensor:
    """Return matrices with zeros below the k-th diagonal."""
    return diagonals.triu(x, k)
