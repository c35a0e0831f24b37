"""Tensors of Paddle whose memory is in a store, and in RAM while it is used."""

import math
from typing import Any

import numpy as np
import paddle

from spillgrad.interop.arrays import MIN_BYTES, numpy_dtype
from spillgrad.interop.paddle.memory import Memory, set_memory
from spillgrad.spill.offload.residents import Resident, Residents
from spillgrad.storage.store import Label
from spillgrad_kernels.memory import buffers

# The dtypes of which Paddle takes NumPy's memory.
_DTYPES = frozenset([
    "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
    "bool", "uint8", "int8", "int16", "int32", "int64",
])  # fmt: skip


class StoredTensor(Resident):
    """The memory of a tensor, in a store."""

    def __init__(self, residents: Residents, tensor: Any, label: Label, store: Any = None) -> None:
        """Copy a tensor to the store of `residents`, or to `store`, a `StoreOver` of that one.

        Raises the errors of `Store.put`.
        """
        shape, dtype = tuple(tensor.shape), numpy_dtype(_name_of(tensor))
        if store is None:
            array = buffers.empty(shape, dtype)
            array.reshape(-1).view(np.uint8)[:] = bytes_of(tensor)
        else:  # what such a store keeps is not the array
            array = bytes_of(tensor).view(dtype).reshape(shape)
        place = residents.store if store is None else store
        self.place(residents, place, place.put(array, label=label, persistent=True), array)

    def give_to(self, tensor: Any) -> None:
        """Give a tensor the memory, which stays in RAM until the tensor and its views have lost it."""
        set_memory(tensor, self.array)

    def tensor(self) -> Any:
        """Return a tensor over the memory, which stays in RAM while anything refers to it."""
        tensor = paddle.empty([0])
        self.give_to(tensor)
        return tensor

    def add(self, tensor: Any) -> None:
        """Add a tensor to the memory, as backward adds gradients."""
        self.begin_change()
        array = self.array
        if array.itemsize > 2:
            self.tensor().add_(tensor)
        else:  # on the CPU, Paddle adds these in backward only
            array += bytes_of(tensor).view(array.dtype).reshape(array.shape)

    def copy(self) -> Any:
        """Return a tensor over a copy of the memory."""
        tensor = paddle.empty([0])
        set_memory(tensor, buffers.copy(self.array))
        return tensor


def nbytes_of(tensor: Any) -> int:
    """Return the number of bytes of a tensor's elements."""
    return int(math.prod(tensor.shape)) * int(tensor.element_size())


def is_storable(tensor: Any) -> bool:
    """Return whether a tensor's memory can be in a store, and is large enough to be worth it."""
    return (
        tensor.is_dense()
        and not tensor.is_dist()
        and has_memory(tensor)
        and tensor.place.is_cpu_place()
        and _name_of(tensor) in _DTYPES
        and nbytes_of(tensor) >= MIN_BYTES
    )


def has_memory(tensor: Any) -> bool:
    """Return whether a tensor has memory; one whose memory was cleared has none."""
    return bool(paddle.Tensor._is_dense_tensor_hold_allocation(tensor))


def clear_memory(tensor: Any) -> None:
    """Take the memory from a tensor. Paddle's functions raise an error for such a tensor."""
    paddle.Tensor.get_tensor(tensor)._clear()


def bytes_of(tensor: Any) -> np.ndarray:
    """Return the bytes of a tensor's elements, over its memory if that is contiguous."""
    if not tensor.is_contiguous():
        with paddle.no_grad():
            tensor = tensor.clone().contiguous()  # which changes the tensor itself
    return Memory(paddle.Tensor.data_ptr(tensor), nbytes_of(tensor), tensor).array


def _name_of(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("paddle.")
