"""The functions of `nvidia` for Numba's simulator: a device in host memory, where each call is done when it returns."""

import ctypes
import itertools
import time

import numpy as np

_DEVICE_BYTES = 1 << 30
_ALIGNED_BYTES = 512

# The memory that was given out, by address.
_given: dict[int, np.ndarray] = {}
_pinned: dict[int, np.ndarray] = {}
_streams = itertools.count(1)


def _memory(nbytes: int, given: dict[int, np.ndarray]) -> int:
    memory = np.empty(nbytes + _ALIGNED_BYTES, np.uint8)
    address = -(-int(memory.ctypes.data) // _ALIGNED_BYTES) * _ALIGNED_BYTES
    given[address] = memory
    return address


def reserve(nbytes: int) -> int | None:
    """Return the address of device memory, or None if there is no room."""
    return None if nbytes > memory_bytes()[0] else _memory(nbytes, _given)


def give_back(address: int) -> None:
    """Give back device memory that `reserve` returned."""
    del _given[address]


def memory_bytes() -> tuple[int, int]:
    """Return the free and the total bytes of the device."""
    return _DEVICE_BYTES - sum(memory.nbytes - _ALIGNED_BYTES for memory in list(_given.values())), _DEVICE_BYTES


def pin(nbytes: int) -> int | None:
    """Return the address of new host memory."""
    return _memory(nbytes, _pinned)


def unpin(address: int) -> None:
    """Give back host memory that `pin` returned."""
    del _pinned[address]


def new_stream() -> int:
    """Return a stream, which is a number."""
    return next(_streams)


def new_event(timed: bool) -> list[float]:
    """Return an event, a list with the time at which it was recorded."""
    return [0.0]


def record(event: list[float], stream: int) -> None:
    """Record the event at this moment."""
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
    """Return the time between two events."""
    return (end[0] - begin[0]) * 1e3


def to_host(target: int, address: int, nbytes: int, stream: int) -> None:
    """Copy device memory to host memory."""
    ctypes.memmove(target, address, nbytes)


def to_device(address: int, source: int, nbytes: int, stream: int) -> None:
    """Copy host memory to device memory."""
    ctypes.memmove(address, source, nbytes)


def clear(address: int, nbytes: int, stream: int) -> None:
    """Set bytes of device memory to 0."""
    ctypes.memset(address, 0, nbytes)


def name() -> str:
    """Return the device's name."""
    return "Numba's CUDA simulator"


def capability() -> tuple[int, int]:
    """Return the simulated device's compute capability."""
    return 9, 0


def multiprocessors() -> int:
    """Return the number of multiprocessors: few, as Python threads run each block."""
    return 1
