"""Choose the dtype and shape under which the memory of another framework's tensor is stored."""

import math
from typing import Any

import ml_dtypes
import numpy as np

from spillgrad.spill.saved_memory import Layout
from spillgrad_kernels.memory import buffers

# HDF5 allows no more dimensions.
MAX_DIMENSIONS = 32
# Frameworks align memory to this many bytes. On memory that is not aligned, libraries may sum in another order.
ALIGNMENT_BYTES = 64
# Of an offloaded model, tensors of fewer bytes stay in RAM. From this many on, the arrays of a store are aligned as
# frameworks' memory is; of another array a tensor would need a copy, in which a change through a view would be lost.
MIN_BYTES = buffers.POOLED_MIN_BYTES


def dtype_and_shape(layout: Layout, nbytes: int) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return the NumPy dtype and shape under which to store memory of `nbytes` bytes, for a tensor with `layout`.

    If the tensor covers the memory, the shape is the tensor's, with its axes in the order of the memory. Else the shape
    has one dimension. The dtype is uint8 if NumPy has no such dtype, or if `nbytes` is not a multiple of its size.
    """
    stored, itemsize = numpy_dtype(layout.dtype_name), layout.itemsize
    if stored.itemsize != itemsize or nbytes % itemsize:
        return np.dtype(np.uint8), (nbytes,)
    axes = sorted(range(len(layout.shape)), key=lambda axis: -layout.strides[axis])
    shape = [layout.shape[axis] if layout.strides[axis] else 1 for axis in axes]
    dense = [itemsize * math.prod(shape[place + 1 :]) for place in range(len(shape))]
    is_dense = all(
        count == 1 or layout.strides[axis] == step for axis, count, step in zip(axes, shape, dense, strict=True)
    )
    if is_dense and math.prod(shape) * itemsize == nbytes and len(shape) <= MAX_DIMENSIONS:
        return stored, tuple(shape)
    return stored, (nbytes // itemsize,)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype called `name`, or uint8 if NumPy has no such dtype."""
    scalar = getattr(np, name, None) or getattr(ml_dtypes, name, np.uint8)
    return np.dtype(scalar)
