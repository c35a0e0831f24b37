"""What a store of two tiers holds: its arrays by handle and by key, their references, and what finalizers dropped."""

import collections
import threading
from collections.abc import Callable, Hashable
from typing import Any, Generic

import numpy as np

from spillgrad.errors import SpillError
from spillgrad.storage.residency.budgeted_tier import BudgetedTier
from spillgrad.storage.residency.entry import E
from spillgrad.storage.store import Handle, Label, closed_error, gone_error
from spillgrad.storage.threads.store_lock import StoreLock, interrupted_error, own_threads


class TierState(Generic[E]):
    """The entries of a store, their references, and the tier that holds their arrays.

    Invariant: an entry is in `entries` while it has references. `lock` guards everything. Every method is called with
    the lock held, unless its docstring says otherwise. `changed` is notified when a waiting thread may go on.

    A finalizer may run in any thread, between any two lines, so it must not take the lock. It appends the handle that
    it drops to `posted`. The next thread that takes the lock drops the handle.
    """

    def __init__(self, tier: BudgetedTier[E], new_entry: Callable[[np.ndarray, int, Label | None], E]) -> None:
        self.make_locks()
        self.tier = tier
        self._new_entry = new_entry
        self.entries: dict[int, E] = {}
        self.sequence = 0
        # Handles, and objects with a `drop` that never blocks.
        self.posted: collections.deque[Any] = collections.deque()
        self._passing = 0  # how many entries are not persistent: a step ends when there are none
        self._by_key: dict[Hashable, E] = {}
        self.closing = False
        self.ended: SpillError | None = None  # why the store cannot be used any more, if it was not closed

    def make_locks(self) -> None:
        """Make a new lock, which no thread holds."""
        self.lock = StoreLock()
        self.changed = threading.Condition(self.lock)

    def require_open(self, who: str) -> None:
        """Drain the posts. Raises SpillError if the store is closed or unusable, or in a thread of a store."""
        if threading.get_ident() in own_threads:  # a finalizer that the garbage collector ran there
            raise interrupted_error()
        self.drain_posts()
        if self.ended is not None:
            raise SpillError(f"{who}: {self.ended}") from self.ended
        if self.closing:
            raise closed_error(who)

    # Posts of finalizers

    def try_drain_posts(self) -> None:
        """Drain the posts unless a thread holds the lock. Called without the lock, from anywhere."""
        if not self.lock.is_mine() and self.lock.acquire(blocking=False):
            try:
                self.drain_posts()
            finally:
                self.lock.release()

    def drain_posts(self) -> None:
        """Do what finalizers posted, and stop counting arrays that died."""
        while self.posted:
            self._answer(self.posted.popleft())
        self.tier.drop_dead()

    def _answer(self, posted: Any) -> None:
        if hasattr(posted, "drop"):
            posted.drop()
        else:
            self.release(posted)

    # Entries

    def enter(
        self, array: np.ndarray, key: Hashable | None, label: Label | None, unchanged: Callable[[], bool] | None,
        persistent: bool,
    ) -> E:  # fmt: skip
        """Make the entry of a new array, with one reference."""
        entry = self._new_entry(array, self.sequence, label)
        entry.key, entry.unchanged, entry.persistent = key, unchanged, persistent
        if not persistent:
            if not self._passing:
                self._begin_step()
            self._passing += 1
        self.sequence += 1
        self.entries[entry.sequence] = entry
        if key is not None:
            self._by_key[key] = entry
        self.tier.schedule.put(entry)
        self._entered(entry)
        return entry

    def known(self, key: Hashable | None) -> E | None:
        """Add a reference to the live entry of `key`, and return the entry; None if there is none."""
        entry = None if key is None else self._by_key.get(key)
        if entry is not None:
            entry.references += 1
            self._shared(entry)
        return entry

    def live_entry(self, who: str, handle: Handle) -> E:
        """Return the entry of `handle`. Raises SpillError if there is none, or its values are lost."""
        entry = self.entries.get(handle.sequence)
        if entry is None or entry is not handle:
            raise gone_error(who, handle)
        if entry.error is not None:
            raise SpillError(str(entry.error)) from entry.error
        return entry

    def open_entry(self, who: str, handle: Handle) -> E:
        """Return the entry of `handle`. Raises what `require_open` and `live_entry` raise."""
        self.require_open(who)
        return self.live_entry(who, handle)

    def release(self, handle: Handle) -> None:
        """Take one reference away; with the last one, remove the entry."""
        entry = self.entries.get(handle.sequence)
        if entry is None or entry is not handle:
            return
        entry.references -= 1
        if entry.references > 0:
            return
        del self.entries[entry.sequence]
        if entry.key is not None:
            del self._by_key[entry.key]
        self._freed(entry)
        self.tier.remove(entry)
        self.tier.unreserve(entry.beside_bytes, pinned=True, entry=entry)
        self.tier.schedule.drop(entry)
        if not entry.persistent:
            self._passing -= 1
            if not self._passing:
                self._end_step()
        self.free_below(entry)

    def free_below(self, entry: E) -> None:
        """Free an entry's place in the tier below; if a thread is reading it, the end of the read frees it."""
        raise NotImplementedError

    def _entered(self, entry: E) -> None:
        """No-op hook for subclasses: called after an entry was added."""

    def _shared(self, entry: E) -> None:
        """No-op hook for subclasses: called when an array is put that has an entry already."""

    def _freed(self, entry: E) -> None:
        """No-op hook for subclasses: called when an entry lost its last reference, before its array is released."""

    def _begin_step(self) -> None:
        """No-op hook for subclasses: called before the first array of a step, persistent arrays aside, is added."""

    def _end_step(self) -> None:
        """Tell the schedule that a step's last array, persistent arrays aside, is gone. Subclasses may extend this."""
        self.tier.schedule.pass_last()
