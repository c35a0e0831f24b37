"""Find runs, whether live, finished or dead, and read their journals."""

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from spillgrad.errors import ArgumentError, SpillError, SpillFormatError
from spillgrad.inspection.find import is_segment_file
from spillgrad.inspection.journal_reader import JournalReader, head_of
from spillgrad.inspection.journal_state import JournalState
from spillgrad.inspection.printable import printable
from spillgrad.inspection.records import Inspection, RamChange, Run, Settings, Span
from spillgrad.inspection.segments import inspect_segment
from spillgrad.storage.journal.events import Head
from spillgrad.storage.journal.files import JOURNAL_NAME, has_others_beside, is_journal, is_of, old_path
from spillgrad.storage.runs.lifecycle import write_journals
from spillgrad.storage.runs.run_directory import LOCK_NAME, RUN_NAME, is_locked, is_segment

# A store of this process writes its journal at once, unless it is busy.
_PATIENCE_S = 1.0


class RunReader(contextlib.AbstractContextManager["RunReader"]):
    """Follows a run, given its directory or journal: `read()` reads new journal lines, `run()` returns a Run.

    Raises the errors of `inspect`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        is_directory = self.path.is_dir()
        self._directory = self.path if is_directory else None
        journal = self.path / JOURNAL_NAME if is_directory else self.path
        self._journal = JournalReader(journal, directory=self._directory)

    def read(self) -> bool:
        """Read the new lines of the journal; return whether there were any.

        Return False for a run's directory without a journal: it may not be made yet, or be removed already.
        """
        try:
            return self._journal.read()
        except FileNotFoundError:
            if self._directory is None:
                raise
            return False

    @property
    def is_cut(self) -> bool:
        """Whether the last `read()` stopped early, because the file is longer than a journal can be."""
        return self._journal.is_cut

    @property
    def phase(self) -> str | None:
        """The phase of the current step: "forward", "backward", "update", or None if no phase is known."""
        return self._journal.state.phase

    @property
    def step(self) -> int | None:
        """The training step of the array that was put last; None if it is unknown."""
        return self._journal.state.step

    def run(self) -> Run:
        """Return the record of the run, made from the journal lines read so far and the run's files."""
        directory = _directory(self._journal.head) if self._directory is None else self._directory
        how = self._state(directory)
        state, head = self._journal.state, self._journal.head
        return Run(
            path=self.path,
            journal=self._journal.path if self._journal.path.exists() and not self._journal.is_others else None,
            state=how,
            host=head.host,
            process=head.process,
            command=head.command,
            version=head.version,
            began=head.began,
            duration_s=state.last_s,
            first_s=state.first_s or 0.0,
            settings=Settings(head.budget, head.codec, head.encrypt, head.checksums, head.on_full),
            stats=state.stats,
            kept_bytes=state.moved.kept_bytes,
            origins=dict(state.origins),
            steps=list(state.steps),
            samples=list(state.samples),
            failures=list(state.failures),
            failure_count=state.failure_count,
            shrinkage=state.shrinkage,
            segments=_segments(directory),
            step_plan=state.plan,
            lost_lines=state.lost_lines,
            damaged_lines=state.damaged_lines,
            folder=directory if directory is not None and os.path.isdir(directory) else None,
            rank=state.rank,
        )

    def _state(self, directory: Path | None) -> str:
        if not self._journal.state.ended:
            if self._journal.is_written or (directory is not None and is_locked(directory)):
                return "live"
            with contextlib.suppress(FileNotFoundError):
                self.read()  # the run may have ended just now: its journal says so before the locks are released
        return "finished" if self._journal.state.ended else "dead"

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def inspect(path: str | os.PathLike[str]) -> Inspection:
    """Return records of what is at a path.

    Live runs are not disturbed. For runs of this process, all events until now are included; for runs of other
    processes, all events up to a fifth of a second ago. If one of several runs ends meanwhile and leaves no files, it
    is left out.

    Parameters
    ----------
    path : str or path
        A run's directory, a directory of runs, a journal, or a segment.

    Returns
    -------
    Inspection
        The runs, or the segment.

    Raises
    ------
    OSError
        If a file cannot be read.
    SpillFormatError
        If a file is no journal, or is of a newer version.
    SpillError
        If there is no run at `path`.

    Examples
    --------
    >>> import tempfile
    >>> import spillgrad as sg
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with sg.save_on_disk(folder, ram_budget="64KiB"):
    ...         loss = sg.ones(256, 256, requires_grad=True).exp().sum()
    ...     (run,) = sg.storage.inspect(folder).runs
    ...     del loss
    >>> run.state, run.stats.packed_bytes
    ('live', 262144)
    >>> [(group.name, group.moved.packed_bytes) for group in run.by("op")]
    [('exp', 262144)]
    """
    if is_segment_file(Path(path)):
        return Inspection(Path(path), [], inspect_segment(path))
    write_journals(_PATIENCE_S)
    runs: list[Run] = []
    while not runs:  # all runs found may have ended meanwhile; `find_runs` raises if there are none
        runs = list(_read_runs(find_runs(path), Path(path)))
    return Inspection(Path(path), sorted(runs, key=lambda run: run.began or ""))


def inspect_one(who: str, path: Path) -> Run:
    """Return the record of the one run at a path.

    Raises ArgumentError, with `who` at its beginning, if there are several runs or a segment. Raises the errors of
    `inspect`.
    """
    if is_segment_file(path):
        raise ArgumentError(f"{who}: got {path}, a segment, wanted a run; name its folder, or a journal")
    runs = inspect(path).runs
    if len(runs) != 1:
        one = f"name one, such as the newest: {printable(str(runs[-1].path), 4096)}"
        raise ArgumentError(f"{who}: got {len(runs)} runs in {path}, wanted one; {one}")
    return runs[0]


