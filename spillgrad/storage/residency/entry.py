"""A stored array as the disk store sees it, and such entries in the order in which they are needed."""

import bisect
import weakref
from collections.abc import Callable, Hashable, Iterator

import numpy as np

from spillgrad.errors import SpillError
from spillgrad.storage.codecs import Encoded
from spillgrad.storage.disk.segment import Extent
from spillgrad.storage.origin_counters import Moved
from spillgrad.storage.store import Handle, Label


class Entry(Handle):
    """A stored array as the disk store sees it: in RAM, on disk, or both."""

    __slots__ = (
        "ahead",
        "array",
        "arrival",
        "beside_bytes",
        "changing",
        "edition",
        "encoded",
        "error",
        "extent",
        "key",
        "lasting",
        "lease",
        "leaves",
        "loading",
        "moved",
        "rank",
        "readers",
        "references",
        "retried",
        "staged_bytes",
        "unchanged",
        "uncounted",
        "writing",
    )

    def __init__(self, array: np.ndarray, sequence: int, label: Label | None) -> None:
        super().__init__(array, sequence, label)
        self.array: np.ndarray | None = None  # the store's own reference
        self.arrival: Callable[[], None] | None = None  # returns once its bytes, which are on their way, are there
        self.lease: Lease | None = None  # while an array that the store made is alive, here or outside
        self.extent: Extent | None = None  # where it is on disk
        self.key: Hashable | None = None
        self.unchanged: Callable[[], bool] | None = None
        self.error: SpillError | None = None  # why there is no array to get any more
        self.rank = sequence  # the higher, the sooner it is needed
        self.leaves = False  # a plan says that it cannot stay in RAM until then
        self.ahead = False  # it was read for its next use, until which it stays
        self.references = 1
        self.beside_bytes = 0  # of what callers hold for it, which counts too
        self.moved: Moved  # what became of arrays that come from where this one does
        self.edition = sequence  # what files call it: another number after each change
        self.lasting = False  # used in every step, until it is dropped
        self.changing = False  # a caller modifies the array: nothing else may be done with it
        self.readers = 0  # reads of the extent under way: it must not be freed
        self.loading = False
        self.retried = False  # its first write failed
        self.encoded: Encoded | None = None  # while what it becomes is on its way to disk
        self.staged_bytes = 0  # reserved for that
        self.writing = False
        self.uncounted = False  # its memory is the caller's, who waits in `put` for the write

    def await_arrival(self) -> None:
        """Return once the array's bytes are there. Called without the account's lock."""
        arrival = self.arrival  # another thread may wait too, and be through first
        if arrival is not None:
            arrival()
            self.arrival = None

    @property
    def on_disk_only(self) -> bool:
        """Whether it can and must be read to be had."""
        in_ram = self.loading or self.array is not None or self.lease is not None
        return self.extent is not None and not in_ram

    @property
    def staging_bytes(self) -> int:
        """Bytes that reading it takes beside its own."""
        return 0 if self.extent is None else self.extent.staging_bytes

    @property
    def went_through_cache(self) -> bool:
        """Whether it went to its place through the page cache though it could have gone past it."""
        return self.extent is not None and self.extent.cached

    @property
    def unwritten(self) -> bool:
        """Whether it is still to be stored."""
        return self.references > 0 and self.extent is None and self.error is None and not self.changing


class Lease(weakref.ref):  # type: ignore[type-arg]
    """A weak reference to an array that the store made: its bytes count until the last alias of it dies."""

    __slots__ = ("entry", "pinned", "unchanged")
    entry: Entry
    pinned: bool  # only callers hold it
    unchanged: "weakref.WeakMethod[Callable[[], bool]] | None"  # of who counts the changes that callers make


class RankedEntries:
    """Entries in the order of their ranks, with the neighbours of any rank.

    One whose rank, or whether it leaves, is to change is discarded first. `nbytes` is their sum.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._ranks: list[int] = []
        self._leaving: list[int] = []
        self._entries: dict[int, Entry] = {}

    def __len__(self) -> int:
        return len(self._ranks)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def __contains__(self, entry: Entry) -> bool:
        return self._entries.get(entry.rank) is entry

    def add(self, entry: Entry) -> None:
        """Add `entry`; adding it twice is allowed."""
        if entry.rank not in self._entries:
            self._entries[entry.rank] = entry
            self.nbytes += entry.nbytes
            bisect.insort(self._ranks, entry.rank)
            if entry.leaves:
                bisect.insort(self._leaving, entry.rank)

    def discard(self, entry: Entry) -> bool:
        """Remove `entry`; return whether it was there."""
        if self._entries.get(entry.rank) is not entry:
            return False
        del self._entries[entry.rank]
        self.nbytes -= entry.nbytes
        del self._ranks[bisect.bisect_left(self._ranks, entry.rank)]
        place = bisect.bisect_left(self._leaving, entry.rank)
        if self._leaving[place : place + 1] == [entry.rank]:
            del self._leaving[place]
        return True

    def leaving(self) -> Entry | None:
        """Return the entry of the lowest rank among those that cannot stay."""
        return self._entries[self._leaving[0]] if self._leaving else None

    def first_to_leave(self) -> Entry | None:
        """Return the entry of the lowest rank among those that cannot stay, else among all."""
        return self.leaving() or (self._entries[self._ranks[0]] if self._ranks else None)

    def below(self, rank: int) -> Entry | None:
        """Return the entry of the highest rank below `rank`."""
        place = bisect.bisect_left(self._ranks, rank)
        return self._entries[self._ranks[place - 1]] if place else None

    def at_or_above(self, rank: int) -> Entry | None:
        """Return the entry of the lowest rank that is `rank` or higher."""
        place = bisect.bisect_left(self._ranks, rank)
        return self._entries[self._ranks[place]] if place < len(self._ranks) else None
