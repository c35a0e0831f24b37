"""Check that stored data is what was written: every array of every segment, and every line of the journals."""

import contextlib
import dataclasses
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from spillgrad.errors import ArgumentError, SpillError, SpillFormatError
from spillgrad.inspection.arrays import StoredArray
from spillgrad.inspection.find import is_segment_file, segment_files
from spillgrad.inspection.journal_reader import LONGEST_BYTES, read_head, read_lines
from spillgrad.inspection.journal_state import JournalState
from spillgrad.inspection.printable import printable
from spillgrad.inspection.runs import find_runs
from spillgrad.inspection.segments import inspect_segment
from spillgrad.inspection.unflushed import Journals
from spillgrad.inspection.untrusted import UntrustedReader
from spillgrad.inspection.values import StoredValues
from spillgrad.storage.format_version import check_version
from spillgrad.storage.journal.files import FORMAT_VERSION, JOURNAL_NAME, is_journal, old_path
from spillgrad.storage.runs.run_directory import is_locked, is_segment

_PATH_LENGTH = 4096
_TOLD_LINES = 10


@dataclasses.dataclass(frozen=True)
class Problem:
    """A problem found in a file, or in an array of it.

    Parameters
    ----------
    path : Path
        The file.
    key : str or None
        Name of the array; None for the file itself.
    what : str
        The problem in words.
    """

    path: Path
    key: str | None
    what: str


@dataclasses.dataclass
class Verification:
    """Counts of what was checked, and the problems found.

    Parameters
    ----------
    path : Path
        What was checked.
    segments : int
        Number of segments.
    journals : int
        Number of journals.
    journal_lines : int
        Number of lines of the journals.
    arrays : int
        Number of all arrays.
    verified : int
        Number of arrays that match their checksums.
    encrypted : int
        Number of arrays that match their checksums, and that only their run can decrypt.
    unverified : int
        Number of arrays that have no checksum.
    checked_bytes : int
        Stored bytes that were checked.
    problems : list of Problem
        Damage: all other arrays are here, or in `changed`.
    changed : list of Problem
        What a live run changed while it was checked.
    notes : list of Problem
        Remarks that mean no damage.
    """

    path: Path
    segments: int = 0
    journals: int = 0
    journal_lines: int = 0
    arrays: int = 0
    verified: int = 0
    encrypted: int = 0
    unverified: int = 0
    checked_bytes: int = 0
    problems: list[Problem] = dataclasses.field(default_factory=list)
    changed: list[Problem] = dataclasses.field(default_factory=list)
    notes: list[Problem] = dataclasses.field(default_factory=list)


def verify(path: str | os.PathLike[str], progress: Callable[[Path], None] | None = None) -> Verification:
    """Check that stored data is what was written: arrays of segments, and lines of journals.

    Live runs are not disturbed.

    Parameters
    ----------
    path : str or path
        A segment, a journal, a run's folder, or a folder of runs.
    progress : callable, optional
        Function that is called with each file of a folder before the file is checked.

    Returns
    -------
    Verification
        Counts, and problems.

    Raises
    ------
    SpillError
        If there is nothing to check, or if a single file is neither a segment nor a journal.
    SpillFormatError
        For a single file of a newer version; this is a SpillError.
    ArgumentError
        If `path` is neither a file nor a folder.
    OSError
        If `path` cannot be read.
    """
    path = Path(path)
    found = Verification(path)
    kind = os.stat(path).st_mode
    if not stat.S_ISDIR(kind) and not stat.S_ISREG(kind):
        raise ArgumentError(f"verify: got {path}, which is neither file nor folder; name a segment or a run's folder")
    with UntrustedReader() as reader, Journals() as journals:
        if stat.S_ISREG(kind):
            if path.suffix == ".jsonl" or (os.path.getsize(path) and is_journal(path)):
                _verify_journal(path, found)
            else:
                _verify_segment(path, reader, journals, found, alone=True)
            return found
        for file in _files(path):
            if progress is not None:
                progress(file)
            try:
                if is_segment(file.name):
                    _verify_segment(file, reader, journals, found, alone=False)
                else:
                    _verify_journal(file, found)
            except FileNotFoundError:
                found.changed.append(Problem(file, None, "went before it was read: the run ended"))
            except OSError as error:
                found.problems.append(Problem(file, None, _reason(error, file)))
    if found.journals and not found.segments + len(found.problems) + len(found.changed):
        found.notes.append(
            Problem(path, None, "there are no segments (a finished run has none): journals were checked")
        )
    return found


