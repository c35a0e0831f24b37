"""Predict in which order stored arrays are needed: newest first, or as in an earlier step that began the same way."""

import heapq
from collections.abc import Callable, Iterable

from spillgrad.storage.origin_counters import Origin
from spillgrad.storage.residency.entry import Entry
from spillgrad.storage.residency.step_plan import (
    FIRST_ROOM,
    LONGEST_STEP,
    Happened,
    Packed,
    StepPlan,
    Used,
    find_plan,
    remember_plan,
)

# Without a plan, persistent arrays rank below all others; among them, the one used last ranks highest.
_LATER = -(1 << 62)

Rerank = Callable[[Iterable[tuple[Entry, int]]], None]


class Schedule:
    """Ranks arrays by when they will be needed: of the arrays ranked below the `cursor`, the highest is needed next.

    A step runs from the first array put into an empty store until the store is empty again. A training loop repeats
    itself, so the puts and uses of a step become a plan for all tiers of the same name in the process: a step that
    begins in the same way is expected to go on in the same way. A step without a plan is expected to need the newest
    array first. An array ranked at the cursor or above was used already and is needed last.

    Persistent arrays are used in every step. While there are some, a step includes the updates after the backward pass,
    and lasts until `begin_step` is called for the next step.

    Invariant: no two live arrays have the same rank; ranks follow the plan, or are sequence numbers. The store's lock
    guards everything.
    """

    def __init__(self, tier: str, budget_bytes: int, rerank: Rerank, reserves: bool = True) -> None:
        """Rank the arrays of the tiers named `tier`; call `rerank` with (entry, new rank) pairs to change ranks.

        With `reserves`, no array that the plan keeps until its next use is evicted for a prefetched array. Otherwise
        any array that is needed later than a prefetched array may be evicted for it.
        """
        self._tier = tier
        self.budget_bytes = budget_bytes
        self._reserves = reserves
        self.cursor: int | None = None  # the rank of the last use; None while arrays are put
        self.on_step: Callable[[StepPlan | None], None] = lambda plan: None  # called at the end of each step
        self._rerank = rerank
        self._live: dict[Entry, int] = {}  # the numbers of the step's arrays
        self._persistent: dict[Entry, int] = {}
        self._origins: list[Origin] = []  # of the persistent arrays, by number, the first one's being -1
        self._free_numbers: dict[Origin, list[int]] = {}
        self._touches = 0
        self._packed: list[Packed] = []
        self._used: list[Used] = []
        self._happened: list[Happened] = []
        self._live_bytes = self._persistent_bytes = 0
        self.expected_bytes = 0  # of all persistent arrays that are to come
        self._live_bytes_then: list[int] = []  # after each put
        self._rooms: list[int] = []  # bytes that callers have counted for themselves in this step
        self._open_rooms_bytes = 0
        self._plan: StepPlan | None = None
        self._too_long = False

    def put(self, entry: Entry) -> None:
        """Rank a new array."""
        if entry.persistent:
            number = self._persistent[entry] = self._number_for(entry)
            self._persistent_bytes += entry.nbytes
            self._note("put", number, entry.nbytes)
            entry.rank = self._persistent_rank(number)
            entry.must_spill = self.must_spill(entry.rank)
            return
        if not self._too_long:
            self._live[entry] = number = len(self._packed)
            packed = (entry.label.op, entry.nbytes)
            self._packed.append(packed)
            self._note("put", number, entry.nbytes)
            self._live_bytes += entry.nbytes
            self._live_bytes_then.append(self._live_bytes)
            plan = self._plan
            if number == 0 or (plan is not None and (number == len(plan.packed) or plan.packed[number] != packed)):
                self._choose_plan()
            if self._plan is not None:
                entry.rank = self._plan.rank(number, len(self._used))
                entry.must_spill = self.must_spill(entry.rank)
            self._too_long |= number == LONGEST_STEP
        self.pause()

    def _number_for(self, entry: Entry) -> int:
        """Return the number of a persistent array: that of an array which was dropped, and came from the same place.

        So an array that each step puts anew, such as a gradient, has the same number in all steps, which a plan needs.
        """
        origin = Origin(entry.label.module, entry.label.op, entry.label.slot)
        if origin not in self._free_numbers and len(self._origins) >= LONGEST_STEP and self._free_numbers:
            former = next(iter(self._free_numbers))  # places without end: no plan can follow them
            self._free_numbers[origin] = self._free_numbers.pop(former)
        free = self._free_numbers.get(origin)
        if free is None:
            self._origins.append(origin)
            return -len(self._origins)
        number = -heapq.heappop(free)
        self._origins[-1 - number] = origin
        if not free:
            del self._free_numbers[origin]
        return number

    def pause(self) -> None:
        """Record that arrays are being put, not used; do nothing if a plan is followed and its uses have begun."""
        if self._plan is None or not self._used:
            self.cursor = None

    def coming_bytes(self, unknown_bytes: int = 0) -> int:
        """Return how many more bytes will be live at the next peak.

        Without a plan, `unknown_bytes` are assumed for the arrays that the step will put.
        """
        if self._plan is not None and not self._too_long:
            return max(0, self._plan.peak_bytes(len(self._packed)) - self._live_bytes)
        # Once arrays are asked for, the newest are needed first: to write them would be a waste.
        grows = self.cursor is None and (bool(self._live) or not self.expected_bytes)
        return max(0, self.expected_bytes - self._persistent_bytes) + (unknown_bytes if grows else 0)

    @property
    def follows_plan(self) -> bool:
        """Whether the rest of the step is known."""
        return self._plan is not None and not self._too_long

    @property
    def reserves_room(self) -> bool:
        """Whether a plan says which arrays stay until they are used, and prefetches may not evict these."""
        return self._reserves and self.follows_plan

    def room_bytes(self, entry: Entry) -> int:
        """Return how many bytes callers will count for themselves before they use an array.

        If it were prefetched there, it would be evicted, and read again.
        """
        if self._plan is None:
            return 0
        due_bytes = self._plan.room_bytes(entry.rank, len(self._used)) - self._open_rooms_bytes
        return max(0, min(due_bytes, self.budget_bytes - entry.nbytes))

    @property
    def has_persistent(self) -> bool:
        """Whether there are persistent arrays, so that a step lasts until the next one begins."""
        return bool(self._persistent) and not self._too_long

    def must_spill(self, rank: int) -> bool:
        """Whether the plan says that an array of this rank cannot stay in RAM until it is needed."""
        return self._plan is not None and self._reserves and self._plan.must_spill(rank, self.budget_bytes)

    def is_near(self, entry: Entry) -> bool:
        """Whether an array is needed so soon that it may be prefetched; True without a plan or without `reserves`."""
        return (
            self._plan is None
            or not self._reserves
            or self._plan.is_near(entry.rank, len(self._used), self.budget_bytes)
        )

    def get(self, entry: Entry) -> None:
        """Record a use of an array, and rank it by its next use."""
        entry.prefetched = False
        number = self._live.get(entry, self._persistent.get(entry))
        if number is None or self._too_long:
            if number is None or number >= 0:
                self.cursor = entry.rank
            return
        position = len(self._used)
        use = number, entry.nbytes
        self._used.append(use)
        self._note("use", number, entry.nbytes)
        plan = self._plan
        if position == 0 if plan is None else plan.used[position : position + 1] != (use,):
            self._choose_plan()
            plan = self._plan
        if plan is not None:
            self.cursor = -1 - position
        elif number >= 0:
            self.cursor = entry.rank
        rank = entry.rank
        if number < 0:
            rank = self._persistent_rank(number)
        elif plan is not None:
            rank = plan.rank(number, position + 1)
        if rank != entry.rank:
            self._rerank([(entry, rank)])
        self._too_long |= position == LONGEST_STEP

    def drop(self, entry: Entry) -> None:
        """Record that an array was dropped."""
        number = self._live.pop(entry, None)
        if number is not None:
            self._live_bytes -= entry.nbytes
        elif entry in self._persistent:
            number = self._persistent.pop(entry)
            self._persistent_bytes -= entry.nbytes
            heapq.heappush(self._free_numbers.setdefault(self._origins[-1 - number], []), -number)
        if number is not None:
            self._note("drop", number, entry.nbytes)

    def begin_room(self, nbytes: int) -> tuple[list[int], int]:
        """Record that a caller counts bytes in the tier for itself; return what `end_room` takes."""
        place = len(self._rooms)
        self._rooms.append(nbytes)
        self._open_rooms_bytes += nbytes
        if nbytes:
            self._note("put", FIRST_ROOM + place, nbytes)
        return self._rooms, place

    def end_room(self, room: tuple[list[int], int]) -> None:
        """Record that a caller stops counting bytes."""
        rooms, place = room
        if rooms is self._rooms:  # else its step has ended
            self._open_rooms_bytes -= rooms[place]
            if rooms[place]:
                self._note("drop", FIRST_ROOM + place, rooms[place])

    def begin_step(self) -> None:
        """Record that a step begins, unless arrays of the last step are still live."""
        if not self._live:
            self.end_step()

    def pass_last(self) -> None:
        """Record that no arrays of the step are left; without persistent arrays, this ends the step."""
        if not self.has_persistent:
            self.end_step()

    def end_step(self, remember: bool = True) -> None:
        """End the step; with `remember`, keep it as a plan for later steps."""
        plan = None
        if remember and self._used and not self._too_long:
            plan = StepPlan(tuple(self._packed), tuple(self._used), self._happened, self._live_bytes_then)
            plan = remember_plan(self._tier, plan)
        if self._packed or self._used:
            self.on_step(plan)
        self._live.clear()
        self._packed, self._used, self._happened = [], [], []
        self._live_bytes, self._live_bytes_then, self._rooms = 0, [], []
        self._open_rooms_bytes = 0
        self._plan, self._too_long, self.cursor = None, False, None

    def _note(self, kind: str, number: int, nbytes: int) -> None:
        if not self._too_long:
            self._happened.append((kind, number, nbytes))
            self._too_long = len(self._happened) > 4 * LONGEST_STEP

    def _choose_plan(self) -> None:
        before = self._plan
        plan = self._plan = find_plan(self._tier, self._packed, self._used)
        if plan is not before:
            got = len(self._used)
            ranks = [(e, e.sequence if plan is None else plan.rank(number, got)) for e, number in self._live.items()]
            persistent = sorted(self._persistent.items(), key=lambda each: each[0].rank)
            self._rerank(ranks + [(e, self._persistent_rank(number)) for e, number in persistent])

    def _persistent_rank(self, number: int) -> int:
        if self._plan is not None:
            return self._plan.rank(number, len(self._used))
        self._touches += 1
        return _LATER + self._touches
