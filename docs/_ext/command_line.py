"""Writes the page of the command line from the commands' own help."""

from pathlib import Path
from typing import Any

import typer
from typer.cli import get_docs_for_click

from spillgrad_tools.cli import app

LEAD = """\
The command `spillgrad` trains, plans, shows what was spilled, and measures. `python -m spillgrad` is the same command.
After a mistake on the command line, one line says what to do, and the exit status is 2.

"""


def write_page(sphinx: Any) -> None:
    """Write `command_line.md` beside the other pages."""
    command = typer.main.get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="spillgrad", title="Command line")
    title, _, rest = text.partition("\n\n")
    page = Path(sphinx.srcdir) / "command_line.md"
    text = f"{title}\n\n{LEAD}{rest}"
    if not page.exists() or page.read_text() != text:  # an untouched page need not be read again
        page.write_text(text)


def setup(sphinx: Any) -> dict[str, bool]:
    """Sphinx calls this."""
    sphinx.connect("builder-inited", write_page)
    return {"parallel_read_safe": True}
