"""Find out whether direct I/O slows a training step less than the page cache does."""

import errno
import mmap
import os
import time
from pathlib import Path

# 0 where the system knows no such flag: then direct files cannot be opened.
O_DIRECT: int = getattr(os, "O_DIRECT", 0)

_BUFFER_BYTES = 1 << 20
_BUFFERS = 8
# Beyond this ratio of times the disk is so slow that a step would wait for it: the page cache may hide that.
_SLOWEST = 20.0


def open_direct(path: str | os.PathLike[str], flags: int) -> int | None:
    """Open a file past the page cache; None where the file system cannot. Raises OSError for any other reason."""
    if not O_DIRECT:
        return None
    try:
        return os.open(path, flags | os.O_CLOEXEC | O_DIRECT, 0o600)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
        return None


def direct_io_pays(directory: Path) -> bool:
    """Return whether direct I/O takes less of the processor's time there, on a disk that is not too slow for it.

    It writes and reads a few MiB, once for each file system in a process.
    """
    device = os.stat(directory).st_dev
    if device not in _known:
        _known[device] = _measure(directory)
    return _known[device]


_known: dict[int, bool] = {}


def _measure(directory: Path) -> bool:
    flags = os.O_RDWR | getattr(os, "O_TMPFILE", 0)
    if not O_DIRECT or flags == os.O_RDWR:
        return False
    try:
        direct = open_direct(directory, flags)
        if direct is None:
            return False
        direct_s, direct_busy_s = _cost(direct)
        cached_s, cached_busy_s = _cost(os.open(directory, flags | os.O_CLOEXEC, 0o600))
    except OSError:  # a full disk, perhaps: whoever stores something will be told
        return False
    return direct_busy_s < cached_busy_s and direct_s < _SLOWEST * cached_s


def _cost(descriptor: int) -> tuple[float, float]:
    """Return the seconds, and the processor's, that writing and reading a file takes; close it."""
    try:
        with mmap.mmap(-1, _BUFFER_BYTES) as memory, memoryview(memory) as buffer:
            buffer[:] = bytes(_BUFFER_BYTES)
            began_s, began_busy_s = time.perf_counter(), time.thread_time()
            for call in (os.pwritev, os.preadv):
                for i in range(_BUFFERS):
                    call(descriptor, [buffer], i * _BUFFER_BYTES)
            return time.perf_counter() - began_s, time.thread_time() - began_busy_s
    finally:
        os.close(descriptor)
