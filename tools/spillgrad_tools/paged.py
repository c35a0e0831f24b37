"""Long answers: through a pager on a terminal, quietly cut short where nobody reads on."""

import os
import pydoc
import sys

import typer
from rich.console import Console, RenderableType

# What a shell reports of a program that a closed pipe ended: 128 and SIGPIPE.
NOBODY_READS = 141
# Where PYTHONUNBUFFERED is set, Python does not notice that it wrote a part only; with the next piece it does.
_PIECE = 1 << 16
# No line is longer; a tree of rich's cuts its lines at the width, whatever is said of them.
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
    os.environ.setdefault("LESS", "-R")  # show colours; who set it knows better
    pydoc.pager(text)


def write(text: str) -> None:
    """Write to standard output what it can encode, the rest as escapes.

    Raises typer.Exit where nobody reads any more.
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
    """Give up standard output, where nobody reads it: Python flushes it once more as it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
