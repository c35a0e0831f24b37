"""Read pressed keys and signals, for a view that fills the terminal."""

import contextlib
import os
import select
import signal
import sys
import termios
import tty
from typing import Any, Self

# The signals that end the view, as they would end the process; the terminal is restored first.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_HEEDED = (*_ENDING, signal.SIGTSTP, signal.SIGWINCH)


class Keys:
    """Reads keys and signals inside its block, and restores the terminal and the signals afterwards."""

    def __enter__(self) -> Self:
        self._stdin: int | None = None
        self._settings: list[Any] | None = None
        with contextlib.suppress(OSError, ValueError):  # there may be no standard input
            self._stdin = sys.stdin.fileno() if sys.stdin.isatty() else None
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wake_before = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        # Python writes the number of each handled signal to the pipe.
        self._handlers = {number: signal.signal(number, lambda *_: None) for number in _HEEDED}
        if self._stdin is not None:
            self._settings = termios.tcgetattr(self._stdin)
            tty.setcbreak(self._stdin)
        return self

    def __exit__(self, *_: object) -> None:
        if self._stdin is not None and self._settings is not None:
            with contextlib.suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(self._stdin, termios.TCSADRAIN, self._settings)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wake_before)
        os.close(self._woken)
        os.close(self._wake)

    def wait(self, timeout_s: float) -> tuple[str, set[int]]:
        """Wait for keys or signals, at most `timeout_s`, and return them."""
        watched = [fd for fd in (self._stdin, self._woken) if fd is not None]
        ready = select.select(watched, [], [], timeout_s)[0]
        signals = set(os.read(self._woken, 256)) if self._woken in ready else set()
        return self._pressed() if self._stdin in ready else "", signals

    def _pressed(self) -> str:
        try:
            keys = os.read(self._stdin, 256) if self._stdin is not None else b""
        except OSError:  # the terminal is gone
            keys = b""
        if not keys:
            self._stdin = None
        return keys.decode(errors="replace")


def ending(signals: set[int]) -> int | None:
    """Return the exit status after `signals`: 128 plus the number of one that ends the view, or None without such."""
    found = signals.intersection(_ENDING)
    return 128 + min(found) if found else None
