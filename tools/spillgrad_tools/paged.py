"""Print long answers: through a pager on a terminal, or into a pipe, without an error if the reader closes the pipe."""

import os
import pydoc
import sys

import typer
from rich.console import Console, RenderableType

from spillgrad_tools.options import close_output

# With PYTHONUNBUFFERED, Python notices a partial write only when it writes the next piece.
_PIECE = 1 << 16
# Longer than any line: rich cuts the lines of a tree at the console's width, even without wrapping.
_ENDLESS = 1 << 30


def show(console: Console, answer: RenderableType, soft_wrap: bool = False) -> None:
    """Print an answer; if it has more lines than the terminal, run the pager that `PAGER` names, or `less`.

    With `soft_wrap`, even long lines are not broken.
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
    """Write text to stdout, with escapes for characters that its encoding lacks. Raises typer.Exit at a closed pipe."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        for start in range(0, len(text), _PIECE):
            sys.stdout.write(text[start : start + _PIECE].encode(encoding, "backslashreplace").decode(encoding))
            sys.stdout.flush()
    except BrokenPipeError:
        raise typer.Exit(close_output()) from None
