"""Copy small saved tensors of any framework into shared arrays of a store.

Each array of a store costs kilobytes of bookkeeping in the store and in HDF5, and a call to write the array.
"""

import itertools
import os
import weakref
from collections.abc import Callable
from typing import Any, Protocol, cast

import numpy as np

from spillgrad import labels
from spillgrad.fork_safe_lock import ForkSafeLock
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.store import Label, View, nobody
from spillgrad_kernels.memory import buffers
from spillgrad_kernels.memory.holder import Holder

# Signal handlers run before or after this code: `storage/threads/interrupts.py`.
SIGNALS_WAIT = True

# Memory smaller than this shares an array: a page, as large as HDF5's bookkeeping of a dataset.
SMALL_BYTES = 4096
_BATCH_BYTES = 64 << 10
# A batch takes at most this part of the budget, so that other arrays have room beside the batch being filled.
_BATCHES_PER_BUDGET = 8
# The bytes of RAM that each tensor takes: a `Place`, a `SpilledSmall`, a number, and a graph's references to these.
# They count in the budget.
_HELD_BYTES = 240
# The list of `Original`s is searched for those that are over only if it has at least this length.
_FEWEST_ORIGINALS = 64
_numbers = itertools.count()


class Copied(Protocol):
    """Memory that can be copied to a batch. `packed` refers to the place of the last copy, for `SmallTensors` only."""

    packed: "tuple[Any, weakref.ref[Place]] | None"


class Original(Protocol):
    """What the place of a copy keeps to notice later changes of the copied memory, such as its counter of changes."""

    def is_over(self) -> bool:
        """Return whether the place may forget this object: the memory did not change since the copy, and never will."""
        ...


class _Batch(Holder):
    """An array that small tensors share; it lives as long as any of its places.

    `array` is set while the array is being filled, or is the last one that was read; else it is None.
    """

    __slots__ = ("__weakref__", "array", "owner")

    def __init__(self, owner: "SmallTensors", handle: Any, array: np.ndarray) -> None:
        super().__init__(owner.store.drops.append, handle)
        self.owner = owner
        self.array: np.ndarray | None = array


class Place:
    """The place of a memory's copy in a batch: `nbytes` bytes from byte `start` on."""

    __slots__ = ("__weakref__", "batch", "nbytes", "original", "start")

    def __init__(self, batch: _Batch, start: int, nbytes: int, original: Original | None) -> None:
        self.batch, self.start, self.nbytes, self.original = batch, start, nbytes, original

    @property
    def views(self) -> list[View]:
        """The views of the batch, which the files list; see `Handle`."""
        return self.batch.held.views  # type: ignore[no-any-return]

    def read(self) -> np.ndarray:
        """Return the bytes of the copy. The caller must copy them at once, because other tensors share their array.

        Raises the errors of `DiskStore.get`.
        """
        return self.batch.owner.read(self.batch)[self.start : self.start + self.nbytes]


