"""Arrays in a store that are in RAM, or on a device, while they are used. `Residents` decides how long.

Nothing here knows a tensor: spillgrad's own offloaded tensors (`tensors.py`), PyTorch's and Paddle's
(`spillgrad.interop`) are made of these.
"""

import collections
import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any, Protocol, cast

import numpy as np
import xxhash

from spillgrad.fork_safe_lock import ForkSafeLock
from spillgrad.spill.offload.store_over import store_in_ram
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.store import Handle, Label
from spillgrad_kernels.memory.holder import finalizer, later

# Signal handlers run before or after this code: `storage/threads/interrupts.py`.
SIGNALS_WAIT = True


class Held(Protocol):
    """What a frame keeps: an array, or a tensor that was made from one."""

    @property
    def nbytes(self) -> int: ...


class Frame:
    """Keeps the arrays that a running module or update has used, and may use again, by their stores.

    In the frame outside of all modules and updates, `number` is None; that frame keeps no arrays.
    """

    def __init__(self, number: int | None, owner: int | None = None) -> None:
        self.number = number
        self.owner = owner
        self.held: dict[Any, collections.deque[Held]] = collections.defaultdict(collections.deque)


class ThreadFrames(threading.local):
    """The stack of frames that this thread has entered, the innermost last."""

    def __init__(self) -> None:
        self.frames = [Frame(None)]
        # The array that a caller is about to change; the caller may not have a reference to it yet.
        self.last_changed: np.ndarray | None = None


class Residents:
    """Decides which arrays of a store stay in RAM: those that the running modules and updates have used."""

    def __init__(self, store: DiskStore) -> None:
        self.store = store
        # Guards the list of changing arrays.
        self.lock = ForkSafeLock()
        # Weak references, because residents hold this object.
        self.changing: collections.deque[weakref.ref[Resident]] = collections.deque()
        self.thread = ThreadFrames()
        self._numbers = itertools.count()

    @property
    def frame(self) -> Frame:
        """The innermost frame of this thread, which keeps the arrays that are used now."""
        return self.thread.frames[-1]

    def enter(self, owner: int, begins_step: bool = False) -> None:
        """Enter a new frame of `owner`, the id of a module or parameter; the frame keeps the arrays used until `leave`.

        With `begins_step`, a training step begins, unless this thread is in a frame already.
        """
        if len(self.thread.frames) == 1:
            self.begin(begins_step)
        self.thread.frames.append(Frame(next(self._numbers), owner))

    def leave(self, owner: int) -> None:
        """Leave the innermost frame, and release its arrays. Do nothing if that frame is not of `owner`."""
        frames = self.thread.frames
        if frames[-1].owner != owner:
            return
        frames.pop()
        if len(frames) == 1:
            self.end()
        self.return_changed(with_last=True)

    def begin(self, begins_step: bool) -> None:
        """Prepare for this thread's first frame; with `begins_step`, begin a training step."""
        if begins_step:
            self.store.begin_step()

    def end(self) -> None:
        """Clean up after this thread has left its last frame."""

    def flush(self) -> None:
        """Give the store the new values of all changed arrays that nothing else refers to."""
        self.return_changed(with_last=True)

    def make_room(self, nbytes: int, store: Any) -> None:
        """Release arrays that this thread's frames keep in the RAM, or device, of `store`, until `nbytes` more fit.

        Those that were used first go first.
        """
        place = store_in_ram(store)
        frames = self.thread.frames
        used = [held for frame in frames for each, held in frame.held.items() if store_in_ram(each) is place]
        excess = nbytes - store.budget_bytes + sum(array.nbytes for arrays in used for array in arrays)
        for arrays in used:
            while excess > 0 and arrays:
                excess -= arrays.popleft().nbytes

    def return_changed(self, with_last: bool = False) -> None:
        """Give the store the new values of all changed arrays that nothing else refers to.

        `with_last` says that this thread is done with the change that it began last.
        """
        if with_last:
            self.thread.last_changed = None
        with self.lock:
            for _ in range(len(self.changing)):
                if not self.changing:  # the end of a change may call this
                    break
                known = self.changing.popleft()
                resident = known()
                ended = False
                try:
                    ended = resident is None or resident.end_change()
                finally:
                    if not ended:
                        self.changing.append(known)


