"""When each stored array will be needed: the newest first, or as in an earlier step that stored the same."""

import bisect
import collections
import heapq
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from spillgrad.storage.residency import belady
from spillgrad.storage.residency.entry import Entry

# Plans that a process keeps, the last used ones, and the longest step that becomes one.
_PLANS_MAX = 16
_LONGEST = 1 << 16

# Without a plan lasting arrays are needed after all others, and the sooner the later they were used.
_LATER = -(1 << 62)

# What is known of an array when it is put: the operation that saved it, and its bytes.
Packed = tuple[str | None, int]
# What was used: its number, and its bytes.
Used = tuple[int, int]
# What happened: "put", "use" or "drop", and to which number and how many bytes.
Happened = tuple[str, int, int]


class _Within(NamedTuple):
    """Within a budget: the uses that find their array on disk only, once the step has repeated, and their bytes before
    each use; and how many bytes there is room for beside what stays.
    """

    missed: frozenset[int]
    missed_bytes: list[int]
    ahead_bytes: int


class Plan:
    """What a step put, in order, and what it got, in order: arrays of the step counted from 0 as they were put, lasting
    ones from -1 downwards; and all that happened to them.

    `live_bytes` of the step's arrays were live when each was put.
    """

    def __init__(
        self,
        packed: tuple[Packed, ...],
        used: tuple[Used, ...],
        happened: Sequence[Happened],
        live_bytes: Sequence[int],
    ) -> None:
        self.packed = packed
        self.used = used
        self.happened = happened
        self._peak_bytes = [*itertools.accumulate(reversed(live_bytes), max, initial=0)][::-1]
        self._uses: dict[int, list[int]] = {}
        for position, (number, _) in enumerate(used):
            self._uses.setdefault(number, []).append(position)
        self._within: dict[int, _Within] = {}

    def peak_bytes(self, put: int) -> int:
        """Return the most bytes that will be live when more is put, after the first `put` arrays."""
        return self._peak_bytes[put]

    def leaves(self, rank: int, budget_bytes: int) -> bool:
        """Whether an array of a rank cannot stay within a budget until it is needed, by Belady's rule.

        Where some leave, so does what is never needed.
        """
        missed = self._at(budget_bytes).missed
        steps, position = divmod(-1 - rank, len(self.used))
        return bool(missed) and (steps >= 2 or position in missed)

    def is_near(self, rank: int, got: int, budget_bytes: int) -> bool:
        """Whether an array of a rank may be read after `got` uses: that leaves room for what stays and comes before."""
        within = self._at(budget_bytes)
        steps, position = divmod(-1 - rank, len(self.used))
        before = steps * within.missed_bytes[-1] + within.missed_bytes[position] - within.missed_bytes[got]
        return before == 0 or before + self.used[position][1] <= within.ahead_bytes

    def _at(self, budget_bytes: int) -> _Within:
        found = self._within.get(budget_bytes)
        if found is None:
            self._within[budget_bytes] = found = self._run(budget_bytes)
        return found

    def _run(self, budget_bytes: int) -> _Within:
        items, events = self.as_traffic()
        moved, ahead_bytes = belady.of_store(items, events, budget_bytes)
        uses = (place for place, event in enumerate(events) if event.kind == "use")
        missed = frozenset(position for position, place in enumerate(uses) if place in moved.missed)
        missed_bytes = (nbytes if position in missed else 0 for position, (_, nbytes) in enumerate(self.used))
        return _Within(missed, [*itertools.accumulate(missed_bytes, initial=0)], ahead_bytes)

    def as_traffic(self) -> tuple[list[belady.Item], list[belady.Event]]:
        """Return the arrays, and what happened to them, as a simulation takes them."""
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
        """Return the rank of an array after `got` uses of any, by its next use.

        A lasting array's may be in the next step, which is expected to be like this one; any other's is its last use if
        none will come.
        """
        uses = self._uses.get(number)
        if uses is None:
            return -1 - 2 * len(self.used) - (number if number >= 0 else len(self.packed) - 1 - number)
        place = bisect.bisect_left(uses, got)
        if place < len(uses):
            return -1 - uses[place]
        return -1 - uses[-1] if number >= 0 else -1 - len(self.used) - uses[0]


