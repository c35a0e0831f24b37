"""Which stored arrays are in RAM, counted to the byte, and which of them leaves first."""

import collections
import weakref
from collections.abc import Callable, Iterable

import numpy as np

from spillgrad.storage.residency.entry import Entry, Lease, RankedEntries
from spillgrad.storage.residency.schedule import Schedule


class Cache:
    """The arrays a store holds in RAM.

    Invariant: `ram_bytes` is the sum over arrays kept as they were put (`dirty`, being written, and `clean`, on disk
    as well), reads under way, and arrays that the store made (copies for `put`, and what was read back) and that are
    alive anywhere; what a caller made is the caller's again once the store lets go of it. `absent` holds what is on
    disk only. `pinned_bytes` is the part of `ram_bytes` that only callers can free.

    Everything is guarded by the store's lock, but for `_ended`: an array may die in any thread at any moment, so its
    death takes no lock and runs no Python, which a signal handler could interrupt; its lease is appended there.
    Whenever `ram_bytes` falls, `on_room` is called, for whoever waits for room.
    """

    def __init__(self, budget_bytes: int, on_room: Callable[[], None]) -> None:
        self.budget_bytes = budget_bytes
        self.ram_bytes = self.peak_ram_bytes = self.pinned_bytes = self.writing_bytes = 0
        self.schedule = Schedule(budget_bytes, self._rerank)
        self.dirty = RankedEntries()
        self.clean = RankedEntries()
        self.absent = RankedEntries()
        self._leases: dict[int, Lease] = {}
        self._ended: collections.deque[Lease] = collections.deque()
        self._on_room = on_room

    def keep(self, entry: Entry, array: np.ndarray, ours: bool = False) -> None:
        """Hold an array as it was put, or `ours`, a copy of it; it is not on disk."""
        entry.array = array
        if ours:
            self._lease(entry, array)
        self.reserve(entry.nbytes)
        self.dirty.add(entry)

    def begin_write(self, entry: Entry) -> None:
        """Note that `entry` is being written; it stays in RAM."""
        entry.writing = True
        self.dirty.discard(entry)
        self.writing_bytes += 0 if entry.uncounted else entry.nbytes

    def end_write(self, entry: Entry) -> None:
        """Note that `entry` is no longer being written, however that ended."""
        entry.writing = False
        self.writing_bytes -= 0 if entry.uncounted else entry.nbytes

    def written(self, entry: Entry) -> None:
        """Note that `entry` is on disk now."""
        if entry.uncounted:  # the caller's memory is not ours to keep
            self.release(entry)
            entry.uncounted = False
            self.absent.add(entry)
        else:
            self.clean.add(entry)

    def write_failed(self, entry: Entry) -> None:
        """Note that `entry` is not on disk after all."""
        self.dirty.add(entry)

    def begin_change(self, entry: Entry, array: np.ndarray) -> None:
        """Hold `array`, that of `entry`, which nobody may evict or write until `end_change`."""
        entry.changing = True
        self.dirty.discard(entry)
        self.clean.discard(entry)
        lease = entry.lease
        if entry.array is not array and lease is not None and lease() is array:
            self.pinned_bytes -= entry.nbytes  # only callers held it
            lease.pinned = False
        elif entry.array is not array:  # it is memory of the caller's, which is not counted
            self.release(entry)
            self._lease(entry, array)
            self.reserve(entry.nbytes)
        self.absent.discard(entry)  # last: what was released may have come to be there
        self.pinned_bytes += entry.nbytes
        entry.array = array

    def counts(self, entry: Entry, array: np.ndarray) -> bool:
        """Return whether `array`, that of `entry`, is part of `ram_bytes`."""
        return entry.array is array or (entry.lease is not None and entry.lease() is array)

    def end_change(self, entry: Entry) -> None:
        """Let the array be evicted as others are, and written before, unless it still is what is on disk."""
        entry.changing = False
        self.pinned_bytes -= entry.nbytes
        if entry.extent is not None:
            self.clean.add(entry)
            return
        self.dirty.add(entry)

    def remove(self, entry: Entry) -> None:
        """Let go of `entry`, which will not be asked for again; while it is being written, its bytes stay counted."""
        self.dirty.discard(entry)
        self.clean.discard(entry)
        self.absent.discard(entry)
        if entry.changing:
            entry.changing = False
            self.pinned_bytes -= entry.nbytes
        if not entry.writing:
            self.release(entry)

    def release(self, entry: Entry) -> None:
        """Give up the store's own reference to an array; one it made stays counted while it is alive elsewhere."""
        if entry.array is not None:
            lease = entry.lease
            if lease is None and not entry.uncounted:
                self.unreserve(entry.nbytes)
            entry.array = None
            if lease is not None and lease() is not None:
                self._pin(lease)
            # It may hold what it watches alive, and with it the memory given up here.
            entry.unchanged = None
            self.settle()

    def reserve(self, nbytes: int, pinned: bool = False) -> None:
        """Count bytes that are about to be used."""
        self.ram_bytes += nbytes
        self.peak_ram_bytes = max(self.peak_ram_bytes, self.ram_bytes)
        if pinned:
            self.pinned_bytes += nbytes

    def unreserve(self, nbytes: int, pinned: bool = False) -> None:
        """Count bytes no more."""
        if pinned:
            self.pinned_bytes -= nbytes
        self.ram_bytes -= nbytes
        if nbytes:
            self._on_room()

    def make_room(self, nbytes: int, for_rank: int | None = None) -> bool:
        """Evict what is on disk as well until `nbytes` more fit; return whether they do.

        For a prefetch, `for_rank` is that of what would come in: only what is needed later goes, or, where a plan is
        known, what cannot stay.
        """
        self.settle()
        while self.ram_bytes + nbytes > self.budget_bytes:
            victim = self._needed_last()
            if victim is None or (for_rank is not None and not self._needed_after(victim, for_rank)):
                return False
            self.clean.discard(victim)
            if victim.lease is None:
                self.absent.add(victim)
            self.release(victim)
        return True

    def lend(self, entry: Entry, array: np.ndarray, handed_out: bool) -> None:
        """Turn the reservation for an array that was read back into a lease on it."""
        lease = self._lease(entry, array)
        if handed_out and not self._is_needed_again(entry):
            lease.pinned = True
        else:
            if handed_out:
                self.pinned_bytes -= entry.nbytes
            entry.array = array
            self.clean.add(entry)

    def in_ram(self, entry: Entry) -> tuple[np.ndarray | None, Callable[[], bool] | None]:
        """Return the array of `entry` if it is in RAM, and what to ask, without the lock, whether it is unchanged."""
        if entry.array is not None:
            return entry.array, entry.unchanged
        lease = entry.lease
        array = None if lease is None else lease()
        if lease is None or array is None or lease.unchanged is None:
            return array, None
        return array, lease.unchanged() or _nobody_knows

    def watch(self, entry: Entry, array: np.ndarray, unchanged: Callable[[], bool]) -> None:
        """Have `unchanged`, a bound method, asked before `array`, that of `entry`, is handed out again.

        It is held while the store holds the array. While only callers do, its object may die: then nobody knows.
        """
        if entry.array is array:
            entry.unchanged = unchanged
        if entry.lease is not None and entry.lease() is array:
            entry.lease.unchanged = weakref.WeakMethod(unchanged)

    def hand_out(self, entry: Entry) -> None:
        """Note that a caller gets the array of `entry`, which is in RAM.

        What the store made and can read again is the caller's from now on, unless the schedule expects another use.
        """
        if entry.array is None or entry.lease is None or entry not in self.clean or self._is_needed_again(entry):
            return
        self.clean.discard(entry)
        entry.array = entry.unchanged = None
        self._pin(entry.lease)

    def forget(self, entry: Entry) -> None:
        """Let go of an array that is not what is on disk any more; it is read anew for whoever wants it next."""
        self.clean.discard(entry)
        self.release(entry)
        entry.lease = None
        self.absent.add(entry)

    @property
    def has_ended(self) -> bool:
        """Whether arrays that are counted died."""
        return bool(self._ended)

    @property
    def has_lent(self) -> bool:
        """Whether arrays that the store made are alive."""
        return bool(self._leases)

    def settle(self) -> None:
        """Stop counting arrays that died."""
        while self._ended:
            lease = self._ended.popleft()
            entry = lease.entry
            del self._leases[id(lease)]
            self.unreserve(entry.nbytes, pinned=lease.pinned)
            if entry.lease is lease:
                entry.lease = None
                if entry.references > 0 and entry.extent is not None and not entry.loading:
                    self.absent.add(entry)

    def _lease(self, entry: Entry, array: np.ndarray) -> Lease:
        lease = entry.lease = Lease(array, self._ended.append)
        lease.entry, lease.pinned, lease.unchanged = entry, False, None
        self._leases[id(lease)] = lease
        return lease

    def _pin(self, lease: Lease) -> None:
        lease.pinned = True
        self.pinned_bytes += lease.entry.nbytes

    def _is_needed_again(self, entry: Entry) -> bool:
        """Whether a plan says that an array just used is used once more, and keeping it exceeds no budget."""
        cursor = self.schedule.cursor
        is_expected = entry.lasting or (cursor is not None and entry.rank < cursor)
        return is_expected and entry.references > 0 and self.ram_bytes <= self.budget_bytes

    def _needed_last(self) -> Entry | None:
        """Return the evictable entry needed last, by Belady's rule: one used just now, else the first to leave."""
        cursor = self.schedule.cursor
        used = None if cursor is None else self.clean.at_or_above(cursor)
        return used or self.clean.first_to_leave()

    def _needed_after(self, victim: Entry, rank: int) -> bool:
        cursor = self.schedule.cursor
        if cursor is not None and victim.rank >= cursor:
            return True
        return victim.leaves if self.schedule.follows_plan else victim.rank < rank

    def _rerank(self, ranks: Iterable[tuple[Entry, int]]) -> None:
        """Give entries other ranks, which no other entry has."""
        moved = []
        for entry, rank in ranks:
            kept_in = next((kept for kept in (self.dirty, self.clean, self.absent) if kept.discard(entry)), None)
            moved.append((entry, rank, kept_in))
        for entry, rank, kept_in in moved:
            entry.rank, entry.leaves = rank, not entry.ahead and self.schedule.leaves(rank)
            if kept_in is not None:
                kept_in.add(entry)


def _nobody_knows() -> bool:
    """Say that an array may be changed: who counted its changes is gone."""
    return False
