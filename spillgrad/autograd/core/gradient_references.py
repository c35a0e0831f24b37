"""Find out whether only backward refers to a gradient: other gradients are then added to it in place, as in PyTorch."""

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np

# For smaller gradients, a sum in new memory costs less than counting references.
_LEAST_BYTES = 1 << 16


def is_unshared(grads: list[Any], place: int) -> bool:
    """Return whether the gradient grads[place] is large, and nothing but this list refers to it or to its memory."""
    grad = grads[place]
    if grad is None or grad.nbytes < _LEAST_BYTES or grad._grad_fn is not None or grad._requires_grad:
        return False
    storage = grad._storage
    if storage.aliased:
        return False
    if not storage.offloaded:
        array = storage.array
        if grad._array is not array or not array.flags.carray or _is_view(array):
            return False
        del array
    offloaded = storage.offloaded
    del grad, storage
    return all(count <= alone for count, alone in zip(_holders(grads, place, offloaded), _ALONE, strict=False))


def _is_view(array: Any) -> bool:
    return hasattr(array.base, "strides")  # a view of another array, on the host or on a device


def _holders(grads: list[Any], place: int, offloaded: bool) -> list[int]:
    """Return the reference counts of grads[place], of its storage and, unless `offloaded` to a store, of its array."""
    counts = [sys.getrefcount(grads[place]), sys.getrefcount(grads[place]._storage)]
    return counts if offloaded else [*counts, sys.getrefcount(grads[place]._storage.array)]


def _of_one_alone() -> list[int]:
    array = np.empty(0)
    grads = [SimpleNamespace(_array=array, _storage=SimpleNamespace(array=array))]
    del array
    return _holders(grads, 0, offloaded=False)


# The reference counts of a gradient to which only the list refers.
_ALONE = _of_one_alone()
