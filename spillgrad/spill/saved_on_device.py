"""Saved tensors of a device: the newest stay there, the others are copied to a store, and back before they are needed.

Backward needs first what was saved last. So the oldest tensors leave the device, and once backward asks for one of
them, a thread brings the next ones back. Copies run beside kernels, on a stream for each direction.
"""

import bisect
import collections
import contextlib
import queue
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import cast

import numpy as np

from spillgrad.errors import SpillError
from spillgrad.ops.array_casts import contiguous
from spillgrad.spill.device_transfers import Copies, Source
from spillgrad.spill.saved_memory import SavedMemory, note_view
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.store import Handle, Label, View, changed_error, nobody
from spillgrad.storage.threads.store_lock import StoreLock, interrupted_error
from spillgrad.tensor_data import Storage
from spillgrad_kernels.cuda.driver import driver

# Signal handlers run before or after this code: `storage/threads/interrupts.py`.
SIGNALS_WAIT = True


class _Move(threading.Event):
    """An event that is set when the thread that sends or loads an array has finished."""

    def __init__(self, thread: int) -> None:
        super().__init__()
        self._thread = thread

    def await_end(self) -> None:
        """Wait for the thread. Raises SpillError if it is this one: a finalizer or signal handler interrupted it."""
        if self._thread == threading.get_ident():
            raise interrupted_error()
        self.wait()


class Stored:
    """The memory of a storage as it was when it was saved: on the device, in the store, or both.

    It is freed after one `drop` for each `put` that returned it.
    """

    __slots__ = (
        "__weakref__", "array", "cache", "copy", "dtype", "error", "handle", "key", "label", "moving", "nbytes",
        "ready", "sequence", "shape", "storage", "users", "version", "views", "watcher",
    )  # fmt: skip

    def __init__(self, cache: "DeviceCache", array: np.ndarray, key: Hashable, label: Label, sequence: int) -> None:
        self.cache, self.key, self.label, self.sequence = cache, key, label, sequence
        self.shape, self.dtype, self.nbytes = array.shape, array.dtype, array.nbytes
        self.array: np.ndarray | None = array
        self.handle: Handle | None = None  # of the copy in the store
        self.views: list[View] = []
        self.users = 1
        # While the memory is the caller's: the storage that counts its changes, and how many there were.
        self.storage: Storage | None = None
        self.version = 0
        self.error: SpillError | None = None  # why its values are lost
        self.moving: _Move | None = None  # while it is sent or loaded
        self.ready: driver.Event | None = None  # when the copy back is done
        self.copy: Storage | None = None  # over the array that was copied back: it counts changes of that
        self.watcher: Callable[[], Storage | None] = (
            nobody  # the storage that counts changes of the memory, while it lives
        )

    def __repr__(self) -> str:
        return f"<Stored {self.sequence}: {self.label}, {self.dtype.name} {self.shape}>"

    def memory(self) -> np.ndarray:
        """Return the memory on the device. Raises SpillError when it was changed before it was copied."""
        return self.cache.get(self)

    def drop(self) -> None:
        """Release one reference; never blocks."""
        self.cache.drop(self)