class SmallTensors:
    """Copies small memory into batches, and gives the batches to a store.

    Later changes of the memory do not reach the copy. While a batch is filled, the store counts it in its budget and
    keeps it in RAM, as an array that is being changed. When it is full, the next batch begins. The first batch is
    small, and each is twice as large as the one before, up to a limit. A batch is freed with the last of its places.

    `_lock` guards the batch that is filled. If a finalizer runs while this thread has the lock, `takes` returns False.
    In a forked child the store cannot be used.
    """

    def __init__(self, store: DiskStore) -> None:
        self.store = store
        self._most_bytes = min(_BATCH_BYTES, store.ram_budget // _BATCHES_PER_BUDGET)
        self._next_bytes = SMALL_BYTES
        self._lock = ForkSafeLock()
        self._begin()
        _all.add(weakref.ref(self, _all.discard))

    def _begin(self) -> None:
        """Forget all batches, and which memory was copied to them."""
        self._number = next(_numbers)
        self._filling: Callable[[], _Batch | None] = nobody
        self._used = self._places = 0
        self._read: Callable[[], _Batch | None] = nobody  # the batch that was read last: its array is in RAM
        self._with_original: list[weakref.ref[Place]] = []
        self._most_originals = _FEWEST_ORIGINALS

    def forget_parent(self) -> None:
        """Forget, in a forked child, the batches of the parent: a thread of the parent may have been filling one."""
        for batch in (self._filling(), self._read()):
            if batch is not None:
                batch.array = None
        self._begin()

    def takes(self, nbytes: int) -> bool:
        """Return whether memory of `nbytes` bytes goes to a batch: it is small, and the budget has room for batches."""
        # A finalizer may run while this thread fills a batch.
        return 0 < nbytes < SMALL_BYTES <= self._most_bytes and not self._lock.is_mine()

    def known(self, copied: Copied, version: int) -> Place | None:
        """Return the place of the copy of a memory after `version` in-place changes; None if there is no such copy."""
        packed = copied.packed
        return packed[1]() if packed is not None and packed[0] == (self._number, version) else None

    def add(self, copied: Copied, version: int, array: np.ndarray, original: Original | None = None) -> Place:
        """Copy `array`, the C-contiguous memory of `copied` after `version` changes, to a batch; return the place.

        The place holds `original` until `original.is_over()`. Raises the errors of `DiskStore.put`.
        """
        with self._lock:
            place = self._add(array, original)
            reference = weakref.ref(place)
            if original is not None:
                if len(self._with_original) >= self._most_originals:
                    self._drop_originals()
                self._with_original.append(reference)
        copied.packed = (self._number, version), reference
        return place

    def _add(self, array: np.ndarray, original: Original | None) -> Place:
        batch = self._filling()  # None when all places of the last one died
        if batch is None or self._used + array.nbytes > batch.held.nbytes:
            self.end_batch()
            batch = self._begin_batch()
        start = self._used
        self._used += array.nbytes
        self._places += 1
        cast(np.ndarray, batch.array)[start : self._used] = array.reshape(-1).view(np.uint8)
        return Place(batch, start, array.nbytes, original)

    def _begin_batch(self) -> _Batch:
        array = buffers.empty((self._next_bytes,), np.uint8)
        batch = _Batch(self, self.store.begin(array, Label("small tensors", step=labels.current.step)), array)
        self._next_bytes = min(2 * self._next_bytes, self._most_bytes)
        self._filling, self._used, self._places = weakref.ref(batch), 0, 0
        return batch

    def end_batch(self) -> None:
        """End the batch that is being filled; the store may write it. Raises the errors of `DiskStore.end_change`."""
        with self._lock:
            batch, self._filling = self._filling(), nobody
            if batch is not None:
                batch.array = None
                self.store.count_with(batch.held, self._places * _HELD_BYTES)
                self.store.end_change(batch.held, changed=False)

    def _drop_originals(self) -> None:
        """Drop the originals that are over. The next call is due when there are twice as many as remain now."""
        stay = []
        for reference in self._with_original:
            place = reference()
            if place is not None and place.original is not None:
                if place.original.is_over():
                    place.original = None
                else:
                    stay.append(reference)
        self._with_original = stay
        self._most_originals = max(_FEWEST_ORIGINALS, 2 * len(stay))

    def read(self, batch: _Batch) -> np.ndarray:
        """Return the array of a batch, from the store if needed. Raises the errors of `DiskStore.get`."""
        array = batch.array
        if array is None:
            before = self._read()
            if before is not None:
                before.array = None
            batch.array = array = self.store.get(batch.held)
            self._read = weakref.ref(batch)
        return array


# Not a WeakSet, which removes dead objects by Python code that a signal handler could interrupt.
_all: set[weakref.ref[SmallTensors]] = set()


def _forget_parent() -> None:
    for reference in list(_all):
        small = reference()
        if small is not None:
            small.forget_parent()


os.register_at_fork(after_in_child=_forget_parent)
