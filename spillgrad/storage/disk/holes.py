"""Find, punch and fill holes: parts of a file that occupy no disk blocks."""

import ctypes
import errno
import functools
import os
from collections.abc import Callable

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_NOT_HERE = (errno.EOPNOTSUPP, errno.ENOSYS)


def hole_bytes(descriptor: int, start: int, stop: int) -> int:
    """Return how many of the bytes `start:stop` lie in holes that the file system reports, or past the file's end."""
    found = 0
    while start < stop:
        try:
            data = min(os.lseek(descriptor, start, os.SEEK_DATA), stop)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            data = stop  # only a hole follows, up to the end of the file
        found += data - start
        start = data if data == stop else os.lseek(descriptor, data, os.SEEK_HOLE)
    return found


def punch(descriptor: int, start: int, stop: int) -> None:
    """Free the disk blocks of bytes `start:stop`.

    Does nothing if the file system cannot punch holes. Raises OSError for any other failure.
    """
    _allocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, start, stop)


def reserve(descriptor: int, start: int, stop: int) -> None:
    """Allocate disk blocks for bytes `start:stop` of a file, also past its end; the length of the file stays the same.

    Does nothing if the file system cannot allocate blocks in advance. Raises OSError for any other failure.
    """
    _allocate(descriptor, _KEEP_SIZE, start, stop)


def _allocate(descriptor: int, mode: int, start: int, stop: int) -> None:
    call = _fallocate()
    while call is not None and call(descriptor, mode, start, stop - start):
        number = ctypes.get_errno()
        if number in _NOT_HERE:
            return
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))


@functools.cache
def _fallocate() -> Callable[..., int] | None:
    call = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if call is not None:
        call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return call
