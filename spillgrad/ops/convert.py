"""Conversions between dtypes and copies."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad import data_type, dtypes
from spillgrad.autograd.core.node import Edge
from spillgrad.device.device import CPU, CUDA, Device, as_device, moved
from spillgrad.ops.array_casts import cast
from spillgrad.ops.declaration import declare
from spillgrad.ops.operation import operation
from spillgrad.tensor import Tensor


def gradient_as(g: Tensor, self_dtype: dtypes.DType) -> Tensor:
    """Return a gradient as `self_dtype`: of a complex gradient by a real tensor, the real part."""
    return g if g.dtype == self_dtype else _to(g, self_dtype)


_cast = operation("to_copy", lambda self, dtype: cast(self, dtype), self=gradient_as)
_to: Callable[..., Tensor] = _cast
_clone: Callable[..., Tensor] = operation("clone", lambda self: cast(self, self.dtype), self=lambda g: g)


_to_device: Callable[..., Tensor] = operation(
    "to_copy", lambda self, device: moved(self, device), self=lambda g, device: to_device(g, _other(device))
)


def edge_as(tensor: Tensor, dtype: dtypes.DType) -> Edge:
    """Record a conversion of a tensor that is made elsewhere; return the edge of its result. Read no memory."""
    like = Tensor.wrap(_without_memory(tensor.shape, tensor.numpy_dtype))
    like.connect(tensor.gradient_edge())
    return _cast.computed((like, dtype), _without_memory(tensor.shape, dtype)).gradient_edge()


def _without_memory(shape: tuple[int, ...], dtype: dtypes.DType) -> np.ndarray:
    return np.broadcast_to(np.empty((), dtype), shape)


def _other(device: Device) -> Device:
    return CUDA if device is CPU else CPU


def to_device(tensor: Tensor, device: Device) -> Tensor:
    """Return the tensor's values on a device, or the tensor itself if it is on that device."""
    return tensor if tensor.device is device else _to_device(tensor, device)


def to_dtype(tensor: Tensor, dtype: Any) -> Tensor:
    """Return the tensor's values as `dtype`, or the tensor itself if it has that dtype. Warns if imaginary parts go."""
    present = tensor.numpy_dtype
    wanted = getattr(dtype, "__numpy_dtype__", dtype)
    if present is wanted:
        return tensor
    wanted = dtypes.as_dtype(wanted)
    if present == wanted:
        return tensor
    warn_of_real_parts(present, wanted)
    return _to(tensor, wanted)


def warn_of_real_parts(source: dtypes.DType, target: dtypes.DType) -> None:
    """Warn if a conversion between these dtypes discards the imaginary parts of complex numbers."""
    if source.kind == "c" and target.kind not in "bc":
        warnings.warn("Casting complex values to real discards the imaginary part", stacklevel=3)


@declare(method=True, numpy="copy")
def clone(input: Tensor, *, memory_format: Any = None) -> Tensor:
    """Return a copy with its own memory; gradients flow through.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    memory_format : memory_format, optional
        Accepted, and changes nothing.

    Returns
    -------
    Tensor
        Of the shape and dtype of `input`.
    """
    return _clone(input)


@declare(method=True)
def contiguous(input: Tensor, memory_format: Any = None) -> Tensor:
    """Return a copy in row-major memory, or the tensor itself if it is in row-major memory.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    memory_format : memory_format, optional
        Accepted, and changes nothing: kernels gain nothing from another order.

    Returns
    -------
    Tensor
        Of the shape and dtype of `input`.
    """
    return input if input.is_contiguous() else clone(input)


def _names_device(argument: Any) -> bool:
    return isinstance(argument, str) and argument.split(":")[0] in ("cpu", "cuda")


def wanted(arguments: tuple[Any, ...], dtype: Any, device: Any) -> tuple[Any, Any]:
    """Return the dtype and the device that arguments of `to` name; None for what they leave as it is."""
    for argument in arguments:
        if type(argument) is data_type.dtype:  # most calls
            dtype = argument
        elif isinstance(argument, Tensor):
            dtype, device = argument.numpy_dtype, argument.device
        elif isinstance(argument, bool):
            continue  # PyTorch's positional non_blocking
        elif isinstance(argument, Device | int) or _names_device(argument):
            device = argument
        else:
            dtype = argument
    return dtype, device


@declare(method="to astype cast")
def to(
    input: Tensor, *arguments: Any, dtype: Any = None, device: Any = None, non_blocking: bool = False,
    copy: bool = False, memory_format: Any = None,
) -> Tensor:  # fmt: skip
    """Return the tensor with the wanted dtype and device.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    *arguments : Any
        A dtype and a device in either order, or another tensor that has the wanted dtype and device.
    dtype : dtype, optional
        Wanted data type; by default, that of `input`.
    device : Device or str, optional
        Wanted device; by default, that of `input`.
    non_blocking : bool, default False
        Accepted, and changes nothing.
    copy : bool, default False
        Whether the result is a copy even if the tensor has the wanted dtype and device.
    memory_format : memory_format, optional
        Accepted, and changes nothing.

    Returns
    -------
    Tensor
        Of the shape of `input`: without `copy`, the tensor itself if nothing changes.
    """
    dtype, device = wanted(arguments, dtype, device)
    result = input if device is None else to_device(input, as_device(device))
    result = result if dtype is None else to_dtype(result, dtype)
    return clone(input) if copy and result is input else result
