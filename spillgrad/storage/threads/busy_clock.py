"""Measure how long something was being done by at least one thread."""

import time

from spillgrad.fork_safe_lock import ForkSafeLock


class BusyClock:
    """Counts the seconds in which at least one thread is within its `with` block."""

    def __init__(self) -> None:
        self._lock = ForkSafeLock()  # a finalizer may read the clock inside
        self._inside = 0
        self._began_s = self._past_s = 0.0

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        with self._lock:
            return self._past_s + (time.perf_counter() - self._began_s if self._inside else 0.0)

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._began_s = time.perf_counter()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._past_s += time.perf_counter() - self._began_s
