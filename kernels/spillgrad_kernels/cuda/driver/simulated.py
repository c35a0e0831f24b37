"""A device in the host's memory that does everything at once: what `nvidia` has, for Numba's simulator."""

import ctypes
import itertools
import time

import numpy as np

_DEVICE_BYTES = 1 << 30
_ALIGNED_BYTES = 512

# What the pretended device has, and gave away: by address.
_given: dict[int, np.ndarray] = {}
_pinned: dict[int, np.ndarray] = {}
_streams = itertools.count(1)


def _memory(nbytes: int, given: dict[int, np.ndarray]) -> int:
    memory = np.empty(nbytes + _ALIGNED_BYTES, np.uint8)
    address = -(-int(memory.ctypes.data) // _ALIGNED_BYTES) * _ALIGNED_BYTES
    given[address] = memory
    return address


def reserve(nbytes: int) -> int | None:
    """Return the address of device memory, or None where there is no room."""
    return None if nbytes > memory_bytes()[0] else _memory(nbytes, _given)


def give_back(address: int) -> None:
    """Return device memory that `reserve` gave."""
    del _given[address]


def memory_bytes() -> tuple[int, int]:
    """Return the free and all bytes of the device."""
    return _DEVICE_BYTES - sum(memory.nbytes - _ALIGNED_BYTES for memory in list(_given.values())), _DEVICE_BYTES


def pin(nbytes: int) -> int | None:
    """Return the address of host memory."""
    return _memory(nbytes, _pinned)


def unpin(address: int) -> None:
    """Return host memory that `pin` gave."""
    del _pinned[address]


def new_stream() -> int:
    """Return a stream, which is a number."""
    return next(_streams)


def new_event(timed: bool) -> list[float]:
    """Return an event: a list of when it was."""
    return [0.0]


def record(event: list[float], stream: int) -> None:
    """Let the event be now."""
    event[0] = time.perf_counter()


def hold(stream: int, event: list[float]) -> None:
    """Do nothing: the event has been."""


def is_done(event: list[float]) -> bool:
    """Return True."""
    return True


def wait_for(event: list[float]) -> None:
    """Do nothing: the event has been."""


def synchronize(stream: int) -> None:
    """Do nothing: all is done."""


def elapsed_ms(begin: list[float], end: list[float]) -> float:
    """Return the time between two events."""
    return (end[0] - begin[0]) * 1e3


def to_host(target: int, address: int, nbytes: int, stream: int) -> None:
    """Copy device memory to the host's."""
    ctypes.memmove(target, address, nbytes)


def to_device(address: int, source: int, nbytes: int, stream: int) -> None:
    """Copy the host's memory to device memory."""
    ctypes.memmove(address, source, nbytes)


def clear(address: int, nbytes: int, stream: int) -> None:
    """Set bytes of device memory to 0."""
    ctypes.memset(address, 0, nbytes)


def name() -> str:
    """Return what the device is called."""
    return "Numba's CUDA simulator"


def capability() -> tuple[int, int]:
    """Return the capability to compute of the device that is simulated."""
    return 9, 0


def multiprocessors() -> int:
    """Return how many multiprocessors the device has; few, as each block's threads are Python's."""
    return 1
