"""Memory, streams, events and copies of a device. In the simulator, the device is in host memory.

Kernels, and copies for which no other stream is given, run one after another on the stream `compute()`. A function
makes the host wait only if its docstring says so. The first call starts CUDA; importing this module does not.
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

# Host memory that is not pinned is copied through pinned pieces. A stream holds at most `_STAGED_BYTES` of pieces.
_PIECE_BYTES = 4 << 20
_STAGED_BYTES = 4 * _PIECE_BYTES


class Event:
    """A point in a stream's work, for which other streams and the host can wait.

    Before `record`, an event counts as done. The time between two events with `timed` can be measured; such events are
    slightly slower.
    """

    # Handles of dead events, kept for new events. A finalizer may run anywhere, so it must not call the driver to free
    # a handle.
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
        """Make the event mark the end of the work that is in `stream` now, and return the event."""
        self._is_done = False
        self._launches = launches.last if stream.computes else 0
        calls.record(self._handle, stream.handle)
        return self

    def wait(self, stream: "Stream") -> None:
        """Make later work of `stream` wait for the event. The host does not wait."""
        if not self._is_done:
            calls.hold(stream.handle, self._handle)

    def query(self) -> bool:
        """Return whether the work before the event is done. Raises CudaError if a kernel before the event failed."""
        if not self._is_done and calls.is_done(self._handle):
            self._note_done()
        return self._is_done

    def synchronize(self) -> None:
        """Wait until the work before the event is done. Raises CudaError if a kernel before the event failed."""
        if not self._is_done:
            calls.wait_for(self._handle)
            self._note_done()

    def elapsed_ms(self, end: "Event") -> float:
        """Return the milliseconds from this event to `end`. Both events must be timed, and done."""
        return float(calls.elapsed_ms(self._handle, end._handle))

    def _note_done(self) -> None:
        self._is_done = True
        launches.are_done(self._launches)


class _Held:
    """The arrays that a stream's copies read and write, in the copies' order, kept alive until the copies are done.

    Invariant: an array is dropped only after its copy is done. The lock guards the queue: without the lock, two threads
    that look at the first copy would remove two copies.
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
        """Drop the arrays of finished copies. With `at_most_bytes`, wait for copies until no more bytes remain."""
        with self.lock:
            while self.copies:
                event, nbytes, _ = self.copies[0]
                if at_most_bytes is not None and self.nbytes > at_most_bytes:
                    event.synchronize()
                elif not event.query():
                    return
                self.copies.popleft()
                self.nbytes -= nbytes


# Keys are the handles of streams: a `Stream` object may die before its copies are done.
_held: dict[Any, _Held] = {}


class Stream:
    """A queue of work that a device does in order, in parallel with other streams.

    The stream keeps a copy's host array, and the object `keep`, alive until the copy is done, so that their memory is
    not reused before. A copy does not wait for other streams by itself. Before a copy starts, use `Event.wait` to make
    the stream wait for work that computes the memory to read, and for work that uses the memory to overwrite.
    """

    computes = False
    _spare: ClassVar[list[Any]] = []  # handles of dead streams, kept for new streams, as in `Event`

    def __init__(self) -> None:
        try:
            self.handle = self._spare.pop()
        except IndexError:
            self.handle = calls.new_stream()
        self._copies = _held.setdefault(int(self.handle), _Held())
        self._drop = later(self._spare.append, self.handle)

    __del__ = finalizer

    def copy_to_host_async(self, pinned: np.ndarray, address: int, nbytes: int, keep: Any = None) -> Event:
        """Start a copy of `nbytes` bytes of device memory at `address` to `pinned`; return the event of the copy's end.

        `pinned` is a dense array that the function `pinned` returned. Raises ValueError if the array is too small.
        """
        if nbytes > pinned.nbytes:
            raise ValueError(f"a copy to the host: got {nbytes} bytes, for an array of {pinned.nbytes}")
        calls.to_host(pinned.ctypes.data, address, nbytes, self.handle)
        return self._hold(nbytes, pinned, keep)

    def copy_to_device_async(self, address: int, pinned: np.ndarray, nbytes: int, keep: Any = None) -> Event:
        """Start a copy of `nbytes` bytes of `pinned` to device memory at `address`; return the event of the copy's end.

        `pinned` is a dense array that the function `pinned` returned. Raises ValueError if the array is too small.
        """
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
        """The number of bytes in copies that are not known to be done."""
        return self._copies.nbytes

    def let_go(self, at_most_bytes: int | None = None) -> None:
        """Drop the arrays of finished copies. With `at_most_bytes`, wait for copies until no more bytes remain."""
        self._copies.let_go(at_most_bytes)

    def synchronize(self) -> None:
        """Wait until all work in the stream is done. Raises CudaError if a kernel failed."""
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
    """Return the stream for all kernels, and for copies without another stream."""
    if not _compute:
        with _starting:
            if not _compute:
                _compute.append(_ComputeStream())
    return _compute[0]


