"""What a store does, line by line, beside its segments: readable while it runs, and after it was killed.

`FORMAT.md` says what is in it.
"""

import collections
import contextlib
import datetime
import functools
import json
import math
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from spillgrad.errors import SpillError
from spillgrad.storage.moved import Origin
from spillgrad.storage.schedule import Plan
from spillgrad.storage.versions import check_version

FORMAT_VERSION = 2
JOURNAL_NAME = "journal.jsonl"
OLD_JOURNAL_NAME = "journal-old.jsonl"

# A line takes some 90 bytes; a journal and the one before it cover a few hundred thousand arrays.
_FILE_BYTES = 32 << 20
# Lines that wait for so many others before they are written, and for so long.
_BATCH = 256
WRITE_EVERY_S = 0.2
# While something happens, what is held in RAM is told so often: at first for who has a run of a second, then for who
# has one of hours.
_SAMPLE_MIN_S, _SAMPLE_MAX_S, _SAMPLE_SHARE = 0.01, 0.1, 0.002
# Longer steps are not told: they are of no loop that somebody could replay.
_LONGEST_PLAN = 20_000
# Commands and paths are longer now and then, names are not.
_TEXT_MAX = 1000
_HEAD_MAX_BYTES = 64 << 10

Line = str | Callable[[], str]


class Sums(NamedTuple):
    """What all until now comes to, after the lines that wait; and what is to be said of each array in the files."""

    lines: list[Line]
    places: list[tuple[int, str]]
    totals: dict[str, Any]


