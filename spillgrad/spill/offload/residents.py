"""The offloaded tensors that are in RAM now, and how long they stay there."""

import collections
import contextlib
import itertools
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from spillgrad.autograd.core import hooks
from spillgrad.device.device import CPU, Device
from spillgrad.fork_safe_lock import ForkSafeLock
from spillgrad.spill.offload.frames import Frame, ThreadFrames
from spillgrad.spill.offload.tensors import KINDS, Keeper, OffloadedStorage
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.store import Label
from spillgrad.tensor import Tensor
from spillgrad.tensor_data import Storage
from spillgrad_kernels.device_array import is_on_device
from spillgrad_kernels.memory import buffers

if TYPE_CHECKING:
    from spillgrad.spill.offload.on_device import OnDevice

# Signal handlers run before or after this code: `storage/threads/interrupts.py`.
SIGNALS_WAIT = True


class Residents(Keeper):
    """Decides which offloaded tensors are in RAM."""

    def __init__(self, store: DiskStore) -> None:
        self.store = store
        self._device_budget_bytes = 0
        self._on_device: OnDevice | None = None
        # Guards which arrays change.
        self.lock: contextlib.AbstractContextManager[Any] = ForkSafeLock()
        # Weak, as storages hold this object.
        self.changing: collections.deque[weakref.ref[OffloadedStorage]] = collections.deque()
        self.thread = ThreadFrames()
        self._numbers = itertools.count()

    @property
    def on_device(self) -> "OnDevice":
        """The offloaded tensors on a device."""
        if self._on_device is None:
            from spillgrad.spill.offload.on_device import OnDevice  # it needs a driver

            with self.lock:
                if self._on_device is None:
                    self._on_device = OnDevice(self.store, self._device_budget_bytes)
        return self._on_device

    def allow_on_device(self, nbytes: int) -> None:
        """Let so many bytes stay on a device; before, none do."""
        with self.lock:
            self._device_budget_bytes = nbytes
            if self._on_device is not None:
                self._on_device.budget_bytes = nbytes

    def device_stats(self) -> dict[str, int]:
        """Return the bytes of offloaded tensors on a device: now, and the most so far."""
        with self.lock:
            return {} if self._on_device is None else self._on_device.stats()

    @property
    def frame(self) -> Frame:
        """The innermost frame of this thread: it keeps arrays in RAM."""
        return self.thread.frames[-1]

    def enter(self, owner: int, begins_step: bool = False) -> None:
        """Enter a frame, which keeps the arrays used from here on; backward reads those again that operations save."""
        if len(self.thread.frames) == 1:
            if begins_step:
                self.store.begin_step()
                if self._on_device is not None:
                    with self.lock:
                        self._on_device.begin_step()
            hooks.watch(1)
        self.thread.frames.append(Frame(next(self._numbers), owner))

    def leave(self, owner: int) -> None:
        """Leave the frame of `owner`, and let go of its arrays. Do nothing when `owner` did not enter one."""
        frames = self.thread.frames
        if frames[-1].owner != owner:
            return
        frames.pop()
        if len(frames) == 1:
            hooks.watch(-1)
        self.thread.last_changed = None
        self.settle()

    def make_room(self, nbytes: int, device: Device) -> None:
        """Let go of the arrays that this thread used first on a device, until `nbytes` more fit the budget."""
        used = [frame.arrays[device] for frame in self.thread.frames]
        budget = self.store.ram_budget if device is CPU else self.on_device.budget_bytes
        excess = nbytes - budget + sum(array.nbytes for arrays in used for array in arrays)
        for arrays in used:
            while excess > 0 and arrays:
                excess -= arrays.popleft().nbytes

    @contextlib.contextmanager
    def room(self, nbytes: int, device: Device) -> Iterator[None]:
        """Reserve room for `nbytes` that the caller allocates inside."""
        if device is CPU:
            with self.store.room(nbytes):
                yield
        else:
            with self.lock:
                self.on_device.make_room(nbytes)
            yield

    def settle(self) -> None:
        """Give the store the new values of all arrays that nobody uses any more after a change."""
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
            if self._on_device is not None:
                self._on_device.make_room(0, waits=False)

    def offload(self, tensor: Tensor, label: Label) -> None:
        """Move the memory of a leaf to the store.

        Do nothing for a tensor that is part of its memory, or of a class that derives from tensors.
        """
        kind, storage = KINDS.get(type(tensor)), tensor._storage
        if kind is None or tensor._array is not storage.array:
            return
        if not isinstance(storage, OffloadedStorage):
            if is_on_device(tensor._array):
                self.on_device.offload(self, storage, tensor._array, label)
            else:
                self._offload(storage, tensor._array, label)
        vars(tensor).pop("_array")
        tensor.__class__ = kind

    def _offload(self, storage: Storage, array: np.ndarray, label: Label) -> None:
        # The memory of a view would outlive this array; and arrays come back from the disk C-contiguous.
        if isinstance(array.base, np.ndarray) or not array.flags.c_contiguous:
            array = buffers.copy(array)
        handle = self.store.put(array, label=label, persistent=True)  # first: it may fail
        storage.__class__ = OffloadedStorage
        cast(OffloadedStorage, storage).place(self, handle, array)
