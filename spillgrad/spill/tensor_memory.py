"""The memory that a store takes for spillgrad's tensors, and tensors over memory that a store gave back."""

import math
from collections.abc import Hashable
from typing import Any

import numpy as np

from spillgrad.errors import SavedTensorError
from spillgrad.spill import saved_memory
from spillgrad.spill.context import SpillContext
from spillgrad.spill.saved_memory import Layout, SavedMemory, shared_layout
from spillgrad.storage.codecs import LOSSY_DTYPES
from spillgrad.storage.store import Handle
from spillgrad.tensor import Tensor
from spillgrad.tensor_data import Storage
from spillgrad_kernels.device_array import address_of, strided_view
from spillgrad_kernels.memory import buffers

# Signal handlers run before or after this code: `storage/threads/interrupts.py`.
SIGNALS_WAIT = True


class Copy(Storage):
    """The storage over an array that a store gave back; until it is changed, it has the bytes put under `key`.

    `altered_by` is the mark of the lossy codec that may have altered the array, or None. With a mark, the array counts
    as the one that was put only for the store with that codec.
    """

    __slots__ = ("altered_by", "key")

    def __init__(self, array: np.ndarray, key: Hashable, altered_by: object) -> None:
        super().__init__(array)
        self.key, self.altered_by = key, altered_by

    def is_unchanged(self) -> bool:
        """Return whether the array is unchanged since it was read."""
        return not self.version


class Spilled(saved_memory.Spilled):
    """A spilled tensor, as the graph keeps it. It holds the context, because the store closes when the context dies."""

    __slots__ = ("_context",)

    def __init__(self, store: Any, context: SpillContext, handle: Handle, memory: SavedMemory) -> None:
        super().__init__(store, store, handle, memory.key, memory.layout)
        self._context = context

    def tensor(self) -> Tensor:
        """Return the tensor, over memory that it shares with all other tensors of its storage.

        The storage is the one that was packed, if it is still in memory, else a copy. Raises SavedTensorError if the
        copy was changed.
        """
        # Each array must have only one storage: a second one would not count changes made through the first.
        store, handle = self._source, self.held
        array = store.get(handle)
        storage = handle.watcher()
        while storage is None or address_of(storage.array) != address_of(array):
            storage = store.watch(handle, array, Copy(array, self._key, self._context._codec_mark), instead_of=storage)
        if isinstance(storage, Copy) and storage.version:
            raise SavedTensorError(
                f"unpack: {handle.label} was modified in place after it was read back for another use; "
                f"clone() a saved tensor before changing it"
            )
        return over(array, self._layout, storage)


class SpilledSmall(saved_memory.SpilledSmall):
    """The object that a graph keeps for a small saved tensor; several of them share an array of the store."""

    __slots__ = ()

    def tensor(self) -> Tensor:
        """Return the tensor, over memory of its own."""
        array = buffers.copy(self._place.read())
        return over(array, self._layout, Storage(array))


def layout_of(tensor: Tensor) -> Layout:
    """Return the layout of a tensor in its storage."""
    array = tensor._array
    offset = address_of(array) - address_of(tensor._storage.array) if array.size else 0
    return shared_layout(array.dtype, array.itemsize, array.shape, array.strides, offset)


def over(array: np.ndarray, layout: Layout, storage: Storage) -> Tensor:
    """Return a tensor with `layout` over `array`, the dense memory of `storage`."""
    return Tensor.wrap(strided_view(array, layout.offset, layout.shape, layout.dtype, layout.strides), storage)


def memory_of(tensor: Tensor, codec_mark: object) -> SavedMemory:
    """Return the memory to store for a tensor; `codec_mark` is the mark of the store's lossy codec, or None."""
    storage, array, layout = tensor._storage, tensor._array, layout_of(tensor)
    version = storage.version
    is_unchanged = lambda: storage.version == version  # noqa: E731
    key = _key(storage, codec_mark)
    dense = in_memory_order(storage.array)
    if not dense.flags.carray:
        # The memory has gaps, or is read-only: the store copies the elements of this tensor, once there is room.
        shown = array[tuple(slice(None if stride else 1) for stride in array.strides)]
        strides = tuple(
            inner if stride else 0 for stride, inner in zip(array.strides, _dense_strides(shown), strict=True)
        )
        return SavedMemory((key, layout), shown, layout._replace(strides=strides, offset=0), is_unchanged)
    if codec_mark is not None and array.dtype != dense.dtype and dense.dtype in LOSSY_DTYPES:
        # The codec keeps numbers close, but not bytes: the memory of a tensor of another dtype is stored as bytes.
        key, dense = (storage.uid, version, np.uint8), dense.reshape(-1).view(np.uint8)
    # While the store has the array in RAM it keeps `is_unchanged`, and with it the storage: a tensor that comes back
    # over this array gets this storage, and counts its changes there.
    return SavedMemory(key, dense, layout, is_unchanged, storage)


def in_memory_order(array: np.ndarray) -> np.ndarray:
    """Return an array with its axes in the order of the memory: C-contiguous, unless the memory has gaps."""
    if array.flags.c_contiguous:
        return array
    return array.transpose(sorted(range(array.ndim), key=lambda axis: -array.strides[axis]))


def _key(storage: Storage, codec_mark: object) -> Hashable:
    """Return the key of a storage's present bytes; `codec_mark` is the mark of the store's lossy codec, or None."""
    if isinstance(storage, Copy) and not storage.version and storage.altered_by in (None, codec_mark):
        return storage.key
    return storage.uid, storage.version


def _dense_strides(array: np.ndarray) -> tuple[int, ...]:
    """Return the strides of a C-contiguous copy of an array."""
    return tuple(array.itemsize * math.prod(array.shape[axis + 1 :]) for axis in range(array.ndim))
