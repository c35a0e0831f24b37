"""`spillgrad inspect --watch`: show a live run on the full screen of the terminal."""

import contextlib
import errno
import os
import select
import signal
import sys
import termios
import time
import tty
from pathlib import Path
from typing import Any, Self

import typer
from rich.console import Console
from rich.live import Live

from spillgrad.errors import ArgumentError
from spillgrad.inspection.printable import printable
from spillgrad_tools.inspect.watch_follow import Follower
from spillgrad_tools.inspect.watch_view import Message, View
from spillgrad_tools.options import close_output

# The least interval between two readings of the journal, and the largest share of the time that reading may take.
EVERY_S = 0.25
_MOST_SHARE = 0.1
# Lowers the priority of this process below that of the job.
_NICE = 10
# The signals that end the view, as they would end the process; the terminal is restored first.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_HEEDED = (*_ENDING, signal.SIGTSTP, signal.SIGWINCH)


def watch(path: Path) -> None:
    """Show the run at `path` until the user leaves.

    Raises ArgumentError if there is no terminal, or no folder in which a run could begin. Raises OSError or SpillError
    if files cannot be read. Raises typer.Exit after a signal, with status 128 plus the number of the signal.
    """
    for name in ("COLUMNS", "LINES"):  # an exported size would hide changes of the terminal's
        os.environ.pop(name, None)
    console = Console()
    if not console.is_terminal or console.is_dumb_terminal:
        raise ArgumentError(
            "inspect: got --watch without a terminal to fill; leave it out to print what is so now, or ask for --json"
        )
    if not path.exists() and not path.absolute().parent.is_dir():  # a run makes its folder, but not the folder's parent
        missing = f"there is no {path.absolute().parent} in which a run could begin"
        raise ArgumentError(
            f"inspect: got --watch {path}, and {missing}; name a folder that something spills to, or will"
        )
    os.nice(_NICE)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # question marks stand for bars that cannot be drawn
    try:
        with Follower(path) as follower:
            while (status := _show(console, follower, path)) is None:
                signal.raise_signal(signal.SIGTSTP)  # the terminal is restored by now; the loop goes on after SIGCONT
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        close_output()  # the terminal is gone
        status = 128 + signal.SIGHUP
    if status:
        raise typer.Exit(status)


def _show(console: Console, follower: Follower, path: Path) -> int | None:
    """Show the run until the user leaves, and return the exit status; return None at Ctrl-Z, to suspend the process."""
    with (
        Keys() as keys,
        Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live,
    ):
        while True:
            began_s = time.monotonic()
            found = follower.look()
            live.update(Message(_waiting(path)) if found is None else View(found), refresh=True)
            now_s = time.monotonic()
            until_s = now_s + max(EVERY_S, (now_s - began_s) / _MOST_SHARE)
            while (left_s := until_s - time.monotonic()) > 0:
                pressed, signals = keys.wait(left_s)
                if ending := signals.intersection(_ENDING):
                    return 128 + min(ending)
                if "q" in pressed.lower():
                    return 0
                if signal.SIGTSTP in signals:
                    return None
                if signal.SIGWINCH in signals:
                    live.refresh()


def _waiting(path: Path) -> str:
    shown = printable(str(path), 1000)
    return f"waiting for a run in {shown}" + ("" if path.exists() else ", which does not exist yet")


class Keys:
    """Context manager: read keys and signals; on exit, restore the terminal and the signal handlers."""

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
        """Wait at most `timeout_s` for a key or a signal; return the keys pressed and the numbers of the signals."""
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
