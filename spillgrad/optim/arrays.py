"""Tensors as the flat arrays that update kernels work on."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from spillgrad.tensor import Tensor


def flat(tensor: Tensor, dtype: Any) -> np.ndarray:
    """Return a tensor's elements as a contiguous 1-D array of a dtype; its own memory where that is what it has."""
    return np.ascontiguousarray(tensor.array, dtype).reshape(-1)


@contextmanager
def writable(*tensors: Tensor) -> Iterator[list[np.ndarray]]:
    """Yield each tensor's elements as a flat array to be updated in place; on leaving, the tensors count as modified.

    Half precision, and memory that is not contiguous, is updated in a copy (float32 at least) and rounded back.
    """
    arrays = [flat(tensor, np.float64 if tensor.dtype == "float64" else np.float32) for tensor in tensors]
    yield arrays
    for tensor, array in zip(tensors, arrays, strict=True):
        own = tensor.array
        if not np.shares_memory(own, array):
            own[...] = array.reshape(own.shape)
        tensor.bump_version()
