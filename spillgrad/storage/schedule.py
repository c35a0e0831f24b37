"""When each stored array will be needed: the newest first, or as in an earlier step that stored the same."""

import bisect
import collections
import heapq
import itertools
import math
import os
import threading
from collections.abc import Callable, Iterable, Sequence

from spillgrad.storage.entry import Entry

# Plans that a process keeps, the last used ones, and the longest step that becomes one.
_PLANS_MAX = 16
_LONGEST = 1 << 16

# Without a plan lasting arrays are needed after all others, and the sooner the later they were used.
_LATER = -(1 << 62)

# What is known of an array when it is put: the operation that saved it, and its bytes.
Packed = tuple[str | None, int]


class Plan:
    """What a step put, in order, and what it got, in order: arrays of the step counted from 0 as they were put, lasting
    ones from -1 downwards.

    `live_bytes` of the step's arrays were live when each was put.
    """

    def __init__(
        self, packed: tuple[Packed, ...], used: tuple[int, ...], live_bytes: Sequence[int], used_bytes: Sequence[int]
    ) -> None:
        self.packed = packed
        self.used = used
        self._used_bytes = [*itertools.accumulate(used_bytes, initial=0)]
        self._peak_bytes = [*itertools.accumulate(reversed(live_bytes), max, initial=0)][::-1]
        self._uses: dict[int, list[int]] = {}
        for position, number in enumerate(used):
            self._uses.setdefault(number, []).append(position)
        by_rank = sorted(((self.rank(number, 0), nbytes) for number, (_, nbytes) in enumerate(packed)), reverse=True)
        self._ranks = [rank for rank, _ in by_rank]
        self._needed_bytes = [*itertools.accumulate(nbytes for _, nbytes in by_rank)]

    def peak_bytes(self, put: int) -> int:
        """Return the most bytes that will be live when more is put, after the first `put` arrays."""
        return self._peak_bytes[put]

    def highest_rank_beyond(self, budget_bytes: int) -> float:
        """Return the highest rank of an array that does not fit beside all that are needed sooner."""
        place = bisect.bisect_right(self._needed_bytes, budget_bytes)
        return self._ranks[place] if place < len(self._ranks) else -math.inf

    def bytes_before(self, rank: int, got: int) -> int:
        """Return the bytes of all uses from after `got` of them to that of a rank, in this step or the next."""
        position = min(-1 - rank, 2 * len(self.used))
        steps, place = divmod(position, len(self.used)) if self.used else (0, 0)
        return steps * self._used_bytes[-1] + self._used_bytes[place] - self._used_bytes[min(got, len(self.used))]

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


_plans: collections.OrderedDict[tuple[Packed, ...], Plan] = collections.OrderedDict()
_plans_lock = threading.Lock()


def _remember(plan: Plan) -> None:
    with _plans_lock:
        _plans[plan.packed] = plan
        _plans.move_to_end(plan.packed)
        if len(_plans) > _PLANS_MAX:
            _plans.popitem(last=False)


def _find(packed: list[Packed], used: list[int]) -> Plan | None:
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
    _plans_lock = threading.Lock()


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

    def __init__(self, rerank: Callable[[Iterable[tuple[Entry, int]]], None]) -> None:
        """Give ranks; `rerank` changes those of arrays that have one."""
        self.cursor: int | None = None  # None while arrays are put
        self._rerank = rerank
        self._live: dict[Entry, int] = {}  # numbers
        self._lasting: dict[Entry, int] = {}
        self._free_numbers: list[int] = []
        self._touches = 0
        self._packed: list[Packed] = []
        self._used: list[int] = []
        self._used_bytes: list[int] = []
        self._live_bytes = self._lasting_bytes = 0
        self._live_bytes_then: list[int] = []  # when each was put
        self._plan: Plan | None = None
        self._too_long = False

    def put(self, entry: Entry) -> None:
        """Rank a new array."""
        if entry.lasting:
            number = heapq.heappop(self._free_numbers) if self._free_numbers else -1 - len(self._lasting)
            self._lasting[entry] = number
            self._lasting_bytes += entry.nbytes
            entry.rank = self._lasting_rank(number)
            return
        if not self._too_long:
            self._live[entry] = number = len(self._packed)
            packed = (entry.label.op, entry.nbytes)
            self._packed.append(packed)
            self._live_bytes += entry.nbytes
            self._live_bytes_then.append(self._live_bytes)
            plan = self._plan
            if number == 0 or (plan is not None and (number == len(plan.packed) or plan.packed[number] != packed)):
                self._choose_plan()
            if self._plan is not None:
                entry.rank = self._plan.rank(number, len(self._used))
            self._too_long = number == _LONGEST
        self.pause()

    def pause(self) -> None:
        """Expect that arrays are put rather than got now, unless a plan says otherwise."""
        if self._plan is None or not self._used:
            self.cursor = None

    @property
    def coming_bytes(self) -> int | None:
        """How many bytes more will be live at the next peak, according to the plan; None without one."""
        plan = None if self._too_long else self._plan
        return None if plan is None else max(0, plan.peak_bytes(len(self._packed)) - self._live_bytes)

    def stays(self, entry: Entry, budget_bytes: int) -> bool:
        """Whether an array fits the budget beside all that a plan says are needed sooner."""
        return self._plan is not None and entry.rank > self._plan.highest_rank_beyond(budget_bytes)

    def leaves(self, entry: Entry, budget_bytes: int) -> bool:
        """Whether a plan says that a lasting array cannot stay until it is needed: what is used before fills a budget.

        What is used twice before counts twice, unless all there is fits.
        """
        plan = self._plan
        if plan is None or not entry.lasting or self._too_long:
            return False
        if self._lasting_bytes + plan.peak_bytes(0) <= budget_bytes:
            return False
        return plan.bytes_before(entry.rank, len(self._used)) > budget_bytes

    def get(self, entry: Entry) -> None:
        """Note that an array is used now."""
        number = self._live.get(entry, self._lasting.get(entry))
        if number is None or self._too_long:
            if number is None or number >= 0:
                self.cursor = entry.rank
            return
        position = len(self._used)
        self._used.append(number)
        self._used_bytes.append(entry.nbytes)
        plan = self._plan
        if position == 0 if plan is None else plan.used[position : position + 1] != (number,):
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
        self._too_long = position == _LONGEST

    def drop(self, entry: Entry) -> None:
        """Forget an array."""
        if self._live.pop(entry, None) is not None:
            self._live_bytes -= entry.nbytes
        elif entry in self._lasting:  # as many will come in the next step
            heapq.heappush(self._free_numbers, self._lasting.pop(entry))
            self._lasting_bytes -= entry.nbytes

    def begin_step(self) -> None:
        """Note that a step begins, unless arrays of the last one are still there."""
        if not self._live:
            self.end_step()

    def pass_last(self) -> None:
        """Note that only lasting arrays are left, if any."""
        if not self._lasting or self._too_long:
            self.end_step()

    def end_step(self) -> None:
        """Remember the step."""
        if self._used and not self._too_long:
            _remember(Plan(tuple(self._packed), tuple(self._used), self._live_bytes_then, self._used_bytes))
        self._live.clear()
        self._packed, self._used, self._used_bytes = [], [], []
        self._live_bytes, self._live_bytes_then = 0, []
        self._plan, self._too_long, self.cursor = None, False, None

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
