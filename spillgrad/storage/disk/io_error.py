"""Make the error for an array that could not be read or written, with advice what to do."""

import errno
import resource
from pathlib import Path

from spillgrad.errors import SpillError
from spillgrad.storage.disk.file_system import free_bytes
from spillgrad.storage.sizes import format_bytes
from spillgrad.storage.store import Handle

# None: the structure of a file could not be written, mostly for want of room.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, None)


def io_error(verb: str, handle: Handle, directory: Path, error: Exception) -> SpillError:
    """Return the SpillError for an array that could not be read or written (`verb`) because of `error`."""
    reason = getattr(error, "strerror", None) or str(error) or repr(error)
    remedy = what_to_do(
        error, "check that disk, and run the step again" if verb == "read" else _about(directory, error)
    )
    explained = SpillError(
        f"spill: could not {verb} {format_bytes(handle.nbytes)} ({handle.label}) in {directory}: {reason}; {remedy}"
    )
    if isinstance(error, OSError):
        error.__traceback__ = None  # its frames hold the array, and add nothing to `reason`
    explained.__cause__ = error
    return explained


def _about(directory: Path, error: Exception) -> str:
    """Return what is free in a directory that refused a write with `error`, and advice."""
    try:
        free = f"{format_bytes(free_bytes(directory))} are free there"
    except FileNotFoundError:
        return "the directory is gone; pass another directory, or raise ram_budget"
    except OSError:
        free = "how much is free there is unknown"
    first = "free space" if getattr(error, "errno", None) in _NO_ROOM else "check that disk"
    return f"{free}; {first}, pass another directory, or raise ram_budget"


def what_to_do(error: Exception, about_disk: str) -> str:
    """Return advice for an error: how to open more files if the process has too many open, else `about_disk`."""
    if getattr(error, "errno", None) != errno.EMFILE:
        return about_disk
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"this process may have {limit} files open; close some, or raise that limit (ulimit -n)"
