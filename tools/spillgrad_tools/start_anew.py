"""Start the command of this process anew, in the same process: what the process took of memory is given back."""

import json
import os
import signal
import sys
from typing import Any, NoReturn

# What the former program hands over to the next one of the same process: its number, and values by name.
_VARIABLE = "SPILLGRAD_HANDED_OVER"
# Whether the command line is that of the process; it is not where a Python program calls the command as a function.
is_own_process = False


def is_possible() -> bool:
    """Return whether this process runs nothing but the command."""
    return is_own_process and bool(sys.executable and sys.orig_argv)


def start_anew(**values: Any) -> NoReturn:
    """Run the command line of this process again in its place; `handed_over` then returns `values`.

    The process keeps its number, its streams and its folder; threads, handlers of signals and memory are gone. Values
    are what JSON can represent. Raises OSError if Python cannot be started.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # it was closed when the process started
            stream.flush()
    # Ctrl-C waits until the new program can answer it: see `ready`.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    environment = {**os.environ, _VARIABLE: json.dumps([os.getpid(), values])}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def ready() -> None:
    """Let Ctrl-C reach this program, if it was held back since `start_anew`."""
    if _VARIABLE in os.environ:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def handed_over() -> dict[str, Any]:
    """Return, once, the values with which this process started anew; none if it did not."""
    number, values = json.loads(os.environ.pop(_VARIABLE, "[0, {}]"))
    return values if number == os.getpid() else {}
