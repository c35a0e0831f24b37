"""Write the journal of a store, a line for each event: readable while the run lives, and after it was killed.

`docs/how_it_works/files.md` describes the files, `events.py` the lines.
"""

import collections
import contextlib
import datetime
import errno
import functools
import json
import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from spillgrad.errors import SpillError
from spillgrad.storage.disk.holes import reserve
from spillgrad.storage.journal import late_events as events
from spillgrad.storage.journal.files import (
    FORMAT_VERSION,
    JOURNAL_NAME,
    NEW_JOURNAL_NAME,
    claim,
    has_others_beside,
    link,
    may_be_replaced,
    old_path,
    plain_text,
)
from spillgrad.storage.residency.step_plan import StepPlan
from spillgrad.storage.runs import file_lock

if TYPE_CHECKING:
    Line = events.Event | Callable[[], events.Event]  # a function makes an event only when it is written

# A line takes some 90 bytes; a journal and the one before it cover a few hundred thousand arrays.
_FILE_BYTES = 32 << 20
# The most lines, and the longest time, that lines wait to be written; a shorter time if the writer is awake anyway.
_BATCH = 256
WRITE_EVERY_S = 0.2
_BUSY_WRITE_EVERY_S = 0.05
# The interval of samples while events come: short at first, for runs of a second, and longer later, for runs of hours.
_SAMPLE_MIN_S, _SAMPLE_MAX_S, _SAMPLE_SHARE = 0.01, 0.1, 0.002
# The events of longer steps are left out, because advice would take too long to replay them.
LONGEST_PLAN = 20_000

# The bytes reserved past the end of a file, for the line which says that the disk refused other lines.
_RESERVED_BYTES = 4096
# The number of `fail` events that are kept in RAM while the disk refuses lines.
_FAILURES_MAX = 100


class Summary(NamedTuple):
    """The waiting lines; (number, `Extent.where`) of each array on disk; and the sums of all events so far."""

    lines: "list[Line]"
    places: list[tuple[int, tuple[Any, ...]]]
    sums: "events.Sums"


