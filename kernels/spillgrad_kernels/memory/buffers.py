"""A pool of page-aligned buffers under every large array.

Most of an eager library's cost on large arrays is page faults of fresh memory. Buffers here return to the pool when the
last array over them dies, and are handed out again without a fault.
"""

import collections
import ctypes
import functools
import math
import mmap
import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from spillgrad_kernels.memory.system_memory import system_memory

# Signal handlers run before or after what is done here, once a store has seen to that.
SIGNALS_WAIT = True

PAGE_BYTES = mmap.PAGESIZE
# Below this size malloc's own free lists are as fast, and a page each would be wasted.
POOLED_MIN_BYTES = 64 * 1024
_HUGE_PAGE_BYTES = 2 << 20
# What is mapped is trimmed to this multiple of the largest recent use, but idle memory never below the floor.
_MAPPED_PER_PEAK = 1.25
_IDLE_FLOOR_BYTES = 64 << 20
# "Recent" is this period and the one before. A period lends all memory several times over, as a training step does,
# however slow: most memory is idle once during a step, and all of it while something else is waited for.
_PERIOD_S = 10.0
_LENT_PER_PERIOD = 4
# Idle memory goes back to a system that has less than this share of its memory left.
_LOW_SHARE = 1 / 16
# What malloc has free goes back to a system that has less than this left, as a phase of a training step begins.
_SCARCE_SHARE = 1 / 4
# How often the system is asked (it takes 0.1 ms): after so long, after so much new memory, and after so many buffers
# lent (a power of two).
_PRESSURE_EVERY_S = 0.1
_PRESSURE_EVERY_BYTES = 32 << 20
_LENT_PER_LOOK = 1024
# Sections of the pool take microseconds, and some milliseconds where memory goes back to the system.
_PATIENCE_S = 0.2
# glibc keeps what threads freed, in an arena for each of up to eight per core, whatever share of it is free.
_malloc_trim: Callable[[ctypes.c_size_t], int] = getattr(ctypes.CDLL(None), "malloc_trim", lambda pad: 0)


@dataclass(frozen=True)
class MemoryStats:
    """Bytes of the buffer pool: in use, waiting for reuse, both together, and the largest use so far."""

    live_bytes: int
    idle_bytes: int
    mapped_bytes: int
    peak_live_bytes: int


class _Lease(weakref.ref):  # type: ignore[type-arg]
    """A weak reference to the array over a lent buffer, which remembers the buffer."""

    __slots__ = ("block",)
    block: mmap.mmap


