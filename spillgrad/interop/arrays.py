"""How the memory of other frameworks is stored: as which array, and which part of it."""

import math
from typing import Any

import ml_dtypes
import numpy as np

from spillgrad.spill.saved_memory import Layout

# HDF5 allows no more.
MAX_DIMENSIONS = 32
# Frameworks align memory to so many bytes. Where it is not aligned, libraries may add up in another order.
ALIGNMENT_BYTES = 64
# Where a tensor is a smaller share of its memory, such as a batch that is a slice of all data, only that is stored.
SHARE_STORED_WHOLE = 1 / 4


def part_to_store(layout: Layout, nbytes: int, is_stored: bool) -> tuple[int, int]:
    """Return where the part of memory begins and ends that is stored for a tensor; the memory has `nbytes`.

    It is all of the memory if that is stored already, or if the tensor is a large share of it.
    """
    if is_stored or layout.span_bytes >= SHARE_STORED_WHOLE * nbytes:
        return 0, nbytes
    return layout.offset // ALIGNMENT_BYTES * ALIGNMENT_BYTES, layout.offset + layout.span_bytes


def dtype_and_shape(layout: Layout, nbytes: int) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return the dtype and shape under which memory of `nbytes` is stored, in which there is a tensor with a layout.

    If the tensor covers the memory, in whatever order of its axes, it is the tensor's shape; else one long row.
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
    """Return NumPy's dtype with a name, or the one for bytes where it has none."""
    scalar = getattr(np, name, None) or getattr(ml_dtypes, name, np.uint8)
    return np.dtype(scalar)
