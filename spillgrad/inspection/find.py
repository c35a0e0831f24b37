"""Find segments and arrays by the paths and keys that a user gives."""

import difflib
import os
from pathlib import Path

from spillgrad.errors import ArgumentError, SpillError, SpillFormatError
from spillgrad.inspection.arrays import Segment, StoredArray
from spillgrad.inspection.printable import printable
from spillgrad.inspection.segments import inspect_segment
from spillgrad.inspection.unflushed import Journals
from spillgrad.inspection.untrusted import UntrustedReader
from spillgrad.storage.journal.files import is_journal
from spillgrad.storage.runs.run_directory import RUN_NAME, is_segment

_SUGGESTED = 5
_COMPARED = 10_000

SIGNATURE = b"\x89HDF\r\n\x1a\n"


def is_segment_file(path: Path) -> bool:
    """Return whether a file is a segment, judged by its name or its first bytes.

    Raises OSError if the file cannot be read.
    """
    if not path.is_file():
        return False
    if is_segment(path.name):
        return True
    with open(path, "rb") as file:
        return file.read(len(SIGNATURE)) == SIGNATURE


def require_not_stored(path: Path) -> None:
    """Raise ArgumentError if `path` is a segment or a journal, which no output may overwrite."""
    try:
        is_own = is_segment_file(path) or (path.is_file() and path.stat().st_size > 0 and is_journal(path))
    except OSError:  # the write will raise
        return
    if is_own:
        raise ArgumentError(f"inspect: {path} is a segment or a journal, not to be overwritten; name another file")


def segment_files(path: str | os.PathLike[str]) -> list[Path]:
    """Return the segments in a folder and in the run folders inside it; symbolic links are skipped.

    Raises OSError if a folder cannot be read.
    """
    found = []
    for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
        if is_segment(entry.name) and entry.is_file(follow_symlinks=False):
            found.append(Path(entry.path))
        elif RUN_NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
            try:
                found += segment_files(entry.path)
            except FileNotFoundError:  # the run ended meanwhile
                continue
    return found


def find_segments(path: str | os.PathLike[str]) -> list[Path]:
    """Return the segments at a path: the file itself, or the segments in a folder.

    Raises ArgumentError for a folder without segments, or for a journal. Raises OSError if the path cannot be read.
    """
    path = Path(path)
    if not path.is_dir():
        if os.path.getsize(path) and not is_segment_file(path) and is_journal(path):
            raise ArgumentError(f"{path} is a journal, which holds no arrays; name a segment, or the folder of a run")
        return [path]
    found = segment_files(path)
    if not found:
        raise ArgumentError(
            f"{path}: there is no segment in it: a finished run's are gone; name another folder or a file"
        )
    return found


def find_array(path: str | os.PathLike[str], key: str) -> tuple[Segment, StoredArray]:
    """Return the segment and the array that `key` names: a number, a dataset, or `segment-00000.h5/00000042`.

    Raises ArgumentError if no array or several have this name; the message gives the nearest names. Raises
    SpillFormatError for a file of a newer version. Raises SpillError if no file at `path` can be read. Raises OSError
    if a file cannot be opened.
    """
    arrays: dict[str, tuple[Segment, StoredArray]] = {}
    error = None
    files = find_segments(path)
    with UntrustedReader() as reader, Journals() as journals:
        for file in files:
            try:
                segment = inspect_segment(file, reader, journals)
            except (FileNotFoundError, SpillError) as gone_or_damaged:
                if isinstance(gone_or_damaged, SpillFormatError) or len(files) == 1:
                    raise
                error = gone_or_damaged
                continue
            place = file.relative_to(path) if len(files) > 1 else file.name
            arrays |= {f"{place}/{array.key}": (segment, array) for array in segment.arrays}
    if error is not None and not arrays:
        raise error
    wanted = key.strip("/")
    number = _number(wanted)
    names = [
        name
        for name, (_, array) in arrays.items()
        if f"/{name}".endswith(f"/{wanted}") or (number is not None and _number(array.key) == number)
    ]
    if len(names) == 1:
        return arrays[names[0]]
    who = f"inspect: got array '{printable(key)}'"
    if names:
        raise ArgumentError(f"{who}, which {len(names)} have for a name: {_some(names)}; name one of them so")
    keys = [array.key for _, array in arrays.values()]
    unread = "" if error is None else f"; and not all files could be read: {error}"
    if not keys:
        raise ArgumentError(
            f"{who}, and no array is there now{unread}; name another folder or file, or look again later"
        )
    if number is not None:
        keys.sort(key=lambda one: abs(number - (_number(one) or 0)))
    else:
        keys = difflib.get_close_matches(wanted[:200], keys[:_COMPARED], _SUGGESTED, 0.0) or keys
    raise ArgumentError(f"{who}; there are {len(arrays):,}, the nearest of them {_some(keys)}{unread}")


def _number(key: str) -> int | None:
    return int(key) if key.isascii() and key.isdigit() and len(key) < 20 else None


def _some(names: list[str]) -> str:
    return ", ".join(map(printable, names[:_SUGGESTED])) + (", …" if len(names) > _SUGGESTED else "")
