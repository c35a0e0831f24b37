"""Move arrays from RAM to disk: the one thread that touches the structure of the files."""

import collections
import functools
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np

from spillgrad.errors import SpillError
from spillgrad.storage.codecs import Codec, Lossless
from spillgrad.storage.disk.io_error import io_error
from spillgrad.storage.disk.segment import Extent
from spillgrad.storage.disk.segment_set import SegmentSet
from spillgrad.storage.disk.shrink_samples import ShrinkSamples
from spillgrad.storage.journal.writer import WRITE_EVERY_S
from spillgrad.storage.residency.entry import Entry
from spillgrad.storage.state import Account
from spillgrad.storage.store import Label, Remote, changed_error, closed_error
from spillgrad.storage.threads.prefetcher import Prefetcher
from spillgrad.storage.threads.worker import Worker

# While nothing is known of a step, writing begins when this part of the budget is full of arrays that are not on disk.
_HIGH_WATER = 0.5
# After a failed write of a store that may keep all in RAM, the disk is left alone for so long.
_PAUSE_S = 2.0
# Where nobody else takes the lock, the writer looks so often for what finalizers posted: while the store holds arrays,
# and while at most others hold some that will come to it, as on a device.
_LOOK_EVERY_S, _LOOK_IDLE_S = 0.02, 0.5
# Arrays with a place whose bytes are not all there yet: enough that no I/O thread waits for this one.
_MOVING_MAX = 4


