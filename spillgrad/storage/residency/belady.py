"""Simulate what a step moves between RAM and disk, by Belady's rule.

Of the arrays in RAM, the one whose next use is farthest away leaves first. The simulated store knows the step, as a
store does from the second step on. An array is written only when it leaves RAM, and only if the disk does not have it
yet. Steps repeat, so the next use of a persistent array may be in the next step. An array that is dropped without
another use leaves first if the disk has it; if not, its drop counts as its next use. Writing and reading ahead of time
are not simulated: they move the same bytes. Callers hold the last two arrays that they put or got, whatever the budget;
getting the last one again moves nothing.

Source: L. A. Belady, A study of replacement algorithms for a virtual-storage computer, 1966.
"""

import dataclasses
import heapq
from collections.abc import Sequence
from typing import NamedTuple

# The share of a budget that prefetched arrays may take if persistent arrays do not all stay in RAM; or this share of
# the bytes that a step reads, if that is less.
PREFETCH_SHARE, PREFETCH_SHARE_OF_READS = 0.125, 0.25

PHASES = ("forward", "backward", "update")


class Item(NamedTuple):
    """An array of `nbytes` bytes; a persistent one is live in every step.

    One that is read `in_place`, from a file that is not of the store, is never changed, and takes no room on disk. Of
    one `in_halves`, the disk holds the upper halves of its numbers.
    """

    nbytes: int
    persistent: bool = False
    in_place: bool = False
    in_halves: bool = False

    @property
    def moved_bytes(self) -> int:
        """The bytes that move where it is written or read."""
        return self.nbytes // 2 if self.in_halves else self.nbytes

    @property
    def stored_bytes(self) -> int:
        """The bytes that it takes in the files of the store."""
        return 0 if self.in_place else self.moved_bytes


class Event(NamedTuple):
    """A "put", "use", "change" or "drop" of the item with index `item`, in a phase of the step."""

    kind: str
    item: int
    phase: str = "forward"


@dataclasses.dataclass
class Traffic:
    """Bytes written and read in each phase, and the most bytes in RAM, on disk, and live.

    `stored` and `fetched` are what the written and the read arrays take on disk. On disk and live count what is the
    store's, and no array that is read in place.
    `missed` holds the positions of the events whose array was on disk only.
    """

    written: dict[str, int]
    read: dict[str, int]
    stored: dict[str, int]
    fetched: dict[str, int]
    ram_bytes: int = 0
    disk_bytes: int = 0
    live_bytes: int = 0
    missed: set[int] = dataclasses.field(default_factory=set)

    @property
    def by_phase(self) -> tuple[dict[str, int], ...]:
        """All bytes that moved, by phase."""
        return self.written, self.read, self.stored, self.fetched

    @property
    def written_bytes(self) -> int:
        """Bytes written in a step."""
        return sum(self.written.values())

    @property
    def read_bytes(self) -> int:
        """Bytes read in a step."""
        return sum(self.read.values())


def run(items: Sequence[Item], events: Sequence[Event], budget_bytes: int) -> Traffic:
    """Simulate a step three times in succession, and return the traffic of the last time."""
    simulation = _Simulation(items, events, budget_bytes)
    for _ in range(3):
        traffic = simulation.step()
    return traffic


def of_store(items: Sequence[Item], events: Sequence[Event], budget_bytes: int) -> tuple[Traffic, int]:
    """Return the traffic of a store in a step that it knows, and the most bytes that it prefetches.

    If some arrays are persistent and not all arrays fit, a part of the budget is left for prefetched arrays.
    """
    moved = run(items, events, budget_bytes)
    if not moved.missed or not any(item.persistent for item in items):
        return moved, budget_bytes
    prefetch_bytes = int(min(budget_bytes * PREFETCH_SHARE, moved.read_bytes * PREFETCH_SHARE_OF_READS))
    return run(items, events, budget_bytes - prefetch_bytes), prefetch_bytes


