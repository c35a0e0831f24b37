"""A device's memory, streams, events and copies; in the simulator, of one that is in the host's memory.

Kernels, and copies that nothing else is said of, run one after another on the `compute` stream. The host waits for
them only where it is said. Importing this starts nothing: the first use does.
"""

import collections
import threading
from typing import Any, ClassVar

import numpy as np

from spillgrad_kernels.cuda.driver.availability import SIMULATED
from spillgrad_kernels.cuda.driver.failures import launches
from spillgrad_kernels.cuda.driver.memory import CachingAllocator, MemoryStats
from spillgrad_kernels.memory.holder import finalizer, later
from spillgrad_kernels.memory.pinned import PinnedMemory

if SIMULATED:
    from spillgrad_kernels.cuda.driver import simulated as _calls
else:
    from spillgrad_kernels.cuda.driver import nvidia as _calls  # type: ignore[no-redef]

calls: Any = _calls

# Host memory that is not pinned is copied through pinned pieces, so much of them at a time.
_PIECE_BYTES = 4 << 20
_STAGED_BYTES = 4 * _PIECE_BYTES


class Event:
    """A point in a stream's work, for other streams and the host to wait for; done until it is first recorded.

    `timed` ones say how long it was from one to another, and take a little longer.
    """

    # Of events that nobody has any more, for the next: what dies may do so anywhere, and calls no driver.
    _spare: ClassVar[dict[bool, list[Any]]] = {True: [], False: []}

    def __init__(self, timed: bool = False) -> None:
        self.timed = timed
        try:
            self._handle = self._spare[timed].pop()
        except IndexError:
            self._handle = calls.new_event(timed)
        self._is_done = True
        self._launches = 0
        self._drop = later(self._spare[timed].append, self._handle)

    __del__ = finalizer

    def record(self, stream: "Stream") -> "Event":
        """Let the event be when all that is in the stream so far is done; return it."""
        self._is_done = False
        self._launches = launches.last if stream.computes else 0
        calls.record(self._handle, stream.handle)
        return self

    def wait(self, stream: "Stream") -> None:
        """Let what is put into the stream from now on wait for the event; the host does not."""
        if not self._is_done:
            calls.hold(stream.handle, self._handle)

    def query(self) -> bool:
        """Return whether the event has been. Raises CudaError for a kernel that failed before it."""
        if not self._is_done and calls.is_done(self._handle):
            self._has_been()
        return self._is_done

    def synchronize(self) -> None:
        """Wait until the event has been. Raises CudaError for a kernel that failed before it."""
        if not self._is_done:
            calls.wait_for(self._handle)
            self._has_been()

    def elapsed_ms(self, end: "Event") -> float:
        """Return the time from this event to another one; both are timed, and have been."""
        return float(calls.elapsed_ms(self._handle, end._handle))

    def _has_been(self) -> None:
        self._is_done = True
        launches.are_done(self._launches)


