"""Offloaded tensors of a device: in its memory while they are used, and longer while there is room.

Once a step has shown the order of their use, a stream of their own copies them from the store ahead of time. They go
back to the store, while kernels run, once nobody changes them any more.
"""

import collections
import weakref
from typing import Protocol, cast

import numpy as np

from spillgrad.device.device import CUDA
from spillgrad.errors import SpillError
from spillgrad.spill.device_transfers import Copies, Source, memory_of
from spillgrad.spill.offload.tensors import Keeper, OffloadedStorage, is_held
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.store import Handle, Label
from spillgrad.tensor_data import Storage
from spillgrad_kernels.cuda.array import is_own
from spillgrad_kernels.cuda.driver import driver
from spillgrad_kernels.memory.holder import Deaths

# Signal handlers run before or after this code: `storage/threads/interrupts.py`.
SIGNALS_WAIT = True

# So many tensors are copied ahead of their use: more than a layer of a transformer has.
_AHEAD = 16
# So many uses of a step are remembered. So many of them are skipped where a step differs from the last.
_LONGEST, _PASSED = 1 << 16, 64


class DeviceKeeper(Keeper, Protocol):
    """A keeper of storages that has some on a device."""

    @property
    def on_device(self) -> "OnDevice": ...


class OffloadedOnDevice(OffloadedStorage):
    """Memory of a device in a store. A copy is on the device while somebody holds the array, or while there is room."""

    device = CUDA
    _residents: DeviceKeeper
    _kept: np.ndarray | None = None  # while it changes, or may stay
    _ready: driver.Event | None = None  # when what was copied back is there, until the first use of it
    _source: Source | None = None  # what the store took last

    def begin(self, residents: "DeviceKeeper", handle: Handle, array: np.ndarray, source: Source) -> None:
        """Become the storage of `array`, which the store has taken from `source`."""
        self.place(residents, handle, array)
        self.reference = weakref.ref(self, residents.on_device.forget)
        self._kept, self._source = array, source

    def begin_load(self) -> np.ndarray:
        """Begin to copy the array back. Raises what the store or the device refuses."""
        on_device = self._residents.on_device
        array, self._ready = on_device.copies.back(self._residents.store.get(self._handle))
        on_device.count(array)
        self._used_in = -1  # first: who used it where it was before must find that it is not there yet
        self._alive = weakref.ref(array)
        self._kept = array
        return array

    @property
    def is_there(self) -> bool:
        """Whether the array is on the device, or on its way there."""
        return self._alive() is not None

    @property
    def handle(self) -> Handle:
        """What the store has the values under."""
        return self._handle

    def array_to_overwrite(self) -> np.ndarray:
        return self.array

    def leave(self) -> bool:
        """Let go of the array unless somebody uses or changes it; return whether that was done."""
        if self._changing or is_held(self._alive):
            return False
        self._kept = self._ready = None
        return True

    def _read(self) -> np.ndarray:
        self._residents.on_device.make_room(self._handle.nbytes)
        array = self.begin_load()
        self._is_used()
        return array

    def _is_used(self) -> None:
        if self._ready is not None:
            self._ready.wait(driver.compute())
            self._ready = None
        self._kept = self._alive()
        self._residents.on_device.use(self)

    def _take_change(self, array: np.ndarray) -> None:
        self._kept = array
        self._residents.on_device.keep(self)
        if self._source is not None and self._source.done is not None:  # the store may be copying it
            self._source.done.wait(driver.compute())

    def _give_change(self) -> None:
        assert self._kept is not None
        source = self._residents.on_device.source(self._kept)
        self._residents.store.replace(self._handle, source)
        self._source = source

    def _digest(self) -> None:
        """Return None: memory of the device that others may change is stored again."""


Reference = weakref.ref[OffloadedOnDevice]


