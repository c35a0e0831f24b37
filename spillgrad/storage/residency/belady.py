"""What a step asks of a store, and what of that goes to disk: a step's events, and a run through them.

The store is taken to know the step, as it does from the second one on, and to follow Belady's rule (A study of
replacement algorithms for a virtual-storage computer, 1966): what is needed last leaves RAM first, and only what leaves
RAM is written, if the disk does not have it. What is needed in the next step counts as needed then; what is dropped
without another use leaves first if the disk has it, else it is as if needed when it is dropped. The store's ways to
write and read ahead of time move the same bytes. Callers hold the last two arrays that they put or got, whatever the
budget; what they got last they get again for nothing.
"""

import dataclasses
import heapq
from collections.abc import Sequence
from typing import NamedTuple

# What is read before it is needed takes this share of a budget that lasting arrays have part in, or this one of what a
# step reads, if that is less.
AHEAD_SHARE, AHEAD_SHARE_OF_READS = 0.125, 0.25

PHASES = ("forward", "backward", "update")


class Item(NamedTuple):
    """An array of so many bytes; a lasting one is there in every step."""

    nbytes: int
    lasting: bool = False


class Event(NamedTuple):
    """What happens to an item in a phase: "put", "use", "change" or "drop"."""

    kind: str
    item: int
    phase: str = "forward"


@dataclasses.dataclass
class Traffic:
    """Bytes written and read in each phase, the most that the store had in RAM, on disk, and in all.

    `missed` are the places of the events that found their array on disk only.
    """

    written: dict[str, int]
    read: dict[str, int]
    ram_bytes: int = 0
    disk_bytes: int = 0
    live_bytes: int = 0
    missed: set[int] = dataclasses.field(default_factory=set)

    @property
    def written_bytes(self) -> int:
        """Bytes written in a step."""
        return sum(self.written.values())

    @property
    def read_bytes(self) -> int:
        """Bytes read in a step."""
        return sum(self.read.values())


def run(items: Sequence[Item], events: Sequence[Event], budget_bytes: int) -> Traffic:
    """Go through the same step again and again, and return what the last of three moves."""
    cache = _Cache(items, events, budget_bytes)
    for _ in range(3):
        traffic = cache.step()
    return traffic


def of_store(items: Sequence[Item], events: Sequence[Event], budget_bytes: int) -> tuple[Traffic, int]:
    """Return what a store moves in a step that it knows, and how many bytes it reads ahead at most.

    Where lasting arrays come and go, a part of the budget is for that: the others stay within the rest.
    """
    moved = run(items, events, budget_bytes)
    if not moved.missed or not any(item.lasting for item in items):
        return moved, budget_bytes
    ahead_bytes = int(min(budget_bytes * AHEAD_SHARE, moved.read_bytes * AHEAD_SHARE_OF_READS))
    return run(items, events, budget_bytes - ahead_bytes), ahead_bytes


class _Cache:
    def __init__(self, items: Sequence[Item], events: Sequence[Event], budget_bytes: int) -> None:
        self._items, self._events, self._budget_bytes = items, events, budget_bytes
        self._next = _next_uses(items, events)
        self._needed: dict[int, int] = {}  # of what is in RAM, when it is needed next
        self._farthest: list[tuple[int, int]] = []  # a heap of (-when, item), some of them out of date
        self._dirty: set[int] = set()
        self._on_disk: set[int] = set()
        self._ram_bytes = self._disk_bytes = 0
        self._in_use: tuple[int, ...] = ()
        self._got: int | None = None  # the last one
        self._live_bytes = 0
        self._began = 0
        self._traffic = Traffic({}, {})
        for number, item in enumerate(items):
            if item.lasting:  # as if it had been written before the first step
                self._store(number)
                self._live_bytes += item.nbytes

    def step(self) -> Traffic:
        self._traffic = Traffic(dict.fromkeys(PHASES, 0), dict.fromkeys(PHASES, 0), self._ram_bytes, self._disk_bytes)
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
        """Bring an item in, and let what is needed last go: that may be itself."""
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
        self._disk_bytes += self._items[item].nbytes
        self._traffic.disk_bytes = max(self._traffic.disk_bytes, self._disk_bytes)

    def _unstore(self, item: int) -> None:
        if item in self._on_disk:
            self._on_disk.discard(item)
            self._disk_bytes -= self._items[item].nbytes


def _next_uses(items: Sequence[Item], events: Sequence[Event]) -> list[int]:
    """Return when the item of each event is used or dropped next, counted from the step's begin.

    Lasting ones are used in the next step.
    """
    following: list[int] = [0] * len(events)
    upcoming: dict[int, int] = {}
    for place, (kind, item, _) in enumerate(events):  # the next step's first uses
        if items[item].lasting and kind in ("use", "change"):
            upcoming.setdefault(item, len(events) + place)
    for place in range(len(events) - 1, -1, -1):
        kind, item, _ = events[place]
        following[place] = upcoming.get(item, 2 * len(events))
        if kind != "put":
            upcoming[item] = place
    return following
