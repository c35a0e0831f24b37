"""The layout of an array (its shape, strides and dtype), and its address."""

import ctypes
import functools
import types
from typing import Any

import numpy as np

Shape = tuple[int, ...]

# The address of arrays that only serve to compute the layouts of views; their elements are never read.
STAND_IN_ADDRESS = 1 << 40
# The offset in a NumPy array object of the address of its data. It is the first field after the Python object header.
DATA_FIELD = object.__basicsize__


class Layout:
    """The shape of an array, its strides in bytes, its dtype, and whether it may be written.

    A `dense` layout is what NumPy calls C-contiguous. `bounds` are the offsets, in bytes from the first element, of the
    array's lowest byte and of the end of its highest byte; both are 0 for an array without elements. `Layout.made`
    returns the same object for equal layouts, so that comparing layouts as keys costs nothing. `Layout.made` caches a
    limited number of layouts; for a layout that is no longer cached, it makes a new object.
    """

    __slots__ = ("bounds", "dense", "dtype", "shape", "strides", "writeable")

    def __init__(self, shape: Shape, strides: Shape, dtype: np.dtype[Any], writeable: bool = True) -> None:
        self.shape, self.strides, self.dtype, self.writeable = shape, strides, dtype, writeable
        reaches = [(size - 1) * stride for size, stride in zip(shape, strides, strict=True)]
        last = sum([reach for reach in reaches if reach > 0]) + dtype.itemsize
        self.bounds = (sum([reach for reach in reaches if reach < 0]), last) if 0 not in shape else (0, 0)
        steps = zip(shape, strides, dense_strides(shape, dtype.itemsize), strict=True)
        self.dense = 0 in shape or all([size == 1 or stride == step for size, stride, step in steps])

    def __repr__(self) -> str:
        return f"<layout of {self.dtype} {self.shape} with strides {self.strides}>"

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def broadcast_strides(self, ndim: int) -> list[int]:
        """Return the strides, in bytes, of the array broadcast to `ndim` dimensions; 0 for each dimension of size 1."""
        own = [0 if size == 1 else stride for size, stride in zip(self.shape, self.strides, strict=True)]
        return [*[0] * (ndim - len(own)), *own]

    @staticmethod
    @functools.lru_cache(maxsize=1 << 14)
    def made(shape: Shape, strides: Shape, dtype: np.dtype[Any], writeable: bool = True) -> "Layout":
        """Return the layout of this shape, these strides and this dtype."""
        return Layout(shape, strides, dtype, writeable)

    @classmethod
    def of(cls, array: np.ndarray) -> "Layout":
        """Return the layout of a NumPy array."""
        return cls.made(array.shape, array.strides, array.dtype, array.flags.writeable)

    def at(self, address: int = STAND_IN_ADDRESS) -> np.ndarray:
        """Return a NumPy array with this layout at `address`. The array's elements must not be read."""
        interface = {
            "version": 3, "shape": self.shape, "strides": self.strides, "typestr": f"|V{self.dtype.itemsize}",
            "data": (address, not self.writeable),
        }  # fmt: skip
        return np.asarray(types.SimpleNamespace(__array_interface__=interface)).view(self.dtype)


def address_of(array: np.ndarray) -> int:
    """Return the address of the first element, 7 times as fast as `array.ctypes.data`. Kernels cannot call this."""
    return ctypes.c_size_t.from_address(id(array) + DATA_FIELD).value


def layout_of(array: np.ndarray) -> Layout:
    """Return the layout of an array on the host or a device, marked as writeable even if the array is not."""
    return Layout.made(array.shape, array.strides, array.dtype)


def dense_strides(shape: Shape, itemsize: int, order: Shape | None = None) -> Shape:
    """Return a dense array's strides in bytes. `order` lists the dimensions, outermost first (default: C order)."""
    strides, stride = [0] * len(shape), itemsize
    for d in reversed(range(len(shape)) if order is None else order):
        strides[d] = stride
        stride *= shape[d]
    return tuple(strides)


def dense(shape: Shape, dtype: np.dtype[Any], order: Shape | None = None) -> Layout:
    """Return the layout of a dense array of `shape` and `dtype`. For `order`, see `dense_strides`."""
    return Layout.made(shape, dense_strides(shape, dtype.itemsize, order), dtype)


def batch_offsets(batch: Shape, *operands: Layout) -> np.ndarray:
    """Return the offset, in bytes, of each operand's matrix for each product of a batch: shape (products, operands).

    An operand's dimensions before the last two broadcast to `batch`. The result is read-only.
    """
    return _offsets(batch, tuple([(operand.shape[:-2], operand.strides[:-2]) for operand in operands]))


@functools.lru_cache(maxsize=64)  # while text is generated, matrices grow from token to token, but not their distances
def _offsets(batch: Shape, leading: tuple[tuple[Shape, Shape], ...]) -> np.ndarray:
    offsets = np.zeros((*batch, len(leading)), np.int64)
    for column, (shape, strides) in enumerate(leading):
        for axis, (size, stride) in enumerate(zip(shape[::-1], strides[::-1], strict=True), start=1):
            if size > 1:
                steps = np.arange(size) * stride
                offsets[..., column] += steps.reshape(size, *[1] * (axis - 1))
    flat = offsets.reshape(-1, len(leading))
    flat.flags.writeable = False
    return flat