class OnDevice:
    """The offloaded tensors on the device: at most `budget_bytes`, and beyond that those that are used right now.

    `resident_bytes` counts each array until the last alias of its memory dies, copies under way among them. The lock of
    `Residents` guards everything.
    """

    def __init__(self, store: DiskStore, budget_bytes: int) -> None:
        self.copies = Copies()
        self.budget_bytes = budget_bytes
        self.resident_bytes = self.peak_resident_bytes = 0
        self._array_bytes = 0  # of these, without memory that only copies hold, which is free once they are done
        self._store = store
        # What died since they were last read: bytes of memory, bytes of arrays, and storages. All may die anywhere.
        self._died = Deaths()
        self._arrays_died = Deaths()
        self._forgotten: collections.deque[Reference] = collections.deque()
        self.forget = self._forgotten.append
        self._order = _Order()
        # What is kept, the longest unused first.
        self._kept: dict[Reference, None] = {}

    def offload(self, residents: "DeviceKeeper", storage: Storage, array: np.ndarray, label: Label) -> None:
        """Move the memory of a plain storage on the device to the store."""
        if not (is_own(array) and array.flags.c_contiguous):
            array = array.copy()
        source = self.source(array)
        handle = self._store.put(source, label=label, persistent=True)  # first: it may fail
        with residents.lock:
            storage.__class__ = OffloadedOnDevice
            cast(OffloadedOnDevice, storage).begin(residents, handle, array, source)
            self.count(array)
            self.keep(cast(OffloadedOnDevice, storage))
            self._order.name(cast(OffloadedOnDevice, storage))
            self.make_room(0)

    def source(self, array: np.ndarray) -> Source:
        """Return an array as the store takes it."""
        return Source(array, self.copies.out)

    def count(self, array: np.ndarray) -> None:
        """Count an array as long as its memory is alive."""
        self.resident_bytes += array.nbytes
        self.peak_resident_bytes = max(self.peak_resident_bytes, self.resident_bytes)
        self._array_bytes += array.nbytes
        self._died.expect(memory_of(array), array.nbytes)
        self._arrays_died.expect(array, array.nbytes)

    def keep(self, storage: OffloadedOnDevice) -> None:
        """Let an array stay until there must be room: after those that were used before."""
        self._kept.pop(storage.reference, None)
        self._kept[storage.reference] = None

    def use(self, storage: OffloadedOnDevice) -> None:
        """Note that an array is used now, and begin to copy those that come next."""
        self.keep(storage)
        if self._order.use(storage):
            self._begin_next()

    def stats(self) -> dict[str, int]:
        """Return the bytes on the device, now and at most."""
        self._tidy()
        return {"device_bytes": self.resident_bytes, "peak_device_bytes": self.peak_resident_bytes}

    def begin_step(self) -> None:
        """Note that a step begins, which is expected to be like the last."""
        self._order.begin_step()

    def make_room(self, nbytes: int, waits: bool = True, before: int = 0) -> bool:
        """Let go of the arrays that are needed last until `nbytes` more fit; return whether they do.

        The first `before` arrays that come next stay. Then wait for copies that are the last to hold memory, which is
        free once they are done.
        """
        self._tidy()
        for reference in self._victims(before) if self._array_bytes + nbytes > self.budget_bytes else ():
            storage = reference()
            if storage is None or storage.leave():
                self._kept.pop(reference, None)
                self._tidy()
                if self._array_bytes + nbytes <= self.budget_bytes:
                    break
        most_bytes = max(self.budget_bytes - nbytes, self._array_bytes)
        while waits and self.resident_bytes > most_bytes and self.copies.wait_for_oldest():
            self._tidy()
        return self.resident_bytes + nbytes <= self.budget_bytes

    def _victims(self, before: int) -> list[Reference]:
        """Return what is kept: the longest unused first, then what comes next, the last of it first."""
        coming = [storage.reference for storage in self._order.coming()]
        others = self._kept.keys() - coming
        return [
            *(reference for reference in self._kept if reference in others),
            *(reference for reference in reversed(coming[before:]) if reference in self._kept),
        ]

    def _begin_next(self) -> None:
        """Begin to copy what a step like the last uses next, as far as no earlier use must make room for it."""
        wanted = []
        for place, following in enumerate(self._order.coming()):
            if following.is_there:
                continue
            try:
                if not self._store.is_in_ram(following.handle):
                    wanted.append(following.handle)
                    continue
                if not self.make_room(following.handle.nbytes, waits=False, before=place + 1):
                    break
                following.begin_load()
            except (SpillError, MemoryError):  # its use tries again, and raises
                break
            self.keep(following)
        if wanted:
            self._store.prefetch(wanted)

    def _tidy(self) -> None:
        """Let go of what finished copies held, and stop counting what died."""
        self.copies.let_go()
        self.resident_bytes -= sum(self._died)
        self._array_bytes -= sum(self._arrays_died)
        while self._forgotten:
            self._kept.pop(self._forgotten.popleft(), None)


class _Order:
    """The order in which a step uses storages, which is expected to be that of the step before.

    It knows them by their labels, since each step has new gradients.
    """

    def __init__(self) -> None:
        self._before: list[Label] = []
        self._now: list[Label] = []
        self._position = 0
        self._by_label: dict[Label, Reference] = {}

    def name(self, storage: OffloadedOnDevice) -> None:
        """Let the label of a storage mean that storage from now on."""
        self._by_label[storage.handle.label] = storage.reference

    def use(self, storage: OffloadedOnDevice) -> bool:
        """Note that a storage is used; return False for the one that was used last."""
        label = storage.handle.label
        if self._now and self._now[-1] == label:
            return False
        self.name(storage)
        if len(self._now) < _LONGEST:
            self._now.append(label)
        for place in range(self._position, min(self._position + _PASSED, len(self._before))):
            if self._before[place] == label:
                self._position = place + 1
                break
        return True

    def begin_step(self) -> None:
        """Begin again."""
        if self._now:
            self._before, self._now, self._position = self._now, [], 0

    def coming(self) -> list[OffloadedOnDevice]:
        """Return what is used next, each once, as far as it is still there."""
        labels = dict.fromkeys(self._before[self._position : self._position + _AHEAD])
        storages = [self._by_label[label]() for label in labels]
        return [storage for storage in storages if storage is not None]
