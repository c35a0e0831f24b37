"""Enforce a budget: which stored arrays are in a tier, counted to the byte, and which of them to evict first."""

import collections
import weakref
from collections.abc import Callable, Iterable
from typing import Generic, cast

import numpy as np

from spillgrad.storage.residency.entry import E, Lease
from spillgrad.storage.residency.ranked_entries import RankedEntries
from spillgrad.storage.residency.residence import (
    ABOVE,
    BELOW,
    BOTH,
    CALLERS,
    CALLERS_WRITING,
    CHANGING,
    GONE,
    LENT,
    LOADING,
    LOST,
    UNREADABLE,
    WRITING,
    Residence,
)
from spillgrad.storage.residency.schedule import Rerank, Schedule


class BudgetedTier(Generic[E]):
    """The arrays that a store holds within a budget: in RAM, with the disk below, or on a device, with RAM below.

    Invariant: `used_bytes` is the sum over arrays that the store holds as they were put, arrays that the store made
    (copies for `put`, and arrays read back) while any alias of them lives, and reads under way. An array that a caller
    made counts only while the store holds it. `pinned_bytes` is the part of `used_bytes` that only callers can free.

    `dirty` holds the entries that are in this tier only, `clean` those that are also in the tier below, and `absent`
    those that are only in the tier below. Only `_move` changes where an entry is, and keeps these lists in step.

    The store's lock guards everything but `_dead`. An array may die in any thread at any moment, so its death takes no
    lock and runs no Python code, which a signal handler could interrupt: it only appends the lease of the array to
    `_dead`.
    """

    def __init__(self, name: str, budget_bytes: int, reserves: bool = True) -> None:
        """Make an empty tier. Tiers of one name share step plans. `Schedule.__init__` explains `reserves`."""
        self.name = name
        self.budget_bytes = budget_bytes
        self.used_bytes = self.peak_bytes = self.pinned_bytes = self.writing_bytes = 0
        self.schedule = Schedule(name, budget_bytes, cast(Rerank, self._rerank), reserves)
        self.dirty: RankedEntries[E] = RankedEntries()
        self.clean: RankedEntries[E] = RankedEntries()
        self.absent: RankedEntries[E] = RankedEntries()
        lists = {ABOVE: self.dirty, BOTH: self.clean, BELOW: self.absent}
        self._lists = [lists.get(residence) for residence in Residence]
        self._leases: dict[int, Lease] = {}
        self._dead: collections.deque[Lease] = collections.deque()
        self.on_room: Callable[[], None] = lambda: None  # called whenever `used_bytes` falls
        # Called before `used_bytes` changes, with the entry, if the bytes are of one, and the difference.
        self.on_count: Callable[[E | None, int], None] = lambda entry, nbytes: None

    def allow(self, budget_bytes: int) -> None:
        """Change the budget."""
        self.budget_bytes = self.schedule.budget_bytes = budget_bytes

    def _move(self, entry: E, residence: Residence) -> None:
        """Record that an entry is now at `residence`. `ALLOWED` in residence.py lists the moves that may happen."""
        former, following = self._lists[entry.residence], self._lists[residence]
        if former is not None:
            former.discard(entry)
        entry.residence, entry.moving_thread = residence, None
        if following is not None:
            following.add(entry)

    # Adding and removing

    def keep(self, entry: E, array: np.ndarray, is_copy: bool = False) -> None:
        """Hold an array that the tier below does not have; `is_copy` means that the store made the array."""
        entry.array = array
        if is_copy:
            self._lease(entry, array)
        self.reserve(entry.nbytes, entry=entry)
        self._move(entry, ABOVE)

    def hold_callers(self, entry: E, array: np.ndarray) -> None:
        """Hold an array that does not fit, in memory that its caller owns, until it is written."""
        entry.array = array
        self._move(entry, CALLERS)

    def enter_unset(self, entry: E) -> None:
        """Enter an array that has no values yet."""
        self._move(entry, UNREADABLE)

    def remove(self, entry: E) -> None:
        """Let go of an entry that was dropped or lost; if it is being written or read, the end of that does it."""
        if entry.residence is CHANGING:
            self.pinned_bytes -= entry.nbytes
        if not entry.is_writing and entry.residence is not LOADING:
            self._let_go(entry)

    def _let_go(self, entry: E) -> None:
        is_counted = not entry.in_callers_memory
        self._move(entry, LOST if entry.references > 0 else GONE)
        self._release(entry, is_counted)

    # Writing

    def begin_write(self, entry: E) -> None:
        """Record that a thread begins to write an entry; the array stays where it is."""
        if entry.residence is CALLERS:
            self._move(entry, CALLERS_WRITING)
        else:
            self.writing_bytes += entry.nbytes
            self._move(entry, WRITING)

    def end_write(self, entry: E) -> None:
        """Record that an entry was written: the tier below has it now."""
        if entry.residence is CALLERS_WRITING:
            self._move(entry, BELOW)
            self._release(entry, is_counted=False)
        else:
            self.writing_bytes -= entry.nbytes
            self._move(entry, BOTH)

    def fail_write(self, entry: E) -> None:
        """Record that the write of an entry failed: the entry is where it was before the write."""
        if entry.residence is CALLERS_WRITING:
            self._move(entry, CALLERS)
        else:
            self.writing_bytes -= entry.nbytes
            self._move(entry, ABOVE)

    def abandon_write(self, entry: E) -> None:
        """Record that a write ended in vain: the entry was dropped meanwhile, or its values are lost."""
        if entry.residence is WRITING:
            self.writing_bytes -= entry.nbytes
        self._let_go(entry)

    # Reading

    def begin_load(self, entry: E, pinned: bool) -> None:
        """Record that a thread begins to read an entry, for a caller (`pinned`) or as a prefetch."""
        self._move(entry, LOADING)
        if not pinned:
            entry.prefetched, entry.must_spill = True, False

    def end_load(self, entry: E, array: np.ndarray | None, handed_out: bool) -> None:
        """Record that a read ended, for a caller (`handed_out`) or as a prefetch: count `array`, not its reservation.

        `array` is None if the read failed.
        """
        if array is None or not (handed_out or entry.references > 0):
            self._move(entry, UNREADABLE if entry.references > 0 else GONE)
            self.unreserve(entry.nbytes, pinned=handed_out, entry=entry)
            return
        lease = self._lease(entry, array)
        if handed_out and not self._is_needed_again(entry):
            lease.pinned = True
            self._move(entry, LENT if entry.references > 0 else GONE)
        else:
            if handed_out:
                self.pinned_bytes -= entry.nbytes
            entry.array = array
            self._move(entry, BOTH)

    # Changing

    def begin_change(self, entry: E, array: np.ndarray) -> None:
        """Hold `array`, the array of `entry`; it must not be evicted or written until `end_change`."""
        lease = entry.lease
        self._move(entry, CHANGING)
        if entry.array is not array and lease is not None and lease() is array:
            self.pinned_bytes -= entry.nbytes  # only callers held it
            lease.pinned = False
        elif entry.array is not array:  # memory that the caller made, not counted yet
            self._release(entry)
            self._lease(entry, array)
            self.reserve(entry.nbytes, entry=entry)
        self.pinned_bytes += entry.nbytes
        entry.array = array

    def end_change(self, entry: E) -> None:
        """Let the array be evicted again; if the tier below lacks its values, it must be written first."""
        self.pinned_bytes -= entry.nbytes
        self._move(entry, BOTH if entry.has_copy_below else ABOVE)

    def counts(self, entry: E, array: np.ndarray) -> bool:
        """Return whether `array`, the array of `entry`, is part of `used_bytes`."""
        return entry.array is array or (entry.lease is not None and entry.lease() is array)

    # Handing out

    def held(self, entry: E) -> tuple[np.ndarray | None, Callable[[], bool] | None]:
        """Return the array of an entry, if it is in this tier, and a function that tells whether it is unchanged.

        Call the function without the lock. It is None if nobody watches the array, or while a caller changes the array.
        """
        if entry.array is not None:
            return entry.array, None if entry.residence is CHANGING else entry.unchanged
        lease = entry.lease
        array = None if lease is None else lease()
        if lease is None or array is None or lease.unchanged is None:
            return array, None
        return array, lease.unchanged() or _presume_changed

    def watch(self, entry: E, array: np.ndarray, unchanged: Callable[[], bool]) -> None:
        """Call `unchanged`, a bound method, before `array`, the array of `entry`, is handed out again.

        The object of the method is held as long as the store holds the array. While only callers hold the array, that
        object may die; then the array is presumed to be changed.
        """
        if entry.array is array:
            entry.unchanged = unchanged
        if entry.lease is not None and entry.lease() is array:
            entry.lease.unchanged = weakref.WeakMethod(unchanged)

    def unwatch(self, entry: E) -> None:
        """Stop asking whether the array of an entry is unchanged: a caller said that it has new values."""
        entry.unchanged = None
        if entry.lease is not None:
            entry.lease.unchanged = None

    def hand_out(self, entry: E) -> None:
        """Record that a caller gets the array of an entry, which is in this tier.

        If the store made the array, can read it again, and expects no further use, the store gives up its own
        reference. Then only callers hold the array.
        """
        if entry.residence is not BOTH or entry.lease is None or self._is_needed_again(entry):
            return
        self._move(entry, LENT)
        entry.array = entry.unchanged = None
        self._pin(entry.lease)

    def forget(self, entry: E) -> None:
        """Let go of an array whose values are not those of the tier below, which the next `get` reads."""
        self._move(entry, BELOW)
        self._release(entry)
        entry.lease = None

    # Room

    def reserve(self, nbytes: int, pinned: bool = False, entry: E | None = None) -> None:
        """Count bytes that are about to be used, for `entry` if given; if `pinned`, only callers can free them."""
        self.on_count(entry, nbytes)
        self.used_bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        if pinned:
            self.pinned_bytes += nbytes

    def unreserve(self, nbytes: int, pinned: bool = False, entry: E | None = None) -> None:
        """Stop counting bytes that `reserve` counted."""
        self.on_count(entry, -nbytes)
        if pinned:
            self.pinned_bytes -= nbytes
        self.used_bytes -= nbytes
        if nbytes:
            self.on_room()

    def begin_room(self, nbytes: int) -> tuple[list[int], int]:
        """Count bytes that a caller uses for itself; return what `end_room` takes."""
        self.reserve(nbytes, pinned=True)
        return self.schedule.begin_room(nbytes)

    def end_room(self, nbytes: int, room: tuple[list[int], int]) -> None:
        """Stop counting the bytes of a caller."""
        self.schedule.end_room(room)
        self.unreserve(nbytes, pinned=True)

    def make_room(self, nbytes: int, for_rank: int | None = None) -> bool:
        """Evict clean arrays until `nbytes` more fit; return whether they do.

        For a prefetch, `for_rank` is the rank of the array to be read. Then an array is evicted only if it was used
        already, or if it is needed later than that array. If a plan reserves room: only if it was used or must spill.
        """
        self.drop_dead()
        while self.used_bytes + nbytes > self.budget_bytes:
            victim = self._needed_last()
            if victim is None or (for_rank is not None and not self._may_go_for(victim, for_rank)):
                return False
            self._move(victim, BELOW if victim.lease is None else LENT)
            self._release(victim)
        return True

    @property
    def has_dead(self) -> bool:
        """Whether arrays died whose bytes are still counted. Called without the lock."""
        return bool(self._dead)

    @property
    def has_leases(self) -> bool:
        """Whether arrays that the store made are alive. Called without the lock."""
        return bool(self._leases)

    def drop_dead(self) -> None:
        """Stop counting arrays that died."""
        while self._dead:
            lease = self._dead.popleft()
            entry = cast(E, lease.entry)
            del self._leases[id(lease)]
            self.unreserve(entry.nbytes, pinned=lease.pinned, entry=entry)
            if entry.lease is lease:
                entry.lease = None
                if entry.residence is LENT:
                    self._move(entry, BELOW)

    def _release(self, entry: E, is_counted: bool = True) -> None:
        """Give up the store's reference to an array; if the store made the array, it counts while callers hold it."""
        if entry.array is not None:
            lease = entry.lease
            if lease is None and is_counted:
                self.unreserve(entry.nbytes, entry=entry)
            entry.array = None
            if lease is not None and lease() is not None:
                self._pin(lease)
            entry.unchanged = None  # its object may hold the array that is given up here
            self.drop_dead()

    def _lease(self, entry: E, array: np.ndarray) -> Lease:
        lease = entry.lease = Lease(array, self._dead.append)
        lease.entry, lease.pinned, lease.unchanged = entry, False, None
        self._leases[id(lease)] = lease
        return lease

    def _pin(self, lease: Lease) -> None:
        lease.pinned = True
        self.pinned_bytes += lease.entry.nbytes

    def _is_needed_again(self, entry: E) -> bool:
        """Whether another use of an array that was just used is expected, and the budget is not exceeded."""
        cursor = self.schedule.cursor
        is_expected = entry.persistent or (cursor is not None and entry.rank < cursor)
        return is_expected and entry.references > 0 and self.used_bytes <= self.budget_bytes

    def _needed_last(self) -> E | None:
        """Return the clean entry needed last (Belady's rule): one used already, if any, else the first to spill."""
        cursor = self.schedule.cursor
        used = None if cursor is None else self.clean.at_or_above(cursor)
        return used or self.clean.first_to_spill()

    def _may_go_for(self, victim: E, rank: int) -> bool:
        cursor = self.schedule.cursor
        if cursor is not None and victim.rank >= cursor:
            return True
        return victim.must_spill if self.schedule.reserves_room else victim.rank < rank

    def _rerank(self, ranks: Iterable[tuple[E, int]]) -> None:
        """Give entries new ranks, from pairs of entry and rank; no other entry may have these ranks."""
        new_ranks = list(ranks)
        for entry, _ in new_ranks:
            if (former := self._lists[entry.residence]) is not None:
                former.discard(entry)
        for entry, rank in new_ranks:
            entry.rank, entry.must_spill = rank, not entry.prefetched and self.schedule.must_spill(rank)
            if (present := self._lists[entry.residence]) is not None:
                present.add(entry)


def _presume_changed() -> bool:
    """Return False, for "not unchanged": the object that counted the changes of an array is gone."""
    return False
