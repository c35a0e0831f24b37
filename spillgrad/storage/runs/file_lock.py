"""Lock files with open file description (OFD) locks, or, if the kernel has none, with POSIX record locks.

An OFD lock ends when the last descriptor of its open file description is closed. A forked child inherits descriptors of
the same description. So a fork handler of this module closes, in the child, every descriptor from `open_file`; then the
lock ends at the latest with the parent.

Linux before 3.15 and gVisor have only POSIX record locks. Locks of both kinds exclude other processes and each other.
But a POSIX record lock does not exclude its own process, which loses the lock as soon as it closes any descriptor of
the file.
"""

import errno
import fcntl
import os
import struct
import threading
from pathlib import Path

# The errors of a file system without locks, and of a kernel with neither kind of lock.
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
# struct flock of Linux (fcntl_locking(2)): type, whence, start, length, process.
_FLOCK = "hhqqi"
_EXCLUSIVE = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


# A fork waits for `_opening`, so that every descriptor that the child inherits is in `_open`.
_open: set[int] = set()
_opening = threading.RLock()  # nothing that takes another lock is done while holding it


def open_file(path: str | Path, flags: int, folder: int | None = None) -> int:
    """Open a file that is to be locked; return its descriptor, which forked children close. A new file has mode 0600.

    `path` is relative to the open directory `folder`, if that is given. Raises OSError if the file cannot be opened.
    """
    with _opening:
        fd = os.open(path, flags | os.O_CLOEXEC, 0o600, dir_fd=folder)
        _open.add(fd)
    return fd


def close(fd: int) -> None:
    """Close a descriptor from `open_file`; do nothing in a forked child, where it is closed already."""
    with _opening:
        if fd in _open:
            _open.discard(fd)
            os.close(fd)


def lock(fd: int, *, required: bool = False) -> bool:
    """Lock a file that `open_file` opened for writing; return False if it is locked already.

    An OFD lock of this process counts, too. On a file system without locks, returns True, or raises OSError if the lock
    is `required`. Raises OSError for any other failure.
    """
    try:
        _ask(fd, fcntl.F_OFD_SETLK, fcntl.F_SETLK)
    except (BlockingIOError, PermissionError):
        return False
    except OSError as error:
        if required or error.errno not in _NO_LOCKS:
            raise
    return True


def is_locked(fd: int) -> bool:
    """Return whether an open file is locked; False on a file system without locks. Never takes the lock."""
    try:
        kind: int = struct.unpack(_FLOCK, _ask(fd, fcntl.F_OFD_GETLK, fcntl.F_GETLK))[0]
    except OSError:  # a file system without locks
        return False
    return kind != fcntl.F_UNLCK


def _ask(fd: int, of_file: int, of_process: int) -> bytes:
    """Call fcntl with `of_file`, an OFD lock command; if the kernel lacks it, call with the POSIX one, `of_process`."""
    try:
        return fcntl.fcntl(fd, of_file, _EXCLUSIVE)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return fcntl.fcntl(fd, of_process, _EXCLUSIVE)


def _close_parents() -> None:
    for fd in list(_open):
        close(fd)
    _opening.release()


os.register_at_fork(before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_close_parents)
