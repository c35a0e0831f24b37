"""Hooks that allow in-place changes of saved tensors: backward sees the values as they were."""

import weakref
from typing import Any

import numpy as np

from spillgrad.autograd.core.hooks import Predicate, saved_tensors_hooks, stack
from spillgrad.errors import GraphError, SavedTensorError
from spillgrad.tensor import Tensor
from spillgrad.tensor_data import Storage
from spillgrad_kernels.device_array import address_of, byte_bounds, strided_view


class _Packed:
    """A saved tensor: over its original memory, or over a copy that was made just before that memory changed."""

    __slots__ = ("__weakref__", "array", "is_copy", "keeper", "storage")

    def __init__(self, tensor: Tensor, keeper: "_Keeper") -> None:
        self.array = tensor.array
        self.storage = tensor.storage
        self.is_copy = False
        self.keeper: _Keeper | None = keeper


class _Keeper:
    """The saved tensors of one version of a storage. Before the storage changes, `keep` copies their memory once.

    The storage refers to its keeper weakly, and saved tensors refer to the keeper strongly. So nothing is copied if no
    saved tensor is alive.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.version = storage.version
        self._looking: weakref.WeakSet[_Packed] = weakref.WeakSet()

    def pack(self, tensor: Tensor) -> _Packed:
        """Return the packed form of `tensor`, which `keep` updates while it is alive."""
        packed = _Packed(tensor, self)
        self._looking.add(packed)
        return packed

    def keep(self) -> None:
        """Move the saved tensors to a copy of their memory, because the storage is about to change."""
        looking = list(self._looking)
        if self._storage.version != self.version or not looking:
            return  # it changed without being counted; unpacking will raise
        dense = self._storage.array
        if dense.flags.c_contiguous:
            memory = dense.reshape(-1).view(np.uint8)
            bounds = [byte_bounds(packed.array) for packed in looking]
            start = min(low for low, _ in bounds)
            offset = start - byte_bounds(dense)[0]
            copy = memory[offset : offset + max(high for _, high in bounds) - start].copy()
            storage = Storage(copy)
            for packed in looking:
                packed.array = _moved(packed.array, copy, start)
                packed.storage = storage
        else:  # memory with gaps
            for packed in looking:
                packed.array = packed.array.copy()
                packed.storage = Storage(packed.array)
        for packed in looking:
            packed.is_copy, packed.keeper = True, None


def _moved(array: np.ndarray, copy: np.ndarray, start: int) -> np.ndarray:
    """Return the view of `copy` that corresponds to `array`. `copy` is a copy of the memory from address `start` on."""
    return strided_view(copy, address_of(array) - start, array.shape, array.dtype, array.strides)


def _pack(tensor: Tensor) -> _Packed:
    storage = tensor.storage
    keeper = None if storage.keeper is None else storage.keeper()
    if keeper is None or keeper.version != storage.version:
        keeper = _Keeper(storage)
        storage.keeper = weakref.ref(keeper)
    return keeper.pack(tensor)


def _unpack(packed: _Packed) -> Tensor:
    if packed.is_copy and packed.storage.version:
        raise SavedTensorError(
            "allow_mutation_on_saved_tensors: a saved tensor was modified in place after it was unpacked; clone() a "
            "saved tensor before changing it"
        )
    return Tensor.wrap(packed.array, packed.storage)


class allow_mutation_on_saved_tensors(saved_tensors_hooks):
    """Context manager: allow in-place changes of tensors that operations save. Backward uses the former values.

    A saved tensor costs nothing until it is about to be changed. Then one copy is made for all tensors that saved this
    version of the memory; the copy is freed with the last graph that needs it. Changes and backward may also happen
    after the context has ended. As elsewhere, writes through ``.numpy()`` and DLPack are not noticed.

    Parameters
    ----------
    only : callable, optional
        Chooses the values that may change, as in `saved_tensors_hooks`.

    Raises
    ------
    GraphError
        On entering it within another such context.

    Notes
    -----
    Source: torch.autograd.graph.allow_mutation_on_saved_tensors.
    """

    def __init__(self, *, only: Predicate | None = None) -> None:
        super().__init__(_pack, _unpack, only=only)

    def __enter__(self) -> Any:
        if any(isinstance(pair.owner, allow_mutation_on_saved_tensors) for pair in stack.pairs):
            raise GraphError("allow_mutation_on_saved_tensors contexts cannot be nested; the outer one does it all")
        return super().__enter__()
