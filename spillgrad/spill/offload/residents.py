"""Which offloaded tensors are in RAM now, and how long they stay."""

import collections
import contextlib
import itertools
import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import numpy as np

from spillgrad.autograd import hooks
from spillgrad.device import CPU, Device, device_of
from spillgrad.spill.offload.tensors import KINDS, OffloadedStorage
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.store import Label
from spillgrad.tensor import Storage, Tensor
from spillgrad_kernels import memory
from spillgrad_kernels.device_array import is_on_device

if TYPE_CHECKING:
    from spillgrad.spill.offload.on_device import OnDevice

# Signal handlers run before or after what is done here: `storage/interrupts.py`.
SIGNALS_WAIT = True


class _Frame:
    """What a module, or an update, has used so far: it may look at it again. Outside of all, nothing is kept."""

    def __init__(self, number: int | None, owner: int | None = None) -> None:
        self.number = number
        self.owner = owner
        self.arrays: dict[Device, collections.deque[np.ndarray | Tensor]] = collections.defaultdict(collections.deque)

    def hold(self, used: np.ndarray | Tensor) -> None:
        """Keep an array, or what was made of one."""
        self.arrays[used.device if isinstance(used, Tensor) else device_of(used)].append(used)


class _Thread(threading.local):
    def __init__(self) -> None:
        self.frames = [_Frame(None)]
        self.last_changed: np.ndarray | None = None  # who is about to modify it may not hold it yet


class Residents:
    """What of the offloaded tensors is in RAM, and why."""

    def __init__(self, store: DiskStore) -> None:
        self.store = store
        self._device_budget_bytes = 0
        self._on_device: OnDevice | None = None
        self.lock = threading.RLock()  # guards which arrays change
        # Weak, as storages hold this object.
        self.changing: collections.deque[weakref.ref[OffloadedStorage]] = collections.deque()
        self.thread = _Thread()
        self._numbers = itertools.count()

    @property
    def on_device(self) -> "OnDevice":
        """What of them is on a device."""
        if self._on_device is None:
            from spillgrad.spill.offload.on_device import OnDevice  # with the driver, which others do without

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
        """Return the bytes of them on a device, now and at most."""
        with self.lock:
            return {} if self._on_device is None else self._on_device.stats()

    @property
    def frame(self) -> _Frame:
        """What keeps arrays in RAM now."""
        return self.thread.frames[-1]

    def enter(self, owner: int, begins_step: bool = False) -> None:
        """Begin to keep what is used from here on; what operations save of it for backward is read again there."""
        if len(self.thread.frames) == 1:
            if begins_step:
                self.store.begin_step()
                if self._on_device is not None:
                    with self.lock:
                        self._on_device.begin_step()
            hooks.watch(1)
        self.thread.frames.append(_Frame(next(self._numbers), owner))

    def leave(self, owner: int) -> None:
        """Let go of what was used since `owner` entered; if it never came to that, do nothing."""
        frames = self.thread.frames
        if frames[-1].owner != owner:
            return
        frames.pop()
        if len(frames) == 1:
            hooks.watch(-1)
        self.thread.last_changed = None
        self.settle()

    def make_room(self, nbytes: int, device: Device) -> None:
        """Let go of what this thread used first on a device, as far as it and so much more exceed the budget."""
        used = [frame.arrays[device] for frame in self.thread.frames]
        budget = self.store.ram_budget if device is CPU else self.on_device.budget_bytes
        excess = nbytes - budget + sum(array.nbytes for arrays in used for array in arrays)
        for arrays in used:
            while excess > 0 and arrays:
                excess -= arrays.popleft().nbytes

    @contextlib.contextmanager
    def room(self, nbytes: int, device: Device) -> Iterator[None]:
        """Have room for so many bytes that the caller makes inside."""
        if device is CPU:
            with self.store.room(nbytes):
                yield
        else:
            with self.lock:
                self.on_device.make_room(nbytes)
            yield

    def settle(self) -> None:
        """Give what nobody modifies any more to the store."""
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
        """Move the memory of a leaf to the store, unless the tensor is only part of it, or of a class of its own."""
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
        # Memory of another array may live on after this one; and it comes back from the disk in order.
        if isinstance(array.base, np.ndarray) or not array.flags.c_contiguous:
            array = memory.copy(array)
        handle = self.store.put(array, label=label, lasting=True)  # first: it may fail
        storage.__class__ = OffloadedStorage
        cast(OffloadedStorage, storage).place(self, handle, array)