class Writer:
    """Writes the oldest arrays first, gives freed extents back, flushes, and at last runs `on_end`.

    Its thread finds a place for each array, and an I/O thread stores the bytes there; it also starts what the
    prefetcher wants. A write that failed is tried once more; then the array stays in RAM, the next `put` or `flush`
    raises, once, and after that it is tried again. The fields are guarded by the account's lock; I/O and callbacks of
    callers run without it.
    """

    def __init__(
        self,
        account: Account,
        segments: SegmentSet,
        prefetcher: Prefetcher,
        directory: Path,
        keep_empty_s: float,
        on_full: str,
        on_end: Callable[[], None],
        codec: Codec | None,
    ) -> None:
        self._account = account
        self._segments = segments
        self._prefetcher = prefetcher
        self._directory = directory
        self._codec = codec
        journal = account.ledger.journal
        self._shrinks = ShrinkSamples() if journal.kept and codec is None else None
        self._encoded: collections.deque[Entry] = collections.deque()  # each wants a place
        self._keep_empty_s = keep_empty_s
        self._keeps_in_ram = on_full == "ram"
        self._paused_until_s = 0.0
        self._unheard: SpillError | None = None  # the first failure, until a caller warns of it
        self._warned = False
        self._on_end = on_end
        self._low_water_bytes = int(account.cache.budget_bytes * (1 - _HIGH_WATER))
        self._urgent: collections.deque[Entry] = collections.deque()  # each has a caller waiting in `write_through`
        self._flush_asked = self._flush_done = 0
        self._to_flush: collections.deque[Entry] = collections.deque()
        self._moving = self._moving_bytes = 0
        self._freed: list[Extent] = []  # places that nobody needs; the thread's own
        self._waits_for_others = False  # what failed is tried again when nothing else is under way
        self.worker = Worker("spillgrad-writer", account, self._loop)

    # What callers do, with the lock held

    def wake(self) -> None:
        """Look for something to write."""
        self._account.bell.ring()

    def wake_if_behind(self) -> None:
        """Look for something to write if not all that comes will fit."""
        if self._is_behind:
            self.wake()

    @property
    def _is_behind(self) -> bool:
        """Whether something in RAM only cannot stay there: the sooner it is written, the less waits."""
        cache, schedule = self._account.cache, self._account.cache.schedule
        if schedule.follows_plan:
            return cache.dirty.leaving() is not None
        coming_bytes = schedule.coming_bytes(unknown_bytes=self._low_water_bytes)
        return bool(cache.dirty) and cache.dirty.nbytes + coming_bytes > cache.budget_bytes

    def answer_failures(self) -> None:
        """Raise the error of failed writes, once; or keep everything in RAM from now on, if that is allowed."""
        if not self._keeps_in_ram:
            self._account.raise_failure()
        elif self._account.failures:
            self._pause(next(iter(self._account.failures.values())))
            self._account.failures.clear()

    def warning(self) -> str | None:
        """Return what the caller is to warn of, once."""
        error, self._unheard = self._unheard, None
        return None if error is None else f"{error}; meanwhile arrays stay in RAM beyond ram_budget (on_full='ram')"

    def _pause(self, error: SpillError) -> None:
        self._paused_until_s = time.monotonic() + _PAUSE_S
        if not self._warned:
            self._warned, self._unheard = True, error

    @property
    def _paused(self) -> bool:
        return time.monotonic() < self._paused_until_s

    def needs(self, array: np.ndarray | Remote) -> int:
        """Return the bytes that a new array takes, with what it becomes on its way to disk where both can fit."""
        if self._codec is not None:
            with_encoded = array.nbytes + self._codec.bound(array)
            if with_encoded <= self._account.cache.budget_bytes:
                return with_encoded
        return array.nbytes

    def wait_for_room(self, nbytes: int, label: Label, dtype: np.dtype[Any] | None) -> bool:
        """Wait until so much fits or the disk refuses; return False when only callers could make it fit.

        It is for an array of `dtype` that comes from where `label` says, or for something else, without a dtype.
        """
        account, cache = self._account, self._account.cache
        if self._paused:
            return True
        if nbytes > cache.budget_bytes:
            return False
        if cache.make_room(nbytes):
            return True
        started = time.perf_counter()
        account.waiting_puts += 1
        account.waiting_bytes += nbytes
        try:
            while not cache.make_room(nbytes):
                if cache.pinned_bytes + nbytes > cache.budget_bytes:
                    return False
                self.wake()
                account.changed.wait()
                account.settle("put")
                self.answer_failures()
                if self._paused:
                    return True
        finally:
            account.waiting_puts -= 1
            account.waiting_bytes -= nbytes
            account.ledger.waited_to_put(started, account.sequence, label, dtype)
        return True

    def write_through(self, entry: Entry, array: np.ndarray, ours: bool) -> None:
        """Have `entry` written straight from the caller's memory, or `ours`, which counts, and wait for it."""
        started = time.perf_counter()
        entry.array, entry.uncounted = array, True
        self._urgent.append(entry)
        copied_bytes = entry.nbytes if ours else 0
        self._account.cache.reserve(copied_bytes)
        try:
            while entry.uncounted and entry.array is not None:
                self.wake()
                self._account.changed.wait()
                self._account.settle("put")
            if entry.error is not None:
                raise SpillError(str(entry.error)) from entry.error
        finally:
            self._account.cache.unreserve(copied_bytes)
            cached = entry.went_through_cache
            self._account.ledger.waited_to_put(started, entry.sequence, entry.label, entry.dtype, cached)

    def flush(self) -> None:
        """Return when every array put before is in the files and plain h5py can read them."""
        account = self._account
        wanted = list(account.entries.values())
        ticket = None
        while ticket is None or self._flush_done < ticket or any(entry.unwritten for entry in wanted):
            account.raise_failure()
            if ticket is None or self._flush_done >= ticket:
                self._flush_asked = ticket = self._flush_asked + 1
                self._to_flush.extend(account.cache.dirty)
                self.wake()
            account.changed.wait()
            account.settle("flush")
        account.raise_failure()

    # What the thread does

    def _loop(self) -> None:
        account = self._account
        while True:
            with account.lock:
                account.drain()
                encoded = self._encoded.popleft() if self._encoded else None
                closing = account.closing and encoded is None
                if not closing:
                    self._prefetcher.start_loads()
                entry = None if closing or encoded else self._next()
                self._freed += account.freed
                account.freed.clear()
                flush = self._flush_asked if entry is None and self._can_flush() else None
                flushing = self._flush_done < self._flush_asked
            if closing:
                break
            journal = account.ledger.journal
            places = entry is not None or encoded is not None or flushing
            if journal.is_behind or (places and (self._freed or not journal.has_begun)):
                self._tell()
            if encoded is not None:
                self._place(encoded)
            elif entry is not None and entry.staged_bytes:
                self._submit(self._encode, entry)
            elif entry is not None:
                self._place(entry)
            elif flush is not None:
                self._flush(flush)
            elif not (flushing and self._segments.describe_one()):
                self._sleep()
        with account.lock:
            self._on_end()

    def _sleep(self) -> None:
        """Wait for something to do, looking at what finalizers posted; tidy up when nothing comes for a while."""
        account = self._account
        is_behind = account.ledger.journal.waits or self._freed
        patience_s = WRITE_EVERY_S if is_behind else self._keep_empty_s if self._segments.has_unused() else math.inf
        deadline_s = time.monotonic() + patience_s
        while not account.has_posts:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 and is_behind:
                return self._tell()
            if left_s <= 0:
                return self._segments.remove_unused()
            if account.bell.wait(min(left_s, _LOOK_EVERY_S if account.is_in_use else _LOOK_IDLE_S)):
                return None
        return None

    def _tell(self) -> None:
        """Write the journal, and only then give the places of arrays back that it has as gone.

        So whoever reads the files, also of a run that was killed, finds in the place of an array what the journal says.
        """
        self._account.ledger.journal.write()
        freed, self._freed = self._freed, []
        for extent in freed:
            self._segments.free(extent)

    def _next(self) -> Entry | None:
        """Choose what to write next, and begin with it."""
        account = self._account
        self._waits_for_others = self._waits_for_others and self._moving > 0
        if self._moving == _MOVING_MAX or self._waits_for_others:
            return None
        entry = None
        while self._urgent and entry is None:
            urgent = self._urgent.popleft()
            entry = urgent if urgent.references > 0 else None
        if entry is None and not account.failures and not (self._paused and not self._to_flush):
            cache = account.cache
            while self._to_flush and entry is None:
                wanted = self._to_flush.popleft()
                entry = wanted if wanted in cache.dirty else None
            # Beyond what those who wait need, nothing is written that could stay. They may not have woken yet to find
            # that what was written for them need only go.
            needed = (
                account.waiting_puts
                and not cache.make_room(account.waiting_bytes)
                and self._moving_bytes < account.waiting_bytes + cache.ram_bytes - cache.budget_bytes
            )
            if entry is None and self._flush_done == self._flush_asked and (needed or self._is_behind):
                entry = cache.dirty.first_to_leave()
        if entry is None:
            return None
        if self._codec is not None and not self._stage(entry, self._codec.bound(entry)):
            # It is next when something under way has ended; what was not asked for is chosen anew.
            if entry.uncounted:
                self._urgent.appendleft(entry)
            elif self._flush_done < self._flush_asked:
                self._to_flush.appendleft(entry)
            return None
        account.cache.begin_write(entry)
        self._moving += 1
        self._moving_bytes += entry.nbytes
        return entry

    def _stage(self, entry: Entry, nbytes: int) -> bool:
        """Reserve what `entry` may take on its way to disk; only one at a time may thereby exceed the budget."""
        cache = self._account.cache
        if not cache.make_room(nbytes) and self._moving:
            return False
        cache.reserve(nbytes)
        entry.staged_bytes = nbytes
        return True

    def _can_flush(self) -> bool:
        return self._flush_done < self._flush_asked and not self._to_flush and not self._moving

    def _place(self, entry: Entry) -> None:
        """Find a place for an array and have an I/O thread fill it. Called without the lock."""
        encoding = None if entry.encoded is None else entry.encoded.encoding
        try:
            extent = self._segments.place(_payload(entry), entry.edition, entry.label, entry.views, encoding)
        except Exception as caught:
            self._written(entry, None, io_error("write", entry, self._directory, caught))
            return
        self._submit(self._move, entry, extent)

    def _submit(self, work: Callable[..., None], *arguments: Any) -> None:
        with self._account.lock:
            self._account.submit(functools.partial(work, *arguments))

    # What an I/O thread does

    def _encode(self, entry: Entry) -> None:
        """Make of an array, which can be got meanwhile, what is stored instead; the writer finds a place for that."""
        account = self._account
        try:
            entry.await_arrival()
            entry.encoded = cast(Codec, self._codec).encode(cast(np.ndarray, entry.array), entry)
        except Exception as caught:
            self._written(entry, None, io_error("write", entry, self._directory, caught))
            return
        with account.lock:
            closing = account.closing
            if not closing:
                if entry.encoded is None:
                    self._unstage(entry)
                self._encoded.append(entry)
        if closing:  # nobody finds places any more
            self._written(entry, None, closed_error("put"))
        account.bell.ring()

    def _unstage(self, entry: Entry) -> None:
        entry.encoded = None
        self._account.cache.unreserve(entry.staged_bytes)
        entry.staged_bytes = 0

    def _move(self, entry: Entry, extent: Extent) -> None:
        """Store the bytes of an array, which can be got meanwhile."""
        started = time.perf_counter()
        sampled = None if self._shrinks is None else _payload(entry)  # it may leave RAM as soon as it is written
        try:
            entry.await_arrival()
            cached = self._segments.goes_through_cache(not entry.uncounted, entry.nbytes)
            with self._account.ledger.writing:
                extent.write(_payload(entry), cached)
            self._segments.measure(extent.segment)
            unchanged = entry.unchanged is None or entry.unchanged()
        except Exception as caught:
            self._written(entry, extent, io_error("write", entry, self._directory, caught))
            return
        self._written(entry, extent, None, unchanged, started)
        if sampled is not None:
            self._sample(entry, sampled)

    def _sample(self, entry: Entry, array: np.ndarray) -> None:
        """Tell what compression would make of an array that was written, if one like it is due."""
        account, shrinks = self._account, cast(ShrinkSamples, self._shrinks)
        with account.lock:
            due = shrinks.is_due(entry)
        if due:
            began_s = time.perf_counter()
            sampled_bytes, stored_bytes = Lossless().sample(array)
            with account.lock:
                shrinks.took(time.perf_counter() - began_s)
                account.ledger.shrunk(entry, sampled_bytes, stored_bytes)

    def _written(
        self,
        entry: Entry,
        extent: Extent | None,
        error: SpillError | None = None,
        unchanged: bool = True,
        began_s: float = 0.0,
    ) -> None:
        """Note how a write ended. Called without the lock."""
        account = self._account
        with account.lock:
            self._moving -= 1
            self._moving_bytes -= entry.nbytes
            account.cache.end_write(entry)
            self._unstage(entry)
            if error is not None:
                self._write_failed(entry, error)
            elif entry.references > 0 and entry.error is None and unchanged:
                self._count(entry, extent, began_s)
                entry.extent, extent = extent, None
                account.cache.written(entry)
            else:
                self._count(entry, extent, began_s)
                if entry.references > 0 and entry.error is None:
                    entry.error = changed_error(entry)
                    account.ledger.changed(entry)
                account.cache.remove(entry)
            if extent is not None:
                account.freed.append(extent)
            account.changed.notify_all()
        account.bell.ring()

    def _count(self, entry: Entry, extent: Extent | None, began_s: float) -> None:
        place = cast(Extent, extent)
        self._account.ledger.written(entry, place.stored_bytes, began_s, place.where)

    def _write_failed(self, entry: Entry, error: SpillError) -> None:
        account, cache = self._account, self._account.cache
        account.ledger.failed(entry, error)
        if entry.references <= 0:
            cache.remove(entry)
        elif not entry.retried:
            # Another file, or what is freed meanwhile, may have room.
            entry.retried = self._waits_for_others = True
            if entry.uncounted:
                self._urgent.append(entry)
            else:
                cache.write_failed(entry)
        elif not entry.uncounted:
            # Nothing is lost: the array is in RAM, and is written when somebody next has to wait for it.
            cache.write_failed(entry)
            account.failures[entry] = error
            self._to_flush.clear()
            self._flush_done = self._flush_asked
        elif self._keeps_in_ram:
            self._pause(error)
            entry.uncounted = False
            cache.keep(entry, cast(np.ndarray, entry.array))
        else:
            entry.error = error
            cache.remove(entry)

    def _flush(self, asked: int) -> None:
        account = self._account
        whole = True
        try:
            self._segments.flush()
        except (OSError, RuntimeError) as caught:
            whole = False
            self._flush_failed(caught)
        with account.lock:
            if whole and not account.freed:  # giving those back changes what was just written
                account.ledger.flushed()
        account.ledger.journal.write()  # whose reader finds as much as HDF5 does
        with account.lock:
            self._flush_done = asked
            account.changed.notify_all()

    def _flush_failed(self, cause: Exception) -> None:
        error = SpillError(f"flush: could not write to {self._directory}: {cause}; free space there")
        error.__cause__ = cause
        with self._account.lock:
            self._account.failures[None] = error


def _payload(entry: Entry) -> np.ndarray:
    """Return the bytes to be stored: the entry holds them while it is being written, even when it is dropped."""
    return cast(np.ndarray, entry.array) if entry.encoded is None else entry.encoded.payload
