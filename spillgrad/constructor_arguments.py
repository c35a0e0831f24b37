"""What PyTorch's constructors `Tensor(…)`, `FloatTensor(…)`, … make of their arguments: memory of sizes, or data."""

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from spillgrad import dtypes
from spillgrad.errors import ArgumentError, DtypeError, OperandError, ShapeError
from spillgrad.tensor_data import Size, TensorData
from spillgrad_kernels.memory.buffers import empty


def array_of(who: str, arguments: tuple[Any, ...], dtype: dtypes.DType) -> np.ndarray:
    """Return an array of `dtype`: uninitialised for sizes (integers, or a `Size`); else with one argument's values.

    An array that has the dtype is returned itself. Raises ArgumentError for a plain tuple of integers: it may be data,
    or the `shape` of a tensor. Raises DtypeError for a number, and for a tensor of another dtype.
    """
    if not arguments:
        return np.empty(0, dtype)
    data = arguments[0]
    if isinstance(data, Size) and len(arguments) == 1:
        arguments = data
    if len(arguments) > 1 or _is_size(data) or isinstance(data, Size):
        return empty(tuple(_size(who, size) for size in arguments), dtype)
    if isinstance(data, TensorData):
        if data.dtype != dtype:
            raise DtypeError(f"{who}: got a tensor of {data.dtype}; expected {dtype}: convert it with to()")
        return data.array
    if isinstance(data, np.ndarray):
        return np.asarray(_numbers(who, data), dtype)
    if not isinstance(data, Sequence) or isinstance(data, str | bytes):
        raise DtypeError(f"{who}: new(): data must be a sequence (got {type(data).__name__}); tensor() takes numbers")
    if isinstance(data, tuple) and all(map(_is_size, data)):
        raise ArgumentError(
            f"{who}: got the tuple {data}, which may be a shape or data; give sizes as {who}(*shape) or x.size(), data "
            "as a list"
        )
    return _values(who, data).astype(dtype)


def _is_size(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _size(who: str, value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise DtypeError(f"{who}: got {value!r} among several arguments; these are sizes: wanted integers, or one list")
    size = operator.index(value)
    if size < 0:
        raise ShapeError(f"{who}: Trying to create tensor with negative dimension {size}")
    return size


def _values(who: str, data: Sequence[Any]) -> np.ndarray:
    try:
        array = np.asarray(_on_host(data))
    except ValueError as error:
        raise ShapeError(f"{who}: got nested data that is not rectangular ({error})") from error
    return _numbers(who, array)


def _numbers(who: str, array: np.ndarray) -> np.ndarray:
    if array.dtype.kind not in "biufc" and array.dtype != dtypes.bfloat16:
        raise OperandError(f"{who}: got data of {array.dtype}; wanted numbers")
    return array


def _on_host(data: Any) -> Any:
    """Return nested data with arrays of the host in place of tensors."""
    if isinstance(data, TensorData):
        return data.host_array()
    return [_on_host(item) for item in data] if isinstance(data, list | tuple) else data
