"""Move arrays from RAM to disk, in the one thread that touches the structure of the files."""

import collections
import functools
import math
import time
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from spillgrad.errors import SpillError
from spillgrad.storage.codecs import Codec, Encoding, Lossless
from spillgrad.storage.disk import halves
from spillgrad.storage.disk.entry import DiskEntry
from spillgrad.storage.disk.io_error import io_error
from spillgrad.storage.disk.segment import Extent
from spillgrad.storage.disk.segment_set import SegmentSet
from spillgrad.storage.disk.shrink_samples import ShrinkSamples
from spillgrad.storage.disk.source_file import NoValues, SourceExtent
from spillgrad.storage.journal.writer import WRITE_EVERY_S
from spillgrad.storage.residency.residence import ABOVE
from spillgrad.storage.state import StoreState
from spillgrad.storage.store import Remote, changed_error, closed_error
from spillgrad.storage.threads.full_disk import FullDisk
from spillgrad.storage.threads.prefetcher import Prefetcher
from spillgrad.storage.threads.room import Room

# While the step is unknown, writing begins when arrays that are not on disk fill this part of the budget.
_HIGH_WATER = 0.5
# How often the writer looks for posts of finalizers when no other thread takes the lock: while the store holds arrays,
# and while it holds none.
_LOOK_EVERY_S, _LOOK_IDLE_S = 0.02, WRITE_EVERY_S
# Empty files are kept for this time, because the next step would make them again.
_KEEP_EMPTY_S = 5.0
# How many arrays may have a place whose bytes are not all written: enough that no I/O thread waits for the writer.
_MOVING_MAX = 4