class DeviceCache:
    """Keeps at most `budget_bytes` of saved memory on the device, and the rest in `store`.

    What backward uses at the moment comes on top. The lock guards all fields. Calls to the store, which may wait for
    the disk, are made without the lock. `drop` must not wait for the lock, so what it drops waits in `_dropped`.
    """

    def __init__(self, store: DiskStore, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.resident_bytes = self.peak_resident_bytes = 0
        self._store = store
        self._lock = StoreLock()
        self._by_key: dict[Hashable, Stored] = {}
        self._resident: list[Stored] = []  # on the device, the oldest first
        self._away: list[Stored] = []  # in the store only, the oldest first
        self._leaving: collections.deque[tuple[Stored, driver.Event]] = collections.deque()
        self._dropped: collections.deque[Stored] = collections.deque()
        self._sequence = 0
        self._copies = Copies()

    # Forward

    def put(self, memory: SavedMemory, label: Label) -> Stored:
        """Keep memory of a device; return what stands for it: for a key that is kept already, the same again.

        Waits while the store has no room for the oldest arrays.
        """
        array = contiguous(cast(np.ndarray, memory.array))
        with self._lock:
            self._tidy()
            stored = self._by_key.get(memory.key)
            if stored is not None:
                stored.users += 1
            else:
                stored = self._by_key[memory.key] = Stored(self, array, memory.key, label, self._sequence)
                self._sequence += 1
                if memory.watcher is not None:  # else nobody else has the array
                    stored.storage, stored.version = memory.watcher, memory.watcher.version
                    stored.watcher = weakref.ref(memory.watcher)
                self._stay(stored)
            note_view(stored.views, memory.layout, label.op, label.slot)
        try:
            while (oldest := self._to_leave()) is not None:
                self._send(oldest)
        except BaseException:  # the caller gets nothing to drop
            self._dropped.append(stored)
            raise
        return stored

    def _to_leave(self) -> Stored | None:
        """Return the oldest array on the device if the budget is exceeded. The caller must send it."""
        with self._lock:
            if self.resident_bytes <= self.budget_bytes:
                return None
            return self._claimed(next((one for one in self._resident if one.moving is None), None))

    def _claimed(self, stored: Stored | None) -> Stored | None:
        if stored is not None:
            stored.moving = _Move(threading.get_ident())
        return stored

    def _send(self, stored: Stored, leaves: bool = True) -> None:
        """Copy an array on the device to the store, which may wait for the disk. Then it leaves the device.

        Raises what the store raises; the array stays.
        """
        handle, source = stored.handle, None
        try:
            array = stored.array
            if handle is None and array is not None and stored.error is None:
                source = Source(array, self._copies.out)
                handle = self._store.put(source, label=stored.label)
                handle.views.extend(stored.views)
        finally:
            with self._lock:
                if stored.handle is None and handle is not None:
                    stored.handle = handle
                    self._leaving.append((stored, cast(driver.Event, cast(Source, source).done)))
                    if not stored.users:
                        self._store.drop(handle)
                if leaves and (handle is not None or stored.error is not None):
                    self._leave(stored)
                moving, stored.moving = stored.moving, None
                assert moving is not None
                moving.set()

    # Backward

    def get(self, stored: Stored) -> np.ndarray:
        """Return an array on the device, copied back if need be, and begin to copy the next ones back.

        Raises SpillError when it was changed before it was copied, and the errors of the store and the device.
        """
        array = None
        while array is None:
            with self._lock:
                self._tidy()
                if self._is_changed(stored) or stored.error is not None:
                    raise stored.error or changed_error(stored)
                array, ready, moving = stored.array, stored.ready, stored.moving
                if array is None and moving is None:
                    self._begin_load(stored, threading.get_ident())
            if array is None and moving is None:
                self._load(stored)
            elif array is None and moving is not None:  # another thread moves it; if that fails, this one tries
                moving.await_end()
        if ready is not None:
            ready.wait(driver.compute())
        self._make_room_behind(stored)
        self._fetch_next(stored)
        return array

    def watch(self, stored: Stored, copy: Storage, instead_of: Storage | None) -> Storage:
        """Let a storage over the array that was copied back count its changes; return the storage that does.

        That is another one if another thread was quicker, as in `DiskStore.watch`.
        """
        with self._lock:
            present = stored.watcher()
            if present is None or present is instead_of:
                stored.watcher, present = weakref.ref(copy), copy
                if stored.array is copy.array:
                    stored.copy = copy
            return present

    def _make_room_behind(self, stored: Stored) -> None:
        """Let go of arrays that backward used before. If the graph is kept, they are needed last."""
        with self._lock:
            place = len(self._resident)
            while place > 0 and self.resident_bytes > self.budget_bytes:
                place -= 1
                used = self._resident[place]
                if used.sequence <= stored.sequence:
                    return
                if used.handle is not None and used.moving is None:
                    self._leave(used)

    def _begin_load(self, stored: Stored, thread: int) -> None:
        stored.moving = _Move(thread)
        _discard(self._away, stored)
        self._count(stored.nbytes)

    def _load(self, stored: Stored) -> None:
        """Begin to copy an array back. Raises the errors of the store and the device."""
        array = None
        try:
            assert stored.handle is not None
            array, stored.ready = self._copies.back(self._store.get(stored.handle))
        finally:
            with self._lock:
                self.resident_bytes -= stored.nbytes
                if stored.users and array is not None:
                    stored.array = array
                    self._stay(stored)
                elif stored.users:
                    bisect.insort(self._away, stored, key=_sequence)
                moving, stored.moving = stored.moving, None
                assert moving is not None
                moving.set()

    def _fetch_next(self, stored: Stored) -> None:
        """Let a thread copy back the arrays that backward needs after this one, as far as there is room."""
        if not self._away:
            return
        loader = _loader.thread()  # first: the system may give no thread
        with self._lock:
            place = bisect.bisect_left(self._away, stored.sequence, key=_sequence)
            while place > 0:
                place -= 1
                following = self._away[place]
                if self.resident_bytes + following.nbytes > self.budget_bytes:
                    break
                self._begin_load(following, loader)
                _loader.submit(following)

    # What both do, with the lock held

    def _count(self, nbytes: int) -> None:
        self.resident_bytes += nbytes
        self.peak_resident_bytes = max(self.peak_resident_bytes, self.resident_bytes)

    def _stay(self, stored: Stored) -> None:
        self._count(stored.nbytes)
        bisect.insort(self._resident, stored, key=_sequence)

    def _leave(self, stored: Stored) -> None:
        """Remove an array from the device. If the store has it, it counts as away."""
        if _discard(self._resident, stored):
            self.resident_bytes -= stored.nbytes
        stored.array = stored.ready = stored.copy = None
        if stored.users and stored.handle is not None:
            bisect.insort(self._away, stored, key=_sequence)

    def _is_changed(self, stored: Stored) -> bool:
        """Return whether the memory was changed before the store had it. Its values are lost then."""
        if stored.storage is None or stored.storage.version == stored.version:
            return False
        stored.error = changed_error(stored)
        stored.storage = None
        return True

    def _tidy(self) -> None:
        """Let go of memory whose copy is done, and free what was dropped."""
        while self._leaving and self._leaving[0][1].query():
            stored, _ = self._leaving.popleft()
            self._is_changed(stored)
            stored.storage = None
        while self._dropped:
            stored = self._dropped.popleft()
            stored.users -= 1
            if stored.users:
                continue
            if self._by_key.get(stored.key) is stored:
                del self._by_key[stored.key]
            self._leave(stored)
            stored.storage = None
            _discard(self._away, stored)
            if stored.handle is not None:
                self._store.drop(stored.handle)

    def drop(self, stored: Stored) -> None:
        """Release one reference without waiting. The thread that has the lock, or takes it next, frees the memory."""
        self._dropped.append(stored)
        if not self._lock.is_mine() and self._lock.acquire(blocking=False):
            try:
                self._tidy()
            finally:
                self._lock.release()

    def flush(self) -> None:
        """Copy to the store the arrays that are only on the device."""
        with self._lock:
            self._tidy()
            alone = [one for one in self._resident if one.handle is None]
        for stored in alone:
            with self._lock:  # one at a time: the store may refuse
                if stored.array is None or stored.handle is not None or stored.moving is not None:
                    continue
                self._claimed(stored)
            self._send(stored, leaves=False)


def _sequence(stored: Stored) -> int:
    return stored.sequence


def _discard(ordered: list[Stored], stored: Stored) -> bool:
    """Remove one from a list in order; return whether it was there."""
    place = bisect.bisect_left(ordered, stored.sequence, key=_sequence)
    if place < len(ordered) and ordered[place] is stored:
        del ordered[place]
        return True
    return False


class _Loader:
    """A thread that begins to copy arrays back; it starts when it is first needed."""

    def __init__(self) -> None:
        self._wanted: queue.SimpleQueue[Stored] = queue.SimpleQueue()
        self._starting = StoreLock()
        self._thread: int | None = None

    def thread(self) -> int:
        """Return the number of the thread. Raises RuntimeError when the system gives none."""
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name="spillgrad-io-device", daemon=True)
                    thread.start()
                    self._thread = thread.ident
        return cast(int, self._thread)

    def submit(self, stored: Stored) -> None:
        """Load an array after those asked for before; the thread was started."""
        self._wanted.put(stored)

    def _run(self) -> None:
        while True:
            stored = self._wanted.get()
            with contextlib.suppress(Exception):  # `get` loads the array again, and raises the error
                stored.cache._load(stored)
            del stored  # while it waits it keeps no array alive


_loader = _Loader()
