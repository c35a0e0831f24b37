"""A store that keeps arrays on a device, within a budget, and all other arrays in a store of the host.

It chooses which arrays stay on the device, and copies arrays back before they are needed, as the host store does
between RAM and disk. Copies run concurrently with kernels, on one stream for each direction.
"""

import collections
import contextlib
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any, cast

import numpy as np

from spillgrad.errors import SpillError
from spillgrad.ops.array_casts import contiguous
from spillgrad.spill.device_transfers import Copies, Source, memory_of
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.residency.budgeted_tier import BudgetedTier
from spillgrad.storage.residency.entry import Entry, Lease
from spillgrad.storage.residency.residence import ABOVE, BELOW
from spillgrad.storage.residency.tier_state import TierState
from spillgrad.storage.store import Handle, Label, changed_error
from spillgrad.storage.tiered_store import TieredStore
from spillgrad_kernels.cuda.array import is_own
from spillgrad_kernels.cuda.driver import driver
from spillgrad_kernels.device_array import empty_on_device
from spillgrad_kernels.memory.holder import Deaths

# Signal handlers run before or after this code: `storage/threads/interrupts.py`.
SIGNALS_WAIT = True

# The most arrays that are copied back ahead of their use at a time: more than a layer of a transformer has.
_AHEAD = 16


class DeviceEntry(Entry):
    """A stored array of a device store."""

    __slots__ = ("below", "is_outdated", "sent", "store", "unchanged_when_sent")

    def __init__(self, array: np.ndarray, sequence: int, label: Label | None) -> None:
        super().__init__(array, sequence, label)
        self.store: DeviceStore
        self.below: Handle | None = None  # the handle of the copy in the host store
        self.is_outdated = False  # whether the copy in the host store has older values
        self.sent: Source | None = None  # the source of the last copy to the host store
        # While that copy runs: a function that tells whether the memory still has the values that were saved.
        self.unchanged_when_sent: Callable[[], bool] | None = None

    @property
    def has_copy_below(self) -> bool:
        return self.below is not None and not self.is_outdated

    @property
    def is_leaving(self) -> bool:
        """Whether the array is still being copied to the host store."""
        return self.sent is not None and self.sent.done is not None and not self.sent.done.query()

    def drop(self) -> None:
        """Release one reference; never blocks."""
        self.store.drop(self)


class _DeviceTier(BudgetedTier[DeviceEntry]):
    """The arrays on a device. `used_bytes` does not count memory that only unfinished copies still hold."""

    def __init__(self, budget_bytes: int) -> None:
        super().__init__("device", budget_bytes, reserves=False)
        self.copied_bytes = self.peak_held_bytes = 0
        self._dead_arrays, self._dead_memory = Deaths(), Deaths()

    @property
    def held_bytes(self) -> int:
        """The device memory that is not free: `used_bytes`, and the bytes that only unfinished copies hold."""
        self.drop_dead()
        self.copied_bytes += sum(self._dead_arrays)
        self.copied_bytes -= sum(self._dead_memory)
        return self.used_bytes + self.copied_bytes

    def reserve(self, nbytes: int, pinned: bool = False, entry: DeviceEntry | None = None) -> None:
        super().reserve(nbytes, pinned, entry)
        self.peak_held_bytes = max(self.peak_held_bytes, self.held_bytes)

    def _lease(self, entry: DeviceEntry, array: np.ndarray) -> Lease:
        self._dead_arrays.expect(array, entry.nbytes)
        self._dead_memory.expect(memory_of(array), entry.nbytes)
        return super()._lease(entry, array)


class _DeviceState(TierState[DeviceEntry]):
    """The state of a device store. It watches arrays for changes while they are being copied to the host."""

    tier: _DeviceTier

    def __init__(self, below: DiskStore, budget_bytes: int) -> None:
        super().__init__(_DeviceTier(budget_bytes), DeviceEntry)
        self.copies = Copies()
        self._below = below
        self._leaving: collections.deque[DeviceEntry] = collections.deque()

    def drain_posts(self) -> None:
        super().drain_posts()
        while self._leaving and not self._leaving[0].is_leaving:
            entry = self._leaving.popleft()
            self._note_if_changed(entry)
            entry.unchanged_when_sent = None

    def _answer(self, posted: DeviceEntry) -> None:
        self.release(posted)

    def live_entry(self, who: str, handle: Handle) -> DeviceEntry:
        entry = self.entries.get(handle.sequence)
        if entry is handle:
            self._note_if_changed(entry)
        return super().live_entry(who, handle)

    def watch_copy(self, entry: DeviceEntry) -> None:
        """Watch an array for changes until its copy to the host is done."""
        entry.unchanged_when_sent = entry.unchanged
        if entry.unchanged is not None:
            self._leaving.append(entry)

    def _note_if_changed(self, entry: DeviceEntry) -> None:
        if entry.unchanged_when_sent is not None and not entry.unchanged_when_sent():
            entry.error = entry.error or changed_error(entry)

    def free_below(self, entry: DeviceEntry) -> None:
        entry.unchanged_when_sent = None
        if entry.below is not None and not entry.is_in_use:
            self._below.drop(entry.below)
            entry.below = None


