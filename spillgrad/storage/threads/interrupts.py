"""Postpone signal handlers until a store has finished what it is doing."""

import _signal  # type: ignore[import-not-found]  # in C
import _thread
import functools
import signal
import threading
import time
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

# In some code an exception of a handler would leave things half done: the next caller would find a store that counts
# wrong, or wait for ever. That code never takes long, except where it waits for other threads, and there it can be
# interrupted. It is the code of the packages that call `protect`, and of the modules that say `SIGNALS_WAIT = True`.
_MARK = "SIGNALS_WAIT"
_protected: set[str] = set()
# While a module of this library is imported, and Numba with it, a handler would find it half initialized.
_LIBRARY, _IMPORT = __name__.partition(".")[0], "<module>"
# An exception cannot leave a finalizer: Python prints it and forgets it. A finalizer that hangs, which no
# finalizer of a store does, is interrupted after a while.
_FINALIZER = "__del__"
_OF_WEAKREF = (weakref.__name__, "_weakrefset")

_WAIT = threading.Condition.wait.__code__
_JOINS = {
    threading.Thread.join.__code__,
    getattr(threading.Thread, "_wait_for_tstate_lock", threading.Thread.join).__code__,  # of `join`, up to Python 3.12
}
_STARTS = threading.Thread.start.__code__  # a short wait; then the thread is noted
_AGAIN_S = 0.001
_PATIENCE_S = 2.0
_SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})

Handler = Callable[[int, FrameType | None], Any]


class _Postponing:
    """A signal handler that calls another one, `handler`, as soon as no store's work is half done."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._came_s: float | None = None  # when the postponed signal came
        self._is_looking = False
        self.comes_again = False  # a thread is about to send it again

    def __call__(self, number: int, frame: FrameType | None) -> Any:
        if self._is_looking:
            # The interrupted call speaks for this signal, too, as a blocked signal comes once. Signals that come faster
            # than the frames are walked would otherwise nest without end.
            return None
        now_s = time.monotonic()
        self._came_s = self._came_s or now_s
        self._is_looking = True
        try:
            may_run = _may_be_left(frame, is_patient=now_s - self._came_s < _PATIENCE_S)
        finally:
            self._is_looking = False
        if may_run:
            self._came_s = None
            return self._handler(number, frame)
        if not self.comes_again:
            self.comes_again = True
            # Not a Thread: its locks may be held by the interrupted code.
            _thread.start_new_thread(_come_again, (threading.get_ident(), number, self))
        return None


def protect(package: str) -> None:
    """Postpone signal handlers while the main thread is in code of a package."""
    _protected.add(package)
    _is_protected.cache_clear()


def keep_whole() -> None:
    """Postpone the Python handlers of all signals, Ctrl-C's included, until stores have finished their work.

    Only the main thread can postpone handlers, and only those that are set now, so every context and step calls this
    again.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for number in _SIGNALS:
        handler = _signal.getsignal(number)  # 1.5 us for all; that of `signal`, which enumerates them, takes 30
        if not callable(handler) or isinstance(handler, _Postponing):
            continue
        if not str(getattr(handler, "__module__", None)).startswith("asyncio"):  # whose handler does nothing by itself
            signal.signal(number, _Postponing(handler))


def _come_again(main_thread: int, number: int, postponing: _Postponing) -> None:
    time.sleep(_AGAIN_S)
    postponing.comes_again = False
    if callable(signal.getsignal(number)):  # without a handler the signal might end the process
        # Sent as from outside: `interrupt_main` would not wake a thread that sleeps or reads.
        signal.pthread_kill(main_thread, number)


def _may_be_left(frame: FrameType | None, is_patient: bool) -> bool:
    """Return whether a handler may run now, while the main thread is in `frame`.

    It may if the thread waits there for another thread, or is in no code that must finish. The code of a finalizer must
    finish only while `is_patient`.
    """
    waits = frame is not None and _waits(frame)
    is_in_store = False
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        if is_patient and (frame.f_code.co_name == _FINALIZER or name in _OF_WEAKREF):
            return False
        waits = waits and frame.f_code is not _STARTS
        is_imported = frame.f_code.co_name == _IMPORT and name.startswith(_LIBRARY)
        is_in_store = is_in_store or is_imported or _is_protected(name) or _MARK in frame.f_globals
        frame = frame.f_back
    return waits or not is_in_store


@functools.cache  # a signal may come before most calls
def _is_protected(module: str) -> bool:
    return any(module == package or module.startswith(package + ".") for package in _protected)


def _waits(frame: FrameType) -> bool:
    """Return whether a frame joins a thread, or is in `Condition.wait`, which has released the store's lock."""
    if frame.f_code is _WAIT:
        # The local comes just before the `try` that takes the lock again.
        return "gotit" in frame.f_locals and not frame.f_locals["self"]._is_owned()
    return frame.f_code in _JOINS
