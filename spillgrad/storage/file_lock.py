"""Locks of open files: they die with the last descriptor of the file that took them, as with its process."""

import errno
import fcntl
import os
import struct

# Where a file system has no locks.
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
# struct flock of Linux (fcntl_locking(2)): type, whence, start, length, process.
_FLOCK = "hhqqi"
_EXCLUSIVE = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


def lock(fd: int) -> bool:
    """Lock an open file, written by who opened it; return False where somebody has it, also in this process.

    Where the file system has no locks, nothing is locked, and all have it. Raises OSError.
    """
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _EXCLUSIVE)
    except (BlockingIOError, PermissionError):
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


def is_locked(fd: int) -> bool:
    """Return whether somebody has an open file locked; the lock is asked for, never taken."""
    try:
        kind: int = struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _EXCLUSIVE))[0]
    except OSError:  # a file system without locks
        return False
    return kind != fcntl.F_UNLCK
