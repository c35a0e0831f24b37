"""The functions of `nvidia` for Numba's simulator: a device in host memory. All work is done when a call returns."""

import ctypes
import itertools
import time

import numpy as np

_DEVICE_BYTES = 1 << 30
_ALIGNED_BYTES = 512

# The allocated arrays, by the address that was returned for each.
_given: dict[int, np.ndarray] = {}
_pinned: dict[int, np.ndarray] = {}
_streams = itertools.count(1)


def _memory(nbytes: int, given: dict[int, np.ndarray]) -> int:
    memory = np.empty(nbytes + _ALIGNED_BYTES, np.uint8)
    address = -(-int(memory.ctypes.data) // _ALIGNED_BYTES) * _ALIGNED_BYTES
    given[address] = memory
    return address


def reserve(nbytes: int) -> int | None:
    """Allocate `nbytes` bytes of device memory; return their address, or None if there is no room."""
    return None if nbytes > memory_bytes()[0] else _memory(nbytes, _given)


def give_back(address: int) -> None:
    """Free device memory that `reserve` allocated."""
    del _given[address]


def memory_bytes() -> tuple[int, int]:
    """Return (free, total): the free bytes and all bytes of device memory."""
    return _DEVICE_BYTES - sum(memory.nbytes - _ALIGNED_BYTES for memory in list(_given.values())), _DEVICE_BYTES


def pin(nbytes: int) -> int | None:
    """Allocate `nbytes` bytes of host memory; return their address."""
    return _memory(nbytes, _pinned)


def unpin(address: int) -> None:
    """Free host memory that `pin` allocated."""
    del _pinned[address]


def new_stream() -> int:
    """Return a stream, which is a number."""
    return next(_streams)


def new_event(timed: bool) -> list[float]:
    """Return an event: a list that holds the time at which the event was recorded."""
    return [0.0]


def record(event: list[float], stream: int) -> None:
    """Set the event's time to the present time."""
    event[0] = time.perf_counter()


def hold(stream: int, event: list[float]) -> None:
    """Do nothing: the event is done."""


def is_done(event: list[float]) -> bool:
    """Return True."""
    return True


def wait_for(event: list[float]) -> None:
    """Do nothing: the event is done."""


def synchronize(stream: int) -> None:
    """Do nothing: all work is done."""


def elapsed_ms(begin: list[float], end: list[float]) -> float:
    """Return the milliseconds between two events."""
    return (end[0] - begin[0]) * 1e3


def to_host(target: int, address: int, nbytes: int, stream: int) -> None:
    """Copy device memory at `address` to host memory at address `target`."""
    ctypes.memmove(target, address, nbytes)


def to_device(address: int, source: int, nbytes: int, stream: int) -> None:
    """Copy host memory at address `source` to device memory at `address`."""
    ctypes.memmove(address, source, nbytes)


def clear(address: int, nbytes: int, stream: int) -> None:
    """Set `nbytes` bytes of device memory at `address` to 0."""
    ctypes.memset(address, 0, nbytes)


def name() -> str:
    """Return the device's name."""
    return "Numba's CUDA simulator"


def capability() -> tuple[int, int]:
    """Return the simulated device's compute capability as (major, minor)."""
    return 9, 0


def multiprocessors() -> int:
    """Return 1, a small number of multiprocessors, because Python threads run each block."""
    return 1
