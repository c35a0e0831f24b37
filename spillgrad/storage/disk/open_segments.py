"""The segments that this process has open, which are closed without a write when it ends, and in a forked child.

When the process ends, HDF5 closes open files through an interpreter that is gone by then. A forked child, which has its
parent's files open, would keep their disk occupied. So both close all files in `present` first. A fork waits for
`opening`, so that every file that the child inherits is in `present`.
"""

import atexit
import functools
import os
import threading
from typing import Protocol

from spillgrad.storage.disk import hdf5


class Abandonable(Protocol):
    """An open file that can be closed without a write: a segment."""

    def abandon(self) -> None:
        """Close the file without writing to it."""
        ...


present: set[Abandonable] = set()
opening = threading.RLock()  # the child closes the files before it releases the lock


@functools.cache
def abandon_at_exit() -> None:
    """Register functions that close the open files when the process ends, and in every forked child.

    First loads h5py, which registers its own functions: those registered last run first. At exit, h5py removes what
    is needed to close files. Before a fork, h5py takes its lock; a thread that holds `opening` to open a file may wait
    for that lock, so `opening` must be taken first.
    """
    hdf5.load()
    atexit.register(_abandon_all)
    os.register_at_fork(before=opening.acquire, after_in_parent=opening.release, after_in_child=_abandon_parents)


def _abandon_all() -> None:
    for segment in list(present):
        segment.abandon()


def _abandon_parents() -> None:
    _abandon_all()
    opening.release()
