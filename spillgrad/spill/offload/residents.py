"""The offloaded tensors that are in RAM now, and how long they stay there."""

import collections
import contextlib
import itertools
import weakref
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from spillgrad.autograd.core import hooks
from spillgrad.device.device import CPU, Device, device_of
from spillgrad.fork_safe_lock import ForkSafeLock
from spillgrad.spill.offload.frames import Frame, ThreadFrames
from spillgrad.spill.offload.tensors import KINDS, Keeper, OffloadedStorage
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.store import Label
from spillgrad.tensor import Tensor
from spillgrad.tensor_data import Storage

if TYPE_CHECKING:
    from spillgrad.spill.device_store import DeviceStore

# Signal handlers run before or after this code: `storage/threads/interrupts.py`.
SIGNALS_WAIT = True


class Residents(Keeper):
    """Decides which offloaded tensors are in RAM."""

    def __init__(self, store: DiskStore) -> None:
        self.store = store
        self._device_budget_bytes = 0
        self._device_store: DeviceStore | None = None  # made when a tensor of a device is offloaded
        # Guards the list of changing arrays.
        self.lock: contextlib.AbstractContextManager[Any] = ForkSafeLock()
        # Weak references, because storages hold this object.
        self.changing: collections.deque[weakref.ref[OffloadedStorage]] = collections.deque()
        self.thread = ThreadFrames()
        self._numbers = itertools.count()

    def store_of(self, device: Device) -> "DiskStore | DeviceStore":
        """Return the store of the tensors on a device."""
        if device is CPU:
            return self.store
        if self._device_store is None:
            from spillgrad.spill.device_store import DeviceStore  # it needs a driver

            with self.lock:
                if self._device_store is None:
                    self._device_store = DeviceStore(self.store, self._device_budget_bytes)
        return self._device_store

    def allow_on_device(self, nbytes: int) -> None:
        """Allow `nbytes` of arrays to stay on a device; the initial allowance is 0."""
        with self.lock:
            self._device_budget_bytes = nbytes
            if self._device_store is not None:
                self._device_store.allow(nbytes)

    def device_stats(self) -> dict[str, int]:
        """Return the bytes of offloaded tensors on a device: now, and the most so far."""
        return {} if self._device_store is None else self._device_store.stats()

    def flush(self) -> None:
        """Copy the arrays that are only on the device to the store of the host. Raises SpillError when that refuses."""
        if self._device_store is not None:
            self._device_store.flush()

    @property
    def frame(self) -> Frame:
        """The innermost frame of this thread: it keeps arrays in RAM."""
        return self.thread.frames[-1]

    def enter(self, owner: int, begins_step: bool = False) -> None:
        """Enter a frame, which keeps the arrays used from here on; backward reads again those that operations save."""
        if len(self.thread.frames) == 1:
            if begins_step:
                self.store.begin_step()
                if self._device_store is not None:
                    self._device_store.begin_step()
            hooks.watch(1)
        self.thread.frames.append(Frame(next(self._numbers), owner))

    def leave(self, owner: int) -> None:
        """Leave the frame of `owner`, and release its arrays. Do nothing if `owner` entered none."""
        frames = self.thread.frames
        if frames[-1].owner != owner:
            return
        frames.pop()
        if len(frames) == 1:
            hooks.watch(-1)
        self.thread.last_changed = None
        self.settle()

    def make_room(self, nbytes: int, device: Device) -> None:
        """Release arrays that this thread holds on a device, first used first, until `nbytes` more fit the budget."""
        used = [frame.arrays[device] for frame in self.thread.frames]
        excess = nbytes - self.store_of(device).budget_bytes + sum(array.nbytes for arrays in used for array in arrays)
        for arrays in used:
            while excess > 0 and arrays:
                excess -= arrays.popleft().nbytes

    def settle(self) -> None:
        """Give the store the new values of all changed arrays that nobody uses any more."""
        with self.lock:
            for _ in range(len(self.changing)):
                known = self.changing.popleft()
                storage = known()
                ended = False
                try:
                    ended = storage is None or storage.end_change()
                finally:
                    if not ended:
                        self.changing.append(known)

    def offload(self, tensor: Tensor, label: Label) -> None:
        """Move the memory of a leaf to the store.

        Do nothing for a tensor that is part of its memory, or of a class that derives from tensors.
        """
        kind, storage = KINDS.get(type(tensor)), tensor._storage
        if kind is None or tensor._array is not storage.array:
            return
        if not isinstance(storage, OffloadedStorage):
            self._offload(storage, tensor._array, label)
        vars(tensor).pop("_array")
        tensor.__class__ = kind

    def _offload(self, storage: Storage, array: np.ndarray, label: Label) -> None:
        store = self.store_of(device_of(array))
        array = store.own(array)
        handle = store.put(array, label=label, persistent=True)  # first: it may fail
        storage.__class__ = OffloadedStorage
        cast(OffloadedStorage, storage).place(self, store, handle, array)
