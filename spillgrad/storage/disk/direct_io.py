"""Decide whether direct I/O pays: measure the disk's speed and the processor time, with and without the page cache."""

import collections
import errno
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from spillgrad.fork_safe_lock import ForkSafeLock

# The flag of direct I/O; 0 on a system without direct I/O.
O_DIRECT: int = getattr(os, "O_DIRECT", 0)
_O_TMPFILE: int = getattr(os, "O_TMPFILE", 0)

# About the size of arrays: smaller pieces cost more per byte, and stay in caches.
_BUFFER_BYTES = 4 << 20
_BUFFERS = 2
_ROUNDS = 2
# Direct I/O may take this many times as long as the page cache. If it took longer, steps would wait for it, and the
# page cache may hide such waits.
_SLOWEST = 20.0


class Speed(NamedTuple):
    """The speed of writing and of reading; `busy_s_per_byte` is the processor time to write and read one byte."""

    write_bytes_per_s: float
    read_bytes_per_s: float
    busy_s_per_byte: float

    def seconds(self, nbytes: int) -> float:
        """Return the seconds that one thread takes to write `nbytes` and to read them."""
        return nbytes / self.write_bytes_per_s + nbytes / self.read_bytes_per_s


class Speeds(NamedTuple):
    """The speeds through the page cache (`cached`) and past it (`direct`); None if a speed could not be measured."""

    cached: Speed | None
    direct: Speed | None

    @property
    def direct_io_pays(self) -> bool:
        """Whether direct I/O takes less processor time than the page cache, and is less than 20 times slower."""
        if self.cached is None or self.direct is None:
            return False
        is_fast_enough = self.direct.seconds(1) < _SLOWEST * self.cached.seconds(1)
        return is_fast_enough and self.direct.busy_s_per_byte < self.cached.busy_s_per_byte

    def cache_costs_s(self, moved_bytes: int) -> float:
        """Return by how many seconds the page cache slows a step that moves `moved_bytes`, compared with direct I/O.

        All of the additional processor time counts, although other cores may spend it: if one thread of a kernel is
        delayed, all threads wait.
        """
        if self.cached is None or self.direct is None:
            return 0.0
        return max(0.0, self.cached.busy_s_per_byte - self.direct.busy_s_per_byte) * moved_bytes


def open_direct(path: str | os.PathLike[str], flags: int) -> int | None:
    """Open a file for direct I/O; return None if the file system has none. Raises OSError for any other failure."""
    if not O_DIRECT:
        return None
    try:
        return os.open(path, flags | os.O_CLOEXEC | O_DIRECT, 0o600)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
        return None


def speeds(directory: Path) -> Speeds:
    """Return the speeds of files in `directory`, measured by writing and reading 8 MiB twice.

    Each file system is measured once in a process; meanwhile other threads wait. Raises OSError if there is no such
    directory.
    """
    device = os.stat(directory).st_dev
    with _measuring:
        if device not in _known:
            _known[device] = _measure(directory)
        return _known[device]


_known: dict[int, Speeds] = {}
_measuring = ForkSafeLock()
# The number of consecutive steps that waited for direct I/O, by device. One step is no evidence: the first step of a
# run waits for the measurement above and has no plan, and any step may meet a moment when the disk is busy.
_slow_steps: collections.Counter[int] = collections.Counter()
_SLOW_STEPS = 2


def is_awaited(device: int) -> bool:
    """Return whether to use the page cache on a device, because successive steps waited for direct I/O."""
    return _slow_steps[device] >= _SLOW_STEPS


def note_step(device: int, waited: bool) -> None:
    """Record, for all stores of the process, whether a step waited for direct I/O on a device."""
    if not is_awaited(device):
        _slow_steps[device] = _slow_steps[device] + 1 if waited else 0


def _measure(directory: Path) -> Speeds:
    if not _O_TMPFILE:
        return Speeds(None, None)
    flags = os.O_RDWR | _O_TMPFILE
    try:
        cached = _speed(os.open(directory, flags | os.O_CLOEXEC, 0o600))
        direct = open_direct(directory, flags)
        return Speeds(cached, None if direct is None else _speed(direct))
    except OSError:  # a full disk, perhaps: the first write will raise
        return Speeds(None, None)


def _speed(descriptor: int) -> Speed:
    """Write and read the file of `descriptor` a few times, close it, and return the best speeds."""
    nbytes = _BUFFERS * _BUFFER_BYTES
    try:
        with mmap.mmap(-1, _BUFFER_BYTES) as memory, memoryview(memory) as buffer:
            for page in range(0, _BUFFER_BYTES, mmap.PAGESIZE):
                buffer[page] = 1  # otherwise all of it would be the system's one page of zeros
            costs = []
            for _ in range(_ROUNDS):
                os.ftruncate(descriptor, 0)  # to write blocks that exist already would cost less
                began_busy_s = time.thread_time()
                write_s = _duration(os.pwritev, descriptor, buffer)
                read_s = _duration(os.preadv, descriptor, buffer)
                costs.append((write_s, read_s, time.thread_time() - began_busy_s))
        write_s, read_s, busy_s = map(min, zip(*costs, strict=True))
        return Speed(nbytes / write_s, nbytes / read_s, busy_s / nbytes)
    finally:
        os.close(descriptor)


def _duration(call: Callable[[int, list[Any], int], int], descriptor: int, buffer: memoryview) -> float:
    began_s = time.perf_counter()
    for i in range(_BUFFERS):
        call(descriptor, [buffer], i * _BUFFER_BYTES)
    return time.perf_counter() - began_s
