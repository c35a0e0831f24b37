"""Which offloaded tensors are in RAM now, and how long they stay."""

import collections
import itertools
import threading
import weakref
from typing import cast

import numpy as np

from spillgrad.autograd import hooks
from spillgrad.offload.tensors import KINDS, OffloadedStorage
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.store import Label
from spillgrad.tensor import Tensor
from spillgrad_kernels import memory


class _Frame:
    """What a module, or an update, has used so far: it may look at it again. Outside of all, nothing is kept."""

    def __init__(self, number: int | None, owner: int | None = None) -> None:
        self.number = number
        self.owner = owner
        self.arrays: collections.deque[np.ndarray | Tensor] = collections.deque()


class _Thread(threading.local):
    def __init__(self) -> None:
        self.frames = [_Frame(None)]
        self.last_changed: np.ndarray | None = None  # who is about to modify it may not hold it yet


class Residents:
    """What of the offloaded tensors is in RAM, and why."""

    def __init__(self, store: DiskStore) -> None:
        self.store = store
        self.lock = threading.RLock()  # guards which arrays change
        # Weak, as storages hold this object.
        self.changing: collections.deque[weakref.ref[OffloadedStorage]] = collections.deque()
        self.thread = _Thread()
        self._numbers = itertools.count()

    @property
    def frame(self) -> _Frame:
        """What keeps arrays in RAM now."""
        return self.thread.frames[-1]

    def enter(self, owner: int, begins_step: bool = False) -> None:
        """Begin to keep what is used from here on; what operations save of it for backward is read again there."""
        if len(self.thread.frames) == 1:
            if begins_step:
                self.store.begin_step()
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

    def make_room(self, nbytes: int) -> None:
        """Let go of what this thread used first, as far as it and so much more exceed the budget."""
        frames = self.thread.frames
        excess = nbytes - self.store.ram_budget + sum(array.nbytes for frame in frames for array in frame.arrays)
        for frame in frames:
            while excess > 0 and frame.arrays:
                excess -= frame.arrays.popleft().nbytes

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

    def offload(self, tensor: Tensor, label: Label) -> None:
        """Move the memory of a leaf to the store, unless the tensor is only part of it, or of a class of its own."""
        kind, storage = KINDS.get(type(tensor)), tensor._storage
        if kind is None or tensor._array is not storage.array:
            return
        if not isinstance(storage, OffloadedStorage):
            array = tensor._array
            # Memory of another array may live on after this one; and it comes back from the disk in order.
            if isinstance(array.base, np.ndarray) or not array.flags.c_contiguous:
                array = memory.copy(array)
            handle = self.store.put(array, label=label, lasting=True)  # first: it may fail
            storage.__class__ = OffloadedStorage
            cast(OffloadedStorage, storage).place(self, handle, array)
        vars(tensor).pop("_array")
        tensor.__class__ = kind