class Writer:
    """Writes the oldest arrays first, gives freed extents back, and flushes.

    Its thread, which calls `run`, finds a place for each array and starts prefetches; I/O threads write the bytes. A
    write that fails is tried once more. If it fails again, the array stays in RAM, the next `put` or `flush` raises the
    error, once, and later the array is tried again. The store's lock guards the fields; I/O and callbacks of callers
    run without the lock.
    """

    def __init__(
        self, state: StoreState, segments: SegmentSet, prefetcher: Prefetcher, room: Room, full_disk: FullDisk,
        codec: Codec | None,
    ) -> None:  # fmt: skip
        self._state = state
        self._segments = segments
        self._prefetcher = prefetcher
        self._room = room
        self._full_disk = full_disk
        self._codec = codec
        self._shrinks = ShrinkSamples() if state.journal.kept and codec is None else None
        self._encoded: collections.deque[DiskEntry] = collections.deque()  # each needs a place on disk
        self._low_water_bytes = int(state.tier.budget_bytes * (1 - _HIGH_WATER))
        self._urgent: collections.deque[DiskEntry] = collections.deque()  # for each a caller waits in `write_through`
        self._flush_asked = self._flush_done = 0
        self._to_flush: collections.deque[DiskEntry] = collections.deque()
        self._moving = self._moving_bytes = 0
        # What is to be given back; only the writer's thread uses this list.
        self._freed: list[Extent | SourceExtent | NoValues] = []
        self._waits_for_others = False  # a failed write is tried again when no other is under way

    # What callers do, with the lock held

    def wake_if_behind(self) -> None:
        """Wake the writer if not all arrays to come will fit."""
        if self._is_behind:
            self._state.bell.ring()

    @property
    def _is_behind(self) -> bool:
        """Whether an array that is in RAM only must be written: the sooner it is, the less callers wait."""
        tier, schedule = self._state.tier, self._state.schedule
        if schedule.follows_plan:
            return tier.dirty.has_must_spill
        coming_bytes = schedule.coming_bytes(unknown_bytes=self._low_water_bytes)
        return bool(tier.dirty) and tier.dirty.nbytes + coming_bytes > tier.budget_bytes

    def needs(self, array: np.ndarray | Remote) -> int:
        """Return how many bytes a new array takes, including its encoded form if both together can fit the budget."""
        if self._codec is not None:
            with_encoded = array.nbytes + self._codec.bound(array)
            if with_encoded <= self._state.tier.budget_bytes:
                return with_encoded
        return array.nbytes

    def write_through(self, entry: DiskEntry, array: np.ndarray, is_copy: bool) -> None:
        """Write an array straight from its caller's memory, or from a copy, which counts, and wait until it is written.

        Raises SpillError if the write fails.
        """
        started = time.perf_counter()
        state = self._state
        state.tier.hold_callers(entry, array)
        self._urgent.append(entry)
        copied_bytes = entry.nbytes if is_copy else 0
        state.tier.reserve(copied_bytes, entry=entry)
        try:
            while entry.in_callers_memory:
                state.bell.ring()
                state.changed.wait()
                state.require_open("put")
            if entry.error is not None:
                raise SpillError(str(entry.error)) from entry.error
        finally:
            state.tier.unreserve(copied_bytes, entry=entry)
            cached = entry.went_through_page_cache
            state.counters.waited_to_put(started, entry.sequence, entry.label, entry.dtype, cached)

    def flush(self) -> None:
        """Wait until plain h5py can read from files every array put so far. Raises SpillError if a write failed."""
        state = self._state
        wanted = list(state.entries.values())
        ticket = None
        while ticket is None or self._flush_done < ticket or any(entry.is_unwritten for entry in wanted):
            state.raise_failure()
            if ticket is None or self._flush_done >= ticket:
                self._flush_asked = ticket = self._flush_asked + 1
                self._to_flush.extend(state.tier.dirty)
                state.bell.ring()
            state.changed.wait()
            state.require_open("flush")
        state.raise_failure()

    # What the thread does

    def run(self) -> None:
        """Do the work of the writer until the store closes: write arrays and the journal, flush, start prefetches."""
        state = self._state
        while True:
            with state.lock:
                state.drain_posts()
                encoded = self._encoded.popleft() if self._encoded else None
                closing = state.closing and encoded is None
                if not closing:
                    self._prefetcher.start_loads()
                entry = None if closing or encoded else self._next()
                self._freed += state.freed
                state.freed.clear()
                flush = self._flush_asked if entry is None and self._can_flush() else None
                flushing = self._flush_done < self._flush_asked
            if closing:
                return
            journal = state.journal
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

    def _sleep(self) -> None:
        """Wait for work or a finalizer's post; if none comes for a while, write the journal or remove unused space."""
        state = self._state
        began_s = time.monotonic()
        while not state.has_posts:
            is_behind = state.journal.waits or self._freed  # a caller may add lines at any time, and wakes nobody
            patience_s = WRITE_EVERY_S if is_behind else _KEEP_EMPTY_S if self._segments.has_unused() else math.inf
            left_s = began_s + patience_s - time.monotonic()
            if left_s <= 0 and is_behind:
                return self._tell()
            if left_s <= 0:
                return self._segments.remove_unused()
            if state.bell.wait(min(left_s, _LOOK_EVERY_S if state.is_in_use else _LOOK_IDLE_S)):
                return None
        return None

    def _tell(self) -> None:
        """Write the journal, and only then give back the extents of arrays that it reports as freed.

        So the files always hold the arrays that the journal lists, even if the run is killed.
        """
        self._state.journal.write()
        freed, self._freed = self._freed, []
        for extent in freed:
            self._segments.free(extent)

    def _next(self) -> DiskEntry | None:
        """Choose the next entry to write, and record that its write begins; None if there is nothing to write."""
        state = self._state
        self._waits_for_others = self._waits_for_others and self._moving > 0
        if self._moving == _MOVING_MAX or self._waits_for_others:
            return None
        entry = None
        while self._urgent and entry is None:
            urgent = self._urgent.popleft()
            entry = urgent if urgent.references > 0 else None
        if entry is None and not state.failures and not (self._full_disk.is_paused and not self._to_flush):
            tier = state.tier
            while self._to_flush and entry is None:
                wanted = self._to_flush.popleft()
                entry = wanted if wanted.residence is ABOVE else None
            # Callers that wait may not have woken yet to evict what was written for them. So no more bytes are written
            # than these callers lack.
            is_lacking = self._moving_bytes < self._room.missing_bytes()
            if entry is None and self._flush_done == self._flush_asked and (is_lacking or self._is_behind):
                entry = tier.dirty.first_to_spill()
        if entry is None:
            return None
        if self._codec is not None and not self._stage(entry, self._codec.bound(entry)):
            # It is tried again when a write has ended. An entry that no caller waits for is chosen anew.
            if entry.in_callers_memory:
                self._urgent.appendleft(entry)
            elif self._flush_done < self._flush_asked:
                self._to_flush.appendleft(entry)
            return None
        state.tier.begin_write(entry)
        self._moving += 1
        self._moving_bytes += entry.nbytes
        return entry

    def _stage(self, entry: DiskEntry, nbytes: int) -> bool:
        """Reserve `nbytes` for an encoded form; return False if they do not fit and another write is under way."""
        tier = self._state.tier
        if not tier.make_room(nbytes) and self._moving:
            return False
        tier.reserve(nbytes, entry=entry)
        entry.staged_bytes = nbytes
        return True

    def _can_flush(self) -> bool:
        return self._flush_done < self._flush_asked and not self._to_flush and not self._moving

    def _place(self, entry: DiskEntry) -> None:
        """Find a place for an array, and have an I/O thread write it there. Called without the lock."""
        payload = _payload(entry)
        encoding = None if entry.encoded is None else entry.encoded.encoding
        try:
            # Of persistent arrays only: nobody changes these while they are written.
            if self._codec is None and entry.persistent and entry.arrival is None:
                encoding = self._in_halves(payload)
                payload = payload if encoding is None else halves.form_of(encoding)
            extent = self._segments.place(payload, entry.stored_as, entry.label, entry.views, encoding)
        except Exception as caught:
            self._written(entry, None, io_error("write", entry, self._state.directory, caught))
            return
        if entry.digest_bytes:
            extent.take_blocks()
        self._submit(self._move, entry, extent)

    def _in_halves(self, array: np.ndarray) -> Encoding | None:
        """Return how to store the upper halves of an array alone; None if it is to be stored as it is."""
        encoding = halves.encoding_of(array)
        # A place that is kept costs no time. A gradient to which a step adds has such places from the second step on:
        # one for all its forms, and not one for the first batch that is given up for the next.
        if encoding is None or self._segments.keeps(halves.form_of(encoding)) or not self._segments.keeps(array):
            return encoding
        return None

    def _submit(self, work: Callable[..., None], *arguments: Any) -> None:
        with self._state.lock:
            self._state.submit(functools.partial(work, *arguments))

    # What an I/O thread does

    def _encode(self, entry: DiskEntry) -> None:
        """Encode an array, which callers can get meanwhile; then the writer finds a place for the encoded form."""
        state = self._state
        try:
            entry.await_arrival()
            entry.encoded = cast(Codec, self._codec).encode(cast(np.ndarray, entry.array), entry)
        except Exception as caught:
            self._written(entry, None, io_error("write", entry, self._state.directory, caught))
            return
        with state.lock:
            closing = state.closing
            if not closing:
                if entry.encoded is None:
                    self._unstage(entry)
                self._encoded.append(entry)
        if closing:  # the writer finds no places any more
            self._written(entry, None, closed_error("put"))
        state.bell.ring()

    def _unstage(self, entry: DiskEntry) -> None:
        entry.encoded = None
        self._state.tier.unreserve(entry.staged_bytes, entry=entry)
        entry.staged_bytes = 0

    def _move(self, entry: DiskEntry, extent: Extent) -> None:
        """Write the bytes of an array, which callers can get meanwhile."""
        started = time.perf_counter()
        try:
            entry.await_arrival()
            cached = self._segments.goes_through_cache(not entry.in_callers_memory, entry.nbytes)
            with self._state.counters.writing:
                extent.write(_payload(entry), cached)
            self._segments.measure(extent.segment)
            unchanged = entry.unchanged is None or entry.unchanged()
        except Exception as caught:
            self._written(entry, extent, io_error("write", entry, self._state.directory, caught))
            return
        try:
            if self._shrinks is not None:  # now: afterwards the array may go, and this thread must not hold it
                started += self._sample(entry, self._shrinks)
        finally:
            self._written(entry, extent, None, unchanged, started)

    def _sample(self, entry: DiskEntry, shrinks: ShrinkSamples) -> float:
        """Compress a sample of an array, if one is due, and record its sizes; return the seconds that took."""
        state, began_s = self._state, time.perf_counter()
        with state.lock:
            if not shrinks.is_due(entry):
                return 0.0
        sampled_bytes, stored_bytes = Lossless().sample(_payload(entry))
        took_s = time.perf_counter() - began_s
        with state.lock:
            shrinks.took(took_s)
            state.counters.shrunk(entry, sampled_bytes, stored_bytes)
        return took_s

    def _written(
        self, entry: DiskEntry, extent: Extent | None, error: SpillError | None = None, unchanged: bool = True,
        began_s: float = 0.0,
    ) -> None:  # fmt: skip
        """Record how a write ended: with an `error`, with `unchanged` values, or with changed ones. Takes the lock."""
        state = self._state
        with state.lock:
            self._moving -= 1
            self._moving_bytes -= entry.nbytes
            self._unstage(entry)
            if error is not None:
                self._write_failed(entry, error)
            elif entry.references > 0 and entry.error is None and unchanged:
                self._count(entry, extent, began_s)
                entry.extent, extent = extent, None
                state.tier.end_write(entry)
            else:
                self._count(entry, extent, began_s)
                if entry.references > 0 and entry.error is None:
                    entry.error = changed_error(entry)
                    state.counters.changed(entry)
                state.tier.abandon_write(entry)
            if extent is not None:
                state.freed.append(extent)
            state.changed.notify_all()
        state.bell.ring()

    def _count(self, entry: DiskEntry, extent: Extent | None, began_s: float) -> None:
        place = cast(Extent, extent)
        self._state.counters.written(entry, place.stored_bytes, began_s, place.where)

    def _write_failed(self, entry: DiskEntry, error: SpillError) -> None:
        state = self._state
        state.counters.failed(entry, error)
        if entry.references <= 0 or entry.error is not None:
            state.tier.abandon_write(entry)
            return
        state.tier.fail_write(entry)
        if not entry.retried:
            # Another file may have room, or space may be freed meanwhile.
            entry.retried = self._waits_for_others = True
            if entry.in_callers_memory:
                self._urgent.append(entry)
        elif not entry.in_callers_memory:
            # Nothing is lost: the array is in RAM, and is tried again when a caller next has to wait for it.
            state.failures[entry] = error
            self._to_flush.clear()
            self._flush_done = self._flush_asked
        elif self._full_disk.keep_in_ram(error):
            state.tier.keep(entry, cast(np.ndarray, entry.array))
        else:
            entry.error = error
            state.tier.remove(entry)

    def _flush(self, asked: int) -> None:
        state = self._state
        whole = True
        try:
            self._segments.flush()
        except (OSError, RuntimeError) as caught:
            whole = False
            self._flush_failed(caught)
        with state.lock:
            if whole and not state.freed:  # giving these back changes the structure again
                state.counters.flushed()
        state.journal.write()  # so that its readers find what readers of HDF5 find
        with state.lock:
            self._flush_done = asked
            state.changed.notify_all()

    def _flush_failed(self, cause: Exception) -> None:
        error = SpillError(f"flush: could not write to {self._state.directory}: {cause}; free space there")
        error.__cause__ = cause
        with self._state.lock:
            self._state.failures[None] = error


def _payload(entry: DiskEntry) -> np.ndarray:
    """Return what is to be written: the encoded form, or the array. The entry holds it until the write ends."""
    return cast(np.ndarray, entry.array) if entry.encoded is None else entry.encoded.payload
