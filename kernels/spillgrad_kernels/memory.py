"""A pool of page-aligned buffers under every large array.

Most of an eager library's cost on large arrays is page faults of fresh memory. Buffers here return to the pool when the
last array over them dies, and are handed out again without a fault.
"""

import collections
import math
import mmap
import os
import threading
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np

PAGE_BYTES = mmap.PAGESIZE
# Below this size malloc's own free lists are as fast, and a page each would be wasted.
POOLED_MIN_BYTES = 64 * 1024
_HUGE_PAGE_BYTES = 2 << 20
# Idle memory is trimmed, when new memory must be mapped, to this fraction of the largest live set (and never below the
# floor).
_IDLE_FRACTION = 0.25
_IDLE_FLOOR_BYTES = 64 << 20


@dataclass(frozen=True)
class MemoryStats:
    """Bytes of the buffer pool: in use, waiting for reuse, and the largest use so far."""

    live_bytes: int
    idle_bytes: int
    peak_live_bytes: int


class _Lease(weakref.ref):  # type: ignore[type-arg]
    """A weak reference to the array over a lent buffer, which remembers the buffer."""

    __slots__ = ("block",)
    block: mmap.mmap


class BufferPool:
    """Page-aligned buffers by size class, reused last in, first out.

    Invariant: `live + idle` bytes are mapped, and nothing else. The lock guards the lists and counters. An array's
    death may come in any thread at any moment, also inside this lock's own section, so it takes no lock: it posts the
    buffer to `_returned`, which the next allocation drains.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[int, list[mmap.mmap]] = {}
        self._returned: collections.deque[mmap.mmap] = collections.deque()
        self._leases: dict[int, _Lease] = {}
        self._live_bytes = self._idle_bytes = self._peak_live_bytes = 0

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return an uninitialised C-contiguous array, page-aligned from `POOLED_MIN_BYTES` upwards.

        Raises MemoryError when the system gives no more memory even after all idle buffers went back to it.
        """
        dtype = np.dtype(dtype)
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes < POOLED_MIN_BYTES:
            return np.empty(shape, dtype)
        block = self._take(_size_class(nbytes))
        array: np.ndarray = np.ndarray(shape, dtype, block)
        lease = _Lease(array, self._give_back)
        lease.block = block
        self._leases[id(lease)] = lease
        return array

    def stats(self) -> MemoryStats:
        """Return the pool's bytes now."""
        with self._lock:
            self._drain()
            return MemoryStats(self._live_bytes, self._idle_bytes, self._peak_live_bytes)

    def release_idle(self) -> int:
        """Give all idle buffers back to the system; return how many bytes that were."""
        with self._lock:
            self._drain()
            return self._trim(0)

    def _take(self, nbytes: int) -> mmap.mmap:
        with self._lock:
            self._drain()
            waiting = self._idle.get(nbytes)
            if waiting:
                block = waiting.pop()
                self._idle_bytes -= nbytes
            else:
                allowed = max(_IDLE_FLOOR_BYTES, int(self._peak_live_bytes * _IDLE_FRACTION))
                self._trim(max(0, allowed - nbytes))
                block = self._map(nbytes)
            self._live_bytes += nbytes
            self._peak_live_bytes = max(self._peak_live_bytes, self._live_bytes)
            return block

    def _map(self, nbytes: int) -> mmap.mmap:
        try:
            block = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError:
            self._trim(0)
            try:
                block = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            except OSError as error:
                raise MemoryError(
                    f"memory: the system gave no {nbytes} bytes more ({self._live_bytes} are in use); "
                    "use a smaller batch, or spill with save_on_disk"
                ) from error
        if nbytes >= _HUGE_PAGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
            block.madvise(mmap.MADV_HUGEPAGE)
        return block

    def _give_back(self, lease: _Lease) -> None:
        del self._leases[id(lease)]
        self._returned.append(lease.block)

    def _drain(self) -> None:
        while self._returned:
            block = self._returned.popleft()
            nbytes = len(block)
            self._idle.setdefault(nbytes, []).append(block)
            self._live_bytes -= nbytes
            self._idle_bytes += nbytes

    def _trim(self, allowed_bytes: int) -> int:
        before = self._idle_bytes
        for nbytes in sorted(self._idle, reverse=True):
            blocks = self._idle[nbytes]
            while blocks and self._idle_bytes > allowed_bytes:
                blocks.pop().close()
                self._idle_bytes -= nbytes
        return before - self._idle_bytes


def _size_class(nbytes: int) -> int:
    """Round up to one of eight sizes per power of two, in whole pages: at most an eighth is wasted."""
    step = max(PAGE_BYTES, 1 << max(0, nbytes.bit_length() - 4))
    return -(-nbytes // step) * step


pool = BufferPool()
empty = pool.empty
# A fork waits until no other thread is in the middle of a change: its child has none of them to finish it.
os.register_at_fork(before=pool._lock.acquire, after_in_parent=pool._lock.release, after_in_child=pool._lock.release)


def zeros(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return a zero-filled C-contiguous array from the pool."""
    array = empty(shape, dtype)
    array.fill(0)
    return array
