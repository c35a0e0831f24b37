"""Tensors as the arrays that update kernels work on."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spillgrad.tensor import Tensor

_COMPUTED = frozenset({np.dtype(np.float32), np.dtype(np.float64)})


def update_in_place(
    kernel: Callable[..., None], param: Tensor, grad: Tensor, state: Sequence[Tensor], *options: Any
) -> None:
    """Call `kernel(param, grad, *state, *options)` on the tensors' memory; all but `grad` then count as modified.

    Half precision, and memory that is not contiguous, is updated in a copy (float32 at least) and rounded back.
    """
    tensors = (param, *state)
    arrays = [_computable(tensor.array) for tensor in tensors]
    gradient, dtype = grad.array, arrays[0].dtype
    kernel(arrays[0], gradient if gradient.dtype == dtype else gradient.astype(dtype), *arrays[1:], *options)
    for tensor, array in zip(tensors, arrays, strict=True):
        if array is not tensor.array:
            tensor.array[...] = array
        tensor.bump_version()


def _computable(array: np.ndarray) -> np.ndarray:
    """Return an array itself if a kernel can update it, else a copy."""
    if array.dtype in _COMPUTED:
        return array if array.flags.c_contiguous else array.copy(order="C")
    return array.astype(np.float32, order="C")
