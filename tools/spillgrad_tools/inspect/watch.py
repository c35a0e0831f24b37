"""`spillgrad inspect --watch`: show a live run on the whole terminal."""

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

# The least interval between two readings of the journal, and the largest share of the time that reading may take.
EVERY_S = 0.25
_MOST_SHARE = 0.1
# Lowers the priority of this process below that of the job.
_NICE = 10


def watch(path: Path) -> None:
    """Show the run at `path` until the user leaves.

    Raises ArgumentError without a terminal to show it on, OSError and SpillError for files that cannot be read, and
    typer.Exit after a signal, with 128 plus the number of the signal.
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
    """Show the run until the user leaves, and return the exit status; None when the process is to be suspended."""
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