class Resident:
    """An array in a store. `array` loads it to RAM or a device, where it stays while anything refers to that array.

    After an in-place change the array stays there until nothing else refers to it. Then the store gets its new values.
    """

    __del__ = finalizer

    def place(self, residents: Residents, store: Any, handle: Handle, array: np.ndarray) -> None:
        """Become the resident of the array that `handle` names in `store`, the store of `residents` or of a device."""
        self._residents, self._store, self._handle = residents, store, handle
        self._drop = later(store.drops.append, handle)
        self._shape, self._dtype = array.shape, array.dtype
        self._alive: weakref.ref[np.ndarray] = weakref.ref(array)
        self._changing = False
        self._mark: Hashable = None  # what `mark` returned when the array was lent to a caller
        self._used_in: int | None = -1

    @property
    def label(self) -> Label:
        """Where the array comes from."""
        return self._handle.label

    def relabel(self, label: Label) -> None:
        """Give the array another label."""
        self._store.relabel(self._handle, label)

    @property
    def array(self) -> np.ndarray:
        """The dense memory, read if needed; the same array as long as anything refers to it."""
        array = self._alive()
        frame = self._residents.frame
        if array is not None and frame.number is not None and self._used_in == frame.number:
            return array
        if frame.number is not None:
            self._residents.make_room(self._handle.nbytes, self._store)
        with self._residents.lock:
            array = self._alive()
            if array is None:
                array = cast(np.ndarray, self._store.get(self._handle))
                self._alive = weakref.ref(array)
            elif not self._changing:
                self._store.use(self._handle)
        if frame.number is not None:
            self._used_in = frame.number
            self.hold(array)
        return array

    def hold(self, used: Held) -> None:
        """Let the frame of the running module or update keep `used`: the array, or a tensor that was made from it."""
        frame = self._residents.frame
        if frame.number is not None:
            frame.held[self._store].append(used)

    def array_to_overwrite(self) -> np.ndarray:
        """Return the array if it is in memory, else a new one without the old values, for the caller to overwrite.

        A new array becomes the resident's memory when a change begins.
        """
        with self._residents.lock:
            array = self._alive()
            if array is None:
                self._residents.return_changed()
                array = cast(np.ndarray, self._store.empty(self._shape, self._dtype))
                self._alive = weakref.ref(array)
        return array

    def begin_change(self) -> None:
        """Prepare for a change of the array, which stays in memory until `end_change`."""
        self._begin_change()
        self._mark = None

    def lend(self) -> None:
        """Prepare to hand out the array to a caller, who may change it as long as the caller refers to it."""
        with self._residents.lock:
            was_changing = self._changing
            self._begin_change()
            if not was_changing:
                self._mark = self.mark()

    def _begin_change(self) -> None:
        residents = self._residents
        with residents.lock:
            if not self._changing:  # to make room, return the arrays that were changed before
                residents.return_changed(with_last=True)
            array = residents.thread.last_changed = self.array
            if not self._changing:
                self._store.begin_change(self._handle, array)
                self._changing = True
                residents.changing.append(weakref.ref(self))

    def end_change(self) -> bool:
        """Give the new values to the store, and return True; if anything still refers to the array, return False.

        Called with the lock of `Residents` held.
        """
        if is_held(self._alive):
            return False
        is_changed = self._mark is None or self._mark != self.mark()
        # Before the call, because the store may take the values and then raise: a next change must begin anew.
        self._changing, self._mark = False, None
        self._store.end_change(self._handle, is_changed)
        return True

    def mark(self) -> Hashable:
        """Return a value that differs after a change of the array: a digest; None if it is to count as changed."""
        array = cast(np.ndarray, self._alive())
        return xxhash.xxh3_128_digest(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def is_held(alive: Callable[[], np.ndarray | None]) -> bool:
    """Return whether anything but the store refers to the array of the weak reference `alive`."""
    return _holders(alive) > _KEPT_ONLY


def _holders(alive: Callable[[], np.ndarray | None]) -> int:
    array = alive()
    return 0 if array is None else sys.getrefcount(array)


def _holders_of_a_kept_array() -> int:
    kept = [np.empty(0)]
    return _holders(weakref.ref(kept[0]))


# The reference count of an array that only its store refers to.
_KEPT_ONLY = _holders_of_a_kept_array()