class _Simulation:
    def __init__(self, items: Sequence[Item], events: Sequence[Event], budget_bytes: int) -> None:
        self._items, self._events, self._budget_bytes = items, events, budget_bytes
        self._next = _next_uses(items, events)
        self._needed: dict[int, int] = {}  # when each item in RAM is needed next
        self._farthest: list[tuple[int, int]] = []  # a heap of (-when, item), some of them out of date
        self._dirty: set[int] = set()
        self._on_disk: set[int] = set()
        self._ram_bytes = self._disk_bytes = 0
        self._in_use: tuple[int, ...] = ()
        self._got: int | None = None  # the item that was got last
        self._live_bytes = 0
        self._began = 0
        self._traffic = Traffic({}, {}, {}, {})
        for number, item in enumerate(items):
            if item.persistent:  # as if it had been written before the first step
                self._store(number)
                self._live_bytes += 0 if item.in_place else item.nbytes

    def step(self) -> Traffic:
        written, read, stored, fetched = (dict.fromkeys(PHASES, 0) for _ in range(4))
        self._traffic = Traffic(written, read, stored, fetched, self._ram_bytes, self._disk_bytes)
        self._traffic.live_bytes = self._live_bytes
        for place, (kind, item, phase) in enumerate(self._events):
            when = self._began + self._next[place]
            if kind == "drop":
                self._drop(item)
            elif kind == "put":
                self._dirty.add(item)
                self._live_bytes += self._items[item].nbytes
                self._traffic.live_bytes = max(self._traffic.live_bytes, self._live_bytes)
                self._enter(item, when, phase)
            else:
                if item not in self._needed and self._got != item:
                    self._traffic.read[phase] += self._items[item].nbytes
                    self._traffic.fetched[phase] += self._items[item].moved_bytes
                    self._traffic.missed.add(place)
                if kind == "change":
                    self._dirty.add(item)
                    self._unstore(item)
                self._leave(item)
                if item not in self._dirty and self._events[when % len(self._events)].kind == "drop":
                    when = self._began + 2 * len(self._events)
                self._enter(item, when, phase)
            if kind in ("use", "change"):
                self._got = item
            elif self._got == item:
                self._got = None
            if kind != "drop" and self._in_use[-1:] != (item,):
                self._in_use = (*self._in_use[-1:], item)
                used_bytes = sum(self._items[each].nbytes for each in self._in_use)
                self._traffic.ram_bytes = max(self._traffic.ram_bytes, used_bytes)
        self._began += len(self._events)
        return self._traffic

    def _enter(self, item: int, when: int, phase: str) -> None:
        """Bring an item into RAM, then evict the items needed last, perhaps this item, until the rest fits."""
        self._needed[item] = when
        heapq.heappush(self._farthest, (-when, item))
        self._ram_bytes += self._items[item].nbytes
        while self._ram_bytes > self._budget_bytes and self._needed:
            negative, last = heapq.heappop(self._farthest)
            if self._needed.get(last) == -negative:
                self._leave(last)
                if last in self._dirty:
                    self._dirty.discard(last)
                    self._traffic.written[phase] += self._items[last].nbytes
                    self._traffic.stored[phase] += self._items[last].moved_bytes
                    self._store(last)
        self._traffic.ram_bytes = max(self._traffic.ram_bytes, self._ram_bytes)

    def _leave(self, item: int) -> None:
        if self._needed.pop(item, None) is not None:
            self._ram_bytes -= self._items[item].nbytes

    def _drop(self, item: int) -> None:
        self._live_bytes -= self._items[item].nbytes
        self._leave(item)
        self._dirty.discard(item)
        self._unstore(item)

    def _store(self, item: int) -> None:
        self._on_disk.add(item)
        self._disk_bytes += self._items[item].stored_bytes
        self._traffic.disk_bytes = max(self._traffic.disk_bytes, self._disk_bytes)

    def _unstore(self, item: int) -> None:
        if item in self._on_disk:
            self._on_disk.discard(item)
            self._disk_bytes -= self._items[item].stored_bytes


def _next_uses(items: Sequence[Item], events: Sequence[Event]) -> list[int]:
    """Return, for each event, the position of the next use or drop of its item, counted from the beginning of the step.

    For a persistent item, that position may be in the next step.
    """
    following: list[int] = [0] * len(events)
    upcoming: dict[int, int] = {}
    for place, (kind, item, _) in enumerate(events):  # the next step's first uses
        if items[item].persistent and kind in ("use", "change"):
            upcoming.setdefault(item, len(events) + place)
    for place in range(len(events) - 1, -1, -1):
        kind, item, _ = events[place]
        following[place] = upcoming.get(item, 2 * len(events))
        if kind != "put":
            upcoming[item] = place
    return following
