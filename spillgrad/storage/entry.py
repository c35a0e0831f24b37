"""A stored array as the disk store sees it, and such entries in the order they were put."""

import bisect
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

    @property
    def on_disk_only(self) -> bool:
        """Whether it can and must be read to be had."""
        in_ram = self.loading or self.array is not None or self.lease is not None
        return self.extent is not None and not in_ram


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
