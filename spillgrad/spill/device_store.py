"""A store that keeps arrays on a device, within a budget, and the others in a store of the host.

It chooses which arrays stay on the device, and which come back before they are needed, as the store of the host does
between RAM and disk. Copies run beside kernels, on a stream for each direction.
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

# The number of arrays that are copied ahead of their use: more than a layer of a transformer has.
_AHEAD = 16


class DeviceEntry(Entry):
    """A stored array of a device store."""

    __slots__ = ("below", "is_outdated", "sent", "store", "unchanged_when_sent")

    def __init__(self, array: np.ndarray, sequence: int, label: Label | None) -> None:
        super().__init__(array, sequence, label)
        self.store: DeviceStore
        self.below: Handle | None = None  # of the copy in the store of the host
        self.is_outdated = False  # that copy has former values
        self.sent: Source | None = None  # what the store of the host took last
        # While that is being copied: whether the memory is as it was when it was saved.
        self.unchanged_when_sent: Callable[[], bool] | None = None

    @property
    def has_copy_below(self) -> bool:
        return self.below is not None and not self.is_outdated

    @property
    def is_leaving(self) -> bool:
        """Whether it is still being copied to the store of the host."""
        return self.sent is not None and self.sent.done is not None and not self.sent.done.query()

    def drop(self) -> None:
        """Release one reference; never blocks."""
        self.store.drop(self)


class _DeviceTier(BudgetedTier[DeviceEntry]):
    """The arrays on a device. `used_bytes` does not count memory that only copies hold, which is free once they end."""

    def __init__(self, budget_bytes: int) -> None:
        super().__init__("device", budget_bytes, reserves=False)
        self.copied_bytes = self.peak_held_bytes = 0
        self._dead_arrays, self._dead_memory = Deaths(), Deaths()

    @property
    def held_bytes(self) -> int:
        """The bytes that nobody else can use: `used_bytes`, and what only copies hold."""
        self.drop_dead()
        self.copied_bytes += sum(self._dead_arrays)
        self.copied_bytes -= sum(self._dead_memory)
        return self.used_bytes + self.copied_bytes

    def reserve(self, nbytes: int, pinned: bool = False) -> None:
        super().reserve(nbytes, pinned)
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
    """Keeps at most `budget_bytes` of arrays on the device, and the others in a store of the host.

    An array that a caller asks for comes to the device even if it does not fit. A persistent array goes to the host as
    soon as it has new values, any other when it must leave the device. `device_bytes` counts an array that the store
    made or took over until the last alias of its memory dies. A copy under way is such an alias.
    """

    _state: _DeviceState

    def __init__(self, below: DiskStore, budget_bytes: int) -> None:
        self._below = below
        self._state = _DeviceState(below, budget_bytes)

    @property
    def drops(self) -> "collections.deque[object]":
        """The queue to which finalizers append handles to drop: the host store's, whose thread empties it."""
        return self._below.drops

    def allow(self, budget_bytes: int) -> None:
        """Change the budget."""
        with self._state.lock:
            self._state.tier.allow(budget_bytes)

    def put(
        self,
        array: np.ndarray,
        *,
        key: Hashable | None = None,
        label: Label | None = None,
        unchanged: Callable[[], bool] | None = None,
        watcher: object | None = None,
        persistent: bool = False,
    ) -> DeviceEntry:
        """Keep an array of the device; see `Store.put`. Waits until the host has room for arrays that must leave."""
        state = self._state
        is_copy = not array.flags.c_contiguous
        if is_copy:  # which nobody else has
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
            self.drop(entry)  # the caller gets nothing to drop
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
        """Copy the arrays that are only on the device to the store of the host. Raises SpillError when that refuses."""
        with self._state.lock:
            self._state.require_open("flush")
            alone = list(self._state.tier.dirty)
        for entry in alone:
            if self._begin_send(entry):
                self._send(entry)

    def stats(self) -> dict[str, int]:
        """Return the bytes on the device, now and at most."""
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
        """Give the array of a handle another label. Raises SpillError if the handle was dropped."""
        with self._state.lock:
            entry = self._state.live_entry("relabel", handle)
            entry.label = label
        if entry.below is not None:
            self._below.relabel(entry.below, label)

    # To the host

    def _send_what_must_leave(self, entry: DeviceEntry) -> None:
        """Send an array that was put or changed, if it is persistent; then those that exceed the budget."""
        following = entry if entry.persistent and self._begin_send(entry) else self._next_to_send()
        while following is not None:
            self._send(following)
            following = self._next_to_send()

    def _next_to_send(self) -> DeviceEntry | None:
        """If an array must leave, begin to write the one that is needed last, and return it."""
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
        """Copy an array to the store of the host, which may wait for the disk. Raises the errors of that store."""
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
        """Evict arrays that the host has until `nbytes` more fit; return whether they do. Called with the lock held.

        Then wait for copies, as long as the room that is left is memory that only they hold.
        """
        tier, copies = self._state.tier, self._state.copies
        copies.let_go()
        fits = tier.make_room(nbytes)
        most_bytes = max(tier.budget_bytes - nbytes, tier.used_bytes)
        while nbytes and tier.held_bytes > most_bytes and copies.wait_for_oldest():
            tier.drop_dead()
        return fits

    # The store of the host as the tier below

    def _wait_for_room(self, nbytes: int, label: Label, dtype: np.dtype[Any] | None) -> bool:
        return self._make_room(nbytes)

    def _begin_load(self, entry: DeviceEntry, pinned: bool = True) -> None:
        tier = self._state.tier
        if pinned:
            self._make_room(entry.nbytes)  # first: the device may fail
        tier.begin_load(entry, pinned)
        entry.moving_thread = threading.get_ident()
        tier.reserve(entry.nbytes, pinned)

    def _load(self, entry: DeviceEntry, handed_out: bool = True) -> np.ndarray:
        """Begin to copy an array back, after `_begin_load`. Raises the errors of the store and the device."""
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
        if not entry.persistent and entry.unchanged_when_sent is None:  # nothing tells that the caller changes it
            self._begin_change(entry)

    def _begin_change(self, entry: DeviceEntry) -> None:
        if entry.sent is not None and entry.sent.done is not None:  # the store of the host may be copying it
            entry.sent.done.wait(driver.compute())

    def _end_change(self, entry: DeviceEntry, changed: bool) -> None:
        if changed:
            entry.is_outdated = True
            self._state.tier.unwatch(entry)
        self._state.tier.end_change(entry)
        self._make_room(0)

    def _copy_ahead(self) -> None:
        """Begin to copy back the arrays that will be used next; of those on disk, only have the host read them."""
        wanted: list[Handle] = []
        self._state.copies.let_go()
        rank = self._state.tier.schedule.cursor
        with contextlib.suppress(SpillError, MemoryError):  # the use of the array tries again, and raises
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
        """Return the array of highest rank below `rank` that only the host has, and its handle there.

        Return None twice if there is none, or it is not needed soon.
        """
        tier = self._state.tier
        with self._state.lock:
            entry = tier.absent.below(rank)
            return (entry, entry.below) if entry is not None and tier.schedule.is_near(entry) else (None, None)

    def _begin_load_ahead(self, entry: DeviceEntry) -> bool:
        """Begin to load an array if it fits beside what is needed sooner; return whether that is so."""
        tier = self._state.tier
        with self._state.lock:
            if entry.residence is not BELOW or entry.is_leaving:  # the caller would wait until it has left
                return False
            if not tier.make_room(entry.nbytes, for_rank=entry.rank):
                return False
            if tier.held_bytes + entry.nbytes > tier.budget_bytes:
                return False
            self._begin_load(entry, pinned=False)
            return True
