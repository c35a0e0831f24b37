"""End a store: when it is closed, when it is retired or garbage, when its process ends, and in a forked child."""

import atexit
import collections
import functools
import math
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from spillgrad.errors import SpillError
from spillgrad.storage.disk.open_segments import abandon_at_exit
from spillgrad.storage.disk.segment import Extent
from spillgrad.storage.disk.segment_set import SegmentSet
from spillgrad.storage.journal import late_events as events
from spillgrad.storage.journal.writer import WRITE_EVERY_S, Summary
from spillgrad.storage.runs.run_directory import RunDirectory
from spillgrad.storage.state import StoreState
from spillgrad.storage.threads.store_lock import own_threads

_WRITER = "spillgrad-writer"


class Lifecycle:
    """Runs the writer's thread, and ends a store exactly once: releases its arrays, then removes its files.

    The thread ends the store as its last act; if the thread died, the caller of `close` does. Files are closed only
    when no thread reads or writes them, because files opened later may get the same descriptors.
    """

    def __init__(self, state: StoreState, segments: SegmentSet, run: RunDirectory) -> None:
        self._state = state
        self._segments = segments
        self._run = run
        self._thread: threading.Thread | None = None
        self._ended = False
        self._failure: OSError | None = None
        state.journal.ask(self._sample, self._summary)

    def begin(self, loop: Callable[[], None]) -> None:
        """Start the writer's thread, which runs `loop`.

        If the system starts no thread, removes the run and raises SpillError.
        """
        _open.add(self)
        _close_at_exit()
        thread = threading.Thread(target=self._work, args=(loop,), name=_WRITER, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self.close()
            raise SpillError(f"spill: the system starts no thread for the store ({error}); end some threads") from error
        self._thread = thread

    def _work(self, loop: Callable[[], None]) -> None:
        """Run `loop`, then end the store. If either raises, make the store unusable: then no thread waits for it."""
        own_threads.add(threading.get_ident())
        try:
            loop()
            with self._state.lock:
                self.end()
        except BaseException as error:
            with self._state.lock:
                self._state.end(SpillError(f"the {_WRITER} thread ended with {error!r}; make a new store"))
            raise
        finally:
            own_threads.discard(threading.get_ident())

    def close(self) -> None:
        """Stop the thread, free everything and remove the files.

        Raises OSError, once, if the files cannot be removed.
        """
        with self._state.lock:
            self._state.close()
        if threading.get_ident() in own_threads:  # a finalizer that ran there: the thread cannot wait for itself
            return
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self._state.lock:
            self.end()  # the writer did, unless it died
            failure, self._failure = self._failure, None
        try:
            if failure is not None:
                raise failure
        finally:
            del failure  # whose traceback holds this frame, and the callers'

    def end(self) -> None:
        """Wait until no thread reads or writes, then release everything, once. Called with the lock held."""
        self._state.wait_for_io()
        if self._ended:
            return
        self._ended = True
        try:
            try:
                self._state.clear()
            finally:  # the files go in any case
                try:
                    self._segments.close()
                finally:
                    self._end()
        except OSError as error:  # raised in `close`: the writer has no caller to tell
            self._failure = error
        finally:
            _open.discard(self)

    def _end(self) -> None:
        try:
            self._state.journal.end(self._sums())  # a full disk has room once the segments are gone
        finally:
            self._run.remove()

    def write_journal(self, deadline_s: float = math.inf) -> None:
        """Wait until the journal has all events until now, or the disk refused them, or until `deadline_s`.

        `deadline_s` is a time of `time.monotonic`. Called without the lock.
        """
        state = self._state
        if not state.journal.waits or state.lock.is_mine():
            return
        written = state.journal.wanted()
        while state.lock.acquire(timeout=_left_s(deadline_s)):
            try:
                if state.closing or state.ended:  # the end will be written, or nothing more
                    return
                state.bell.ring()
            finally:
                state.lock.release()
            if written.wait(min(WRITE_EVERY_S, _left_s(deadline_s))) or not _left_s(deadline_s):
                return

    def _sample(self) -> "events.Event":
        return self._state.counters.sample(self._segments.disk_bytes)

    def _sums(self) -> "events.Sums":
        counters = self._state.counters
        return counters.sums(counters.stats(*self._segments.disk_usage()), self._state.entries.values())

    def _summary(self, lines: collections.deque[Any]) -> Summary:
        """Take the waiting `lines`, and return a summary that includes them. Called without the lock."""
        with self._state.lock:
            entries = self._state.entries.values()
            places = [(each.sequence, each.extent.where) for each in entries if isinstance(each.extent, Extent)]
            return Summary([lines.popleft() for _ in range(len(lines))], places, self._sums())

    def remove_files(self) -> None:
        """Remove the files, even if threads use them."""
        self._run.remove()

    def forget_parent(self, parent: int) -> None:
        """Make the store unusable in a forked child: its files and threads belong to process `parent`."""
        self._ended = True
        self._state.journal.close()
        self._state.forget(
            SpillError(f"this store belongs to process {parent}, which forked this one; make a new one here")
        )
        self._thread = None


# Strong references, so that the files of a store without other references are removed too.
_open: set[Lifecycle] = set()
_process = os.getpid()


def write_journals(patience_s: float) -> None:
    """Have the journals of all stores of this process written; wait for at most `patience_s` altogether."""
    deadline_s = time.monotonic() + patience_s
    for lifecycle in list(_open):
        lifecycle.write_journal(deadline_s)


def _left_s(deadline_s: float) -> float:
    """Return the seconds until `deadline_s`: at least 0, at most what a thread can wait."""
    return min(max(deadline_s - time.monotonic(), 0.0), threading.TIMEOUT_MAX)


def _close_all() -> None:
    errors = []
    for lifecycle in list(_open):
        try:
            lifecycle.close()
        except BaseException as error:  # an interrupt while the disk hangs, perhaps; close the others too
            errors.append(error)
            lifecycle.remove_files()
    if errors:
        raise errors[0]


def _forget_parent() -> None:
    global _process
    for lifecycle in list(_open):
        lifecycle.forget_parent(_process)
    _open.clear()
    _process = os.getpid()


@functools.cache
def _close_at_exit() -> None:
    """Have open stores closed when the process ends, and then the files that these stores left open."""
    abandon_at_exit()
    atexit.register(_close_all)


os.register_at_fork(after_in_child=_forget_parent)
