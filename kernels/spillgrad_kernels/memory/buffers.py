"""A pool of page-aligned buffers, the memory of every large array.

Page faults of fresh memory are most of what an eager library spends on large arrays. Here a buffer returns to the pool
when the last array in it dies, and is lent again without page faults.
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

# A store ensures that signal handlers run before or after a change of the pool, never during a change.
SIGNALS_WAIT = True

PAGE_BYTES = mmap.PAGESIZE
# Below this size, malloc's own free lists are as fast, and a buffer of whole pages would waste memory.
POOLED_MIN_BYTES = 64 * 1024
_HUGE_PAGE_BYTES = 2 << 20
# Mapped memory is trimmed to `_MAPPED_PER_PEAK` times the largest recent use, but idle memory never below the floor.
_MAPPED_PER_PEAK = 1.25
_IDLE_FLOOR_BYTES = 64 << 20
# A buffer that is larger by up to 1 / this serves if there is none of the size: fresh pages cost more time than the
# memory is worth.
_MOST_SPARE = 2
# "Recent" means this period and the period before. A period lasts at least `_PERIOD_S`, and until all mapped memory was
# lent several times over. So a period contains a whole training step, however slow. Within a step, most memory is idle
# at some time.
_PERIOD_S = 10.0
_LENT_PER_PERIOD = 4
# Idle memory goes back to the system when less than this share of the system's memory is left.
_LOW_SHARE = 1 / 16
# Malloc's free memory goes back to the system if less than this share is left when a phase of a training step begins.
_SCARCE_SHARE = 1 / 4
# The system's free memory is read after this time, after this many newly mapped bytes, and after this many lent buffers
# (a power of two). Reading takes 0.1 ms.
_PRESSURE_EVERY_S = 0.1
_PRESSURE_EVERY_BYTES = 32 << 20
_LENT_PER_LOOK = 1024
# How long to wait for the lock. It is held for microseconds, or for some milliseconds while memory goes back to the
# system.
_PATIENCE_S = 0.2
# glibc keeps the memory that threads free, in up to eight arenas per core, however much free memory that is.
_malloc_trim: Callable[[ctypes.c_size_t], int] = getattr(ctypes.CDLL(None), "malloc_trim", lambda pad: 0)
_mallopt: Callable[[int, int], int] = getattr(ctypes.CDLL(None), "mallopt", lambda option, value: 0)
# glibc's malloc.h: from this size on, memory is mapped by itself, and goes back to the system when it is freed.
_M_MMAP_THRESHOLD = -3
_MAPPED_BY_ITSELF_BYTES = 1 << 20
_maps_large = False  # whether malloc was told to


@dataclass(frozen=True)
class MemoryStats:
    """Bytes of the pool's buffers: lent to arrays (live), waiting for reuse (idle), both (mapped), the peak of live."""

    live_bytes: int
    idle_bytes: int
    mapped_bytes: int
    peak_live_bytes: int


class _Lease(weakref.ref):  # type: ignore[type-arg]
    """A weak reference to the array in a lent buffer. The lease keeps the buffer alive."""

    __slots__ = ("block",)
    block: mmap.mmap


