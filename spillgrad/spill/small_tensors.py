"""Small saved tensors, many of which go to a store as one array, whatever framework they are of.

What a store knows of an array, and HDF5 of a dataset, takes kilobytes; and each is written by a call of its own.
"""

import functools
import itertools
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.store import Label, View
from spillgrad.tensor import Storage, Tensor
from spillgrad_kernels import memory
from spillgrad_kernels.device_array import placed
from spillgrad_kernels.holder import Holder

# Signal handlers run before or after what is done here: `storage/interrupts.py`.
SIGNALS_WAIT = True

# Memory smaller than this is batched: a page, as large as what HDF5 keeps of a dataset.
SMALL_BYTES = 4096
_BATCH_BYTES = 64 << 10
# Beside a batch that is being filled the budget has room for others.
_BATCHES_PER_BUDGET = 8
# What is held in RAM for each tensor beside its bytes: a `Place`, a `SpilledSmall` and a number, and what a graph
# holds them by. It counts in the budget.
_HELD_BYTES = 240
# So many places at least are looked at together, for what they hold of where their bytes come from.
_FEWEST_WITH_ORIGIN = 64
_numbers = itertools.count()


class Copied(Protocol):
    """Memory that may be copied to a batch: `packed` is where it last was, and is for `SmallTensors` alone."""

    packed: "tuple[Any, weakref.ref[Place]] | None"


class SmallOrigin(Protocol):
    """What a place holds of the memory that its bytes come from, such as who counts the changes of that."""

    def is_over(self) -> bool:
        """Return whether nothing of it matters any more, as nobody changed the memory, nor will."""
        ...


class _Batch(Holder):
    """The array that a batch is, for as long as anything in it is needed; in RAM as `array` while it is looked at."""

    __slots__ = ("__weakref__", "array", "owner")

    def __init__(self, owner: "SmallTensors", handle: Any, array: np.ndarray) -> None:
        super().__init__(owner.store.drops.append, handle)
        self.owner = owner
        self.array: np.ndarray | None = array


class Place:
    """Where in a batch the bytes of a memory are, as they were when they were copied; `origin` is while it matters."""

    __slots__ = ("__weakref__", "batch", "nbytes", "origin", "start")

    def __init__(self, batch: _Batch, start: int, nbytes: int, origin: Any) -> None:
        self.batch, self.start, self.nbytes, self.origin = batch, start, nbytes, origin

    @property
    def views(self) -> list[View]:
        """What files tell of the batch; see `Handle`."""
        return self.batch.held.views  # type: ignore[no-any-return]

    def read(self) -> np.ndarray:
        """Return the bytes, to be copied at once: others share them. Raises what `DiskStore.get` raises."""
        return self.batch.owner.read(self.batch)[self.start : self.start + self.nbytes]


