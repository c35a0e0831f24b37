"""Print long answers: through a pager on a terminal; quietly cut short where the reader closes the pipe."""

import os
import pydoc
import sys

import typer
from rich.console import Console, RenderableType

# The status of a program that a closed pipe ended: 128 plus SIGPIPE.
NOBODY_READS = 141
# With PYTHONUNBUFFERED, Python notices a partial write only when it writes the next piece.
_PIECE = 1 << 16
# Longer than any line: rich cuts the lines of a tree at the console's width, even without wrapping.
_ENDLESS = 1 << 30


def show(console: Console, answer: RenderableType, soft_wrap: bool = False) -> None:
    """Print an answer; on a terminal that has fewer lines, page through it with `PAGER`, or less.

    With `soft_wrap`, lines stay whole, however long.
    """
    if soft_wrap:
        console.width = _ENDLESS
    with console.capture() as captured:
        console.print(answer, crop=False, soft_wrap=soft_wrap)
    lines = [line.rstrip(" ") for line in captured.get().splitlines()]
    text = "\n".join(lines) + "\n"
    if len(lines) < console.height or not (sys.stdin.isatty() and sys.stdout.isatty()):
        write(text)
        return
    os.environ.setdefault("LESS", "-R")  # show colours, unless the user chose options
    pydoc.pager(text)


def write(text: str) -> None:
    """Write text to standard output; write characters that it cannot encode as escapes.

    Raises typer.Exit where the reader is gone.
    """
    encoding = sys.stdout.encoding or "utf-8"
    try:
        for start in range(0, len(text), _PIECE):
            sys.stdout.write(text[start : start + _PIECE].encode(encoding, "backslashreplace").decode(encoding))
            sys.stdout.flush()
    except BrokenPipeError:
        close_output()
        raise typer.Exit(NOBODY_READS) from None


def close_output() -> None:
    """Replace standard output, whose reader is gone, by /dev/null: Python flushes it once more as it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
