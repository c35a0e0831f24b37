"""Allocate arrays on a device, and copy arrays between the device and the host."""

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from spillgrad_kernels.cuda.driver import driver
from spillgrad_kernels.device_array import DeviceArray, byte_bounds
from spillgrad_kernels.layout import Layout, Shape
from spillgrad_kernels.memory.holder import Holder


class _Lent(Holder):
    """The owner of a block of device memory. When the owner dies, the block returns to the allocator."""

    __slots__ = ("__weakref__",)


class Fresh(NamedTuple):
    """The size in bytes and the layout of new dense arrays of one shape and dtype."""

    nbytes: int
    layout: Layout

    def array(self) -> DeviceArray:
        """Return a new uninitialised array. Raises OutOfMemory if the device has no room."""
        allocator = driver.allocator()
        block = allocator.allocate(self.nbytes)
        return DeviceArray(block.address, self.layout, _Lent(allocator.release, block))


def is_own(array: Any) -> bool:
    """Return whether an array owns a block of the allocator; False for a view, and for another library's memory."""
    return array.base is None and type(array.owner) is _Lent


@functools.lru_cache(maxsize=4096)
def fresh(shape: Shape, dtype: Any) -> Fresh:
    """Return the size in bytes and the layout of new dense arrays of a shape and dtype."""
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    return Fresh(nbytes, Layout.of(Layout.made((nbytes,), (1,), np.dtype(np.uint8)).at().view(dtype).reshape(shape)))


def empty(shape: Shape, dtype: Any) -> DeviceArray:
    """Return an uninitialised dense array. Raises OutOfMemory if the device has no room."""
    return fresh(shape, dtype).array()


def zeros(shape: Shape, dtype: Any) -> DeviceArray:
    """Return a dense array of zeros. Raises OutOfMemory if the device has no room."""
    made = empty(shape, dtype)
    if made.size:
        driver.fill_with_zeros(made.address, made.nbytes)
    return made


def to_device(array: np.ndarray) -> DeviceArray:
    """Return a dense copy of `array` in the device's memory."""
    array = np.asarray(array, order="C")
    made = empty(array.shape, array.dtype)
    if array.size:
        driver.copy_to_device(made.address, array.reshape(-1).view(np.uint8))
    return made


@functools.lru_cache(maxsize=64)
def table(content: bytes) -> DeviceArray:
    """Return `content` as an array of bytes on the device. Do not change it: equal contents share one array."""
    return to_device(np.frombuffer(content, np.uint8))


def to_host(array: DeviceArray) -> np.ndarray:
    """Wait for the kernels that compute `array`; return a copy of it in the host's memory."""
    if not array.size:
        return np.empty(array.shape, array.dtype)
    # All bytes from the first to the last element are copied at once, gaps included.
    low, high = byte_bounds(array)  # type: ignore[arg-type]
    memory = np.empty(high - low, np.uint8)
    driver.copy_to_host(memory, low)
    found = np.ndarray(array.shape, array.dtype, memory, array.address - low, array.strides)
    return found if found.nbytes == memory.nbytes else found.copy()
