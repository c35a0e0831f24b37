"""The files of a journal: their names, the runs they belong to, and how a run claims the path of its journal."""

import errno
import gc
import json
import os
import stat
import time
from pathlib import Path

from spillgrad.errors import SpillError
from spillgrad.storage.runs import file_lock

FORMAT_VERSION = 2
JOURNAL_NAME = "journal.jsonl"
OLD_JOURNAL_NAME = "journal-old.jsonl"
NEW_JOURNAL_NAME = "journal-new.jsonl"

# The longest command or path, and the longest name, that a journal keeps.
_TEXT_MAX = 1000
_HEAD_MAX_BYTES = 64 << 10
# The time that a store without references may take to close in its thread.
_CLOSING_S, _MOMENT_S = 1.0, 0.01


def old_path(path: Path) -> Path:
    """Return the path to which a full journal is moved."""
    return path.with_name(f"{path.stem}-old{path.suffix}")


def plain_text(text: str) -> str:
    """Return `text` cut to a bounded length, as valid Unicode."""
    return text.encode("utf-8", "backslashreplace").decode()[:_TEXT_MAX]


# What a file is


def is_journal(path: Path) -> bool:
    """Return whether a file is empty or, by its first line, a journal. Raises OSError if it cannot be read."""
    line = _first_line(path)
    if line is None:
        return False
    try:
        head = json.loads(line or '{"format": 0, "began": ""}')
    except (ValueError, RecursionError):
        return False
    return isinstance(head, dict) and type(head.get("format")) is int and "began" in head


def is_of(directory: Path, run: object) -> bool:
    """Return whether the journal that a run's directory links to belongs to that run.

    `run` is "run" in the journal's head. Another run may have replaced a kept journal since the link was made.
    """
    if run is None or not os.path.islink(directory / JOURNAL_NAME):
        return True
    return isinstance(run, str) and os.path.basename(run) == os.path.basename(os.path.realpath(directory))


def has_others_beside(path: Path) -> bool:
    """Return whether the file at a journal's old path is another run's: the first lines of the two files differ.

    This is so if, for example, a user renamed the journal before the next run. Such a file stays.
    """
    former = old_path(path)
    if not os.path.lexists(former):
        return False
    try:
        line = _first_line(former)
        return line != b"" and line != _first_line(path)
    except OSError:  # a run can read its own files
        return True


def _first_line(path: Path) -> bytes | None:
    """Return the first line of a file; None if it is no regular file. Raises OSError if it cannot be read."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        return None
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # never waits, whatever the file became meanwhile
    with open(fd, "rb") as file:
        return file.readline(_HEAD_MAX_BYTES)


# How a run gets a place


def may_be_replaced(path: Path) -> bool:
    """Return whether a new journal may replace the file at `path`, if any. Raises OSError if it cannot be read."""
    try:
        return is_journal(path)
    except FileNotFoundError:
        return not os.path.islink(path)


def claim(path: Path) -> int:
    """Open the journal at `path`, or make an empty one; lock it against other runs; return its descriptor.

    Raises SpillError if a live run writes this journal. Raises OSError if the path cannot be written.
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
                gc.collect()  # the object that holds the other store may be garbage
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
    """Return whether a live run has locked a file. A run that begins its next file may have only the old file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return file_lock.is_locked(fd)
    finally:
        os.close(fd)


def _what_to_do(path: Path) -> str:
    """Return text that names a journal's run, from its head, and advice how to free the path of the journal."""
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


def link(path: Path, directory: Path) -> None:
    """Make a link to a kept journal in a run's directory. Raises SpillError if the directory cannot be written."""
    try:
        os.symlink(path, directory / JOURNAL_NAME)
    except OSError as error:
        # On a file system without links, readers find the journal only at its own place.
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
            raise SpillError(
                f"spill: cannot link to the journal in {directory}: {error.strerror}; pass a directory that can be "
                "written"
            ) from error
