"""Give free memory that malloc holds back to the system, before a training step needs the most memory."""

import time
from collections.abc import Callable

from spillgrad.storage.threads import io_threads
from spillgrad_kernels.memory import buffers

# The shortest time between checks, as short steps need few, and the largest share of a processor's time for them.
_EVERY_S = 0.1
_SHARE = 1 / 20

_next_trim_s = 0.0


def trim_soon() -> None:
    """Have an I/O thread give malloc's free memory back if memory is scarce, unless a thread checked just before.

    It takes no lock, because finalizers call it too. Two threads that call it at the same time may both start a check.
    """
    global _next_trim_s
    now_s = time.monotonic()
    if now_s >= _next_trim_s:
        _next_trim_s = now_s + _EVERY_S
        io_threads.submit(_trim, lambda why: None)  # the thread reports a failure, and the store goes on


def release_if_due() -> None:
    """Give free memory back if memory is scarce, in this thread, unless a thread checked just before.

    For code in which another library allocates much between two phases of a step.
    """
    if time.monotonic() >= _next_trim_s:
        _do(buffers.release_if_scarce)


def trim_if_due(needed_bytes: int) -> None:
    """As `release_if_due`, for malloc's memory alone; it is given back if less than `needed_bytes` is left, too."""
    if time.monotonic() >= _next_trim_s:
        _do(lambda: buffers.trim_malloc_if_scarce(needed_bytes))


def _trim() -> None:
    _do(buffers.trim_malloc_if_scarce)


def _do(release: Callable[[], None]) -> None:
    global _next_trim_s
    began_s = time.monotonic()
    release()
    ended_s = time.monotonic()
    _next_trim_s = max(_next_trim_s, ended_s + max(_EVERY_S, (ended_s - began_s) / _SHARE))
