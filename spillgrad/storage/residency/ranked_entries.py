"""Entries in the order in which they are needed."""

import bisect
from collections.abc import Iterator
from typing import Generic

from spillgrad.storage.residency.entry import E


class RankedEntries(Generic[E]):
    """Entries ordered by rank; finds the neighbours of any rank. `nbytes` is the sum of their bytes.

    Discard an entry before you change its `rank` or `must_spill`.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._ranks: list[int] = []
        self._must_spill: list[int] = []  # ranks of those that must spill
        self._entries: dict[int, E] = {}

    def __len__(self) -> int:
        return len(self._ranks)

    def __iter__(self) -> Iterator[E]:
        return iter(self._entries.values())

    def __contains__(self, entry: E) -> bool:
        return self._entries.get(entry.rank) is entry

    def add(self, entry: E) -> None:
        """Add an entry; adding it twice is allowed."""
        if entry.rank not in self._entries:
            self._entries[entry.rank] = entry
            self.nbytes += entry.nbytes
            bisect.insort(self._ranks, entry.rank)
            if entry.must_spill:
                bisect.insort(self._must_spill, entry.rank)

    def discard(self, entry: E) -> None:
        """Remove an entry, if it is there."""
        if self._entries.get(entry.rank) is not entry:
            return
        del self._entries[entry.rank]
        self.nbytes -= entry.nbytes
        del self._ranks[bisect.bisect_left(self._ranks, entry.rank)]
        if entry.must_spill:
            del self._must_spill[bisect.bisect_left(self._must_spill, entry.rank)]

    @property
    def has_must_spill(self) -> bool:
        """Whether there are entries that must spill."""
        return bool(self._must_spill)

    def first_to_spill(self) -> E | None:
        """Return the entry of the lowest rank: of those that must spill, or, if none must, of all; None if empty."""
        ranks = self._must_spill or self._ranks
        return self._entries[ranks[0]] if ranks else None

    def below(self, rank: int) -> E | None:
        """Return the entry of the highest rank below `rank`, or None."""
        place = bisect.bisect_left(self._ranks, rank)
        return self._entries[self._ranks[place - 1]] if place else None

    def at_or_above(self, rank: int) -> E | None:
        """Return the entry of the lowest rank that is `rank` or higher, or None."""
        place = bisect.bisect_left(self._ranks, rank)
        return self._entries[self._ranks[place]] if place < len(self._ranks) else None