def is_started() -> bool:
    """Return whether this process has used the device."""
    return bool(_compute) or _allocator.stats() != MemoryStats()


def synchronize() -> None:
    """Wait until the work in all streams is done. Raises CudaError if a kernel failed."""
    compute().synchronize()
    _drop_copied(waits=True)


def _drop_copied(waits: bool) -> None:
    """Drop the arrays of finished copies in every stream; with `waits`, wait for all copies first."""
    for copies in list(_held.values()):
        if copies.copies:
            copies.let_go(0 if waits else None)


_allocator = CachingAllocator(calls.reserve, calls.give_back, lambda: calls.memory_bytes()[0], _drop_copied)
_pinned_memory = PinnedMemory(calls.pin, calls.unpin)


def allocator() -> CachingAllocator:
    """Return the allocator of the device's memory."""
    return _allocator


def pinned(nbytes: int) -> np.ndarray:
    """Return an uninitialised array of `nbytes` bytes in pinned memory.

    The memory is given back when the last view of the array dies. Raises MemoryError if the system refuses to pin more
    memory.
    """
    _drop_copied(waits=False)
    return _pinned_memory.empty(nbytes)


def empty_cache() -> None:
    """Give unused device memory back to the device, and unused pinned memory back to the system."""
    allocator().give_back_idle()
    _pinned_memory.give_back_idle()


def _piece(nbytes: int, stream: Stream) -> np.ndarray:
    """Return pinned memory for a part of a copy. Wait while `stream` holds too much pinned memory (`_STAGED_BYTES`)."""
    stream.let_go(_STAGED_BYTES - _PIECE_BYTES)
    return pinned(nbytes)


def is_pinned(array: np.ndarray) -> bool:
    """Return whether an array's memory comes from `pinned`."""
    return _pinned_memory.lent(array)


def copy_to_device(address: int, source: np.ndarray, stream: Stream | None = None, keep: Any = None) -> None:
    """Copy `source`, a dense host array of bytes, to device memory at `address`. `source` may change after the call.

    The copy runs in order in `stream`, by default the stream of kernels. The stream keeps `keep`, the owner of the
    device memory, alive until the copy is done.
    """
    stream = compute() if stream is None else stream
    for start in range(0, source.nbytes, _PIECE_BYTES):
        part = source[start : start + _PIECE_BYTES]
        piece = _piece(part.nbytes, stream)
        piece[:] = part
        stream.copy_to_device_async(address + start, piece, part.nbytes, keep)


def copy_to_host(target: np.ndarray, address: int) -> None:
    """Fill `target`, a dense host array of bytes, from device memory at `address`. Waits for earlier kernels.

    Raises CudaError if a kernel failed.
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
    """Set `nbytes` bytes of device memory at `address` to 0, in order with kernels."""
    calls.clear(address, nbytes, compute().handle)