def _read_runs(places: list[Path], named: Path) -> Iterator[Run]:
    for place in places:
        try:
            run = _read_run(place)
        except FileNotFoundError:
            if place == named:
                raise
            continue
        if place == named or place.exists():
            yield run


def _read_run(place: Path) -> Run:
    with RunReader(place) as reader:
        reader.read()
        if place.is_file() and not os.path.getsize(place):
            raise SpillFormatError(f"{place} is empty: no journal, or one that nothing was written to yet")
        if reader.is_cut:
            raise SpillFormatError(f"{place} is longer than a journal is; name one that a store wrote")
        return reader.run()


def find_runs(path: str | os.PathLike[str], below: bool = True) -> list[Path]:
    """Return the runs at `path`: run directories, and kept journals of runs whose directory is gone.

    If there are none and `below` is set, return the runs in the folders directly below `path`.
    Raises OSError if a folder cannot be read. Raises SpillError if there is no run.
    """
    path = Path(path)
    if not path.is_dir():
        return [path]
    names = sorted(os.listdir(path))
    if RUN_NAME.fullmatch(path.name) or LOCK_NAME in names:
        return [path]
    directories = [path / name for name in names if RUN_NAME.fullmatch(name) and (path / name).is_dir()]
    told = set()
    for directory in filter(_has_own_journal, directories):
        with contextlib.suppress(FileNotFoundError):  # the run ended meanwhile
            told.add(os.path.realpath(directory / JOURNAL_NAME))
    journals = [path / name for name in names if name.endswith(".jsonl") and _is_filled_journal(path / name)]
    told |= {os.path.realpath(old_path(journal)) for journal in journals if not has_others_beside(journal)}
    found = [*directories, *(journal for journal in journals if os.path.realpath(journal) not in told)]
    if not found and below:  # such as the folder of all runs of `spillgrad train`
        for name in names:
            if (path / name).is_dir():
                with contextlib.suppress(SpillError, PermissionError, FileNotFoundError):
                    found += find_runs(path / name, below=False)
    if not found:
        segments = [name for name in names if is_segment(name)]
        if segments:
            raise SpillError(f"{path} holds no run, but segments; name one of them, such as {path / segments[0]}")
        raise SpillError(f"{path} holds no run; name a folder that something spilled to, or a journal")
    return found


def goes_on(place: Path) -> bool:
    """Return whether the process of a run lives; `place` is the run's directory or its journal.

    Of a journal, only the head is read. Raises the errors of `inspect`.
    """
    if place.is_dir():
        return is_locked(place)
    try:
        head, is_written = head_of(place)
    except FileNotFoundError:  # it was removed
        return False
    directory = _directory(head)
    return is_written or (directory is not None and is_locked(directory))


def spans(run: Run) -> Iterator[Span]:
    """Yield the spans of a run that its journal still has, in the order in which they ended.

    Parameters
    ----------
    run : Run
        A run that `inspect` returned.

    Yields
    ------
    Span
        A phase, a write, a read or a wait.
    """
    yield from _told(run, lambda tell: JournalState(on_span=tell))


def ram_changes(run: Run) -> Iterator[RamChange]:
    """Yield how the bytes in RAM changed, array by array, as far as the journal still has it.

    The sum of all changes up to a time is what the budget bounds then: `ram_bytes` of a `Sample`. Only a journal that
    was kept (`keep_journal=`) has these changes.

    Parameters
    ----------
    run : Run
        A run that `inspect` returned.

    Yields
    ------
    RamChange
        Bytes of an array that came into RAM, or went.
    """
    yield from _told(run, lambda tell: JournalState(on_ram=tell))


def _told(run: Run, state: Callable[[Callable[[Any], None]], JournalState]) -> Iterator[Any]:
    """Yield what the state that `state` makes tells the function it is given, while it reads the journal of a run."""
    if run.journal is None:
        return
    found: list[Any] = []
    with JournalReader(run.journal, state(found.append)) as reader:
        for _ in reader.pieces():
            yield from found
            found.clear()


def _has_own_journal(directory: Path) -> bool:
    try:
        return is_of(directory, head_of(directory / JOURNAL_NAME)[0].run)
    except (OSError, SpillError):  # there is no journal, or it cannot be read: whoever reads it gets the error
        return True


def _is_filled_journal(path: Path) -> bool:
    try:
        return is_journal(path) and os.path.getsize(path) > 0
    except OSError:  # a link to nothing, or to itself; or it was removed meanwhile
        return False


def _directory(head: Head) -> Path | None:
    """Return the directory of the run whose journal has this head; None if the run is not of this machine.

    Return None also if the directory does not have a run's name: users must not be advised to sweep just any folder
    that a journal names.
    """
    directory = Path(head.run or "")
    is_ours = RUN_NAME.fullmatch(directory.name) is not None and head.host in (None, socket.gethostname())
    return directory if is_ours and "\0" not in str(directory) else None


def _segments(directory: Path | None) -> dict[Path, int]:
    """Return the segments in a run's directory, with the bytes that each occupies on disk."""
    found = {}
    try:
        names = sorted(os.listdir(directory)) if directory is not None else []
        for name in names:
            if is_segment(name):
                found[directory / name] = os.lstat(directory / name).st_blocks * 512  # type: ignore[operator]
    except (OSError, ValueError):  # removed meanwhile, another user's, or named by a hostile journal
        return {}
    return found
