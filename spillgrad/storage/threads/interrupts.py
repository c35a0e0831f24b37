"""Signal handlers run between the things a store does, not within one."""

import _signal  # type: ignore[import-not-found]  # in C
import _thread
import signal
import threading
import time
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

# Code in which an exception of a handler would leave things half done: who came next would find a store that counts
# wrong, or waits for ever. It never takes long, but where it waits for others, and there it can be interrupted. Beside
# this package it is the modules that say `SIGNALS_WAIT = True`.
_PACKAGE = "spillgrad.storage"
_MARK = "SIGNALS_WAIT"
# A module of this library that is being imported, and Numba with it: a handler would find half of it.
_LIBRARY, _IMPORT = "spillgrad", "<module>"
# What an exception could not leave: Python prints those of finalizers and forgets them. One that hangs, which is none
# of a store, is interrupted all the same after a while.
_FINALIZER = "__del__"
_OF_WEAKREF = (weakref.__name__, "_weakrefset")

_WAIT = threading.Condition.wait.__code__
_JOINS = {
    threading.Thread.join.__code__,
    getattr(threading.Thread, "_wait_for_tstate_lock", threading.Thread.join).__code__,  # of `join`, up to Python 3.12
}
_STARTS = threading.Thread.start.__code__  # a short wait, after which somebody takes note of the thread
_AGAIN_S = 0.001
_PATIENCE_S = 2.0
_SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})

Handler = Callable[[int, FrameType | None], Any]


class _Postponing:
    """A signal's handler, called at a moment that leaves nothing half done."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._came_s: float | None = None  # when the signal came that is put off
        self.comes_again = False  # and is about to

    def __call__(self, number: int, frame: FrameType | None) -> Any:
        now_s = time.monotonic()
        self._came_s = self._came_s or now_s
        if _may_be_left(frame, is_patient=now_s - self._came_s < _PATIENCE_S):
            self._came_s = None
            return self._handler(number, frame)
        if not self.comes_again:
            self.comes_again = True
            # Not a Thread: its locks may be what was interrupted.
            _thread.start_new_thread(_come_again, (threading.get_ident(), number, self))
        return None


def keep_whole() -> None:
    """Have the Python handlers of all signals, Ctrl-C's among them, wait for what a store is doing.

    Only the main thread can, and only for the handlers that there are: contexts and steps do it anew.
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
    if callable(signal.getsignal(number)):  # else the handler went, and the signal might end the process
        # As from outside: `interrupt_main` would not wake a thread that now sleeps or reads.
        signal.pthread_kill(main_thread, number)


def _may_be_left(frame: FrameType | None, is_patient: bool) -> bool:
    """Return whether the main thread, which is in this frame, waits there, or is in nothing that must be whole.

    Who is not patient leaves finalizers too.
    """
    waits = frame is not None and _waits(frame)
    is_in_store = False
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        if is_patient and (frame.f_code.co_name == _FINALIZER or name in _OF_WEAKREF):
            return False
        waits = waits and frame.f_code is not _STARTS
        is_imported = frame.f_code.co_name == _IMPORT and name.startswith(_LIBRARY)
        is_in_store = is_in_store or is_imported or name.startswith(_PACKAGE) or _MARK in frame.f_globals
        frame = frame.f_back
    return waits or not is_in_store


def _waits(frame: FrameType) -> bool:
    """Return whether what runs in a frame waits for another thread, and has given its lock up meanwhile."""
    if frame.f_code is _WAIT:
        # The local comes just before the `try` that takes the lock again.
        return "gotit" in frame.f_locals and not frame.f_locals["self"]._is_owned()
    return frame.f_code in _JOINS
