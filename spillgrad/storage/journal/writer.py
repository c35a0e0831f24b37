"""What a store does, line by line, beside its segments: readable while it runs, and after it was killed.

`FORMAT.md` says what is in it.
"""

import collections
import contextlib
import datetime
import errno
import functools
import gc
import json
import math
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from spillgrad.errors import SpillError
from spillgrad.storage.disk.holes import reserve
from spillgrad.storage.format_version import check_version
from spillgrad.storage.origin_counters import Origin
from spillgrad.storage.residency.step_plan import StepPlan
from spillgrad.storage.runs import file_lock

FORMAT_VERSION = 2
JOURNAL_NAME = "journal.jsonl"
OLD_JOURNAL_NAME = "journal-old.jsonl"
NEW_JOURNAL_NAME = "journal-new.jsonl"

# A line takes some 90 bytes; a journal and the one before it cover a few hundred thousand arrays.
_FILE_BYTES = 32 << 20
# Lines that wait for so many others before they are written, and for so long: less while the writer has other work,
# which it is awake for anyway.
_BATCH = 256
WRITE_EVERY_S = 0.2
_BUSY_WRITE_EVERY_S = 0.05
# While something happens, what is held in RAM is told so often: at first for who has a run of a second, then for who
# has one of hours.
_SAMPLE_MIN_S, _SAMPLE_MAX_S, _SAMPLE_SHARE = 0.01, 0.1, 0.002
# What longer steps asked for is not told: replaying it would take who wants advice too long.
LONGEST_PLAN = 20_000
# Commands and paths are longer now and then, names are not.
_TEXT_MAX = 1000
_HEAD_MAX_BYTES = 64 << 10

# Disk behind the end of a file, for the line that says that the disk refused others.
_RESERVED_BYTES = 4096
# Lines that outlive that the disk refuses them, and how many of them.
_FAILURE, _FAILURES_MAX = ', "event": "fail", ', 100
# A store that nobody holds any more is closed after a moment, by a thread.
_CLOSING_S, _MOMENT_S = 1.0, 0.01

Line = str | Callable[[], str]


class Sums(NamedTuple):
    """What all until now comes to, after the lines that wait; and what is to be said of each array in the files."""

    lines: list[Line]
    places: list[tuple[int, str]]
    totals: dict[str, Any]