class Journal:
    """Collects events without a lock; one thread, the store's writer, writes them.

    Stores do not depend on the journal: lines that the disk refuses are lost. A `lost` line says so at once, in disk
    space that was reserved for it: from then on, arrays may be elsewhere than the journal says. Once the disk takes
    lines again, or at the end, the journal gets the reasons of failed writes, and the sums of all events.

    The journal is in the run's directory and is removed with it; or it is at `keep`, where it stays, and the directory
    has a link to it.

    Invariant: while the run lives, the file at the journal's path is open and locked. The lock is on this file, not on
    the directory, because a store in another directory must not take the path, and a directory may be removed.
    """

    def __init__(
        self, directory: Path, about: Mapping[str, object] | None = None, with_origin: bool = True,
        keep: Path | None = None,
    ) -> None:  # fmt: skip
        """Make the journal of a run, with `about` in its head; without `with_origin`, it names no origins.

        Raises SpillError if `keep` cannot be written, is not a journal, or is the journal of a live run.
        """
        self.with_origin = with_origin
        self._lines: collections.deque[Line] = collections.deque()
        self._began_s = time.perf_counter()
        began = datetime.datetime.now(datetime.UTC).isoformat()
        about = {key: plain_text(told) if isinstance(told, str) else told for key, told in (about or {}).items()}
        self._head = {"format": FORMAT_VERSION, "began": began, "process": os.getpid(), **about}
        self._is_ending = self._is_over = False  # the last lines are written; no more lines are
        self._written_s = self._began_s
        self._is_wanted = False
        self._is_writing = False
        self._fd: int | None = None
        self._size = self._lost = 0
        self._loss_is_told = False  # the last line of the file says that others are missing
        self._summary_is_due = False  # lines are missing, and the totals after them are not written yet
        self._wanted: collections.deque[threading.Event] = collections.deque()
        self._sampled_s = self._sample_at = math.inf
        self._sample: Callable[[], events.Event]
        self._summary: Callable[[collections.deque[Any]], Summary] | None = None
        self._summary_bytes = 0  # the size of the totals at the beginning of the file
        self._path = directory / JOURNAL_NAME if keep is None else keep.absolute()
        self.kept = keep is not None
        if self.kept:
            self._keep(directory)

    def ask(self, sample: "Callable[[], events.Event]", summary: Callable[[collections.deque[Any]], Summary]) -> None:
        """Set functions to call: `sample` makes an event with the bytes held now; `summary` sums up unwritten lines."""
        self._sample, self._summary = sample, summary
        self._sampled_s = self._sample_at = 0.0

    def add(self, event: "events.Event", at_s: float | None = None) -> None:
        """Add an event that happens now, or happened at `at_s`, by `time.perf_counter`."""
        if self._is_over:
            return
        t = time.perf_counter() - self._began_s
        if t >= self._sample_at:
            self._take_sample(t)
        event.t = round(t if at_s is None else max(at_s - self._began_s, 0.0), 6)
        self._lines.append(event)

    @property
    def began_s(self) -> float:
        """When the run began, by `time.perf_counter`."""
        return self._began_s

    def sample_next(self) -> None:
        """Take a sample with the next event, unless one was taken just before."""
        self._sample_at = min(self._sample_at, self._sampled_s + _SAMPLE_MIN_S)

    def write_soon(self) -> None:
        """Have the waiting lines written at the next opportunity."""
        self._is_wanted = True

    def plan(self, number: int, plan: StepPlan) -> None:
        """Add the puts, uses and drops of a step; for a long step, only their number."""
        if len(plan.happened) <= LONGEST_PLAN:
            t = time.perf_counter() - self._began_s
            self._lines.append(functools.partial(_plan_event, t, number, plan))
        else:
            self.add(events.Plan(number, events=len(plan.happened)))

    @property
    def waits(self) -> bool:
        """Whether a line waits or is being written. Asks in this order: `write` sets its flag before it takes lines."""
        return bool(self._lines) or self._is_writing

    @property
    def has_begun(self) -> bool:
        """Whether the journal has a file."""
        return self._fd is not None

    @property
    def is_behind(self) -> bool:
        """Whether to write now: many lines wait, a line waits long, or `wanted` or `write_soon` was called."""
        waited_s = time.perf_counter() - self._written_s if self._lines else 0.0
        return len(self._lines) >= _BATCH or waited_s > _BUSY_WRITE_EVERY_S or bool(self._wanted) or self._is_wanted

    def wanted(self) -> threading.Event:
        """Ask for the waiting lines to be written; return an event that is set once the disk took or refused them."""
        written = threading.Event()
        self._wanted.append(written)
        return written

    def write(self) -> bool:
        """Write the waiting lines; return False if the disk refused them. Called by one thread."""
        wanted = len(self._wanted)
        self._written_s = time.perf_counter()
        self._is_wanted = False
        t = self._written_s - self._began_s
        if self._lines and t >= self._sample_at:  # sample what is held since the last line
            self._take_sample(t)
        self._is_writing = True
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        try:
            if lines and not self._is_over:
                self._write(lines)
        except OSError:
            self._refused(lines)
            return False
        finally:
            self._is_writing = False
            for _ in range(wanted):
                self._wanted.popleft().set()
        return True

    def end(self, sums: "events.Sums") -> None:
        """Close the journal; if it is kept, first write the waiting lines, and the sums of all events."""
        if self.kept:
            self._is_ending = True
            self.add(events.End(sums))
            if not self.write():
                self._end_in_short()
            self._give_back_reserve()
        self.close()

    def _end_in_short(self) -> None:
        """Write an `end` line without totals to a full disk: the file's last block may hold it, and some failures."""
        self._sample_at = math.inf
        self._lost -= 1  # the end is added again
        for failures in (_FAILURES_MAX, 1, 0):
            while len(self._lines) > failures:
                self._lines.popleft()
                self._lost += 1
            self.add(events.End())
            if self.write():
                break
            self._lost -= 1

    def close(self) -> None:
        """Close the file, and ignore later events."""
        self._is_over = True
        self._lines.clear()
        self._close_file()

    def _close_file(self) -> None:
        if self._fd is not None:
            file_lock.close(self._fd)
            self._fd = None

    def _take_sample(self, t: float) -> None:
        self._sampled_s = t
        self._sample_at = t + min(max(_SAMPLE_MIN_S, t * _SAMPLE_SHARE), _SAMPLE_MAX_S)
        sample = self._sample()
        sample.t = round(t, 6)
        self._lines.append(sample)

    def _keep(self, directory: Path) -> None:
        """Begin a journal that stays; it may replace the journal of a run that has ended."""
        path = self._path
        try:
            for each in (path, old_path(path)):
                if not may_be_replaced(each):
                    raise SpillError(f"spill: {each} is there and no journal; keep the journal somewhere else")
            place = claim(path)
            try:
                link(path, directory)
                self._begin_file()
            except BaseException:
                self._close_file()
                if not os.fstat(place).st_size:  # `claim` made it
                    os.unlink(path)
                raise
            finally:
                file_lock.close(place)
        except SpillError:
            raise
        except (OSError, ValueError) as error:
            raise SpillError(
                f"spill: cannot keep a journal at {path}: {getattr(error, 'strerror', None) or error}; name a file in "
                "a folder that can be written"
            ) from error

    def _write(self, lines: "list[Line]") -> None:
        """Write lines, and remove the written ones from the list. Raises OSError if the disk refuses some."""
        if self._fd is None:
            self._begin_file()
        is_full = self._size > self._summary_bytes + _FILE_BYTES and not self._is_ending
        if self._lost:
            self._append([self._lost_event(), *lines])
            self._lost = 0
            self._summary_is_due = True
        else:
            self._append(lines)
        lines.clear()
        self._summary_is_due = self._summary_is_due or is_full
        if self._summary_is_due and not self._is_ending:  # the end has totals of its own
            summary = self._summarize(lines)
            self._append(lines)
            lines.clear()
            if not is_full or self._begin_next_file():
                before = self._size
                self._append(summary)
                self._summary_bytes = self._size - before
            self._summary_is_due = False

    def _refused(self, lines: "Sequence[Line]") -> None:
        """Keep the last `fail` lines for the next write; count the other lines, and write that number if possible.

        The number tells readers that arrays may no longer be where earlier lines say.
        """
        told = [line for line in lines if isinstance(line, events.Fail)][-_FAILURES_MAX:]
        self._lost += len(lines) - len(told)
        self._lines.extendleft(reversed(told))
        if self._lost and self._fd is not None and not self._loss_is_told and not self._is_ending:
            with contextlib.suppress(OSError):  # a file system that reserves nothing
                self._size = _append(self._fd, _encode([self._lost_event()]), self._size)
                self._lost = 0
                self._loss_is_told = self._summary_is_due = True

    def _summarize(self, lines: "list[Line]") -> "list[events.Event]":
        """Return the events that sum up the run so far, and move the waiting lines that the sums include to `lines`.

        Totals are the last event: until they are written, readers rely on older lines.
        """
        if self._summary is None:
            return []
        summary = self._summary(self._lines)
        lines += summary.lines
        t = self._now()
        places = [events.Place(array, *where, t=t) for array, where in summary.places]
        return [*places, events.Totals(summary.sums, t=t)]

    def _lost_event(self) -> "events.Event":
        return events.Lost(self._lost, t=self._now())

    def _now(self) -> float:
        return round(time.perf_counter() - self._began_s, 6)

    def _begin_next_file(self) -> bool:
        """Begin the next file, as this one is full; return False if another store took the path: the journal ends."""
        try:
            is_ours = os.path.samestat(os.fstat(cast(int, self._fd)), os.stat(self._path))
        except FileNotFoundError:
            is_ours = False
        if is_ours:
            self._begin_file()
        else:
            self._is_over = True
            self._close_file()
        return is_ours

    def _begin_file(self) -> None:
        """Begin a file with the head, and lock it while the run lives; the run's former file moves to the old path.

        The new file gets the journal's name only when it is locked, and the former file stays locked until then, so
        that the path is never free. A file that was at the old path is removed if it is of the same run as the replaced
        file.
        """
        path = self._path
        former = old_path(path)
        if not self.kept and self._fd is None and (os.path.lexists(path) or os.path.lexists(former)):
            raise FileExistsError(errno.EEXIST, "the run's directory was replaced", os.fspath(path))
        new = path.with_name(f".{path.name}.{secrets.token_hex(4)}" if self.kept else NEW_JOURNAL_NAME)
        with contextlib.ExitStack() as undo:
            fd = file_lock.open_file(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)
            undo.callback(os.unlink, new)
            undo.callback(file_lock.close, fd)
            file_lock.lock(fd)
            size = _append(fd, (json.dumps(self._head) + "\n").encode(), 0)
            if not has_others_beside(path):
                if self._fd is None:
                    former.unlink(missing_ok=True)
                else:
                    os.replace(path, former)
                    undo.callback(os.replace, former, path)
            os.replace(new, path)
            undo.pop_all()
        self._give_back_reserve()
        self._close_file()
        self._fd, self._size = fd, size

    def _append(self, lines: "Iterable[Line]") -> None:
        """Write all lines, or none. Raises OSError if the disk refuses."""
        fd = cast(int, self._fd)
        data = _encode(lines)
        if not self._is_ending:  # at the end no line follows
            reserve(fd, self._size, self._size + len(data) + _RESERVED_BYTES)
        self._size = _append(fd, data, self._size)
        self._loss_is_told = False

    def _give_back_reserve(self) -> None:
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)


def _plan_event(t: float, number: int, plan: StepPlan) -> "events.Event":
    items, happened = plan.as_events()
    return events.Plan(
        number,
        [(item.nbytes, item.persistent) for item in items],
        "".join(event.kind[0] for event in happened),
        [event.item for event in happened],
        t=round(t, 6),
    )


def _encode(lines: "Iterable[Line]") -> bytes:
    return events.encoder.encode_lines([line() if callable(line) else line for line in lines])


def _append(fd: int, data: bytes, size: int) -> int:
    """Append to a file of `size` bytes; return its new size. If the disk refuses, append nothing and raise OSError."""
    left = memoryview(data)
    try:
        while left:
            left = left[os.write(fd, left) :]
    except OSError:
        with contextlib.suppress(OSError):  # half a line would spoil the next
            os.ftruncate(fd, size)
        raise
    return size + len(data)
