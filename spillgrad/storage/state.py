"""What a store holds and whether it is still open: the state that callers, the writer and the prefetcher share."""

import collections
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from spillgrad.errors import SpillError
from spillgrad.storage.counters import Ledger, StepTraffic
from spillgrad.storage.disk.segment import Extent
from spillgrad.storage.journal.writer import Journal
from spillgrad.storage.residency.budgeted_tier import Cache
from spillgrad.storage.residency.entry import Entry
from spillgrad.storage.store import Handle, Label, closed_error, gone_error
from spillgrad.storage.threads import io_threads
from spillgrad.storage.threads.bell import Bell
from spillgrad.storage.threads.store_lock import StoreLock, interrupted_error, own_threads

# The writer gives freed extents back when it is awake anyway, or when there are so many.
_MANY_FREED = 16


class Account:
    """The entries of a store, their references, the cache, and the flags of its life.

    Invariant: an entry is in `entries` while it has references. Everything is guarded by `lock`, and every method is
    called with it held, unless it says otherwise; `changed` is notified when somebody who waits may go on.

    A finalizer may run in any thread between any two lines, so it takes no lock: it appends to `posted` a handle to be
    dropped. Whoever takes the lock next sees to it, or, where nobody does, the writer, which looks every so often.
    """

    def __init__(self, budget_bytes: int, journal: Journal) -> None:
        self._make_locks()
        self.bell = Bell()  # wakes the writer's thread
        self.cache = self._empty_cache(budget_bytes)
        self.ledger = Ledger(journal, self.cache)
        self.entries: dict[int, Entry] = {}
        self.freed: list[Extent] = []  # extents that the writer gives back
        self.waiting_puts = self.waiting_bytes = 0
        self.loads_wait = False  # something is to be loaded and there was no room: `on_room` is to be called
        self.readers = 0
        self._jobs = 0
        # Failed writes that nobody was told of yet, by the array concerned; None for the files themselves.
        self.failures: dict[Entry | None, SpillError] = {}
        self.closing = False
        self.on_step: Callable[[float, float, int], None] = lambda step_s, waited_s, moved_bytes: None
        self.on_drop: Callable[[Handle], None] | None = None  # called when the last reference to an array goes
        self.at_step_end: list[Callable[[StepTraffic], None]] = []  # called once, at the end of the present step
        self.on_room: Callable[[], None] = lambda: None
        self._before = self.ledger.traffic()
        self._passing = 0  # entries that are not lasting: a step is over when there are none
        self.sequence = 0
        self._by_key: dict[Hashable, Entry] = {}
        self.ended: SpillError | None = None  # why the store can no longer be used, if it was not closed
        # What handles are appended to, to be dropped, as is all else with a method `drop` that never blocks; and
        # references to a store and to its owner once those are gone.
        self.posted: collections.deque[Any] = collections.deque()
        self._store: weakref.ref[Any] = weakref.ref(self)
        self._owner: weakref.ref[Any] = self._store
        self._wakers: list[weakref.ref[Any]] = []
        self._retiring = False

    # What finalizers leave to others

    def close_with(self, store: object) -> None:
        """Close as soon as a store is gone: nobody can get anything any more."""
        self._store = self._watch(store)

    def retire_with(self, owner: object) -> None:
        """Close as soon as an object is gone and no handle is live."""
        self._owner = self._watch(owner)

    def _watch(self, watched: object) -> "weakref.ref[Any]":
        """Return a reference that is posted once an object is gone; then the writer is woken."""
        self._wakers.append(weakref.ref(watched, self.bell.ring_in_c))  # the newest reference is called first
        return weakref.ref(watched, self.posted.append)

    def retire(self) -> None:
        """Close as soon as no handle is live. Called without the lock, from anywhere."""
        self.posted.append(self._owner)
        self.look()

    def look(self) -> None:
        """See to what was posted, unless somebody has the lock. Called without it, from anywhere."""
        if not self.lock.is_mine() and self.lock.acquire(blocking=False):
            try:
                self.drain()
            finally:
                self.lock.release()

    @property
    def has_posts(self) -> bool:
        """Whether something was posted, or an array that is counted died. Called without the lock."""
        return bool(self.posted) or self.cache.has_ended

    @property
    def is_in_use(self) -> bool:
        """Whether arrays are held, or those that the store made are alive. Called without the lock."""
        return bool(self.entries) or self.cache.has_lent

    def drain(self) -> None:
        """See to what was posted."""
        while self.posted:
            item = self.posted.popleft()
            if isinstance(item, Handle):
                self.release(item)
            elif item is self._owner:
                self._retiring = True
            elif item is self._store:
                self.close()
            else:
                item.drop()
        self.cache.settle()
        if self.loads_wait and not self.closing:
            self.on_room()
        if self._retiring and not self.entries:
            self.close()

    def _empty_cache(self, budget_bytes: int) -> Cache:
        return Cache(budget_bytes, on_room=self._wake_waiting_puts)

    def _wake_waiting_puts(self) -> None:
        """Have those who wait for room look again. Called with the lock held, by whoever made some."""
        if self.waiting_puts:
            self.changed.notify_all()

    # Life

    def settle(self, who: str) -> None:
        """See to what was posted, and make sure that the store is open."""
        if threading.get_ident() in own_threads:  # the collector came there
            raise interrupted_error()
        self.drain()
        if self.ended is not None:
            raise SpillError(f"{who}: {self.ended}") from self.ended
        if self.closing:
            raise closed_error(who)

    def raise_failure(self) -> None:
        """Raise the error of failed writes, once."""
        if self.failures:
            failures, self.failures = list(self.failures.values()), {}
            raise failures.pop(0)  # whose traceback holds this frame, and the callers'

    def close(self) -> None:
        """Let everybody who waits or works know that the store closes."""
        if not self.closing:
            self.closing = True
            self.bell.ring()
            self.changed.notify_all()

    def end(self, why: SpillError) -> None:
        """Make the store unusable: a thread died, or this is a forked child."""
        self.ended = why
        self.changed.notify_all()

    def submit(self, work: Callable[[], None]) -> None:
        """Have an I/O thread do something for the store, which lasts at least until then."""
        io_threads.submit(work, self._job_ended)  # which comes to its end only once this thread gives up the lock
        self._jobs += 1

    def _job_ended(self, error: SpillError | None) -> None:
        with self.lock:
            self._jobs -= 1
            if error is not None:
                self.end(error)
            self.changed.notify_all()

    def wait_for_io(self) -> None:
        """Return once nobody reads or writes the files any more."""
        while self.readers or self._jobs:
            self.changed.wait()

    def clear(self) -> None:
        """Release every entry. Nobody may be reading or writing one."""
        self.cache.schedule.end_step(remember=not self._passing)
        for entry in list(self.entries.values()):
            entry.references = 1
            self.release(entry)
        self.freed.clear()

    def forget(self, why: SpillError) -> None:
        """Become the unusable account of a forked child, which has no thread but this. Called without the lock.

        Another thread may have held the lock, and been in the middle of anything, when the process forked.
        """
        self._make_locks()
        self.cache = self._empty_cache(self.cache.budget_bytes)
        self.ledger.forget(self.cache)
        self.entries, self._by_key, self.freed = {}, {}, []
        self._passing = 0
        self.posted.clear()
        self.readers = self._jobs = self.waiting_puts = self.waiting_bytes = 0
        self.closing = True
        self.ended = why

    def _make_locks(self) -> None:
        self.lock = StoreLock()
        self.changed = threading.Condition(self.lock)

    # Entries

    def enter(
        self,
        array: np.ndarray,
        key: Hashable | None,
        label: Label | None,
        unchanged: Callable[[], bool] | None,
        lasting: bool,
    ) -> Entry:
        """Make the entry of a new array, with one reference."""
        entry = Entry(array, self.sequence, label)
        entry.key, entry.unchanged, entry.lasting = key, unchanged, lasting
        if not lasting:
            if not self._passing:
                self._before = self.ledger.traffic()
            self._passing += 1
        self.sequence += 1
        self.entries[entry.sequence] = entry
        if key is not None:
            self._by_key[key] = entry
        self.cache.schedule.put(entry)
        self.ledger.packed(entry)
        return entry

    def renumber(self, entry: Entry) -> None:
        """Give an array that is about to change the name of a new one: its old place may still have the old name."""
        self.ledger.changed(entry)
        entry.edition = self.sequence
        self.sequence += 1

    def known(self, key: Hashable | None) -> Entry | None:
        """Return the live entry of `key` with one reference more."""
        entry = None if key is None else self._by_key.get(key)
        if entry is not None:
            entry.references += 1
            self.ledger.shared(entry)
        return entry

    def live_entry(self, who: str, handle: Handle) -> Entry:
        """Return the entry of `handle`, or raise why there is none."""
        entry = self.entries.get(handle.sequence)
        if entry is None or entry is not handle:
            raise gone_error(who, handle)
        if entry.error is not None:
            raise SpillError(str(entry.error)) from entry.error
        return entry

    def release(self, handle: Handle) -> None:
        """Take one reference; with the last one the entry goes."""
        entry = self.entries.get(handle.sequence)
        if entry is None or entry is not handle:
            return
        entry.references -= 1
        if entry.references > 0:
            return
        del self.entries[entry.sequence]
        if self.on_drop is not None:
            self.on_drop(entry)
        if entry.key is not None:
            del self._by_key[entry.key]
        self.failures.pop(entry, None)
        self.ledger.freed(entry)
        self.cache.remove(entry)
        self.cache.unreserve(entry.beside_bytes, pinned=True)
        self.cache.schedule.drop(entry)
        if not entry.lasting:
            self._passing -= 1
            if not self._passing:
                self._end_step()
        self.free_extent(entry)
        if not self._passing or len(self.freed) >= _MANY_FREED:
            self.bell.ring()

    def _end_step(self) -> None:
        """Note that a step ended."""
        self.cache.schedule.pass_last()
        if not self.cache.schedule.has_lasting:
            self.ledger.begin_phase(None)
        step = self.ledger.traffic().since(self._before)
        if step.moved_bytes:
            self.on_step(step.seconds, step.waited_s - step.cached_wait_s, step.moved_bytes)
        callbacks, self.at_step_end = self.at_step_end, []
        for callback in callbacks:
            callback(step)

    def free_extent(self, entry: Entry) -> None:
        """Give the space of an entry without references back, once nobody reads it."""
        if entry.extent is not None and not entry.readers:
            self.freed.append(entry.extent)
            entry.extent = None