class BufferPool:
    """Page-aligned buffers by size class, reused last in, first out.

    Idle buffers go back to the system when they exceed what recent use explains, or it has little left; all of them,
    and what malloc has free, when that is not enough, when it refuses more memory, and on request. One that would go
    back as another size is wanted becomes that: its pages need not be cleared again.

    Invariant: `live + idle` bytes are mapped, and nothing else, but for what is asked for while a finalizer or a signal
    handler has come in the middle of a section that the lock guards: that is memory which is not the pool's. The lock
    guards the lists and counters. An array's death may come in any thread at any moment, so it takes no lock and runs
    no Python, which a signal handler could interrupt: it appends the lease to `_returned`, which the next allocation
    drains.
    """

    def __init__(self) -> None:
        self._frugal: weakref.WeakSet[Any] = weakref.WeakSet()
        self._begin()

    def _begin(self) -> None:
        """Have nothing, and know of nothing that is lent."""
        self._lock = threading.RLock()
        self._idle: dict[int, list[mmap.mmap]] = {}
        self._returned: collections.deque[_Lease] = collections.deque()
        self._leases: dict[int, _Lease] = {}
        self._live_bytes = self._idle_bytes = 0
        self._lent = self._lent_bytes = 0  # buffers in all, and bytes in this period
        # The largest use in this period, in the one before, and in all before this one.
        self._peak_bytes = self._former_peak_bytes = self._past_peak_bytes = 0
        self._period_began_s = self._looked_s = time.monotonic()
        self._unlooked_bytes = 0  # mapped since the system was asked

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return an uninitialised C-contiguous array, page-aligned from `POOLED_MIN_BYTES` upwards.

        Raises MemoryError when the system gives no more memory even after all idle buffers went back to it.
        """
        nbytes = _buffer_bytes(shape, dtype)
        if nbytes == 0:
            return np.empty(shape, dtype)
        # In a finalizer in the middle of a section of this thread; or one of another thread that waits for this one.
        if self._is_interrupted() or not self._lock.acquire(timeout=_PATIENCE_S):
            return np.ndarray(shape, dtype, _new_mapping(nbytes))
        try:
            if self._returned:
                self._drain()
            self._lent += 1
            self._lent_bytes += nbytes
            if self._lent % _LENT_PER_LOOK == 0:
                self._give_back_unneeded()
            waiting = self._idle.get(nbytes)
            if waiting:
                block = waiting.pop()
                self._idle_bytes -= nbytes
            else:
                block = self._map(nbytes)
            self._live_bytes += nbytes
            if self._live_bytes > self._peak_bytes:
                self._peak_bytes = self._live_bytes
        finally:
            self._lock.release()
        array: np.ndarray = np.ndarray(shape, dtype, block)
        lease = _Lease(array, self._returned.append)
        lease.block = block
        self._leases[id(lease)] = lease
        return array

    def stats(self) -> MemoryStats:
        """Return the pool's bytes now; what is smaller than `POOLED_MIN_BYTES` is not the pool's."""
        is_whole = not self._is_interrupted()
        with self._lock:
            if is_whole:
                self._drain()
            mapped_bytes = self._live_bytes + self._idle_bytes
            peak_bytes = max(self._past_peak_bytes, self._peak_bytes)
            return MemoryStats(self._live_bytes, self._idle_bytes, mapped_bytes, peak_bytes)

    def keep_to_peak(self, owner: object) -> None:
        """While `owner` lives, map no more than the largest recent use; idle memory goes back now."""
        self._frugal.add(owner)
        if self._is_interrupted():
            return
        with self._lock:
            self._drain()
            self._past_peak_bytes = max(self._past_peak_bytes, self._peak_bytes)
            self._former_peak_bytes = self._peak_bytes = self._live_bytes
            self._trim_all()

    def release_idle(self) -> int:
        """Give all idle buffers, and what malloc has free, back to the system; return the buffers' bytes."""
        if self._is_interrupted():
            return 0
        with self._lock:
            self._drain()
            return self._trim_all()

    def before_fork(self) -> None:
        """Wait until no other thread is in the middle of a change, which nobody would finish in the child.

        Not for ever: a finalizer that came there may wait for this thread.
        """
        self._lock.acquire(timeout=_PATIENCE_S)

    def after_fork(self) -> None:
        """Go on; in this thread's middle of a change too."""
        if self._is_interrupted():
            self._lock.release()

    def after_fork_in_child(self) -> None:
        """Go on; or begin anew, where a thread that is not in the child may have left things half done.

        What it had lent goes back to the system as it dies, without a lease.
        """
        if self._is_interrupted():
            self._lock.release()
        else:
            self._begin()

    def _map(self, nbytes: int) -> mmap.mmap:
        block = self._give_back_unneeded(nbytes) or self._map_new(nbytes)
        if nbytes >= _HUGE_PAGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
            block.madvise(mmap.MADV_HUGEPAGE)
        return block

    def _map_new(self, nbytes: int) -> mmap.mmap:
        try:
            return _new_mapping(nbytes)
        except MemoryError:
            self._trim_all()
        return _new_mapping(nbytes)

    def _is_interrupted(self) -> bool:
        """Return whether this thread is in the middle of a section: a finalizer or a signal handler asks."""
        return self._lock._is_owned()  # type: ignore[attr-defined,no-any-return]  # as `threading.Condition` does

    def _drain(self) -> None:
        while self._returned:
            lease = self._returned.popleft()
            del self._leases[id(lease)]
            block = lease.block
            nbytes = len(block)
            waiting = self._idle.get(nbytes)
            if waiting is None:
                waiting = self._idle[nbytes] = []
            waiting.append(block)
            self._live_bytes -= nbytes
            self._idle_bytes += nbytes

    def _give_back_unneeded(self, wanted_bytes: int = 0) -> mmap.mmap | None:
        """Trim idle memory to what recent use explains, and to less as far as the system has little left.

        Return a buffer of `wanted_bytes` made of what would have gone back, if any.
        """
        now_s = time.monotonic()
        mapped_bytes = self._live_bytes + self._idle_bytes
        if now_s - self._period_began_s > _PERIOD_S and self._lent_bytes > _LENT_PER_PERIOD * mapped_bytes:
            self._period_began_s, self._lent_bytes = now_s, 0
            self._past_peak_bytes = max(self._past_peak_bytes, self._peak_bytes)
            self._former_peak_bytes, self._peak_bytes = self._peak_bytes, self._live_bytes
        recent_bytes = max(self._former_peak_bytes, self._peak_bytes)
        mapped_bytes = recent_bytes if self._frugal else int(recent_bytes * _MAPPED_PER_PEAK)
        floor_bytes = 0 if self._frugal else _IDLE_FLOOR_BYTES
        allowed_bytes = max(floor_bytes, mapped_bytes - self._live_bytes) - wanted_bytes
        self._unlooked_bytes += wanted_bytes
        if now_s - self._looked_s > _PRESSURE_EVERY_S or self._unlooked_bytes > _PRESSURE_EVERY_BYTES:
            self._looked_s, self._unlooked_bytes = now_s, 0
            system = system_memory()
            if system:
                short_bytes = wanted_bytes + int(system.total_bytes * _LOW_SHARE) - system.available_bytes
                if short_bytes > self._idle_bytes:
                    self._trim_all()
                    return None
                allowed_bytes = min(allowed_bytes, self._idle_bytes - short_bytes)
        resized = self._resize_idle(wanted_bytes) if wanted_bytes and self._idle_bytes > max(0, allowed_bytes) else None
        self._trim(allowed_bytes)
        return resized

    def _resize_idle(self, nbytes: int) -> mmap.mmap | None:
        """Make a buffer of the idle one that is nearest to this size; its pages stay where they are."""
        nearest = min((size for size, blocks in self._idle.items() if blocks), key=lambda size: abs(size - nbytes))
        block = self._idle[nearest].pop()
        self._idle_bytes -= nearest
        try:
            block.resize(nbytes)
        except OSError:
            block.close()
            return None
        return block

    def _trim_all(self) -> int:
        nbytes = self._trim(0)
        _malloc_trim(ctypes.c_size_t(0))  # 5 ms beside arrays of the pool, and 0.2 when there is nothing to give back
        return nbytes

    def _trim(self, allowed_bytes: int) -> int:
        before = self._idle_bytes
        for nbytes in sorted(self._idle, reverse=True):
            blocks = self._idle[nbytes]
            while blocks and self._idle_bytes > allowed_bytes:
                blocks.pop().close()
                self._idle_bytes -= nbytes
        return before - self._idle_bytes


