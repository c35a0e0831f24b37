"""Memory that malloc has free, given back in time for what a training step needs most of it for."""

import threading
import time
from collections.abc import Callable

from spillgrad.errors import SpillError
from spillgrad.storage import io_threads
from spillgrad_kernels import memory

# Short steps need little.
_EVERY_S = 0.1

_looked_s = -_EVERY_S
_looking = threading.Lock()


def look(failed: Callable[[SpillError], None]) -> None:
    """Have a thread see whether memory is scarce, unless one did just before; `failed` is for `io_threads.submit`."""
    global _looked_s
    with _looking:
        now_s = time.monotonic()
        due = now_s - _looked_s >= _EVERY_S
        if due:
            _looked_s = now_s
    if due:
        io_threads.submit(failed, memory.trim_malloc_if_scarce)