class Journal:
    """Collects lines without a lock; one thread, the store's writer, writes them.

    Nothing depends on the journal: where the disk refuses it, lines are lost. It says so at once, in disk that it has
    for that, as arrays may go to other places from then on. Once the disk takes lines again, or with the end, the
    journal says why it refused arrays, and what all comes to.

    It lies in the run's directory and goes with it; or at `keep`, where it stays, with a link to it in the directory.

    Invariant: while the run lives, the file at its name is open and locked. The lock is the file's own, not the
    directory's: a store in another directory must not take the place, and a directory may be removed.
    """

    def __init__(
        self,
        directory: Path,
        about: Mapping[str, object] | None = None,
        with_origin: bool = True,
        keep: Path | None = None,
    ) -> None:
        """Make the journal of a run, whose head says `about` it; without `with_origin`, it names no origins.

        Raises SpillError when `keep` cannot be written, is no journal, or that of a run that goes on.
        """
        self.with_origin = with_origin
        self._lines: collections.deque[Line] = collections.deque()
        self._began_s = time.perf_counter()
        began = datetime.datetime.now(datetime.UTC).isoformat()
        about = {key: plain_text(told) if isinstance(told, str) else told for key, told in (about or {}).items()}
        self._head = {"format": FORMAT_VERSION, "began": began, "process": os.getpid(), **about}
        self._is_ending = self._is_over = False  # the last lines come; nobody writes any more
        self._written_s = self._began_s
        self._is_wanted = False
        self._is_writing = False
        self._fd: int | None = None
        self._size = self._lost = 0
        self._loss_is_told = False  # the last line of the file says that others are missing
        self._sums_are_due = False  # lines are missing, and the sums after them were not told yet
        self._wanted: collections.deque[threading.Event] = collections.deque()
        self._sampled_s = self._sample_at = math.inf
        self._sample: Callable[[], str] = str
        self._sums: Callable[[collections.deque[Line]], Sums] | None = None
        self._sums_bytes = 0  # of the file, beside what happened since it began
        self._path = directory / JOURNAL_NAME if keep is None else keep.absolute()
        self.kept = keep is not None
        if self.kept:
            self._keep(directory)

    def ask(self, sample: Callable[[], str], sums: Callable[[collections.deque[Line]], Sums]) -> None:
        """Have `sample` say what is held now; and `sums`, given the lines that wait, what all comes to."""
        self._sample, self._sums = sample, sums
        self._sampled_s = self._sample_at = 0.0

    def note(self, event: str, array: int | None, values: str = "") -> None:
        """Add a line; `values` is more of its JSON, beginning with a comma."""
        if self._is_over:
            return
        t = time.perf_counter() - self._began_s
        if t >= self._sample_at:
            self._take_sample(t)
        about = "" if array is None else f', "array": {array}'
        self._lines.append(f'{{"t": {t:.6f}, "event": "{event}"{about}{values}}}\n')

    def sample_next(self) -> None:
        """Note with the next line, unless that was just done, what is held then."""
        self._sample_at = min(self._sample_at, self._sampled_s + _SAMPLE_MIN_S)

    def write_soon(self) -> None:
        """Have what waits written with the next occasion."""
        self._is_wanted = True

    def arrived(self, event: str, array: int | None, nbytes: int, origin: Origin, step: int | None) -> None:
        """Note so many bytes, where they come from, and what became of them: the event."""
        about = "null" if step is None else step  # not among what is kept: it is always new
        self.note(event, array, f', "bytes": {nbytes}, {self.origin(origin)}, "step": {about}')

    def took(self, event: str, array: int | None, took_s: float, values: str = "") -> None:
        """Note something that took so long and ends now."""
        self.note(event, array, f', "took": {took_s:.6f}{values}')

    def plan(self, number: int, plan: StepPlan) -> None:
        """Note what a step asked of the store; of a long one, how much that was."""
        if len(plan.happened) <= LONGEST_PLAN:
            t = time.perf_counter() - self._began_s
            self._lines.append(functools.partial(_plan_line, t, number, plan))
        else:
            self.note("plan", None, f', "plan": {number}, "events": {len(plan.happened)}')

    def origin(self, origin: Origin) -> str:
        """Return where an array comes from, as a part of a line's JSON."""
        return _origin(origin)

    @property
    def waits(self) -> bool:
        """Whether a line waits to be written, or to be there: in this order, as `write` takes lines only then."""
        return bool(self._lines) or self._is_writing

    @property
    def has_begun(self) -> bool:
        """Whether there is a file."""
        return self._fd is not None

    @property
    def is_behind(self) -> bool:
        """Whether many lines wait, or for long, or somebody for them, or some that are wanted soon."""
        waited_s = time.perf_counter() - self._written_s if self._lines else 0.0
        return len(self._lines) >= _BATCH or waited_s > _BUSY_WRITE_EVERY_S or bool(self._wanted) or self._is_wanted

    def wanted(self) -> threading.Event:
        """Have what waits written as soon as the writer looks; return what is set then."""
        written = threading.Event()
        self._wanted.append(written)
        return written

    def write(self) -> bool:
        """Write what waits; return whether the disk took it. Called by one thread."""
        wanted = len(self._wanted)
        self._written_s = time.perf_counter()
        self._is_wanted = False
        t = self._written_s - self._began_s
        if self._lines and t >= self._sample_at:  # what is held since the last line
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

    def end(self, totals: Mapping[str, Any]) -> None:
        """Write what waits, and what all comes to, if the journal stays."""
        if self.kept:
            self._is_ending = True
            self.note("end", None, f', "totals": {json.dumps(totals)}')
            if not self.write():
                self._end_in_short()
            self._give_back_reserve()
        self.close()

    def _end_in_short(self) -> None:
        """Write an end to a full disk: the file's last block may have room for it, and for why the disk is full."""
        self._sample_at = math.inf
        self._lost -= 1  # the end comes again
        for reasons in (_FAILURES_MAX, 1, 0):
            while len(self._lines) > reasons:
                self._lines.popleft()
                self._lost += 1
            self.note("end", None)
            if self.write():
                break
            self._lost -= 1

    def close(self) -> None:
        """Close the file for good; it goes with the run's directory, unless it is kept."""
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
        self._lines.append(f'{{"t": {t:.6f}, "event": "sample"{self._sample()}}}\n')

    def _keep(self, directory: Path) -> None:
        """Begin the file that stays, in the place of another journal's, if there is one whose run is over."""
        path = self._path
        try:
            for each in (path, old_path(path)):
                if not _may_be_replaced(each):
                    raise SpillError(f"spill: {each} is there and no journal; keep the journal somewhere else")
            place = _claim(path)
            try:
                _link(path, directory)
                self._begin_file()
            except BaseException:
                self._close_file()
                if not os.fstat(place).st_size:  # it was made to be claimed
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

    def _write(self, lines: list[Line]) -> None:
        """Write lines, and take those out of the list that are written. Raises OSError when the disk refuses some."""
        if self._fd is None:
            self._begin_file()
        is_full = self._size > self._sums_bytes + _FILE_BYTES and not self._is_ending
        if self._lost:
            self._append([self._lost_line(), *lines])
            self._lost = 0
            self._sums_are_due = True
        else:
            self._append(lines)
        lines.clear()
        self._sums_are_due = self._sums_are_due or is_full
        if self._sums_are_due and not self._is_ending:  # the end has sums of its own
            sums = self._summed(lines)
            self._append(lines)
            lines.clear()
            if not is_full or self._begin_next_file():
                before = self._size
                self._append(sums)
                self._sums_bytes = self._size - before
            self._sums_are_due = False

    def _refused(self, lines: Sequence[Line]) -> None:
        """Keep why the disk refused something for when it takes it, count the other lines, and tell of them if it may.

        Whoever reads the journal is not to believe from then on that arrays lie where they did.
        """
        told = [line for line in lines if isinstance(line, str) and _FAILURE in line][-_FAILURES_MAX:]
        self._lost += len(lines) - len(told)
        self._lines.extendleft(reversed(told))
        if self._lost and self._fd is not None and not self._loss_is_told and not self._is_ending:
            with contextlib.suppress(OSError):  # a file system that reserves nothing
                self._size = _append(self._fd, self._lost_line().encode(), self._size)
                self._lost = 0
                self._loss_is_told = self._sums_are_due = True

    def _summed(self, lines: list[Line]) -> list[Line]:
        """Return lines of what all comes to so far, and add to `lines` those that it counts and that wait.

        Totals are the last of them: until they are there, what older lines say holds.
        """
        if self._sums is None:
            return []
        sums = self._sums(self._lines)
        lines += sums.lines
        places = [self._line("place", f', "array": {array}{where}') for array, where in sums.places]
        return [*places, self._line("totals", f', "totals": {json.dumps(sums.totals)}')]

    def _lost_line(self) -> str:
        return self._line("lost", f', "lines": {self._lost}')

    def _line(self, event: str, values: str) -> str:
        return f'{{"t": {time.perf_counter() - self._began_s:.6f}, "event": "{event}"{values}}}\n'

    def _begin_next_file(self) -> bool:
        """Begin a file after one that is full; return False where another store's has the place by now."""
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
        """Begin a file with the head, locked for as long as the run lives; the run's one before becomes the old one.

        It has its name only then, and the one before its lock until then: nobody finds the place free meanwhile. The
        old file that was there goes, if it is of the same run as the one that is replaced.
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

    def _append(self, lines: Iterable[Line]) -> None:
        """Write lines, all or none. Raises OSError when the disk refuses."""
        fd = cast(int, self._fd)
        data = "".join(line if isinstance(line, str) else line() for line in lines).encode()
        if not self._is_ending:  # when nothing else comes
            reserve(fd, self._size, self._size + len(data) + _RESERVED_BYTES)
        self._size = _append(fd, data, self._size)
        self._loss_is_told = False

    def _give_back_reserve(self) -> None:
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)


def _append(fd: int, data: bytes, size: int) -> int:
    """Append all or nothing to a file of so many bytes, and return how many it has then. Raises OSError."""
    left = memoryview(data)
    try:
        while left:
            left = left[os.write(fd, left) :]
    except OSError:
        with contextlib.suppress(OSError):  # half a line would spoil the next
            os.ftruncate(fd, size)
        raise
    return size + len(data)


def _may_be_replaced(path: Path) -> bool:
    """Return whether nothing is lost where a journal comes to a place. Raises OSError for what cannot be read."""
    try:
        return is_journal(path)
    except FileNotFoundError:
        return not os.path.islink(path)


def _claim(path: Path) -> int:
    """Open the journal that has a place, or an empty one, and lock it: nobody else puts another one there then.

    Raises SpillError where it is that of a run that goes on, OSError for a place that cannot be written.
    """
    deadline_s = None
    while True:
        fd = file_lock.open_file(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK)
        try:
            held = None if file_lock.lock(fd) else path
            if held is None and _is_written(old_path(path)):
                held = old_path(path)
            if held is None:
                if os.path.samestat(os.fstat(fd), os.stat(path)):
                    claimed, fd = fd, -1
                    return claimed
            elif deadline_s is None:
                gc.collect()  # what holds the other store may be garbage
                deadline_s = time.monotonic() + _CLOSING_S
            elif time.monotonic() > deadline_s:
                raise SpillError(f"spill: {held} is the journal of a run that goes on{_what_to_do(held)}")
        except FileNotFoundError:  # it was moved meanwhile
            pass
        finally:
            if fd >= 0:
                file_lock.close(fd)
        time.sleep(_MOMENT_S)


def _is_written(path: Path) -> bool:
    """Return whether a journal is that of a run that goes on; while it goes over to the next file, the old one is."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return file_lock.is_locked(fd)
    finally:
        os.close(fd)


