"""Arrays on a device: NumPy's views over memory that NumPy never looks at."""

import math
import weakref
from typing import Any

import numpy as np

from spillgrad_kernels.cuda import driver
from spillgrad_kernels.walk import Shape


class _Memory:
    """What NumPy takes for memory: an address, and how many bytes are there."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__array_interface__ = {"version": 3, "shape": (nbytes,), "typestr": "|u1", "data": (address, False)}


class DeviceArray:
    """An array in device memory; shape, strides, dtype and views are NumPy's.

    How it lies in memory is a NumPy array over the same addresses, of which views are made and no element is read.
    """

    __slots__ = ("__weakref__", "_lying")

    def __init__(self, lying: np.ndarray) -> None:
        self._lying = lying

    @property
    def address(self) -> int:
        """The address of the first element."""
        return int(self._lying.__array_interface__["data"][0])

    @property
    def shape(self) -> Shape:
        """The size of each dimension."""
        return self._lying.shape

    @property
    def strides(self) -> Shape:
        """The bytes from one element to the next in each dimension."""
        return self._lying.strides

    @property
    def dtype(self) -> np.dtype[Any]:
        """The data type of the elements."""
        return self._lying.dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self._lying.ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._lying.size

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return self._lying.nbytes

    @property
    def T(self) -> "DeviceArray":
        """A view with the dimensions in reverse order."""
        return DeviceArray(self._lying.T)

    def __getitem__(self, key: Any) -> "DeviceArray":
        """Return a view. Raises TypeError for an index that NumPy would copy for."""
        parts = key if isinstance(key, tuple) else (key,)
        if not all(part is None or part is ... or isinstance(part, slice | int | np.integer) for part in parts):
            raise TypeError(f"a device array's view: got {key!r}; wanted numbers, slices, None and ...")
        whole = parts if ... in parts else (*parts, ...)  # without it, NumPy would read an element
        return DeviceArray(self._lying[whole])

    def transpose(self, *axes: int) -> "DeviceArray":
        """Return a view with the dimensions in another order."""
        return DeviceArray(self._lying.transpose(*axes))

    def reshape(self, *shape: int) -> "DeviceArray":
        """Return a view of another shape. Raises ValueError where that takes a copy."""
        return DeviceArray(np.reshape(self._lying, shape, copy=False))

    def broadcast_to(self, shape: Shape) -> "DeviceArray":
        """Return a view in which sizes of 1 are repeated."""
        return DeviceArray(np.broadcast_to(self._lying, shape))

    def to_host(self) -> np.ndarray:
        """Return a copy in the host's memory, once all that computes it is done."""
        if not self.size:
            return np.empty(self.shape, self.dtype)
        # What lies between the first and the last element, which only a dense array fills.
        low, high = np.lib.array_utils.byte_bounds(self._lying)
        memory = np.empty(high - low, np.uint8)
        driver.copy_to_host(memory, low)
        found = np.ndarray(self.shape, self.dtype, memory, self.address - low, self.strides)
        return found if found.nbytes == memory.nbytes else found.copy()


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
