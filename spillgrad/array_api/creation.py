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
    """Return data as a tensor, copied or not.

    Parameters
    ----------
    obj : Any
        Tensor, array, number or nested list.
    dtype : dtype, optional
        Data type of the result; by default, that of the data.
    device : Device or str, optional
        Where the result is; by default, where the data is.
    copy : bool, optional
        True always copies the data, False never; None copies if necessary.

    Returns
    -------
    Tensor
        With the values of `obj`.

    Raises
    ------
    ArgumentError
        If `copy` is False and a copy is necessary.
    """
    return array_api_names.asarray(obj, dtype, device, copy)


@declare(numpy=True)
def arange(start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return the numbers from `start` up to but excluding `stop`, `step` apart.

    Parameters
    ----------
    start : number
        First number; if it is the only bound, it is the end, and the numbers start at 0.
    stop : number, optional
        Bound that is excluded.
    step : number, default 1
        Distance of neighbours.
    dtype : dtype, optional
        Data type of the result; by default, int64 for integers, otherwise the default floating-point dtype.
    device : Device or str, optional
        Where the result is; by default, the default device.

    Returns
    -------
    Tensor
        Vector of the numbers; empty if `step` leads away from `stop`.
    """
    if stop is None:
        start, stop = 0, start
    if (stop - start) * step < 0:
        start = stop = (stop - start) * 0  # no elements, and a float if a bound is one
    return ops.arange(start, stop, step, dtype, device)


def linspace(
    start: Any, stop: Any, /, num: int, *, dtype: Any = None, device: Any = None, endpoint: bool = True
) -> Tensor:
    """Return evenly spaced numbers from `start` to `stop`.

    Parameters
    ----------
    start, stop : number
        First and last number.
    num : int
        How many numbers.
    dtype : dtype, optional
        Data type of the result; by default, the default floating-point dtype, or its complex form for complex bounds.
    device : Device or str, optional
        Where the result is; by default, the default device.
    endpoint : bool, default True
        Whether `stop` is included.

    Returns
    -------
    Tensor
        Of shape (num,).

    Raises
    ------
    ArgumentError
        If `num` is negative.
    """
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
    """Return a matrix with ones on a diagonal and zeros elsewhere.

    Parameters
    ----------
    n_rows : int
        Number of rows.
    n_cols : int, optional
        Number of columns; by default, `n_rows`.
    k : int, default 0
        Diagonal: 0 is the main one, 1 the next above it.
    dtype : dtype, optional
        Data type of the result; by default, the default floating-point dtype.
    device : Device or str, optional
        Where the result is; by default, the default device.

    Returns
    -------
    Tensor
        Of shape (n_rows, n_cols).
    """
    return ops.tensor(np.eye(n_rows, n_cols, k), dtypes.get_default_dtype() if dtype is None else dtype, device)


@declare(numpy=True)
def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return a tensor filled with one value.

    Parameters
    ----------
    shape : int or tuple of int
        Shape of the result.
    fill_value : number
        Value of all elements.
    dtype : dtype, optional
        Data type of the result; by default, the value's own.
    device : Device or str, optional
        Where the result is; by default, the default device.

    Returns
    -------
    Tensor
        Of shape `shape`.
    """
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
    """Return a tensor filled with one value, in the shape of another.

    Parameters
    ----------
    x : Tensor
        Of any shape.
    fill_value : number
        Value of all elements.
    dtype : dtype, optional
        Data type of the result; by default, that of `x`.
    device : Device or str, optional
        Where the result is; by default, where `x` is.

    Returns
    -------
    Tensor
        Of the shape of `x`.
    """
    return ops.full_like(x, fill_value, dtype=dtype, device=device)


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """Return a tensor over the memory of an object with `__dlpack__`, or a copy.

    Parameters
    ----------
    x : Any
        Such as an array of NumPy.
    device : Device or str, optional
        Where the result is; by default, where the memory is.
    copy : bool, optional
        True always copies the data, False never; None copies if necessary.

    Returns
    -------
    Tensor
        With the values of `x`.

    Raises
    ------
    ExportError
        If `copy` is False and `device` is not the device of the memory.
    """
    taken = ops.from_dlpack(x)
    moved = taken if device is None else convert.to(taken, device=device)
    if copy is False and moved is not taken:
        raise ExportError(f"from_dlpack: got copy=False and device={device!r} for memory on '{taken.device}'")
    return convert.clone(moved) if copy and moved is taken else moved


def meshgrid(*arrays: Tensor, indexing: str = "xy") -> list[Tensor]:
    """Return views in the shape of the grid that vectors span.

    Parameters
    ----------
    *arrays : Tensor
        Vectors; vector i lies along dimension i.
    indexing : {"xy", "ij"}, default "xy"
        Whether the first two dimensions are swapped.

    Returns
    -------
    list of Tensor
        A view for each vector.
    """
    return list(join_split.meshgrid(*arrays, indexing=indexing))


@declare(numpy=True)
def tril(x: Tensor, /, *, k: int = 0) -> Tensor:
    """Return the lower triangle of matrices, with zeros elsewhere.

    Parameters
    ----------
    x : Tensor
        Of shape (..., m, n).
    k : int, default 0
        Outermost diagonal that stays: 0 is the main one, 1 the next above it.

    Returns
    -------
    Tensor
        Of the shape of `x`.
    """
    return diagonals.tril(x, k)


@declare(numpy=True)
def triu(x: Tensor, /, *, k: int = 0) -> Tensor:
    """Return the upper triangle of matrices, with zeros elsewhere.

    Parameters
    ----------
    x : Tensor
        Of shape (..., m, n).
    k : int, default 0
        Outermost diagonal that stays: 0 is the main one, 1 the next above it.

    Returns
    -------
    Tensor
        Of the shape of `x`.
    """
    return diagonals.triu(x, k)