def _new_mapping(nbytes: int) -> mmap.mmap:
    try:
        return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:  # the latter for more than any address
        raise MemoryError(
            f"memory: the system gave no {nbytes} bytes more; use a smaller batch, or spill with save_on_disk"
        ) from error


@functools.lru_cache(maxsize=8192)
def _buffer_bytes(shape: tuple[int, ...], dtype: Any) -> int:
    """Return the size of the buffer an array takes from the pool; 0 if it takes none."""
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    return 0 if nbytes < POOLED_MIN_BYTES else _size_class(nbytes)


def _size_class(nbytes: int) -> int:
    """Round up to one of eight sizes per power of two, in whole pages: at most an eighth is wasted."""
    step = max(PAGE_BYTES, 1 << max(0, nbytes.bit_length() - 4))
    return -(-nbytes // step) * step


pool = BufferPool()
empty = pool.empty
memory_stats = pool.stats
empty_cache = pool.release_idle
os.register_at_fork(before=pool.before_fork, after_in_parent=pool.after_fork, after_in_child=pool.after_fork_in_child)


def trim_malloc_if_scarce() -> None:
    """Give what malloc has free back to a system that has little memory left.

    For arrays that other libraries allocate: those below 32 MiB glibc puts beside each other, and when the short-lived
    ones have died, no larger array can use the holes. Takes some 50 ms, and each page that is used again a fault.
    """
    system = system_memory()
    if system is not None and system.available_bytes < system.total_bytes * _SCARCE_SHARE:
        _malloc_trim(ctypes.c_size_t(0))


def allocator(shape: tuple[int, ...], dtype: Any) -> Callable[[tuple[int, ...], Any], np.ndarray]:
    """Return what makes an uninitialised array of this shape and dtype: the pool, or NumPy where it takes none."""
    return empty if _buffer_bytes(shape, dtype) else np.empty


def zeros(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return a zero-filled C-contiguous array from the pool."""
    array = empty(shape, dtype)
    array.fill(0)
    return array


def copy(array: np.ndarray) -> np.ndarray:
    """Return a C-contiguous copy in memory of the pool."""
    out = empty(array.shape, array.dtype)
    np.copyto(out, array)
    return out
