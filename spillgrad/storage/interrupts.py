"""Ctrl-C comes between the things a store does, not within one."""

import _thread
import signal
import threading
import time
from types import FrameType

# Code that a KeyboardInterrupt would leave half done: who came next would find a store that counts wrong, or waits for
# ever. It never takes long, but where it waits for others, and there it can be interrupted.
_WHOLE = (
    "spillgrad.storage",
    "spillgrad.offload.residents",
    "spillgrad.offload.tensors",
    "spillgrad.offload.on_device",
    "spillgrad.device_cache",
)
_WAITS = {
    threading.Condition.wait.__code__,
    threading.Thread.join.__code__,
    getattr(threading.Thread, "_wait_for_tstate_lock", threading.Thread.join).__code__,  # of `join`, up to Python 3.12
}
_STARTS = threading.Thread.start.__code__  # a short wait, after which somebody takes note of the thread
_AGAIN_S = 0.001


def keep_whole() -> None:
    """Have Ctrl-C wait for what a store is doing, unless somebody handles it already."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler and _in_main_thread():
        signal.signal(signal.SIGINT, _interrupt)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, as Python's own handler does, or come again in a moment."""
    if _may_be_left(frame):
        signal.default_int_handler(number, frame)
    # Not a Thread: its locks may be what was interrupted.
    _thread.start_new_thread(_come_again, (threading.get_ident(),))


def _come_again(main_thread: int) -> None:
    time.sleep(_AGAIN_S)
    # As from the keyboard: `interrupt_main` would not wake a thread that now sleeps or reads.
    signal.pthread_kill(main_thread, signal.SIGINT)


def _may_be_left(frame: FrameType | None) -> bool:
    """Return whether the main thread, which is in this frame, waits there, or is in nothing that must be whole."""
    waits = frame is not None and frame.f_code in _WAITS
    is_in_store = False
    while frame is not None:
        waits = waits and frame.f_code is not _STARTS
        is_in_store = is_in_store or frame.f_globals.get("__name__", "").startswith(_WHOLE)
        frame = frame.f_back
    return waits or not is_in_store
