"""Which stored arrays are in RAM, counted to the byte, and which of them leaves first."""

import bisect
import collections
import weakref
from collections.abc import Callable, Hashable

import numpy as np

from spillgrad.errors import SpillError
from spillgrad.storage.segment import Extent
from spillgrad.storage.store import Handle, Label


class Entry(Handle):
    """A stored array as the disk store sees it: in RAM, on disk, or both."""

    __slots__ = (
        "array",
        "error",
        "extent",
        "key",
        "lease",
        "loading",
        "readers",
        "references",
        "unchanged",
        "uncounted",
        "writing",
    )

    def __init__(self, array: np.ndarray, sequence: int, label: Label | None) -> None:
        super().__init__(array, sequence, label)
        self.array: np.ndarray | None = None  # the store's own reference
        self.lease: Lease | None = None  # while an array read back from disk is alive, here or outside
        self.extent: Extent | None = None  # where it is on disk
        self.key: Hashable | None = None
        self.unchanged: Callable[[], bool] | None = None
        self.error: SpillError | None = None  # why there is no array to get any more
        self.references = 1
        self.readers = 0  # reads of the extent under way: it must not be freed
        self.loading = False
        self.writing = False
        self.uncounted = False  # its memory is the caller's, who waits in `put` for the write


class Lease(weakref.ref):  # type: ignore[type-arg]
    """A weak reference to an array read back from disk: its bytes count until the last alias of it dies."""

    __slots__ = ("entry", "handed_out")
    entry: Entry
    handed_out: bool


class OrderedEntries:
    """Entries in the order they were put, with the neighbours of any place in it."""

    def __init__(self) -> None:
        self._sequences: list[int] = []
        self._entries: dict[int, Entry] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    def add(self, entry: Entry) -> None:
        """Add `entry`; adding it twice is allowed."""
        if entry.sequence not in self._entries:
            self._entries[entry.sequence] = entry
            bisect.insort(self._sequences, entry.sequence)

    def discard(self, entry: Entry) -> bool:
        """Remove `entry`; return whether it was there."""
        if self._entries.pop(entry.sequence, None) is None:
            return False
        del self._sequences[bisect.bisect_left(self._sequences, entry.sequence)]
        return True

    def oldest(self) -> Entry | None:
        """Return the first entry put."""
        return self._entries[self._sequences[0]] if self._sequences else None

    def before(self, sequence: int) -> Entry | None:
        """Return the last entry put before `sequence`."""
        place = bisect.bisect_left(self._sequences, sequence)
        return self._entries[self._sequences[place - 1]] if place else None

    def at_or_after(self, sequence: int) -> Entry | None:
        """Return the first entry put at `sequence` or later."""
        place = bisect.bisect_left(self._sequences, sequence)
        return self._entries[self._sequences[place]] if place < len(self._sequences) else None


class Cache:
    """The arrays a store holds in RAM.

    Invariant: `ram_bytes` is the sum over arrays kept as they were put (`dirty`, also while being written, and `clean`,
    on disk as well), reads under way, and arrays read back and still alive anywhere. `absent` holds what is on disk
    only. `pinned_bytes` is the part of it that only callers can free. Everything is guarded by the store's lock, but
    for `_ended`: an array may die in any thread at any moment, so its death takes no lock and is posted there.
    """

    def __init__(self, budget_bytes: int, on_lease_end: Callable[[], None]) -> None:
        self.budget_bytes = budget_bytes
        self.ram_bytes = self.peak_ram_bytes = self.pinned_bytes = self.dirty_bytes = 0
        self.dirty = OrderedEntries()
        self.clean = OrderedEntries()
        self.absent = OrderedEntries()
        # The step goes on in reverse order of `put`: what is needed next was put just before this. None while arrays
        # are put.
        self.cursor: int | None = None
        self._leases: dict[int, Lease] = {}
        self._ended: collections.deque[Lease] = collections.deque()
        self._on_lease_end = on_lease_end

    def keep(self, entry: Entry, array: np.ndarray) -> None:
        """Hold an array as it was put; it is not on disk."""
        entry.array = array
        self.reserve(entry.nbytes)
        self.dirty.add(entry)
        self.dirty_bytes += entry.nbytes

    def written(self, entry: Entry) -> None:
        """Note that `entry` is on disk now."""
        if self.dirty.discard(entry):
            self.dirty_bytes -= entry.nbytes
            self.clean.add(entry)
        else:  # the caller's memory is not ours to keep
            self.release(entry)
            self.absent.add(entry)

    def remove(self, entry: Entry) -> None:
        """Let go of `entry`, which will not be asked for again; while it is being written, its bytes stay counted."""
        if self.dirty.discard(entry):
            self.dirty_bytes -= entry.nbytes
        self.clean.discard(entry)
        self.absent.discard(entry)
        if not entry.writing:
            self.release(entry)

    def release(self, entry: Entry) -> None:
        """Give up the store's own reference to an array; one read back stays counted while it is alive elsewhere."""
        if entry.array is not None:
            if entry.lease is None and not entry.uncounted:
                self.ram_bytes -= entry.nbytes
            entry.array = None
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
        """Take a reservation back."""
        self.ram_bytes -= nbytes
        if pinned:
            self.pinned_bytes -= nbytes

    def make_room(self, nbytes: int, for_sequence: int | None = None) -> bool:
        """Evict what is on disk as well until `nbytes` more fit; return whether they do.

        For a prefetch, `for_sequence` is what would come in: only what is needed later than that goes.
        """
        self.settle()
        while self.ram_bytes + nbytes > self.budget_bytes:
            victim = self._needed_last()
            if victim is None or (for_sequence is not None and not self._needed_after(victim, for_sequence)):
                return False
            self.clean.discard(victim)
            if victim.lease is None:
                self.absent.add(victim)
            self.release(victim)
        return True

    def lend(self, entry: Entry, array: np.ndarray, handed_out: bool) -> None:
        """Turn the reservation for an array that was read back into a lease on it."""
        lease = Lease(array, self._end)
        lease.entry, lease.handed_out = entry, handed_out
        self._leases[id(lease)] = lease
        entry.lease = lease
        if not handed_out:
            entry.array = array
            self.clean.add(entry)

    def find(self, entry: Entry) -> np.ndarray | None:
        """Return the array of `entry` if it is in RAM; what was prefetched belongs to the caller from now on."""
        if entry.array is None:
            return None if entry.lease is None else entry.lease()
        array = entry.array
        if entry.lease is not None:
            self.clean.discard(entry)
            entry.array = None
            entry.lease.handed_out = True
            self.pinned_bytes += entry.nbytes
        return array

    def settle(self) -> None:
        """Stop counting arrays that died."""
        while self._ended:
            lease = self._ended.popleft()
            entry = lease.entry
            del self._leases[id(lease)]
            self.unreserve(entry.nbytes, pinned=lease.handed_out)
            if entry.lease is lease:
                entry.lease = None
                if entry.references > 0 and entry.extent is not None and not entry.loading:
                    self.absent.add(entry)

    def _end(self, lease: Lease) -> None:
        self._ended.append(lease)
        self._on_lease_end()

    def _needed_last(self) -> Entry | None:
        """Return the evictable entry that is needed last: the one used just now, else the oldest (Belady's rule)."""
        used = None if self.cursor is None else self.clean.at_or_after(self.cursor)
        return used or self.clean.oldest()

    def _needed_after(self, victim: Entry, sequence: int) -> bool:
        return victim.sequence < sequence or (self.cursor is not None and victim.sequence >= self.cursor)
