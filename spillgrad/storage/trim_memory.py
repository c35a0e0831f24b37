"""Give free memory that malloc holds back to the system, before a training step needs the most memory."""

import time

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


def _trim() -> None:
    global _next_trim_s
    began_s = time.monotonic()
    buffers.trim_malloc_if_scarce()
    ended_s = time.monotonic()
    _next_trim_s = max(_next_trim_s, ended_s + (ended_s - began_s) / _SHARE)
