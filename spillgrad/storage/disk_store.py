"""The store that spills: newest arrays in RAM, the others in HDF5 files, under a byte-exact budget."""

import atexit
import collections
import os
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import cast

import numpy as np

from spillgrad.errors import SpillCorruptionError, SpillError
from spillgrad.storage.bell import Bell
from spillgrad.storage.budget import format_bytes, parse_bytes
from spillgrad.storage.cache import Cache, Entry
from spillgrad.storage.file_system import free_bytes
from spillgrad.storage.run_directory import RunDirectory, default_directory
from spillgrad.storage.segment import Extent
from spillgrad.storage.segment_set import SEGMENT_BYTES, SegmentSet
from spillgrad.storage.store import Handle, Label, StoreStats, changed_error, closed_error, gone_error, storable
from spillgrad.storage.sweep import sweep
from spillgrad_kernels import memory

# Writing begins when this part of the budget is full of arrays that are not on disk yet; the rest absorbs bursts.
_HIGH_WATER = 0.5
# Files that hold nothing are kept this long for the next step, which would only make them anew.
_KEEP_EMPTY_S = 5.0
# Freed space is given back before the next write, when all is freed, or when this many extents wait: each costs a
# wake-up.
_FREED_BATCH = 64


class DiskStore:
    """Keeps arrays in RAM up to `ram_budget` bytes and in HDF5 files below `directory` beyond it.

    Two threads start when they are first needed: the writer, which alone touches the files' structure, moves the oldest
    arrays to disk; the prefetcher brings the newest of those back once arrays are asked for again.

    Invariants: `ram_bytes` never exceeds the budget, except that a `get` that must read the disk evicts what it can and
    then adds its own array. No method waits for anything but progress of these threads, and they wait for no caller. An
    array whose write failed stays in RAM; the next `put` or `flush` raises, once, and the writer tries again after
    that.

    The lock guards the cache, the entries and the flags; I/O and callbacks of callers run without it. `drop` may come
    from a finalizer inside a locked section of its own thread: it posts to `_dropped` and never blocks.

    Raises BudgetError for a budget that does not parse, SpillError when `directory` cannot be used.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        ram_budget: int | str,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        budget_bytes = parse_bytes(ram_budget)
        self._run = _make_run(directory)
        self._segments = SegmentSet(self._run.path, segment_bytes)
        self._prefetch_bell = Bell()
        self._writer_bell = Bell()
        self._cache = Cache(budget_bytes, on_lease_end=self._lease_ended)
        self._high_water_bytes = int(budget_bytes * _HIGH_WATER)
        self._make_locks()
        self._dropped: collections.deque[Handle | None] = collections.deque()  # None: retire
        self._entries: dict[int, Entry] = {}
        self._by_key: dict[Hashable, Entry] = {}
        self._urgent: collections.deque[Entry] = collections.deque()
        self._requested: collections.deque[Entry] = collections.deque()
        self._freed: list[Extent] = []
        self._writer: threading.Thread | None = None
        self._prefetcher: threading.Thread | None = None
        self._failure: SpillError | None = None
        self._ended: SpillError | None = None  # why the store can no longer be used
        self._closing = self._retiring = False
        self._waiting_puts = self._readers = 0
        self._flush_before = self._flush_asked = self._flush_done = 0
        self._sequence = self._packed_bytes = self._deduplicated_bytes = self._live_bytes = 0
        self._written_bytes = self._read_bytes = self._hits = self._misses = 0
        self._wait_write_s = self._wait_read_s = 0.0
        _open_stores.add(self)
        # Without threads nothing else keeps the store alive until the process ends.
        weakref.finalize(self, self._run.remove).atexit = False

    @property
    def directory(self) -> Path:
        """Where this run's files are."""
        return self._run.path

    @property
    def ram_budget(self) -> int:
        """The budget in bytes."""
        return self._cache.budget_bytes

    # What callers do

    def put(
        self,
        array: np.ndarray,
        *,
        key: Hashable | None = None,
        label: Label | None = None,
        unchanged: Callable[[], bool] | None = None,
    ) -> Handle:
        """Keep `array`; see `Store.put`.

        Waits for the writer when the budget is full. An array that cannot fit is written before this returns, straight
        from the caller's memory.
        """
        array, copied = storable(array)
        with self._lock:
            self._settle("put")
            self._raise_failure()
            self._cache.cursor = None
            entry = self._known(key)
            if entry is None:
                fits = array.nbytes <= self.ram_budget and self._wait_for_room(array.nbytes)
                entry = self._known(key)  # another thread may have put it meanwhile
            if entry is None:
                entry = self._enter(array, key, label, None if copied else unchanged)
                if fits:
                    self._cache.keep(entry, array)
                    if self._cache.dirty_bytes > self._high_water_bytes:
                        self._wake_writer()
                else:
                    self._write_through(entry, array)
            self._packed_bytes += array.nbytes
        self._settle_dropped()
        return entry

    def get(self, handle: Handle) -> np.ndarray:
        """Return the array of `handle`; see `Store.get`. Reads the disk itself when nobody did it before."""
        while True:
            with self._lock:
                self._settle("get")
                entry = self._live_entry("get", handle)
                self._wait_while_loading(entry)
                self._cache.cursor = entry.sequence
                array = self._cache.find(entry)
                # Evicting the array, which may happen once the lock is released, forgets whom to ask.
                unchanged = None if entry.array is None else entry.unchanged
                if array is None:
                    self._misses += 1
                    self._begin_load(entry, pinned=True)
                else:
                    self._hits += 1
                self._wake_prefetcher()
            if array is None:
                return self._load(entry)
            if unchanged is None or unchanged():
                self._settle_dropped()
                return array
            self._discard_changed(entry)

    def drop(self, handle: Handle) -> None:
        """Release one reference; see `Store.drop`. A handle without references is left alone."""
        self._dropped.append(handle)
        self._settle_dropped()

    def prefetch(self, handles: Iterable[Handle]) -> None:
        """Load `handles` in this order; see `Store.prefetch`."""
        with self._lock:
            self._settle("prefetch")
            self._requested.extend(self._live_entry("prefetch", handle) for handle in handles)
            self._wake_prefetcher()

    def flush(self) -> None:
        """Return when every live array is in the files and plain h5py can read them."""
        with self._lock:
            self._settle("flush")
            before = self._sequence
            ticket = None
            while ticket is None or self._flush_done < ticket or self._dirty_before(before):
                self._raise_failure()
                if ticket is None or self._flush_done >= ticket:
                    self._flush_asked = ticket = self._flush_asked + 1
                    self._flush_before = before
                    self._wake_writer()
                self._changed.wait()
                self._settle("flush")

    def stats(self) -> StoreStats:
        """Return the counters now."""
        with self._lock:
            self._drain()
            return StoreStats(
                packed_bytes=self._packed_bytes,
                deduplicated_bytes=self._deduplicated_bytes,
                written_bytes=self._written_bytes,
                read_bytes=self._read_bytes,
                live_bytes=self._live_bytes,
                ram_bytes=self._cache.ram_bytes,
                peak_ram_bytes=self._cache.peak_ram_bytes,
                disk_bytes=self._segments.disk_bytes,
                peak_disk_bytes=self._segments.peak_disk_bytes,
                cache_hits=self._hits,
                cache_misses=self._misses,
                wait_write_s=self._wait_write_s,
                wait_read_s=self._wait_read_s,
            )

    def check(self) -> list[SpillCorruptionError]:
        """Read back everything on disk, one array at a time; return an error for each that is damaged."""
        with self._lock:
            self._settle("check")
            entries = list(self._entries.values())
        damaged = []
        for entry in entries:
            with self._lock:
                self._drain()
                if entry.references <= 0 or entry.extent is None:
                    continue
                self._begin_read(entry, pinned=True)
            try:
                self._read(entry)
            except SpillCorruptionError as error:
                damaged.append(error)
            finally:
                with self._lock:
                    self._end_read(entry)
                    self._cache.unreserve(entry.nbytes, pinned=True)
        return damaged

    def retire(self) -> None:
        """Close as soon as no handle is live; see `Store.retire`."""
        self._dropped.append(None)
        self._settle_dropped()

    def close(self) -> None:
        """Stop the threads, free everything and remove the files."""
        with self._lock:
            self._begin_closing()
            threads = [self._writer, self._prefetcher]
        for thread in threads:
            if thread is not None and thread is not threading.current_thread():
                thread.join()

    # The account. Every method from here to the threads is called with the lock held, unless it says otherwise.

    def _make_locks(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)

    def _settle(self, who: str) -> None:
        """Take note of what finalizers posted, and make sure that the store is open."""
        self._drain()
        if self._ended is not None:
            raise SpillError(f"{who}: {self._ended}") from self._ended
        if self._closing:
            raise closed_error(who)

    def _settle_dropped(self) -> None:
        """Take note of what finalizers posted, if nobody holds the lock. Called without it."""
        while self._dropped:
            if not self._lock.acquire(blocking=False):
                # Whoever holds it may release it, in a wait, without looking again: the writer looks.
                self._writer_bell.ring()
                return
            try:
                self._drain()
            finally:
                self._lock.release()

    def _drain(self) -> None:
        ram_bytes = self._cache.ram_bytes
        while self._dropped:
            handle = self._dropped.popleft()
            if handle is None:
                self._retiring = True
            else:
                self._release(handle)
        self._cache.settle()
        if self._retiring and not self._entries:
            self._begin_closing()
        if self._waiting_puts and self._cache.ram_bytes < ram_bytes:
            self._changed.notify_all()

    def _lease_ended(self) -> None:
        """Called when an array read back died, in any thread, perhaps in a locked section of it."""
        self._prefetch_bell.ring()
        if self._waiting_puts:
            self._writer_bell.ring()

    def _release(self, handle: Handle) -> None:
        entry = self._entries.get(handle.sequence)
        if entry is None or entry is not handle:
            return
        entry.references -= 1
        if entry.references > 0:
            return
        del self._entries[entry.sequence]
        if entry.key is not None:
            del self._by_key[entry.key]
        self._live_bytes -= entry.nbytes
        self._cache.remove(entry)
        self._free_extent(entry)
        self._prefetch_bell.ring()

    def _free_extent(self, entry: Entry) -> None:
        """Give a dropped entry's space on disk back, once nobody reads it."""
        if entry.extent is not None and not entry.readers:
            self._freed.append(entry.extent)
            entry.extent = None
            if not self._entries or len(self._freed) >= _FREED_BATCH:
                self._writer_bell.ring()

    def _live_entry(self, who: str, handle: Handle) -> Entry:
        entry = self._entries.get(handle.sequence)
        if entry is None or entry is not handle:
            raise gone_error(who, handle)
        if entry.error is not None:
            raise SpillError(str(entry.error)) from entry.error
        return entry

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _known(self, key: Hashable | None) -> Entry | None:
        """Return the live entry of `key` with one reference more."""
        entry = None if key is None else self._by_key.get(key)
        if entry is not None:
            entry.references += 1
            self._deduplicated_bytes += entry.nbytes
        return entry

    def _enter(
        self, array: np.ndarray, key: Hashable | None, label: Label | None, unchanged: Callable[[], bool] | None
    ) -> Entry:
        entry = Entry(array, self._sequence, label)
        entry.key, entry.unchanged = key, unchanged
        self._sequence += 1
        self._entries[entry.sequence] = entry
        if key is not None:
            self._by_key[key] = entry
        self._live_bytes += entry.nbytes
        return entry

    def _wait_for_room(self, nbytes: int) -> bool:
        """Wait until `nbytes` fit; return False when only callers could make them fit."""
        if self._cache.make_room(nbytes):
            return True
        started = time.perf_counter()
        self._waiting_puts += 1
        try:
            while not self._cache.make_room(nbytes):
                if self._cache.pinned_bytes + nbytes > self.ram_budget:
                    return False
                self._wake_writer()
                self._changed.wait()
                self._settle("put")
                self._raise_failure()
        finally:
            self._waiting_puts -= 1
            self._wait_write_s += time.perf_counter() - started
        return True

    def _write_through(self, entry: Entry, array: np.ndarray) -> None:
        """Have `entry` written and wait for it."""
        started = time.perf_counter()
        entry.array, entry.uncounted = array, True
        self._urgent.append(entry)
        try:
            while entry.array is not None:
                self._wake_writer()
                self._changed.wait()
                self._settle("put")
            if entry.error is not None:
                raise entry.error
        except BaseException:
            self._release(entry)
            raise
        finally:
            self._wait_write_s += time.perf_counter() - started

    def _wait_while_loading(self, entry: Entry) -> None:
        if entry.loading:
            started = time.perf_counter()
            while entry.loading:
                self._changed.wait()
            self._wait_read_s += time.perf_counter() - started
            self._settle("get")
            self._live_entry("get", entry)

    def _discard_changed(self, entry: Entry) -> None:
        """Forget an array that its owner modified; what is on disk still holds. Called without the lock."""
        with self._lock:
            if entry.references <= 0 or entry.array is None or entry.lease is not None:
                return
            if entry.extent is None:
                entry.error = changed_error(entry)
                self._cache.remove(entry)
            else:
                self._cache.clean.discard(entry)
                self._cache.release(entry)
                self._cache.absent.add(entry)

    def _dirty_before(self, sequence: int) -> bool:
        oldest = self._cache.dirty.oldest()
        return oldest is not None and oldest.sequence < sequence

    # Reading

    def _begin_read(self, entry: Entry, pinned: bool) -> None:
        self._cache.make_room(entry.nbytes)
        self._cache.reserve(entry.nbytes, pinned)
        entry.readers += 1
        self._readers += 1

    def _end_read(self, entry: Entry) -> None:
        entry.readers -= 1
        self._readers -= 1
        if entry.references <= 0:
            self._free_extent(entry)
        self._changed.notify_all()

    def _begin_load(self, entry: Entry, pinned: bool) -> None:
        entry.loading = True
        self._cache.absent.discard(entry)
        self._begin_read(entry, pinned)

    def _end_load(self, entry: Entry, array: np.ndarray | None, handed_out: bool) -> None:
        entry.loading = False
        if array is None:
            self._cache.unreserve(entry.nbytes, pinned=handed_out)
        else:
            self._read_bytes += entry.nbytes
            self._cache.lend(entry, array, handed_out)
        self._end_read(entry)
        self._drain()

    def _read(self, entry: Entry) -> np.ndarray:
        """Read `entry` into new memory, for which room is reserved. Called without the lock."""
        array = memory.empty(entry.shape, entry.dtype)
        try:
            cast(Extent, entry.extent).read(array)  # not freed while it has a reader
        except SpillError:
            raise
        except OSError as error:
            raise self._io_error("read", entry, error) from error
        return array

    def _load(self, entry: Entry) -> np.ndarray:
        """Read `entry` for a caller who needs it now. Called without the lock."""
        started = time.perf_counter()
        array = None
        try:
            array = self._read(entry)
        finally:
            with self._lock:
                self._wait_read_s += time.perf_counter() - started
                self._end_load(entry, array, handed_out=True)
        return array

    def _prefetch(self, entry: Entry) -> None:
        """Read `entry` for whoever will need it. Called without the lock, in the prefetcher thread."""
        array = None
        try:
            array = self._read(entry)
        except (SpillError, MemoryError):
            # Who needs it reads it again and is told. It is not among the absent ones now, nor tried here again.
            array = None
        with self._lock:
            self._end_load(entry, array, handed_out=False)
            # From here on only the cache holds it: who evicts it must see its bytes go.
            array = None

    def _prefetch_loop(self) -> None:
        while not self._closing:
            with self._lock:
                self._drain()
                entry = self._next_prefetch()
                if entry is not None:
                    self._begin_load(entry, pinned=False)
            if entry is None:
                self._prefetch_bell.wait()
                continue
            self._prefetch(entry)

    def _next_prefetch(self) -> Entry | None:
        """Return what to load next: what was asked for, then the newest put before the last one that was got."""
        while self._requested:
            wanted = self._requested[0]
            in_ram = wanted.loading or wanted.array is not None or wanted.lease is not None
            if wanted.references > 0 and wanted.extent is not None and not in_ram and wanted.nbytes <= self.ram_budget:
                return wanted if self._cache.make_room(wanted.nbytes, for_sequence=wanted.sequence) else None
            self._requested.popleft()
        if self._cache.cursor is None:
            return None
        entry = self._cache.absent.before(self._cache.cursor)
        while entry is not None and entry.nbytes > self.ram_budget:
            entry = self._cache.absent.before(entry.sequence)
        if entry is None or not self._cache.make_room(entry.nbytes, for_sequence=entry.sequence):
            return None
        return entry

    # Writing

    def _write_loop(self) -> None:
        while True:
            with self._lock:
                self._drain()
                entry = self._next_write()
                freed, self._freed = self._freed, []
                flush = self._flush_asked if entry is None and self._flush_done < self._flush_asked else None
                closing = self._closing and entry is None
            for extent in freed:
                self._segments.free(extent)
            if entry is not None:
                self._write(entry)
            elif flush is not None:
                self._flush_segments(flush)
            elif closing:
                break
            elif not self._writer_bell.wait(_KEEP_EMPTY_S if self._segments.has_empty() else None):
                self._segments.remove_empty()
        self._end_writing()

    def _next_write(self) -> Entry | None:
        if self._closing:
            return None
        while self._urgent:
            urgent = self._urgent.popleft()
            if urgent.references > 0:
                urgent.writing = True
                return urgent
        entry = self._cache.dirty.oldest()
        if entry is None or self._failure is not None:
            return None
        # Once arrays are asked for, the newest go next: writing them would be for nothing.
        ahead = self._cache.cursor is None and self._cache.dirty_bytes > self._high_water_bytes
        flushing = entry.sequence < self._flush_before and self._flush_done < self._flush_asked
        if not (ahead or flushing or self._waiting_puts):
            return None
        entry.writing = True
        return entry

    def _write(self, entry: Entry) -> None:
        """Write one array; it can be got meanwhile. Called without the lock, in the writer thread."""
        extent = error = None
        try:
            # Held by the entry while it is being written, even when it is dropped.
            extent = self._segments.write(cast(np.ndarray, entry.array), entry.sequence, entry.label)
            unchanged = entry.unchanged is None or entry.unchanged()
        except Exception as caught:
            error = self._io_error("write", entry, caught)
        with self._lock:
            entry.writing = False
            if extent is not None:
                self._written_bytes += entry.nbytes
            if error is not None:
                self._write_failed(entry, extent, error)
            elif entry.references > 0 and entry.error is None and unchanged:
                entry.extent = extent
                self._cache.written(entry)
            else:
                if entry.references > 0 and entry.error is None:
                    entry.error = changed_error(entry)
                self._cache.remove(entry)
                if extent is not None:
                    self._freed.append(extent)
            self._changed.notify_all()

    def _write_failed(self, entry: Entry, extent: Extent | None, error: SpillError) -> None:
        if extent is not None:
            self._freed.append(extent)
        if entry.uncounted:
            entry.error = error
        elif entry.references > 0:
            # Nothing is lost: the array is in RAM, and is written when somebody next has to wait for it.
            self._failure = error
            self._flush_done = self._flush_asked
        if entry.uncounted or entry.references <= 0:
            self._cache.remove(entry)

    def _flush_segments(self, asked: int) -> None:
        error = None
        try:
            self._segments.flush()
        except (OSError, RuntimeError) as caught:
            error = SpillError(f"flush: could not write to {self.directory}: {caught}; free space there")
            error.__cause__ = caught
        with self._lock:
            self._failure = self._failure or error
            self._flush_done = asked
            self._changed.notify_all()

    def _io_error(self, verb: str, entry: Entry, error: Exception) -> SpillError:
        reason = getattr(error, "strerror", None) or str(error) or repr(error)
        try:
            free = f"{format_bytes(free_bytes(self.directory))} are free there"
        except OSError:
            free = "the directory is gone"
        explained = SpillError(
            f"spill: could not {verb} {format_bytes(entry.nbytes)} ({entry.label}) in {self.directory}: {reason}; "
            f"{free}; free space, pass another directory, or raise ram_budget"
        )
        explained.__cause__ = error
        return explained

    # The threads

    def _wake_writer(self) -> None:
        if self._writer is None:
            self._writer = self._start(self._write_loop, "spillgrad-writer")
        self._writer_bell.ring()

    def _wake_prefetcher(self) -> None:
        """Wake the prefetcher if there is anything to load."""
        if (self._cache.cursor is None or not self._cache.absent) and not self._requested:
            return
        if self._prefetcher is None:
            self._prefetcher = self._start(self._prefetch_loop, "spillgrad-prefetcher")
        self._prefetch_bell.ring()

    def _start(self, loop: Callable[[], None], name: str) -> threading.Thread:
        def run() -> None:
            try:
                loop()
            except BaseException as error:
                with self._lock:  # whoever waits for this thread must not wait for ever
                    self._ended = SpillError(f"the {name} thread ended with {error!r}; make a new store")
                    self._changed.notify_all()
                raise

        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread

    def _begin_closing(self) -> None:
        if not self._closing:
            self._closing = True
            self._prefetch_bell.ring()
            self._writer_bell.ring()
            self._changed.notify_all()
            if self._writer is None:
                self._end()

    def _end_writing(self) -> None:
        """Remove the files once nobody reads them. Called without the lock, as the writer's last act."""
        with self._lock:
            while self._readers:
                self._changed.wait()
            self._end()

    def _end(self) -> None:
        for entry in list(self._entries.values()):
            entry.references = 1
            self._release(entry)
        self._freed.clear()
        try:
            self._segments.close()
        finally:
            self._run.remove()
            _open_stores.discard(self)

    def _forget_parent(self, parent: int) -> None:
        """In a forked child: the files and threads are the parent's; nothing here works any more."""
        self._make_locks()
        self._segments.abandon()
        self._closing = True
        self._ended = SpillError(f"this store belongs to process {parent}, which forked this one; make a new one here")
        self._dropped.clear()
        self._entries.clear()
        self._by_key.clear()
        self._writer = self._prefetcher = None


def _make_run(directory: str | os.PathLike[str] | None) -> RunDirectory:
    """Make the directory of a run, after removing those of dead ones beside it."""
    place = default_directory() if directory is None else Path(directory)
    try:
        place.mkdir(parents=True, exist_ok=True)
        sweep(place)
        return RunDirectory(place, remove_parent=directory is None)
    except SpillError:
        raise
    except OSError as error:
        raise SpillError(
            f"spill: cannot use {place}: {error.strerror}; pass a directory that can be written"
        ) from error


_open_stores: weakref.WeakSet[DiskStore] = weakref.WeakSet()
_process = os.getpid()


@atexit.register
def _close_stores() -> None:
    for store in list(_open_stores):
        store.close()


def _forget_stores() -> None:
    global _process
    for store in list(_open_stores):
        store._forget_parent(_process)
    _open_stores.clear()
    _process = os.getpid()


os.register_at_fork(after_in_child=_forget_stores)