class Journal:
    """Collects lines without a lock; one thread, the store's writer, writes them.

    Nothing depends on the journal: where the disk refuses it, lines are lost, and the journal says how many.

    It lies in the run's directory and goes with it; or at `keep`, where it stays, with a link to it in the directory.
    """

    def __init__(
        self,
        directory: Path,
        about: Mapping[str, object] | None = None,
        with_origin: bool = True,
        keep: Path | None = None,
    ) -> None:
        """Make the journal of a run, whose head says `about` it; without `with_origin`, it names no origins.

        Raises SpillError when `keep` cannot be written, or is no journal.
        """
        self.with_origin = with_origin
        self._lines: collections.deque[Line] = collections.deque()
        self._began_s = time.perf_counter()
        began = datetime.datetime.now(datetime.UTC).isoformat()
        about = {key: plain_text(told) if isinstance(told, str) else told for key, told in (about or {}).items()}
        self._head = {"format": FORMAT_VERSION, "began": began, "process": os.getpid(), **about}
        self._is_over = False  # nobody writes any more
        self._is_wanted = False
        self._fd: int | None = None
        self._size = self._lost = 0
        self._sampled_s = self._sample_at = math.inf
        self._sample: Callable[[], str] = str
        self._sums: Callable[[collections.deque[Line]], Sums] | None = None
        self._sums_bytes = 0  # of the file, beside what happened since it began
        self._path = directory / JOURNAL_NAME if keep is None else Path(os.path.abspath(keep))
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

    def plan(self, number: int, plan: Plan) -> None:
        """Note what a step asked of the store."""
        if len(plan.happened) <= _LONGEST_PLAN:
            t = time.perf_counter() - self._began_s
            self._lines.append(functools.partial(_plan_line, t, number, plan))

    def origin(self, origin: Origin) -> str:
        """Return where an array comes from, as a part of a line's JSON."""
        return _origin(origin)

    @property
    def waits(self) -> bool:
        """Whether a line waits to be written."""
        return bool(self._lines)

    @property
    def has_begun(self) -> bool:
        """Whether there is a file."""
        return self._fd is not None

    @property
    def is_behind(self) -> bool:
        """Whether many lines wait, or some that are wanted soon."""
        return len(self._lines) >= _BATCH or self._is_wanted

    def write(self) -> None:
        """Write what waits. Called by one thread."""
        self._is_wanted = False
        t = time.perf_counter() - self._began_s
        if self._lines and t >= self._sample_at:  # what is held since the last line
            self._take_sample(t)
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        if not lines:
            return
        try:
            if self._fd is None:
                if self._begin_file():
                    lines = self._after_loss(lines)
            elif self._size > self._sums_bytes + _FILE_BYTES:
                lines = self._begin_next_file(lines)
            self._append(_text(lines))
        except OSError:
            self._lost += len(lines)
            self._close_file()

    def end(self, totals: Mapping[str, Any]) -> None:
        """Write what waits, and what all comes to, if the journal stays."""
        if self.kept:
            self._sums = None  # the next file, if this line is in another, needs no sums before it
            self.note("end", None, f', "totals": {json.dumps(totals)}')
            self.write()
        self.close()

    def close(self) -> None:
        """Close the file for good; it goes with the run's directory, unless it is kept."""
        self._is_over = True
        self._lines.clear()
        self._close_file()

    def _close_file(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _take_sample(self, t: float) -> None:
        self._sampled_s = t
        self._sample_at = t + min(max(_SAMPLE_MIN_S, t * _SAMPLE_SHARE), _SAMPLE_MAX_S)
        self._lines.append(f'{{"t": {t:.6f}, "event": "sample"{self._sample()}}}\n')

    def _keep(self, directory: Path) -> None:
        """Begin the file that stays, in the place of another journal's, if there is one."""
        path, new = self._path, self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}")
        try:
            for each in (path, old_path(path)):
                if os.path.lexists(each) and not is_journal(each):
                    raise SpillError(f"spill: {each} is there and no journal; keep the journal somewhere else")
            self._open(new)
            os.replace(new, path)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(old_path(path))
            os.symlink(path, directory / JOURNAL_NAME)
        except (OSError, ValueError) as error:
            self._close_file()
            with contextlib.suppress(OSError, ValueError):
                os.unlink(new)
            if isinstance(error, SpillError):
                raise
            raise SpillError(
                f"spill: cannot keep a journal at {path}: {getattr(error, 'strerror', None) or error}; name a file in "
                "a folder that can be written"
            ) from error

    def _begin_file(self) -> bool:
        """Begin the file, or go on with it; return whether lines are missing before."""
        self._open(self._path)
        lost, self._lost = self._lost, 0
        if lost:
            try:
                t = time.perf_counter() - self._began_s
                self._append(f'{{"t": {t:.6f}, "event": "lost", "lines": {lost}}}\n')
            except OSError:
                self._lost = lost
                raise
        return lost > 0

    def _after_loss(self, lines: list[Line]) -> list[Line]:
        """Return the lines with what was lost before them made up for."""
        if self._sums is None:
            return lines
        more, sums = self._summed()
        return [*lines, *more, *sums]

    def _summed(self) -> tuple[list[Line], list[Line]]:
        """Return the lines that wait, and those of what all until then comes to.

        Totals are the last of them: until they are there, what older lines say holds.
        """
        sums = cast(Callable[[collections.deque[Line]], Sums], self._sums)(self._lines)
        t = time.perf_counter() - self._began_s
        places = [f'{{"t": {t:.6f}, "event": "place", "array": {array}{where}}}\n' for array, where in sums.places]
        return sums.lines, [*places, f'{{"t": {t:.6f}, "event": "totals", "totals": {json.dumps(sums.totals)}}}\n']

    def _begin_next_file(self, lines: list[Line]) -> list[Line]:
        """Begin a file with what was moved so far, after the last lines of that; return the lines for it."""
        if self._sums is not None:
            more, sums = self._summed()
            self._append(_text([*lines, *more]))
            text = _text(sums)
            lines, self._sums_bytes = [text], len(text)
        ours = self._is_ours()
        self._close_file()
        if not ours:  # another store has the place by now
            self._is_over = True
            return []
        os.replace(self._path, old_path(self._path))
        self._size = 0
        self._begin_file()
        return lines

    def _open(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        if not self._size:
            self._append(json.dumps(self._head) + "\n")

    def _is_ours(self) -> bool:
        """Return whether the file that is open is the one of its name."""
        try:
            return os.path.samestat(os.fstat(cast(int, self._fd)), os.stat(self._path))
        except FileNotFoundError:
            return False

    def _append(self, text: str) -> None:
        """Write lines, all or none. Raises OSError when the disk refuses."""
        fd, data, before = cast(int, self._fd), text.encode(), self._size
        try:
            while data:
                written = os.write(fd, data)
                self._size += written
                data = data[written:]
        except OSError:
            with contextlib.suppress(OSError):  # half a line would spoil the next
                os.ftruncate(fd, before)
                self._size = before
            raise


def plain_text(text: str) -> str:
    """Return text as every reader takes it: of bounded length, and Unicode that can be written."""
    return text.encode("utf-8", "backslashreplace").decode()[:_TEXT_MAX]


def old_path(path: Path) -> Path:
    """Return where a journal goes that became too long."""
    return path.with_name(f"{path.stem}-old{path.suffix}")


def _text(lines: Iterable[Line]) -> str:
    return "".join(line if isinstance(line, str) else line() for line in lines)


@functools.lru_cache(maxsize=4096)
def _origin(origin: Origin) -> str:
    return json.dumps(origin._asdict())[1:-1]


def _plan_line(t: float, number: int, plan: Plan) -> str:
    items, events = plan.as_traffic()
    told = {
        "event": "plan",
        "plan": number,
        "arrays": [[item.nbytes, item.lasting] for item in items],
        "happened": "".join(event.kind[0] for event in events),
        "to": [event.item for event in events],
    }
    return f'{{"t": {t:.6f}, {json.dumps(told)[1:]}\n'


def is_journal(path: Path) -> bool:
    """Return whether a file begins as a journal does, or is empty. Raises OSError for one that cannot be read."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        return False
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # whatever it has become, this does not wait
    with open(fd, "rb") as file:
        line = file.readline(_HEAD_MAX_BYTES)
    try:
        head = json.loads(line or '{"format": 0, "began": ""}')
    except (ValueError, RecursionError):
        return False
    return isinstance(head, dict) and type(head.get("format")) is int and "began" in head


def read_journal(run: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a run's journal, the older file's first; what was cut off, or is no JSON object, is left out.

    `run` is the run's directory, or the journal itself.
    Raises SpillFormatError for a file of a newer version, OSError for one that cannot be read.
    """
    journal = Path(os.path.realpath(run / JOURNAL_NAME)) if run.is_dir() else run
    for path in (old_path(journal), journal):
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
                yield found
