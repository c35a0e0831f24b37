"""Memory that malloc has free, given back in time for what a training step needs most of it for."""

import time

from spillgrad.errors import SpillError
from spillgrad.storage.threads import io_threads
from spillgrad_kernels.memory import buffers

# Short steps need little; and of a processor's time no more than this share goes into it.
_EVERY_S = 0.1
_SHARE = 1 / 20

_next_trim_s = 0.0


def trim_soon() -> None:
    """Have an I/O thread see whether memory is scarce, unless one did just before.

    It takes no lock: finalizers call it too. Two threads that come at the same time may both have it done.
    """
    global _next_trim_s
    now_s = time.monotonic()
    if now_s >= _next_trim_s:
        _next_trim_s = now_s + _EVERY_S
        io_threads.submit(_trim, _leave_as_it_is)


def _trim() -> None:
    global _next_trim_s
    began_s = time.monotonic()
    buffers.trim_malloc_if_scarce()
    ended_s = time.monotonic()
    _next_trim_s = max(_next_trim_s, ended_s + (ended_s - began_s) / _SHARE)


def _leave_as_it_is(why: SpillError | None) -> None:
    """Let a store go on without what failed, which the thread tells."""
