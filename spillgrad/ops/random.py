"""Random operations: a mask is not saved but drawn again from its seed and position."""

from collections.abc import Callable

import numpy as np

from spillgrad.errors import ArgumentError
from spillgrad.generator import default_generator
from spillgrad.ops.define import operation
from spillgrad.ops.elementwise import add
from spillgrad.ops.inplace import change
from spillgrad.ops.numeric import on_floats, require_floats
from spillgrad.tensor import Tensor
from spillgrad_kernels import random as kernels


def _dropped(self: np.ndarray, p: float, seed: int, offset: int) -> np.ndarray:
    return on_floats(lambda a: kernels.dropout(a, p, seed, offset), self)


def _dropped_and_added(self: np.ndarray, residual: np.ndarray, p: float, seed: int, offset: int) -> np.ndarray:
    return on_floats(lambda a, b: kernels.dropout(a, p, seed, offset, b), self, residual)


_dropout: Callable[..., Tensor] = operation(
    "dropout", _dropped, self=lambda g, p, seed, offset: _dropout(g, p, seed, offset)
)
_dropout_add: Callable[..., Tensor] = operation(
    "dropout_add", _dropped_and_added,
    self=lambda g, p, seed, offset: _dropout(g, p, seed, offset), residual=lambda g: g,
)  # fmt: skip


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Return `input` with each element zeroed with probability `p` and the others scaled by 1 / (1 - p).

    When not `training`, the input itself. Raises ArgumentError unless 0 <= p <= 1. Source: Srivastava et al. 2014.
    """
    if not 0 <= p <= 1:
        raise ArgumentError(f"dropout: got p={p}; wanted a probability from 0 to 1")
    require_floats("dropout", input.dtype)
    if not training or p == 0:
        return input
    seed, offset = default_generator.take(kernels.counters_needed(input.numel()))
    if inplace:
        return change(input, "dropout", lambda tensor: _dropout(tensor, float(p), seed, offset))
    return _dropout(input, float(p), seed, offset)


def dropout_add(input: Tensor, residual: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Return residual + dropout(input, p, training) in one pass, with the same random numbers.

    Raises ArgumentError unless 0 <= p <= 1.
    """
    alike = input.shape == residual.shape and input.dtype == residual.dtype and 0 < p <= 1
    if not training or not alike:
        return add(residual, dropout(input, p, training))
    require_floats("dropout_add", input.dtype)
    seed, offset = default_generator.take(kernels.counters_needed(input.numel()))
    return _dropout_add(input, residual, float(p), seed, offset)