class BufferPool:
    """Page-aligned buffers by size class, reused last in, first out.

    The pool gives idle buffers back to the system if it maps much more than the recent peak of live bytes, or if the
    system has little memory left. It gives back all idle buffers and malloc's free memory in three cases: the system
    lacks more than the idle bytes, the system refuses memory, or a caller asks for it. If a buffer is wanted while idle
    buffers must go back, an idle buffer of another size is resized: its pages need not be cleared again.

    Invariant: the pool maps `live + idle` bytes and no others. The lock guards the lists and counters. A finalizer or a
    signal handler that asks for memory while its own thread holds the lock gets memory from outside the pool. An array
    may die in any thread at any moment. So its death takes no lock, and runs no Python code, which a signal handler
    could interrupt: the lease is appended to `_returned`, and the next allocation empties `_returned`.
    """

    def __init__(self) -> None:
        self._frugal: weakref.WeakSet[Any] = weakref.WeakSet()
        self._begin()

    def _begin(self) -> None:
        """Set the state of a pool that has no buffers, idle or lent."""
        self._lock = threading.RLock()
        self._idle: dict[int, list[mmap.mmap]] = {}
        self._returned: collections.deque[_Lease] = collections.deque()
        self._leases: dict[int, _Lease] = {}
        self._live_bytes = self._idle_bytes = 0
        self._lent = self._lent_bytes = 0  # buffers lent so far, and bytes lent in this period
        # The largest use in this period, in the period before, and in all periods before this one.
        self._peak_bytes = self._former_peak_bytes = self._past_peak_bytes = 0
        self._period_began_s = self._looked_s = time.monotonic()
        self._unlooked_bytes = 0  # bytes mapped since the system's memory was read

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return an uninitialised C-contiguous array; an array of at least `POOLED_MIN_BYTES` is page-aligned.

        Raises MemoryError if the system still refuses memory after the pool has given back all idle buffers.
        """
        nbytes = _buffer_bytes(shape, dtype)
        if nbytes == 0:
            return np.empty(shape, dtype)
        # If the caller is a finalizer, this thread may hold the lock already, or the thread that holds it may wait for
        # this thread.
        if self._is_interrupted() or not self._lock.acquire(timeout=_PATIENCE_S):
            return np.ndarray(shape, dtype, _new_mapping(nbytes))
        try:
            if self._returned:
                self._drain()
            self._lent += 1
            self._lent_bytes += nbytes
            if self._lent % _LENT_PER_LOOK == 0:
                self._give_back_unneeded()
            waiting = self._idle.get(nbytes) or self._larger(nbytes)
            if waiting:
                block = waiting.pop()
                nbytes = len(block)
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
        """Return the numbers of bytes in the buffer pool, from which host memory for arrays comes.

        Arrays smaller than 64 KiB do not count.

        Returns
        -------
        MemoryStats
            Its attributes are `live_bytes`, in buffers of arrays, which may be up to half as large again as these;
            `idle_bytes`, waiting for reuse; `mapped_bytes`, both together; and `peak_live_bytes`, the most in buffers
            of arrays.
        """
        is_whole = not self._is_interrupted()
        with self._lock:
            if is_whole:
                self._drain()
            mapped_bytes = self._live_bytes + self._idle_bytes
            peak_bytes = max(self._past_peak_bytes, self._peak_bytes)
            return MemoryStats(self._live_bytes, self._idle_bytes, mapped_bytes, peak_bytes)

    def keep_to_peak(self, owner: object) -> None:
        """Give all idle buffers back to the system. While `owner` lives, map at most the recent peak of live bytes."""
        self._frugal.add(owner)
        if self._is_interrupted():
            return
        with self._lock:
            self._drain()
            self._past_peak_bytes = max(self._past_peak_bytes, self._peak_bytes)
            self._former_peak_bytes = self._peak_bytes = self._live_bytes
            self._trim_all()

    @property
    def keeps_to_peak(self) -> bool:
        """Whether an owner of `keep_to_peak` lives."""
        return bool(self._frugal)

    def release_idle(self) -> int:
        """Give all idle buffers and malloc's free memory back to the system.

        Returns
        -------
        int
            How many bytes the buffers had.
        """
        if self._is_interrupted():
            return 0
        with self._lock:
            self._drain()
            return self._trim_all()

    def keep_idle_within(self, nbytes: int) -> None:
        """Give idle buffers back to the system until those left have at most `nbytes`."""
        if (self._returned or self._idle_bytes > nbytes) and not self._is_interrupted():
            with self._lock:
                self._drain()
                self._trim(nbytes)

    def before_fork(self) -> None:
        """Take the lock, so that no other thread is changing the pool: the change would stay unfinished in the child.

        Wait for the lock only a limited time: a finalizer in the thread that holds it may be waiting for this thread.
        """
        self._lock.acquire(timeout=_PATIENCE_S)

    def after_fork(self) -> None:
        """Release the lock if `before_fork` took it."""
        if self._is_interrupted():
            self._lock.release()

    def after_fork_in_child(self) -> None:
        """Release the lock. If `before_fork` did not get the lock, reset the pool: its state may be inconsistent.

        Buffers that were lent before the reset go back to the system when their arrays die.
        """
        if self._is_interrupted():
            self._lock.release()
        else:
            self._begin()

    def _larger(self, nbytes: int) -> list[mmap.mmap] | None:
        """Return the idle buffers of the next larger size that may serve in place of `nbytes`; None if there are none.

        While memory is kept to its peak, no other size may serve.
        """
        most = 0 if self._frugal else nbytes + nbytes // _MOST_SPARE
        fitting = [size for size, blocks in self._idle.items() if blocks and nbytes < size <= most]
        return self._idle[min(fitting)] if fitting else None

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
        """Return whether this thread holds the lock. If it does, the caller is a finalizer or a signal handler."""
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
        """Trim idle memory to a limit set by the recent peak of live bytes and by the system's available memory.

        If idle memory exceeds the limit, resize an idle buffer to `wanted_bytes` (if not 0) and return it. If that is
        impossible, or if all idle memory must go back, return None.
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
        """Resize the idle buffer nearest in size to `nbytes`, keeping its pages; return it. On failure, return None."""
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
        _malloc_trim(ctypes.c_size_t(0))  # takes 5 ms, or 0.2 ms if malloc has nothing to give back
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
    except (OSError, OverflowError) as error:  # OverflowError: more bytes than there are addresses
        raise MemoryError(
            f"memory: the system gave no {nbytes} bytes more; use a smaller batch, or spill with save_on_disk"
        ) from error