class DeviceStore(TieredStore[DeviceEntry]):
    """Keeps at most `budget_bytes` of arrays on the device, and all other arrays in the host store `below`.

    An array that a caller asks for is copied to the device even if it exceeds the budget. A persistent array is copied
    to the host as soon as it has new values; any other array, when it must leave the device. The counter `device_bytes`
    counts an array that the store made or took over until the last alias of the array's memory dies. An unfinished copy
    is such an alias.
    """

    _state: _DeviceState

    def __init__(self, below: DiskStore, budget_bytes: int) -> None:
        self._below = below
        self._state = _DeviceState(below, budget_bytes)

    @property
    def drops(self) -> "collections.deque[object]":
        """The queue to which finalizers append handles to drop: that of the host store, whose thread empties it."""
        return self._below.drops

    def put(
        self, array: np.ndarray, *, key: Hashable | None = None, label: Label | None = None,
        unchanged: Callable[[], bool] | None = None, watcher: object | None = None, persistent: bool = False,
    ) -> DeviceEntry:  # fmt: skip
        """Keep a device array; see `Store.put`. Waits until the host has room for arrays that must leave the device."""
        state = self._state
        is_copy = not array.flags.c_contiguous
        if is_copy:  # nothing else can change the copy
            array, unchanged = contiguous(array), None
        with state.lock:
            state.require_open("put")
            state.tier.schedule.pause()
            entry = state.known(key)
            if entry is None:
                entry = state.enter(array, key, label, unchanged, persistent)
                entry.store = self
                if watcher is not None:
                    entry.watcher = weakref.ref(watcher)
                state.tier.keep(entry, array, is_copy=persistent or is_copy)
        del array  # from here on only the tier holds it
        try:
            self._send_what_must_leave(entry)
        except BaseException:
            self.drop(entry)  # the caller gets no handle to drop
            raise
        return entry

    def end_change(self, handle: Handle, changed: bool = True) -> None:
        super().end_change(handle, changed)
        self._send_what_must_leave(cast(DeviceEntry, handle))

    def begin_step(self) -> None:
        """Note that a training step begins; see `Store.begin_step`."""
        with self._state.lock:
            self._state.require_open("begin_step")
            self._state.tier.schedule.begin_step()

    def get(self, handle: Handle) -> np.ndarray:
        array = super().get(handle)
        self._copy_ahead()
        return array

    def use(self, handle: Handle) -> None:
        super().use(handle)
        self._copy_ahead()

    def flush(self) -> None:
        """Copy the arrays that are only on the device to the host store. Raises SpillError if a copy fails."""
        with self._state.lock:
            self._state.require_open("flush")
            alone = list(self._state.tier.dirty)
        for entry in alone:
            if self._begin_send(entry):
                self._send(entry)

    def stats(self) -> dict[str, int]:
        """Return the number of bytes on the device: now, and the most so far."""
        with self._state.lock:
            self._state.drain_posts()
            self._state.copies.let_go()
            tier = self._state.tier
            return {"device_bytes": tier.held_bytes, "peak_device_bytes": tier.peak_held_bytes}

    def own(self, array: np.ndarray) -> np.ndarray:
        return array if is_own(array) and array.flags.c_contiguous else array.copy()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        return empty_on_device(shape, dtype)

    def relabel(self, handle: Handle, label: Label) -> None:
        """Replace the label of a stored array. Raises SpillError if the handle was dropped."""
        with self._state.lock:
            entry = self._state.live_entry("relabel", handle)
            entry.label = label
        if entry.below is not None:
            self._below.relabel(entry.below, label)

    # To the host

    def _send_what_must_leave(self, entry: DeviceEntry) -> None:
        """Copy `entry`, which was put or changed, to the host if it is persistent; then arrays beyond the budget."""
        following = entry if entry.persistent and self._begin_send(entry) else self._next_to_send()
        while following is not None:
            self._send(following)
            following = self._next_to_send()

    def _next_to_send(self) -> DeviceEntry | None:
        """If an array must leave the device, begin to write the array that is needed last, and return its entry."""
        state, tier = self._state, self._state.tier
        with state.lock:
            state.drain_posts()
            entry = None if self._make_room(0) else tier.dirty.first_to_spill()
            if entry is not None:
                self._begin_write(entry)
        return entry

    def _begin_send(self, entry: DeviceEntry) -> bool:
        with self._state.lock:
            if entry.residence is not ABOVE:
                return False
            self._begin_write(entry)
        return True

    def _begin_write(self, entry: DeviceEntry) -> None:
        self._state.tier.begin_write(entry)
        entry.moving_thread = threading.get_ident()

    def _send(self, entry: DeviceEntry) -> None:
        """Copy an array to the host store; this may wait for the disk. Raises the errors of the host store."""
        state, tier = self._state, self._state.tier
        source, below = Source(cast(np.ndarray, entry.array), state.copies.out), entry.below
        taken = False
        try:
            if below is None:
                below = self._below.put(source, label=entry.label, persistent=entry.persistent)
                below.views = entry.views
            else:
                self._below.replace(below, source)
            taken = True
        finally:
            with state.lock:
                if taken:
                    entry.below, entry.sent, entry.is_outdated = below, source, False
                    state.watch_copy(entry)
                if entry.references <= 0 or entry.error is not None:
                    tier.abandon_write(entry)
                elif taken:
                    tier.end_write(entry)
                else:
                    tier.fail_write(entry)
                if entry.references <= 0:
                    state.free_below(entry)
                state.changed.notify_all()
                self._make_room(0)

    def _make_room(self, nbytes: int) -> bool:
        """Until `nbytes` more fit, evict arrays that the host store has too; return whether `nbytes` fit.

        If memory that only unfinished copies hold is in the way, wait for copies. Called with the lock held.
        """
        tier, copies = self._state.tier, self._state.copies
        copies.let_go()
        fits = tier.make_room(nbytes)
        most_bytes = max(tier.budget_bytes - nbytes, tier.used_bytes)
        while nbytes and tier.held_bytes > most_bytes and copies.wait_for_oldest():
            tier.drop_dead()
        return fits

    # The store of the host as the tier below

    def _wait_for_room(
        self, nbytes: int, label: Label, dtype: np.dtype[Any] | None, raises: bool = True
    ) -> bool:  # fmt: skip
        return self._make_room(nbytes)

    def _begin_load(self, entry: DeviceEntry, pinned: bool = True) -> None:
        tier = self._state.tier
        if pinned:
            self._make_room(entry.nbytes)  # before the entry changes: the device may fail
        tier.begin_load(entry, pinned)
        entry.moving_thread = threading.get_ident()
        tier.reserve(entry.nbytes, pinned)

    def _load(self, entry: DeviceEntry, handed_out: bool = True) -> np.ndarray:
        """Begin to copy an array back to the device, and return the device array. `_begin_load` must come first.

        Raises the errors of the host store and of the device.
        """
        state, array = self._state, None
        try:
            array, ready = state.copies.back(self._below.get(cast(Handle, entry.below)))
            entry.arrival = lambda: ready.wait(driver.compute())
        finally:
            with state.lock:
                state.tier.end_load(entry, array, handed_out)
                if entry.references <= 0:
                    state.free_below(entry)
                state.changed.notify_all()
        return array

    def _note_use(self, entry: DeviceEntry, is_here: bool) -> None:
        if not entry.persistent and entry.unchanged_when_sent is None:  # a change by the caller would go unnoticed
            self._begin_change(entry)

    def _begin_change(self, entry: DeviceEntry) -> None:
        if entry.sent is not None and entry.sent.done is not None:  # the copy to the host may still run
            entry.sent.done.wait(driver.compute())

    def _end_change(self, entry: DeviceEntry, changed: bool) -> None:
        if changed:
            entry.is_outdated = True
            self._state.tier.unwatch(entry)
        self._state.tier.end_change(entry)
        self._make_room(0)

    def _copy_ahead(self) -> None:
        """Begin to copy back the arrays that will be used next; if an array is on disk, only prefetch it to RAM."""
        wanted: list[Handle] = []
        self._state.copies.let_go()
        rank = self._state.tier.schedule.cursor
        with contextlib.suppress(SpillError, MemoryError):  # the use of the array tries again, and raises the error
            for _ in range(_AHEAD):
                entry, below = (None, None) if rank is None else self._next_to_load(rank)
                if entry is None or below is None:
                    break
                rank = entry.rank
                if not self._below.is_here(below):
                    wanted.append(below)
                elif not self._begin_load_ahead(entry):
                    break
                else:
                    self._load(entry, handed_out=False)
            if wanted:
                self._below.prefetch(wanted)

    def _next_to_load(self, rank: int) -> tuple[DeviceEntry | None, Handle | None]:
        """Return the entry of highest rank below `rank` that only the host has, and its handle in the host store.

        Return (None, None) if there is no such entry, or if it is not needed soon.
        """
        tier = self._state.tier
        with self._state.lock:
            entry = tier.absent.below(rank)
            return (entry, entry.below) if entry is not None and tier.schedule.is_near(entry) else (None, None)

    def _begin_load_ahead(self, entry: DeviceEntry) -> bool:
        """Begin to load an array if it fits beside the arrays that are needed sooner; return whether loading began."""
        tier = self._state.tier
        with self._state.lock:
            if entry.residence is not BELOW or entry.is_leaving:  # the load would wait until the copy to the host ends
                return False
            if not tier.make_room(entry.nbytes, for_rank=entry.rank):
                return False
            if tier.held_bytes + entry.nbytes > tier.budget_bytes:
                return False
            self._begin_load(entry, pinned=False)
            return True