def _files(path: Path) -> list[Path]:
    """Return the journals and segments of the runs in a folder, and the other segments in it."""
    segments = segment_files(path)
    try:
        runs = find_runs(path)
    except SpillError:
        if not segments:
            raise
        runs = []
    # A run's folder contains the run's journal, or a link to it if the journal is kept elsewhere.
    journals = [Path(os.path.realpath(run / JOURNAL_NAME)) if run.is_dir() else run for run in runs]
    both = (file for journal in journals for file in (old_path(journal), journal))
    return [*dict.fromkeys(file for file in both if file.exists()), *segments]


def _verify_segment(path: Path, reader: UntrustedReader, journals: Journals, found: Verification, alone: bool) -> None:
    """Check the arrays of a segment and record the results in `found`; `alone` means that the user named this file.

    If an array of a live run fails the check, but the journal no longer lists it, it counts as changed, not as damaged.
    """
    # The structure of a live run may change while it is read.
    wrong = found.changed if is_locked(path.parent) else found.problems
    try:
        segment = inspect_segment(path, reader, journals)
    except SpillFormatError:
        raise
    except SpillError as error:
        if alone and not is_segment_file(path):
            raise SpillError(
                f"verify: got {path}, which is neither a segment nor a journal; name one, or the folder of a run"
            ) from error
        found.segments += 1
        wrong.append(Problem(path, None, _reason(error, path)))
        return
    found.segments += 1
    found.arrays += len(segment.arrays)
    wrong += [Problem(path, None, what) for what in segment.problems]
    if segment.note is not None:
        found.notes.append(Problem(path, None, segment.note))
    if segment.left_out:
        wrong.append(Problem(path, None, f"has {segment.left_out} more objects than are looked at"))
    for array in segment.arrays:
        if (what := _wrong(path, array, found)) is None:
            continue
        if not array.from_journal:
            wrong.append(Problem(path, array.key, what))
        elif journals.has(path, array):
            found.problems.append(Problem(path, array.key, what))
        else:
            found.changed.append(Problem(path, array.key, f"{what}; it went while it was read"))


def _wrong(path: Path, array: StoredArray, found: Verification) -> str | None:
    """Return in words what is wrong with an array; if nothing is, count it in `found` and return None."""
    if array.problem is not None:
        return array.problem
    try:
        with StoredValues(path, array) as values:
            if array.checksum is None:
                for _ in () if array.encrypted else values.pieces():
                    pass  # bytes that no encoder wrote raise
            elif (digest := values.checksum()) != array.checksum:
                return f"its checksum is {digest}, and {array.checksum} was written"
    except SpillError as error:
        return _reason(error, path)
    found.checked_bytes += array.stored_bytes
    found.unverified += array.checksum is None
    found.encrypted += array.checksum is not None and array.encrypted
    found.verified += array.checksum is not None and not array.encrypted
    return None


def _verify_journal(path: Path, found: Verification) -> None:
    """Check that each line of a journal is an event; a last line may be cut off if the run did not end."""
    state = JournalState()
    damaged = []
    number, text = 0, b""
    with _opened(path) as file:
        head = read_head(file.readline(LONGEST_BYTES))
        if head is None:
            raise SpillError(f"{path} does not begin as a journal; it is damaged, or none: name another file")
        check_version(path, head.format, FORMAT_VERSION)
        while line := file.readline(LONGEST_BYTES):
            text = line
            number += 1
            before = state.damaged_lines
            for event in read_lines(text):
                state.add(event)
            if state.damaged_lines > before:
                damaged.append(number + 1)  # the head is line 1
    found.journals += 1
    found.journal_lines += number + 1
    if damaged and damaged[-1] == number + 1 and not text.endswith(b"\n") and not state.ended:
        damaged.pop()
        found.notes.append(Problem(path, None, "its last line is cut off, as a killed run leaves it"))
    if damaged:
        listed = ", ".join(map(str, damaged[:_TOLD_LINES])) + (", …" if len(damaged) > _TOLD_LINES else "")
        found.problems.append(Problem(path, None, f"{len(damaged)} of its lines are damaged: {listed}"))
    if state.lost_lines:
        found.notes.append(Problem(path, None, f"{state.lost_lines} lines are missing that the disk refused"))


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise SpillError(f"{path} is no regular file; name another one")
        yield file


def _reason(error: OSError, path: Path) -> str:
    """Return the text of an error without the file's path, which is printed beside the text."""
    text = str(error) if isinstance(error, SpillError) or error.strerror is None else error.strerror
    for name in (str(path), printable(str(path), _PATH_LENGTH)):
        text = text.removeprefix(name).lstrip(": ")
    return text
