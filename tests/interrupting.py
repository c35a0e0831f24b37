"""Signal handlers and finalizers that come at moments of a test's choice."""

import contextlib
import gc
import random
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


class Stop(Exception):
    """What the handler of an alarm raises."""


@contextlib.contextmanager
def handled(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """Handle alarms inside, without the collector's callbacks: Python drops what a handler raises in one of them.

    Hypothesis leaves such a callback in the process.
    """
    before = signal.signal(signal.SIGALRM, handler)
    callbacks, gc.callbacks[:] = gc.callbacks[:], []
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.callbacks[:] = callbacks


@contextlib.contextmanager
def between_lines(action: Callable[[], None], share: float, files: tuple[str, ...]) -> Iterator[None]:
    """Do something between some lines of these files, as the collector or a signal may at any of them."""
    rng = random.Random(0)

    def trace(frame: FrameType, event: str, value: object) -> Any:
        if not frame.f_code.co_filename.startswith(files):
            return None
        if event == "line" and rng.random() < share:
            action()
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


def lines_of_python(action: Callable[[], object]) -> list[str]:
    """Return the functions of Python, but the tests' own, that ran."""
    ran: list[str] = []

    def note(frame: FrameType, event: str, value: object) -> None:
        if event == "call" and not frame.f_globals["__name__"].startswith("tests."):
            ran.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return ran
