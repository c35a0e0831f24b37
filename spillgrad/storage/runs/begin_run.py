"""Begin a run: make its directory, and describe its process."""

import contextlib
import functools
import os
import socket
import sys
from pathlib import Path

from spillgrad import user_line
from spillgrad.errors import OperandError, SpillError
from spillgrad.release import __version__
from spillgrad.storage.disk.io_error import what_to_do
from spillgrad.storage.runs.run_directory import RunDirectory, default_directory, who_may_replace_runs
from spillgrad.storage.runs.sweep import sweep


@functools.cache
def about_process() -> dict[str, object]:
    """Return what a journal's head says of this process: its host, its command, and the release of spillgrad."""
    return {"host": socket.gethostname(), "command": " ".join(sys.argv), "version": __version__}


def make_run(directory: str | os.PathLike[str] | None) -> RunDirectory:
    """Make the directory of a run in `directory`, or, if that is None, in the user's temporary directory.

    First removes the dead runs there. Raises SpillError if no directory can be made there.
    """
    if directory is not None and not isinstance(directory, str | os.PathLike):
        raise OperandError(f"spill: got {type(directory).__name__} as a directory; wanted a path")
    place = default_directory() if directory is None else Path(directory)
    try:
        place = place.absolute()  # the process may change its working directory
        who = who_may_replace_runs(place)
        if who is not None:
            user_line.warn(
                f"spill: {who} remove or replace the runs in it; pass a directory of your own, such as a new one there"
            )
        with contextlib.suppress(FileNotFoundError):  # it is new, or the last run removed it
            sweep(place)
        return RunDirectory(place, remove_parent=directory is None)
    except SpillError:
        raise
    except OSError as error:
        remedy = what_to_do(error, "pass a directory that can be written")
        raise SpillError(f"spill: cannot use {place}: {error.strerror}; {remedy}") from error
