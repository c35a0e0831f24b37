"""Tensors as the arrays that update kernels work on."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from spillgrad.tensor import Tensor
from spillgrad_kernels import optim as kernels

_COMPUTED = frozenset({np.dtype(np.float32), np.dtype(np.float64)})


class Pending(NamedTuple):
    """An update that is to run, and the tensors it changes."""

    update: kernels.Update
    tensors: tuple[Tensor, ...]


def pending(
    kernel: Callable[..., kernels.Update],
    param: Tensor,
    grad: Tensor,
    state: Sequence[Tensor | None],
    *options: float,
) -> Pending:
    """Return the update `kernel(param, grad, *state, *options)` of the tensors' memory; a state may be none.

    Half precision, and memory that is not contiguous, is updated in a copy (float32 at least) and rounded back.
    """
    tensors = (param, *[tensor for tensor in state if tensor is not None])
    parameter, gradient = _computable(param._array), grad._array
    if gradient.dtype is not parameter.dtype:
        gradient = gradient.astype(parameter.dtype)
    states = [None if tensor is None else _computable(tensor._array) for tensor in state]
    return Pending(kernel(parameter, gradient, *states, *options), tensors)


def run(updates: Iterable[Pending | None]) -> None:
    """Run updates, together as far as no two change the same memory; the tensors then count as modified."""
    batch: list[Pending] = []
    changed: set[Any] = set()
    for update in updates:
        if update is None:
            continue
        for tensor in update.tensors:
            if tensor._storage in changed:
                _run(batch)
                batch, changed = [], set()
        batch.append(update)
        changed.update([tensor._storage for tensor in update.tensors])
    _run(batch)


def _run(batch: list[Pending]) -> None:
    kernels.run([update for update, _ in batch])
    for update, tensors in batch:
        for tensor, array in zip(tensors, (update.param, *update.state), strict=True):
            if array is not tensor._array:
                tensor._array[...] = array
            tensor._storage.version += 1


def _computable(array: np.ndarray) -> np.ndarray:
    """Return an array itself if a kernel can update it, else a copy."""
    if array.dtype in _COMPUTED:
        return array if array.flags.c_contiguous else array.copy(order="C")
    return array.astype(np.float32, order="C")