@functools.lru_cache(maxsize=8192)
def _buffer_bytes(shape: tuple[int, ...], dtype: Any) -> int:
    """Return the bytes of the pool's buffer for an array; 0 if the array is too small for the pool."""
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    return 0 if nbytes < POOLED_MIN_BYTES else size_class(nbytes)


def size_class(nbytes: int, most_wasted: int = _HUGE_PAGE_BYTES) -> int:
    """Round `nbytes` up to pages, and to one of eight sizes per power of two, but by at most `most_wasted` bytes."""
    step = min(max(PAGE_BYTES, 1 << max(0, nbytes.bit_length() - 4)), most_wasted)
    return -(-nbytes // step) * step


pool = BufferPool()
empty = pool.empty


def scratch(size: int, dtype: Any) -> np.ndarray:
    """Return `size` uninitialised elements, for what a kernel needs only during a call.

    The buffer's size is a power of two, so that calls of different sizes use the same buffers: a fresh buffer costs a
    page fault for each of its pages. While memory is kept to its peak, the buffer is no larger than it must be.
    """
    return empty((size if pool.keeps_to_peak else 1 << (size - 1).bit_length(),), dtype)[:size]


memory_stats = pool.stats
empty_cache = pool.release_idle
os.register_at_fork(before=pool.before_fork, after_in_parent=pool.after_fork, after_in_child=pool.after_fork_in_child)


def trim_malloc_if_scarce(needed_bytes: int = 0) -> None:
    """Give malloc's free memory back if less than a quarter, or than `needed_bytes`, is left, or was left before.

    This is for arrays that other libraries allocate. glibc puts arrays below 32 MiB beside each other. When the
    short-lived arrays have died, no larger array fits the holes. A call takes some 50 ms, and costs a page fault for
    each page that is used again. Arrays of a mebibyte and more that are allocated later go back when they die.
    """
    if _map_large_if_scarce(needed_bytes) or _maps_large:
        _malloc_trim(ctypes.c_size_t(0))


def release_if_scarce(needed_bytes: int = 0) -> None:
    """Give idle buffers and malloc's free memory back if less than a quarter, or than `needed_bytes`, is left.

    This is for programs in which another library allocates most of the memory; see `trim_malloc_if_scarce`.
    """
    if _map_large_if_scarce(needed_bytes):
        pool.release_idle()
    elif _maps_large:
        _malloc_trim(ctypes.c_size_t(0))


def _map_large_if_scarce(needed_bytes: int) -> bool:
    """Have malloc give large arrays back when they die, if less than a quarter, or than `needed_bytes`, is left.

    Return whether so little is left.
    """
    system = system_memory()
    if system is None or system.available_bytes >= max(system.total_bytes * _SCARCE_SHARE, needed_bytes):
        return False
    global _maps_large
    if not _maps_large:
        _mallopt(_M_MMAP_THRESHOLD, _MAPPED_BY_ITSELF_BYTES)
        _maps_large = True
    return True


def allocator(shape: tuple[int, ...], dtype: Any) -> Callable[[tuple[int, ...], Any], np.ndarray]:
    """Return the function that makes uninitialised arrays of this shape and dtype: the pool's `empty` or `np.empty`."""
    return empty if _buffer_bytes(shape, dtype) else np.empty


def zeros(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return a zero-filled C-contiguous array from the pool."""
    array = empty(shape, dtype)
    array.fill(0)
    return array


def copy(array: np.ndarray) -> np.ndarray:
    """Return a C-contiguous copy of `array` in the pool's memory."""
    out = empty(array.shape, array.dtype)
    np.copyto(out, array)
    return out
