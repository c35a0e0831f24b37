"""A cache of pinned host memory. Copies between pinned memory and a device need no staging buffer.

Pinning takes a millisecond for a few MiB, so memory stays pinned for reuse.
"""

import collections
import threading
from collections.abc import Callable

import numpy as np

from spillgrad_kernels.memory.buffers import size_class
from spillgrad_kernels.memory.holder import Holder

# Idle memory beyond this limit is unpinned: pinned memory cannot be swapped out, and the system limits how much there
# is.
_IDLE_BYTES = 256 << 20


class _Lent(Holder):
    """Pinned memory that is lent to a NumPy array. The memory returns to the cache when this object dies."""

    __slots__ = ("__array_interface__",)

    def __init__(self, give_back: Callable[[tuple[int, int]], None], address: int, size: int, nbytes: int) -> None:
        super().__init__(give_back, (address, size))
        self.__array_interface__ = {"version": 3, "shape": (nbytes,), "typestr": "|u1", "data": (address, False)}


class PinnedMemory:
    """A cache of pinned memory, which it lends as arrays of bytes, in eight sizes per power of two.

    `pin(nbytes)` allocates pinned bytes and returns their address, or None on failure; `unpin(address)` frees them.

    Invariant: the cache has pinned its lent and idle memory, and no other memory. The lock guards the lists. An array
    may die in any thread, even in the thread that holds the lock. So its death takes no lock: the memory is appended to
    `_returned`.
    """

    def __init__(self, pin: Callable[[int], int | None], unpin: Callable[[int], None]) -> None:
        self._pin, self._unpin = pin, unpin
        self._lock = threading.Lock()
        self._idle: dict[int, list[int]] = {}
        self._returned: collections.deque[tuple[int, int]] = collections.deque()
        self._idle_bytes = 0

    def empty(self, nbytes: int) -> np.ndarray:
        """Return an uninitialised array of `nbytes` pinned bytes. Raises MemoryError if the system can pin no more."""
        size = size_class(max(1, nbytes), most_wasted=max(1, nbytes))  # to pin memory takes longer than to map it
        with self._lock:
            self._drain()
            waiting = self._idle.get(size)
            if waiting:
                address: int | None = waiting.pop()
                self._idle_bytes -= size
            else:
                address = self._pin(size)
                if address is None:
                    self._shrink(0)
                    address = self._pin(size)
        if address is None:
            raise MemoryError(
                f"pinned memory: asked for {size} bytes, and the system pins no more; keep less of it at a time"
            )
        return np.asarray(_Lent(self._returned.append, address, size, nbytes))

    def lent(self, array: np.ndarray) -> bool:
        """Return whether the memory of `array` came from `empty`."""
        root: object = array
        while isinstance(root, np.ndarray):
            root = root.base
        return isinstance(root, _Lent)

    def give_back_idle(self) -> None:
        """Unpin the memory that no array uses."""
        with self._lock:
            self._drain()
            self._shrink(0)

    def _drain(self) -> None:
        while self._returned:
            address, size = self._returned.popleft()
            self._idle.setdefault(size, []).append(address)
            self._idle_bytes += size
        self._shrink(_IDLE_BYTES)

    def _shrink(self, idle_bytes: int) -> None:
        for size in sorted(self._idle, reverse=True):
            while self._idle_bytes > idle_bytes and self._idle[size]:
                self._unpin(self._idle[size].pop())
                self._idle_bytes -= size
