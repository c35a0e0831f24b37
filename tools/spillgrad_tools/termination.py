"""End a process that is asked to as if an exception had been raised: what it has put on a disk goes."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator

# What a scheduler or a closing terminal sends. Without a handler, the process would end at once.
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_PATIENCE_S = 5.0


class _Terminated(BaseException):
    """A signal has come."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def unwinding() -> Iterator[None]:
    """Context manager: SIGTERM and SIGHUP leave the block by an exception, and then end the process, as they would.

    Signals that are ignored, or have a handler, stay so. In another thread than the main one, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = [number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_DFL]

    came_s: float | None = None

    def terminate(number: int, _: object) -> None:
        nonlocal came_s
        now_s = time.monotonic()
        # A second one would interrupt what the first has begun. Later, that hangs, or a finalizer has swallowed it.
        if came_s is None or now_s - came_s > _PATIENCE_S:
            came_s = now_s
            raise _Terminated(number)

    for number in ours:
        signal.signal(number, terminate)
    try:
        yield
    except _Terminated as terminated:
        signal.signal(terminated.number, signal.SIG_DFL)
        os.kill(os.getpid(), terminated.number)
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
