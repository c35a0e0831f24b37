"""What the adapters of all frameworks share: as what array a memory is stored, and what is said of one that changed."""

import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from spillgrad.errors import SavedTensorError

# HDF5 holds no more.
MAX_DIMENSIONS = 32
# Frameworks align memory to so many bytes, and libraries may add up in another order where it is not.
ALIGNMENT_BYTES = 64
# A view of a smaller share of its memory is stored without the rest, such as a batch that is a slice of all data.
SHARE_STORED_WHOLE = 1 / 4


def span_bytes(itemsize: int, size: Sequence[int], stride: Sequence[int]) -> int:
    """Return the bytes from the first to the last element of a tensor; strides in elements."""
    if 0 in size:
        return 0
    return (sum((size - 1) * stride for size, stride in zip(size, stride, strict=True)) + 1) * itemsize


def dtype_and_shape(
    dtype: str, itemsize: int, size: Sequence[int], stride: Sequence[int], nbytes: int
) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return as what array memory of so many bytes is stored, of which there is such a tensor; strides in elements.

    A tensor that covers it, whatever the order of its axes, gives its shape; else it is one long row.
    """
    stored = numpy_dtype(dtype)
    if stored.itemsize != itemsize or nbytes % itemsize:
        return np.dtype(np.uint8), (nbytes,)
    axes = sorted(range(len(size)), key=lambda axis: -stride[axis])
    shape = [size[axis] if stride[axis] else 1 for axis in axes]
    dense = [math.prod(shape[place + 1 :]) for place in range(len(shape))]
    is_dense = all(count == 1 or stride[axis] == step for axis, count, step in zip(axes, shape, dense, strict=True))
    if is_dense and math.prod(shape) * itemsize == nbytes and len(shape) <= MAX_DIMENSIONS:
        return stored, tuple(shape)
    return stored, (nbytes // itemsize,)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype of a name, or that of bytes where NumPy has none."""
    scalar = getattr(np, name, None) or getattr(ml_dtypes, name, np.uint8)
    return np.dtype(scalar)


def changed_error(dtype: Any, size: Sequence[int], version: int, expected: int) -> SavedTensorError:
    """Return the error for a saved tensor that was modified in place before it was used."""
    return SavedTensorError(
        "save_on_disk: one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"[{dtype} {list(size)}] is at version {version}; expected version {expected} instead; clone() a saved tensor "
        "before changing it"
    )