def _what_to_do(path: Path) -> str:
    """Return what a journal's head says of its run, and what who is refused its place can do."""
    try:
        head = json.loads(_first_line(path) or b"")
        process, whose = head["process"], f" (process {head['process']}, {plain_text(head['run'])})"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        process, whose = None, ""
    if process == os.getpid():
        first = "use that object again, or `del` it, and the graphs that hold it, first"
    else:
        first = "end that run first"
    return f"{whose}; name another file for this one, or {first}"


def has_others_beside(path: Path) -> bool:
    """Return whether what lies at a journal's old name is not of the same run, as the first lines say.

    It is somebody's, who renamed the journal before the next run, perhaps: it stays.
    """
    former = old_path(path)
    if not os.path.lexists(former):
        return False
    try:
        line = _first_line(former)
        return line != b"" and line != _first_line(path)
    except OSError:  # a run can read its own
        return True


def _link(path: Path, directory: Path) -> None:
    """Have a run's directory lead to its journal. Raises SpillError where nothing can be written there."""
    try:
        os.symlink(path, directory / JOURNAL_NAME)
    except OSError as error:
        # A file system without links: who looks finds the journal where it was to stay.
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
            raise SpillError(
                f"spill: cannot link to the journal in {directory}: {error.strerror}; pass a directory that can be "
                "written"
            ) from error