class _Held:
    """What copies in a stream read and write, in their order, until they are done.

    Invariant: an array leaves only after its copy's event has been. The lock guards the queue; of two threads that
    looked at the first copy, both would take one.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.copies: collections.deque[tuple[Event, int, tuple[Any, ...]]] = collections.deque()
        self.nbytes = 0

    def add(self, event: Event, nbytes: int, arrays: tuple[Any, ...]) -> None:
        with self.lock:
            self.copies.append((event, nbytes, arrays))
            self.nbytes += nbytes

    def let_go(self, at_most_bytes: int | None = None) -> None:
        """Drop what is done; of the rest, wait for what exceeds so many bytes."""
        with self.lock:
            while self.copies:
                event, nbytes, _ = self.copies[0]
                if at_most_bytes is not None and self.nbytes > at_most_bytes:
                    event.synchronize()
                elif not event.query():
                    return
                self.copies.popleft()
                self.nbytes -= nbytes


# By the handle of the stream, which may be gone before its copies are done.
_held: dict[Any, _Held] = {}


class Stream:
    """Work that a device does in order, beside that of other streams.

    A copy holds its host array, and what else is named `keep`, until it is done: device memory that dies meanwhile is
    handed to nobody else. It waits for no other stream: `Event.wait` makes it, for what it reads, and for what used
    the memory before that it writes.
    """

    computes = False
    _spare: ClassVar[list[Any]] = []  # as an event's

    def __init__(self) -> None:
        try:
            self.handle = self._spare.pop()
        except IndexError:
            self.handle = calls.new_stream()
        self._copies = _held.setdefault(int(self.handle), _Held())
        self._drop = later(self._spare.append, self.handle)

    __del__ = finalizer

    def copy_to_host_async(self, pinned: np.ndarray, address: int, nbytes: int, keep: Any = None) -> Event:
        """Copy device memory to the start of a dense array that `pinned` made; return when that is done."""
        if nbytes > pinned.nbytes:
            raise ValueError(f"a copy to the host: got {nbytes} bytes, for an array of {pinned.nbytes}")
        calls.to_host(pinned.ctypes.data, address, nbytes, self.handle)
        return self._hold(nbytes, pinned, keep)

    def copy_to_device_async(self, address: int, pinned: np.ndarray, nbytes: int, keep: Any = None) -> Event:
        """Copy from the start of a dense array that `pinned` made to device memory; return when that is done."""
        if nbytes > pinned.nbytes:
            raise ValueError(f"a copy to the device: got {nbytes} bytes, of an array of {pinned.nbytes}")
        calls.to_device(address, pinned.ctypes.data, nbytes, self.handle)
        return self._hold(nbytes, pinned, keep)

    def _hold(self, nbytes: int, *arrays: Any) -> Event:
        event = Event().record(self)
        self._copies.add(event, nbytes, arrays)
        return event

    @property
    def held_bytes(self) -> int:
        """The bytes of copies that are under way, as far as is known."""
        return self._copies.nbytes

    def let_go(self, at_most_bytes: int | None = None) -> None:
        """Drop arrays whose copies are done; of the rest, wait for what exceeds so many bytes."""
        self._copies.let_go(at_most_bytes)

    def synchronize(self) -> None:
        """Wait until all that is in the stream is done. Raises CudaError for a kernel that failed."""
        last = launches.last
        calls.synchronize(self.handle)
        if self.computes:
            launches.are_done(last)
        self.let_go()


class _ComputeStream(Stream):
    """The stream that kernels run on."""

    computes = True


_compute: list[Stream] = []
_starting = threading.Lock()


def compute() -> Stream:
    """Return the stream on which all kernels run, and what is not said to run on another."""
    if not _compute:
        with _starting:
            if not _compute:
                _compute.append(_ComputeStream())
    return _compute[0]


def is_started() -> bool:
    """Return whether this process used the device."""
    return bool(_compute) or _allocator.stats() != MemoryStats()


def synchronize() -> None:
    """Wait until all streams are done. Raises CudaError for a kernel that failed."""
    compute().synchronize()
    _settle(waits=True)


def _settle(waits: bool) -> None:
    """Let copies of every stream drop what they are done with; where it waits, all."""
    for copies in list(_held.values()):
        if copies.copies:
            copies.let_go(0 if waits else None)


_allocator = CachingAllocator(calls.reserve, calls.give_back, lambda: calls.memory_bytes()[0], _settle)
_pinned_memory = PinnedMemory(calls.pin, calls.unpin)


def allocator() -> CachingAllocator:
    """Return the allocator of the device's memory."""
    return _allocator


def pinned(nbytes: int) -> np.ndarray:
    """Return an uninitialised array of so many bytes in pinned memory, which goes back when its last view dies.

    Raises MemoryError when the system pins no more.
    """
    _settle(waits=False)
    return _pinned_memory.empty(nbytes)


def empty_cache() -> None:
    """Return to the device and to the system the memory that no array needs."""
    allocator().give_back_idle()
    _pinned_memory.give_back_idle()


def _piece(nbytes: int, stream: Stream) -> np.ndarray:
    """Return pinned memory for a part of a copy, once there are few enough others in the stream."""
    stream.let_go(_STAGED_BYTES - _PIECE_BYTES)
    return pinned(nbytes)


def is_pinned(array: np.ndarray) -> bool:
    """Return whether an array's memory is what `pinned` gave."""
    return _pinned_memory.lent(array)


def copy_to_device(address: int, source: np.ndarray, stream: Stream | None = None, keep: Any = None) -> None:
    """Fill device memory from a dense host array of bytes, which may change afterwards.

    In order with kernels, or with what else is in another stream, which then holds `keep`, the memory's owner.
    """
    stream = compute() if stream is None else stream
    for start in range(0, source.nbytes, _PIECE_BYTES):
        part = source[start : start + _PIECE_BYTES]
        piece = _piece(part.nbytes, stream)
        piece[:] = part
        stream.copy_to_device_async(address + start, piece, part.nbytes, keep)


def copy_to_host(target: np.ndarray, address: int) -> None:
    """Fill a dense host array of bytes from device memory, once all work before is done.

    Raises CudaError for a kernel that failed.
    """
    copies: collections.deque[tuple[Event, np.ndarray, np.ndarray]] = collections.deque()
    for start in range(0, target.nbytes, _PIECE_BYTES):
        part = target[start : start + _PIECE_BYTES]
        piece = _piece(part.nbytes, compute())
        copies.append((compute().copy_to_host_async(piece, address + start, part.nbytes), piece, part))
        if len(copies) > 1:
            _land(*copies.popleft())
    for copy in copies:
        _land(*copy)


def _land(event: Event, piece: np.ndarray, part: np.ndarray) -> None:
    event.synchronize()
    part[:] = piece


def fill_with_zeros(address: int, nbytes: int) -> None:
    """Set bytes of device memory to 0, in order with kernels."""
    calls.clear(address, nbytes, compute().handle)
