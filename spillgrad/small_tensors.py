"""Small saved tensors, many of which go to a store as one array.

What a store knows of an array, and HDF5 of a dataset, takes kilobytes; and each is written by a call of its own.
"""

import functools
import itertools
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np

from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.owner import MAX_VIEWS
from spillgrad.storage.store import Label, View
from spillgrad.tensor import Storage, Tensor
from spillgrad_kernels import memory
from spillgrad_kernels.device_array import is_on_device, placed
from spillgrad_kernels.holder import Holder

# Signal handlers run before or after what is done here: `storage/interrupts.py`.
SIGNALS_WAIT = True

# Storages smaller than this are batched: a page, as large as what HDF5 keeps of a dataset.
SMALL_BYTES = 4096
_BATCH_BYTES = 64 << 10
# Beside a batch that is being filled the budget has room for others.
_BATCHES_PER_BUDGET = 8
# What is held in RAM for each tensor beside its bytes: a `_Place`, a `SpilledSmall` and a number, and what a graph
# holds them by. It counts in the budget.
_HELD_BYTES = 240
_numbers = itertools.count()


class Layout(NamedTuple):
    """How a tensor lies in its storage; many tensors share one."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


layout_of = functools.lru_cache(maxsize=4096)(Layout)


class _Batch(Holder):
    """The array that a batch is, for as long as anything in it is needed; in RAM as `array` while it is looked at."""

    __slots__ = ("__weakref__", "array")

    def __init__(self, store: DiskStore, handle: Any, array: np.ndarray) -> None:
        super().__init__(store.drops.append, handle)
        self.array: np.ndarray | None = array


class _Place:
    """Where in a batch a storage's bytes are."""

    __slots__ = ("__weakref__", "batch", "nbytes", "start")

    def __init__(self, batch: _Batch, start: int, nbytes: int) -> None:
        self.batch, self.start, self.nbytes = batch, start, nbytes


class SpilledSmall:
    """What a small tensor leaves in the graph."""

    __slots__ = ("__weakref__", "_layout", "_owner", "_place")

    def __init__(self, owner: "SmallTensors", place: _Place, layout: Layout) -> None:
        self._owner, self._place, self._layout = owner, place, layout

    def tensor(self) -> Tensor:
        """Return the tensor, over memory of its own."""
        layout, memory_of_storage = self._layout, self._owner.read(self._place)
        array = placed(memory_of_storage, layout.offset, layout.shape, layout.dtype, layout.strides)
        return Tensor.wrap(array, Storage(memory_of_storage))


class SmallTensors:
    """Packs small tensors into batches, and puts those into a store.

    What is packed is copied: a change of the tensor afterwards does not reach it. A batch being filled is one that the
    store knows as being changed, which counts in its budget and stays; the next begins where it is full. A batch is
    freed when the last of its tensors is. Batches begin small, and double.

    `_lock` guards the batch that is filled. A finalizer in the middle of that finds `is_busy`. In a forked child the
    store refuses whatever would use it.
    """

    def __init__(self, store: DiskStore) -> None:
        self._store = store
        self._most_bytes = min(_BATCH_BYTES, store.ram_budget // _BATCHES_PER_BUDGET)
        self._next_bytes = SMALL_BYTES
        self._begin()
        _all.append(weakref.ref(self, _all.remove))

    def _begin(self) -> None:
        """Have nothing in RAM, and know of no storage that is in a batch."""
        self._number = next(_numbers)
        self._lock = threading.RLock()
        self._filling: Callable[[], _Batch | None] = _nothing
        self._used = self._tensors = 0
        self._read: Callable[[], _Batch | None] = _nothing  # whose array is in RAM, as it was looked at last

    def forget_parent(self) -> None:
        """In a forked child: the batches are the parent's, another thread of which may have been filling one."""
        for batch in (self._filling(), self._read()):
            if batch is not None:
                batch.array = None
        self._begin()

    def takes(self, storage: Storage) -> bool:
        """Return whether a storage is small, and the budget has room for batches."""
        array = storage.array
        is_small = 0 < array.nbytes < SMALL_BYTES <= self._most_bytes
        return is_small and not is_on_device(array) and array.flags.carray and not self.is_busy()

    def is_busy(self) -> bool:
        """Return whether this thread is in the middle of filling a batch."""
        return self._lock._is_owned()  # type: ignore[attr-defined,no-any-return]  # as `threading.Condition` does

    def pack(
        self, storage: Storage, layout: Layout, operation: str | None, slot: str | None, step: int | None
    ) -> SpilledSmall:
        """Copy a storage to a batch, unless it is in one unchanged; return what stands for a tensor over it.

        Raises what `DiskStore.put` raises.
        """
        mark = self._number, storage.version
        known = storage.__dict__.get("_packed")
        place = known[1]() if known is not None and known[0] == mark else None
        if place is None:
            with self._lock:
                place = self._add(storage.array, step)
                handle = place.batch.held
                if len(handle.views) < MAX_VIEWS:
                    handle.views.append(
                        View(
                            operation,
                            slot,
                            layout.dtype.name,
                            layout.shape,
                            layout.strides,
                            place.start + layout.offset,
                        )
                    )
            storage.__dict__["_packed"] = mark, weakref.ref(place)
        return SpilledSmall(self, place, layout)

    def _add(self, array: np.ndarray, step: int | None) -> _Place:
        batch = self._filling()  # none where nothing of the last one is needed any more
        if batch is None or self._used + array.nbytes > batch.held.nbytes:
            self.end_batch()
            batch = self._begin_batch(step)
        start = self._used
        self._used += array.nbytes
        self._tensors += 1
        cast(np.ndarray, batch.array)[start : self._used] = array.reshape(-1).view(np.uint8)
        return _Place(batch, start, array.nbytes)

    def _begin_batch(self, step: int | None) -> _Batch:
        array = memory.empty((self._next_bytes,), np.uint8)
        batch = _Batch(self._store, self._store.begin(array, Label("small tensors", step=step)), array)
        self._next_bytes = min(2 * self._next_bytes, self._most_bytes)
        self._filling, self._used, self._tensors = weakref.ref(batch), 0, 0
        return batch

    def end_batch(self) -> None:
        """Let the store write the batch that is being filled. Raises what `DiskStore.end_change` raises."""
        with self._lock:
            batch, self._filling = self._filling(), _nothing
            if batch is not None:
                batch.array = None
                self._store.count_with(batch.held, self._tensors * _HELD_BYTES)
                self._store.end_change(batch.held, changed=False)

    def read(self, place: _Place) -> np.ndarray:
        """Return a copy of a storage's bytes. Raises what `DiskStore.get` raises."""
        batch = place.batch
        array = batch.array
        if array is None:
            before = self._read()
            if before is not None:
                before.array = None
            batch.array = array = self._store.get(batch.held)
            self._read = weakref.ref(batch)
        copy = memory.empty((place.nbytes,), np.uint8)
        copy[:] = array[place.start : place.start + place.nbytes]
        return copy


def _nothing() -> None:
    """Be the reference to no object."""


# No set of Python's: who forgets the dead there runs code that a signal handler could interrupt.
_all: list[weakref.ref[SmallTensors]] = []


def _forget_parent() -> None:
    for reference in tuple(_all):
        small = reference()
        if small is not None:
            small.forget_parent()


os.register_at_fork(after_in_child=_forget_parent)
