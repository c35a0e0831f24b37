"""Streams and events under the names of `torch.cuda`. All work goes to one stream, so that its order never changes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from spillgrad.cuda import queries
from spillgrad.errors import DeviceError

__all__ = [
    "Event", "Stream", "current_stream", "default_stream", "is_current_stream_capturing", "set_stream", "stream",
]  # fmt: skip


class Event:
    """A moment in the device's work. `record` waits for the work before it, and keeps the time.

    Raises DeviceError if there is no CUDA device.
    """

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        queries.current_device()
        self._time_s: float | None = None

    def record(self, stream: Any = None) -> None:
        """Wait until the device has finished its work, and keep the time."""
        queries.synchronize()
        self._time_s = time.perf_counter()

    def elapsed_time(self, end_event: "Event") -> float:
        """Return the milliseconds from this event to another. Raises DeviceError unless both were recorded."""
        if self._time_s is None or end_event._time_s is None:
            raise DeviceError("Event.elapsed_time: both events must be recorded before calculating elapsed time")
        return (end_event._time_s - self._time_s) * 1000

    def query(self) -> bool:
        """Return True: what was recorded has finished."""
        return True

    def synchronize(self) -> None:
        """Do nothing: what was recorded has finished."""

    def wait(self, stream: Any = None) -> None:
        """Do nothing: what was recorded has finished."""


class Stream:
    """A name for the one stream of the device; work put on any stream runs in the order of the program.

    Raises DeviceError if there is no CUDA device.
    """

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        queries.set_device(device)

    def synchronize(self) -> None:
        """Wait until the device has finished all its work."""
        queries.synchronize()

    def query(self) -> bool:
        """Wait until the device has finished all its work; return True."""
        queries.synchronize()
        return True

    def wait_stream(self, stream: Any) -> None:
        """Do nothing: work put on another stream before runs before."""

    def wait_event(self, event: Event) -> None:
        """Do nothing: what was recorded has finished."""

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event, by default a new one; return it."""
        event = Event() if event is None else event
        event.record()
        return event


def current_stream(device: Any = None) -> Stream:
    """Return the device's stream. Raises DeviceError if there is no CUDA device."""
    return Stream(device)


default_stream = current_stream


def set_stream(stream: Stream | None) -> None:
    """Do nothing: there is one stream."""


@contextmanager
def stream(stream: Stream | None) -> Iterator[None]:
    """Return a context manager that does nothing: there is one stream."""
    yield


def is_current_stream_capturing() -> bool:
    """Return False: no work is captured in a graph."""
    return False