_plans: collections.OrderedDict[tuple[tuple[Packed, ...], tuple[Used, ...]], Plan] = collections.OrderedDict()
_plans_lock = threading.RLock()


def _remember(plan: Plan) -> Plan:
    """Return the plan that is remembered: this one, or one like it."""
    with _plans_lock:
        key = plan.packed, plan.used
        known = _plans.get(key)
        if known is None or known.happened != plan.happened:
            _plans[key] = known = plan
        _plans.move_to_end(key)
        if len(_plans) > _PLANS_MAX:
            _plans.popitem(last=False)
    return known


def _find(packed: list[Packed], used: list[Used]) -> Plan | None:
    """Return the last used plan that begins with what was put and got."""
    with _plans_lock:
        plans = list(reversed(_plans.values()))
    begin, first_uses = tuple(packed), tuple(used)
    for plan in plans:
        if plan.packed[: len(begin)] == begin and plan.used[: len(first_uses)] == first_uses:
            return plan
    return None


def _renew_lock() -> None:
    """In a forked child: who held it is not here."""
    global _plans_lock
    _plans_lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


class Schedule:
    """Ranks arrays by when they will be needed: of those below the `cursor` the highest rank is next.

    A step runs from the first array put into an empty store until it is empty again. A training loop repeats itself, so
    what a step put and got becomes a plan for all stores of the process: a step that begins with the same is expected
    to go on like it. One that follows no plan is expected to need the newest first. What has a rank at the cursor or
    above was used; it is needed last.

    Lasting arrays are there in every step. They are needed again, in this step or the next. Where there are some, a
    step goes on, to the updates after backward, until `begin_step` says that the next one begins.

    Invariant: ranks of live arrays differ, and follow the plan or are their sequence numbers. The store's lock guards
    everything.
    """

    def __init__(self, budget_bytes: int, rerank: Callable[[Iterable[tuple[Entry, int]]], None]) -> None:
        """Give ranks; `rerank` changes those of arrays that have one."""
        self.budget_bytes = budget_bytes
        self.cursor: int | None = None  # None while arrays are put
        self.on_step: Callable[[Plan | None], None] = lambda plan: None  # called at the end of each
        self._rerank = rerank
        self._live: dict[Entry, int] = {}  # numbers
        self._lasting: dict[Entry, int] = {}
        self._free_numbers: list[int] = []
        self._touches = 0
        self._packed: list[Packed] = []
        self._used: list[Used] = []
        self._happened: list[Happened] = []
        self._live_bytes = self._lasting_bytes = 0
        self.expected_bytes = 0  # of all lasting arrays that there will be
        self._live_bytes_then: list[int] = []  # when each was put
        self._plan: Plan | None = None
        self._too_long = False

    def put(self, entry: Entry) -> None:
        """Rank a new array."""
        if entry.lasting:
            number = heapq.heappop(self._free_numbers) if self._free_numbers else -1 - len(self._lasting)
            self._lasting[entry] = number
            self._lasting_bytes += entry.nbytes
            self._note("put", number, entry)
            entry.rank = self._lasting_rank(number)
            entry.leaves = self.leaves(entry.rank)
            return
        if not self._too_long:
            self._live[entry] = number = len(self._packed)
            packed = (entry.label.op, entry.nbytes)
            self._packed.append(packed)
            self._note("put", number, entry)
            self._live_bytes += entry.nbytes
            self._live_bytes_then.append(self._live_bytes)
            plan = self._plan
            if number == 0 or (plan is not None and (number == len(plan.packed) or plan.packed[number] != packed)):
                self._choose_plan()
            if self._plan is not None:
                entry.rank = self._plan.rank(number, len(self._used))
                entry.leaves = self.leaves(entry.rank)
            self._too_long |= number == _LONGEST
        self.pause()

    def pause(self) -> None:
        """Expect that arrays are put rather than got now, unless a plan says otherwise."""
        if self._plan is None or not self._used:
            self.cursor = None

    def coming_bytes(self, unknown_bytes: int = 0) -> int:
        """Return how many bytes more will be live at the next peak; without a plan `unknown_bytes` of a step's."""
        if self._plan is not None and not self._too_long:
            return max(0, self._plan.peak_bytes(len(self._packed)) - self._live_bytes)
        # Once arrays are asked for, the newest go next: writing them would be for nothing.
        grows = self.cursor is None and (bool(self._live) or not self.expected_bytes)
        return max(0, self.expected_bytes - self._lasting_bytes) + (unknown_bytes if grows else 0)

    @property
    def follows_plan(self) -> bool:
        """Whether what comes is known."""
        return self._plan is not None and not self._too_long

    @property
    def has_lasting(self) -> bool:
        """Whether steps end when the next one begins."""
        return bool(self._lasting) and not self._too_long

    def leaves(self, rank: int) -> bool:
        """Whether a plan says that an array of this rank cannot stay until it is needed."""
        return self._plan is not None and self._plan.leaves(rank, self.budget_bytes)

    def is_near(self, entry: Entry) -> bool:
        """Whether an array is needed so soon that it may be read now."""
        return self._plan is None or self._plan.is_near(entry.rank, len(self._used), self.budget_bytes)

    def get(self, entry: Entry) -> None:
        """Note that an array is used now."""
        entry.ahead = False
        number = self._live.get(entry, self._lasting.get(entry))
        if number is None or self._too_long:
            if number is None or number >= 0:
                self.cursor = entry.rank
            return
        position = len(self._used)
        use = number, entry.nbytes
        self._used.append(use)
        self._note("use", number, entry)
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
            rank = self._lasting_rank(number)
        elif plan is not None:
            rank = plan.rank(number, position + 1)
        if rank != entry.rank:
            self._rerank([(entry, rank)])
        self._too_long |= position == _LONGEST

    def drop(self, entry: Entry) -> None:
        """Forget an array."""
        number = self._live.pop(entry, None)
        if number is not None:
            self._live_bytes -= entry.nbytes
        elif entry in self._lasting:  # as many will come in the next step
            number = self._lasting.pop(entry)
            self._lasting_bytes -= entry.nbytes
            heapq.heappush(self._free_numbers, number)
        if number is not None:
            self._note("drop", number, entry)

    def begin_step(self) -> None:
        """Note that a step begins, unless arrays of the last one are still there."""
        if not self._live:
            self.end_step()

    def pass_last(self) -> None:
        """Note that only lasting arrays are left, if any."""
        if not self.has_lasting:
            self.end_step()

    def end_step(self, remember: bool = True) -> None:
        """End the step, and remember it, unless it broke off."""
        plan = None
        if remember and self._used and not self._too_long:
            plan = _remember(Plan(tuple(self._packed), tuple(self._used), self._happened, self._live_bytes_then))
        if self._packed or self._used:
            self.on_step(plan)
        self._live.clear()
        self._packed, self._used, self._happened = [], [], []
        self._live_bytes, self._live_bytes_then = 0, []
        self._plan, self._too_long, self.cursor = None, False, None

    def _note(self, kind: str, number: int, entry: Entry) -> None:
        if not self._too_long:
            self._happened.append((kind, number, entry.nbytes))
            self._too_long = len(self._happened) > 4 * _LONGEST

    def _choose_plan(self) -> None:
        before = self._plan
        plan = self._plan = _find(self._packed, self._used)
        if plan is not before:
            got = len(self._used)
            ranks = [(e, e.sequence if plan is None else plan.rank(number, got)) for e, number in self._live.items()]
            lasting = sorted(self._lasting.items(), key=lambda each: each[0].rank)
            self._rerank(ranks + [(e, self._lasting_rank(number)) for e, number in lasting])

    def _lasting_rank(self, number: int) -> int:
        if self._plan is not None:
            return self._plan.rank(number, len(self._used))
        self._touches += 1
        return _LATER + self._touches