class Layout(NamedTuple):
    """How a tensor lies in its storage; many tensors share one."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


layout_of = functools.lru_cache(maxsize=4096)(Layout)


class SpilledSmall:
    """What a small tensor leaves in the graph."""

    __slots__ = ("__weakref__", "_layout", "_place")

    def __init__(self, place: Place, layout: Layout) -> None:
        self._place, self._layout = place, layout

    def tensor(self) -> Tensor:
        """Return the tensor, over memory of its own."""
        layout, whole = self._layout, memory.copy(self._place.read())
        return Tensor.wrap(placed(whole, layout.offset, layout.shape, layout.dtype, layout.strides), Storage(whole))


class SmallTensors:
    """Copies small memory into batches, and puts those into a store.

    What is packed is copied: a change of the memory afterwards does not reach it. A batch being filled is one that the
    store knows as being changed, which counts in its budget and stays; the next begins where it is full. A batch is
    freed when the last of its places is. Batches begin small, and double.

    `_lock` guards the batch that is filled. A finalizer in the middle of that finds that this `takes` nothing. In a
    forked child the store refuses whatever would use it.
    """

    def __init__(self, store: DiskStore) -> None:
        self.store = store
        self._most_bytes = min(_BATCH_BYTES, store.ram_budget // _BATCHES_PER_BUDGET)
        self._next_bytes = SMALL_BYTES
        self._begin()
        _all.append(weakref.ref(self, _all.remove))

    def _begin(self) -> None:
        """Have nothing in RAM, and know of no storage that is in a batch."""
        self._number = next(_numbers)
        self._lock = threading.RLock()
        self._filling: Callable[[], _Batch | None] = _nothing
        self._used = self._places = 0
        self._read: Callable[[], _Batch | None] = _nothing  # whose array is in RAM, as it was looked at last
        self._with_origin: list[weakref.ref[Place]] = []
        self._most_with_origin = _FEWEST_WITH_ORIGIN

    def forget_parent(self) -> None:
        """In a forked child: the batches are the parent's, another thread of which may have been filling one."""
        for batch in (self._filling(), self._read()):
            if batch is not None:
                batch.array = None
        self._begin()

    def takes(self, nbytes: int) -> bool:
        """Return whether memory of so many bytes is small, and the budget has room for batches."""
        # This thread may be in the middle of filling one; the lock is asked as `threading.Condition` does.
        return 0 < nbytes < SMALL_BYTES <= self._most_bytes and not self._lock._is_owned()  # type: ignore[attr-defined]

    def known(self, copied: Copied, version: int) -> Place | None:
        """Return where a memory is that was changed in place so often, if it was added then, and that is needed."""
        packed = copied.packed
        return packed[1]() if packed is not None and packed[0] == (self._number, version) else None

    def add(
        self, copied: Copied, version: int, array: np.ndarray, step: int | None, origin: SmallOrigin | None = None
    ) -> Place:
        """Copy a memory, which is a C-contiguous array and was changed in place so often, to a batch.

        The place holds its origin until that is over. Raises what `DiskStore.put` raises.
        """
        with self._lock:
            place = self._add(array, step, origin)
            reference = weakref.ref(place)
            if origin is not None:
                if len(self._with_origin) >= self._most_with_origin:
                    self._let_go_of_origins()
                self._with_origin.append(reference)
        copied.packed = (self._number, version), reference
        return place

    def _add(self, array: np.ndarray, step: int | None, origin: Any) -> Place:
        batch = self._filling()  # none where nothing of the last one is needed any more
        if batch is None or self._used + array.nbytes > batch.held.nbytes:
            self.end_batch()
            batch = self._begin_batch(step)
        start = self._used
        self._used += array.nbytes
        self._places += 1
        cast(np.ndarray, batch.array)[start : self._used] = array.reshape(-1).view(np.uint8)
        return Place(batch, start, array.nbytes, origin)

    def _begin_batch(self, step: int | None) -> _Batch:
        array = memory.empty((self._next_bytes,), np.uint8)
        batch = _Batch(self, self.store.begin(array, Label("small tensors", step=step)), array)
        self._next_bytes = min(2 * self._next_bytes, self._most_bytes)
        self._filling, self._used, self._places = weakref.ref(batch), 0, 0
        return batch

    def end_batch(self) -> None:
        """Let the store write the batch that is being filled. Raises what `DiskStore.end_change` raises."""
        with self._lock:
            batch, self._filling = self._filling(), _nothing
            if batch is not None:
                batch.array = None
                self.store.count_with(batch.held, self._places * _HELD_BYTES)
                self.store.end_change(batch.held, changed=False)

    def _let_go_of_origins(self) -> None:
        """Have places hold no origin that is over; those that stay are looked at again when they are twice as many."""
        stay = []
        for reference in self._with_origin:
            place = reference()
            if place is not None:
                if place.origin.is_over():
                    place.origin = None
                else:
                    stay.append(reference)
        self._with_origin = stay
        self._most_with_origin = max(_FEWEST_WITH_ORIGIN, 2 * len(stay))

    def read(self, batch: _Batch) -> np.ndarray:
        """Return the array of a batch. Raises what `DiskStore.get` raises."""
        array = batch.array
        if array is None:
            before = self._read()
            if before is not None:
                before.array = None
            batch.array = array = self.store.get(batch.held)
            self._read = weakref.ref(batch)
        return array


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
