"""Make the error for an array that could not be read or written, with advice what to do."""

import errno
import resource
from pathlib import Path

from spillgrad.errors import SpillError
from spillgrad.storage.disk.file_system import free_bytes
from spillgrad.storage.sizes import format_bytes
from spillgrad.storage.store import Handle


def io_error(verb: str, handle: Handle, directory: Path, error: Exception) -> SpillError:
    """Return the SpillError for an array that could not be read or written (`verb`) because of `error`."""
    reason = getattr(error, "strerror", None) or str(error) or repr(error)
    try:
        free = f"{format_bytes(free_bytes(directory))} are free there"
    except OSError:
        free = "the directory is gone"
    remedy = what_to_do(error, f"{free}; free space, pass another directory, or raise ram_budget")
    explained = SpillError(
        f"spill: could not {verb} {format_bytes(handle.nbytes)} ({handle.label}) in {directory}: {reason}; {remedy}"
    )
    if isinstance(error, OSError):
        error.__traceback__ = None  # its frames hold the array, and add nothing to `reason`
    explained.__cause__ = error
    return explained


def what_to_do(error: Exception, about_disk: str) -> str:
    """Return advice for an error: how to open more files if the process has too many open, else `about_disk`."""
    if getattr(error, "errno", None) != errno.EMFILE:
        return about_disk
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"this process may have {limit} files open; close some, or raise that limit (ulimit -n)"
