"""What a disk store holds, and whether it is open: the state that callers and the store's threads share."""

import collections
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spillgrad import communication
from spillgrad.bell import Bell
from spillgrad.errors import SpillError
from spillgrad.storage.counters import Counters, StepTraffic
from spillgrad.storage.disk.entry import DiskEntry
from spillgrad.storage.disk.segment import Extent
from spillgrad.storage.disk.source_file import NoValues, SourceExtent
from spillgrad.storage.journal.writer import Journal
from spillgrad.storage.residency.budgeted_tier import BudgetedTier
from spillgrad.storage.residency.tier_state import TierState
from spillgrad.storage.store import Handle
from spillgrad.storage.threads import io_threads

# This many freed extents wake the writer, which gives them back; fewer wait until it wakes for another reason.
_MANY_FREED = 16


class StoreState(TierState[DiskEntry]):
    """The state of a store whose tier below is the disk.

    The writer looks at regular intervals for handles that finalizers posted, and drops those that no other thread
    dropped.
    """

    def __init__(self, budget_bytes: int, directory: Path, journal: Journal) -> None:
        super().__init__(BudgetedTier("ram", budget_bytes), DiskEntry)
        self.directory = directory  # of the files
        self.bell = Bell()  # wakes the writer's thread
        self.schedule = self.tier.schedule
        self.journal = journal
        self.counters = Counters(journal, self.tier)
        self.freed: list[Extent | SourceExtent | NoValues] = []  # extents that the writer is to give back
        self.load_waits = False  # a prefetch waits for room: `on_room` is to be called
        self.readers = 0
        self._jobs = 0
        self._collectives: collections.deque[tuple[float, communication.Collective]] = (
            collections.deque()
        )  # with their end
        # Failed writes that no caller was told of yet, by entry; None stands for the structure of the files.
        self.failures: dict[DiskEntry | None, SpillError] = {}
        self.on_step: Callable[[float, float, int], None] = lambda step_s, waited_s, moved_bytes: None
        self.on_drop: Callable[[Handle], None] | None = None  # called when the last reference to an array goes
        self.on_room: Callable[[], None] = lambda: None  # called when there may be room for a prefetch that waits
        self.at_step_end: list[Callable[[StepTraffic], None]] = []  # called once, at the end of the present step
        self._before = self.counters.traffic()
        # Weak references to the store and to its owner; each is posted once its object is gone.
        self._store: weakref.ref[Any] = weakref.ref(self)
        self._owner: weakref.ref[Any] = self._store
        self._wakers: list[weakref.ref[Any]] = []
        self._retiring = False

    # Posts of finalizers

    def close_with(self, store: object) -> None:
        """Close when the object `store` is gone: then no caller can get anything any more."""
        self._store = self._watch(store)

    def retire_with(self, owner: object) -> None:
        """Close when `owner` is gone and no handle is live."""
        self._owner = self._watch(owner)

    def _watch(self, watched: object) -> "weakref.ref[Any]":
        """Return a weak reference to an object; when the object dies, the reference is posted and the writer woken."""
        self._wakers.append(weakref.ref(watched, self.bell.ring_in_c))  # the newest reference is called first
        return weakref.ref(watched, self.posted.append)

    def retire(self) -> None:
        """Close as soon as no handle is live. Called without the lock, from anywhere."""
        self.posted.append(self._owner)
        self.try_drain_posts()

    @property
    def has_posts(self) -> bool:
        """Whether something was posted, or an array died that is still counted. Called without the lock."""
        return bool(self.posted) or bool(self._collectives) or self.tier.has_dead

    @property
    def is_in_use(self) -> bool:
        """Whether entries, or arrays that the store made, are alive. Called without the lock."""
        return bool(self.entries) or self.tier.has_leases

    def drain_posts(self) -> None:
        super().drain_posts()
        self._record_collectives()
        if self.load_waits and not self.closing:
            self.on_room()
        if self._retiring and not self.entries:
            self.close()

    def _answer(self, posted: Any) -> None:
        if posted is self._owner:
            self._retiring = True
        elif posted is self._store:
            self.close()
        else:
            super()._answer(posted)

    # Life

    def raise_failure(self) -> None:
        """Raise the first error of failed writes, if any, and forget all of them."""
        if self.failures:
            failures, self.failures = list(self.failures.values()), {}
            raise failures.pop(0)  # whose traceback holds this frame, and the callers'

    def close(self) -> None:
        """Mark the store as closing, and wake all of its threads and the callers that wait."""
        if not self.closing:
            self.closing = True
            self.bell.ring()
            self.changed.notify_all()

    def listen(self) -> None:
        """Record the rank of this process, and its collectives from now on."""
        if (member := communication.member()) is not None:
            with self.lock:
                self.counters.joined(member)
        communication.listen(self)

    def note_collective(self, collective: communication.Collective) -> None:
        """Record a collective soon. Takes no lock: who has the lock may be waiting for the collective's end."""
        if not (self.closing or self.ended):
            self._collectives.append((time.perf_counter(), collective))

    def _record_collectives(self) -> None:
        while self._collectives:
            if (member := communication.member()) is not None:  # it may have joined after the store was made
                self.counters.joined(member)
            self.counters.communicated(*self._collectives.popleft())

    def end(self, why: SpillError) -> None:
        """Make the store unusable because a thread died: from now on callers get the error `why`."""
        self.ended = why
        self.changed.notify_all()

    def submit(self, work: Callable[[], None]) -> None:
        """Have an I/O thread call `work`; the files of the store stay open until `work` has ended."""
        io_threads.submit(work, self._job_ended)  # `_job_ended` needs the lock, so it runs after this
        self._jobs += 1

    def _job_ended(self, error: SpillError | None) -> None:
        with self.lock:
            self._jobs -= 1
            if error is not None:
                self.end(error)
            self.changed.notify_all()

    def wait_for_io(self) -> None:
        """Wait until no thread reads or writes the files."""
        while self.readers or self._jobs:
            self.changed.wait()

    def clear(self) -> None:
        """Release every entry. No thread may be reading or writing one."""
        self._record_collectives()
        self.schedule.end_step(remember=not self._passing)
        for entry in list(self.entries.values()):
            entry.references = 1
            self.release(entry)
        self.freed.clear()

    def forget(self, why: SpillError) -> None:
        """Reset the state in a forked child, which has no other thread, and make it unusable with the error `why`.

        Called without the lock: another thread may have held it, in the middle of anything, when the process forked.
        """
        self.make_locks()
        self.tier = BudgetedTier("ram", self.tier.budget_bytes)
        self.schedule = self.tier.schedule
        self.counters.forget(self.tier)
        self.entries, self._by_key, self.freed = {}, {}, []
        self._passing = 0
        self.posted.clear()
        self._collectives.clear()
        self.readers = self._jobs = 0
        self.closing = True
        self.ended = why

    # Entries

    def _entered(self, entry: DiskEntry) -> None:
        self.counters.packed(entry)

    def _shared(self, entry: DiskEntry) -> None:
        self.counters.shared(entry)

    def note_change(self, entry: DiskEntry) -> None:
        """Record that an array has new values, and choose the number under which the files will have these values.

        The place of the old values is freed, but the files may still list it under the old number.
        """
        self.free_below(entry)
        self.tier.unwatch(entry)
        self.counters.changed(entry)
        entry.stored_as = self.sequence
        self.sequence += 1

    def _freed(self, entry: DiskEntry) -> None:
        if self.on_drop is not None:
            self.on_drop(entry)
        self.failures.pop(entry, None)
        self.counters.freed(entry)

    def free_below(self, entry: DiskEntry) -> None:
        if entry.extent is not None and not entry.readers:
            self.freed.append(entry.extent)
            entry.extent = None
        if len(self.freed) >= (_MANY_FREED if self._passing else 1):  # between steps nothing else may wake the writer
            self.bell.ring()

    def _begin_step(self) -> None:
        self._before = self.counters.traffic()

    def _end_step(self) -> None:
        super()._end_step()
        if not self.schedule.has_persistent:
            self.counters.begin_phase(None)
        step = self.counters.traffic().since(self._before)
        if step.moved_bytes:
            self.on_step(step.seconds, step.waited_s - step.cached_wait_s, step.moved_bytes)
        callbacks, self.at_step_end = self.at_step_end, []
        for callback in callbacks:
            callback(step)
