"""The puts, uses and drops of a step, kept as a plan for later steps."""

import bisect
import collections
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from spillgrad.fork_safe_lock import ForkSafeLock
from spillgrad.storage.residency import belady

# How many plans a process keeps (those used last), and how many arrays and uses a step may have to become a plan.
_PLANS_MAX = 16
LONGEST_STEP = 1 << 16
# Bytes that callers count for themselves have numbers from this one on.
FIRST_ROOM = 1 << 32

# What identifies an array when it is put: the operation that saved it, and its bytes.
Packed = tuple[str | None, int]
# A use: the number of the array, and its bytes.
Used = tuple[int, int]
# An event: "put", "use" or "drop", the number of the array, or of a caller's bytes, and the bytes.
Happened = tuple[str, int, int]


class _Within(NamedTuple):
    """Which uses of a plan must read the disk, within a budget, once the step has repeated.

    `missed` holds the positions of these uses. `missed_bytes` has, for each use, the sum of the bytes of the missed
    uses before it. `prefetch_bytes` is the room for prefetched arrays beside the arrays that stay.
    """

    missed: frozenset[int]
    missed_bytes: list[int]
    prefetch_bytes: int


class StepPlan:
    """The record of a step, from which the next step is planned: its puts, its uses, and all events in order.

    Arrays that the step put have the numbers 0, 1, 2, … in the order of their puts; persistent arrays have -1, -2, ….

    `live_bytes[i]` is the number of bytes of the step's arrays that were live after put `i`.
    """

    def __init__(
        self, packed: tuple[Packed, ...], used: tuple[Used, ...], happened: Sequence[Happened],
        live_bytes: Sequence[int],
    ) -> None:  # fmt: skip
        self.packed = packed
        self.used = used
        self.happened = happened
        self._peak_bytes = [*itertools.accumulate(reversed(live_bytes), max, initial=0)][::-1]
        self._uses: dict[int, list[int]] = {}
        for position, (number, _) in enumerate(used):
            self._uses.setdefault(number, []).append(position)
        self._room_bytes: list[int] = []  # that callers counted for themselves
        self._used_before_room: list[int] = []  # how many uses there were before
        uses = 0
        for kind, number, nbytes in happened:
            uses += kind == "use"
            if kind == "put" and number >= FIRST_ROOM:
                self._room_bytes.append(nbytes)
                self._used_before_room.append(uses)
        self._largest_room_from = [*itertools.accumulate(reversed(self._room_bytes), max, initial=0)][::-1]
        self._within: dict[int, _Within] = {}

    def peak_bytes(self, put: int) -> int:
        """Return the most bytes that will be live at any later put, once `put` arrays have been put."""
        return self._peak_bytes[put]

    def must_spill(self, rank: int, budget_bytes: int) -> bool:
        """Return whether Belady's rule evicts an array of this rank, within this budget, before it is needed.

        Arrays that are never needed again must spill as soon as any other array must.
        """
        missed = self._at(budget_bytes).missed
        steps, position = divmod(-1 - rank, len(self.used))
        return bool(missed) and (steps >= 2 or position in missed)

    def is_near(self, rank: int, got: int, budget_bytes: int) -> bool:
        """Return whether an array of this rank may be prefetched after `got` uses.

        It may if the arrays to be read before it, and the arrays that stay in RAM, leave room for it.
        """
        within = self._at(budget_bytes)
        steps, position = divmod(-1 - rank, len(self.used))
        before = steps * within.missed_bytes[-1] + within.missed_bytes[position] - within.missed_bytes[got]
        return before == 0 or before + self.used[position][1] <= within.prefetch_bytes

    def room_bytes(self, rank: int, got: int) -> int:
        """Return the most bytes that a caller counts for itself after `got` uses, before the use of an array's rank."""
        steps, position = divmod(-1 - rank, len(self.used))
        first = bisect.bisect_left(self._used_before_room, got)
        if steps:  # in the next step
            return self._largest_room_from[first]
        last = bisect.bisect_right(self._used_before_room, position)
        return max(self._room_bytes[first:last], default=0)

    def _at(self, budget_bytes: int) -> _Within:
        found = self._within.get(budget_bytes)
        if found is None:
            self._within[budget_bytes] = found = self._run(budget_bytes)
        return found

    def _run(self, budget_bytes: int) -> _Within:
        items, events = self.as_events()
        moved, prefetch_bytes = belady.of_store(items, events, budget_bytes)
        uses = (place for place, event in enumerate(events) if event.kind == "use")
        missed = frozenset(position for position, place in enumerate(uses) if place in moved.missed)
        missed_bytes = (nbytes if position in missed else 0 for position, (_, nbytes) in enumerate(self.used))
        return _Within(missed, [*itertools.accumulate(missed_bytes, initial=0)], prefetch_bytes)

    def as_events(self) -> tuple[list[belady.Item], list[belady.Event]]:
        """Return the arrays and their events as `belady.run` takes them."""
        put = {number for kind, number, _ in self.happened if kind == "put"}
        numbers: dict[int, int] = {}
        items: list[belady.Item] = []
        events = []
        for kind, number, nbytes in self.happened:
            if number not in numbers:
                numbers[number] = len(items)
                items.append(belady.Item(nbytes, number < 0 and number not in put))
            events.append(belady.Event(kind, numbers[number]))
        return items, events

    def rank(self, number: int, got: int) -> int:
        """Return the rank of array `number` after `got` uses of any arrays: the sooner its next use, the higher.

        The next use of a persistent array may be in the next step, which is expected to repeat this step. An array of
        the step that is not used any more has the rank of its last use.
        """
        uses = self._uses.get(number)
        if uses is None:
            return -1 - 2 * len(self.used) - (number if number >= 0 else len(self.packed) - 1 - number)
        place = bisect.bisect_left(uses, got)
        if place < len(uses):
            return -1 - uses[place]
        return -1 - uses[-1] if number >= 0 else -1 - len(self.used) - uses[0]


# By the name of the tier, and what identifies the step.
_plans: collections.OrderedDict[tuple[str, tuple[Packed, ...], tuple[Used, ...]], StepPlan] = collections.OrderedDict()
_plans_lock = ForkSafeLock()


def remember_plan(tier: str, plan: StepPlan) -> StepPlan:
    """Remember a plan for tiers of this name; return it, or the equal plan that is remembered already."""
    with _plans_lock:
        key = tier, plan.packed, plan.used
        known = _plans.get(key)
        if known is None or known.happened != plan.happened:
            _plans[key] = known = plan
        _plans.move_to_end(key)
        if len(_plans) > _PLANS_MAX:
            _plans.popitem(last=False)
    return known


def find_plan(tier: str, packed: list[Packed], used: list[Used]) -> StepPlan | None:
    """Return the most recently used plan of this tier that begins with these puts and uses, or None."""
    with _plans_lock:
        plans = [plan for (name, *_), plan in reversed(_plans.items()) if name == tier]
    begin, first_uses = tuple(packed), tuple(used)
    for plan in plans:
        if plan.packed[: len(begin)] == begin and plan.used[: len(first_uses)] == first_uses:
            return plan
    return None