def plain_text(text: str) -> str:
    """Return text as every reader takes it: of bounded length, and Unicode that can be written."""
    return text.encode("utf-8", "backslashreplace").decode()[:_TEXT_MAX]


def old_path(path: Path) -> Path:
    """Return where a journal goes that became too long."""
    return path.with_name(f"{path.stem}-old{path.suffix}")


@functools.lru_cache(maxsize=4096)
def _origin(origin: Origin) -> str:
    return json.dumps(origin._asdict())[1:-1]


def _plan_line(t: float, number: int, plan: StepPlan) -> str:
    items, events = plan.as_events()
    told = {
        "event": "plan",
        "plan": number,
        "arrays": [[item.nbytes, item.persistent] for item in items],
        "happened": "".join(event.kind[0] for event in events),
        "to": [event.item for event in events],
    }
    return f'{{"t": {t:.6f}, {json.dumps(told)[1:]}\n'


def is_of(directory: Path, run: object) -> bool:
    """Return whether a journal to which a run's directory leads is its own, as the journal's head says: `run`.

    Where a kept journal was, another run's may be by now.
    """
    if run is None or not os.path.islink(directory / JOURNAL_NAME):
        return True
    return isinstance(run, str) and os.path.basename(run) == os.path.basename(os.path.realpath(directory))


def is_journal(path: Path) -> bool:
    """Return whether a file begins as a journal does, or is empty. Raises OSError for one that cannot be read."""
    line = _first_line(path)
    if line is None:
        return False
    try:
        head = json.loads(line or '{"format": 0, "began": ""}')
    except (ValueError, RecursionError):
        return False
    return isinstance(head, dict) and type(head.get("format")) is int and "began" in head


def _first_line(path: Path) -> bytes | None:
    """Return how a file begins; None for what is no regular file. Raises OSError for one that cannot be read."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        return None
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # whatever it has become, this does not wait
    with open(fd, "rb") as file:
        return file.readline(_HEAD_MAX_BYTES)


def read_journal(run: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a run's journal, the older file's first; what was cut off, or is no JSON object, is left out.

    So is an older file of another run.

    `run` is the run's directory, or the journal itself.
    Raises SpillFormatError for a file of a newer version, OSError for one that cannot be read.
    """
    directory = run if run.is_dir() else None
    journal = run if directory is None else Path(os.path.realpath(run / JOURNAL_NAME))
    is_alone = journal.exists() and has_others_beside(journal)
    for path in (journal,) if is_alone else (old_path(journal), journal):
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            continue
        for line in text.splitlines():
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict):
                if "format" in found:
                    check_version(path, found["format"], FORMAT_VERSION)
                    if directory is not None and not is_of(directory, found.get("run")):
                        break
                yield found
