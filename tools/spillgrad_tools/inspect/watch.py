"""`spillgrad inspect --watch`: follow a live run on the whole terminal."""

import errno
import os
import signal
import sys
import time
from pathlib import Path

import typer
from rich.console import Console
from rich.live import Live

from spillgrad.errors import ArgumentError
from spillgrad.inspection.printable import printable
from spillgrad_tools.inspect.watch_follow import Follower
from spillgrad_tools.inspect.watch_keys import Keys, ending
from spillgrad_tools.inspect.watch_view import Message, View
from spillgrad_tools.paged import close_output

# The interval between two looks; it grows where looking takes more than this share of the time.
EVERY_S = 0.25
_MOST_SHARE = 0.1
# The job goes first.
_NICE = 10


def watch(path: Path) -> None:
    """Show the run at `path` until somebody leaves.

    Raises ArgumentError where there is no terminal to show it on, OSError and SpillError for what cannot be read,
    typer.Exit with 128 and the number of the signal that ended it.
    """
    for name in ("COLUMNS", "LINES"):  # exported values would not change with the terminal's size
        os.environ.pop(name, None)
    console = Console()
    if not console.is_terminal or console.is_dumb_terminal:
        raise ArgumentError(
            "inspect: got --watch without a terminal to fill; leave it out to print what is so now, or ask for --json"
        )
    if not path.exists() and not path.absolute().parent.is_dir():  # a run makes its folder, but not the folder's parent
        raise ArgumentError(
            f"inspect: got --watch {path}, and there is no {path.absolute().parent} in which a run could begin; name "
            "a folder that something spills to, or will"
        )
    os.nice(_NICE)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # question marks stand for bars that cannot be drawn
    try:
        with Follower(path) as follower:
            while (status := _show(console, follower, path)) is None:
                signal.raise_signal(signal.SIGTSTP)  # the terminal is restored first; after SIGCONT, the loop continues
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        close_output()  # the terminal is gone
        status = 128 + signal.SIGHUP
    if status:
        raise typer.Exit(status)


def _show(console: Console, follower: Follower, path: Path) -> int | None:
    """Show the run until somebody leaves, and return the exit status; None when the process is to be suspended."""
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
                if (status := ending(signals)) is not None:
                    return status
                if "q" in pressed.lower():
                    return 0
                if signal.SIGTSTP in signals:
                    return None
                if signal.SIGWINCH in signals:
                    live.refresh()


def _waiting(path: Path) -> str:
    shown = printable(str(path), 1000)
    return f"waiting for a run in {shown}" + ("" if path.exists() else ", which does not exist yet")
