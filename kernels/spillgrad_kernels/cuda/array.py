"""Memory for arrays on a device, and copies between it and the host's."""

import math
import weakref
from typing import Any

import numpy as np

from spillgrad_kernels.cuda import driver
from spillgrad_kernels.device_array import DeviceArray
from spillgrad_kernels.walk import Shape


class _Memory:
    """What NumPy takes for memory: an address, and how many bytes are there."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__array_interface__ = {"version": 3, "shape": (nbytes,), "typestr": "|u1", "data": (address, False)}


def empty(shape: Shape, dtype: Any) -> DeviceArray:
    """Return an uninitialised array without gaps. Raises OutOfMemory."""
    dtype = np.dtype(dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    block = driver.allocator().allocate(nbytes)
    memory = np.asarray(_Memory(block.address, nbytes))
    weakref.finalize(memory.base, driver.allocator().release, block).atexit = False
    return DeviceArray(memory.view(dtype).reshape(shape))


def zeros(shape: Shape, dtype: Any) -> DeviceArray:
    """Return an array of zeros without gaps. Raises OutOfMemory."""
    made = empty(shape, dtype)
    if made.size:
        driver.fill_with_zeros(made.address, made.nbytes)
    return made


def to_device(array: np.ndarray) -> DeviceArray:
    """Return a copy in the device's memory, without gaps."""
    array = np.asarray(array, order="C")
    made = empty(array.shape, array.dtype)
    if array.size:
        driver.copy_to_device(made.address, array.reshape(-1).view(np.uint8))
    return made


def to_host(array: DeviceArray) -> np.ndarray:
    """Return a copy in the host's memory, once all that computes it is done."""
    if not array.size:
        return np.empty(array.shape, array.dtype)
    # What lies between the first and the last element, which only a dense array fills.
    low, high = np.lib.array_utils.byte_bounds(array._lying)
    memory = np.empty(high - low, np.uint8)
    driver.copy_to_host(memory, low)
    found = np.ndarray(array.shape, array.dtype, memory, array.address - low, array.strides)
    return found if found.nbytes == memory.nbytes else found.copy()
