"""A table that fits its width: it shortens its cells first, then drops columns."""

import dataclasses
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

GAP = 2
# The first column folds; narrower than this, it cannot be read.
LEAST_NAME = 14


@dataclasses.dataclass(frozen=True)
class Column:
    """A column: its head, its cells, and short cells for a narrow terminal. Columns of the least `worth` go first."""

    head: str
    cells: Sequence[str]
    short: Sequence[str]
    worth: int

    def width(self, short: bool) -> int:
        """Return the characters it takes."""
        return max(map(len, (self.head, *(self.short if short else self.cells))))


def fitting(columns: Sequence[Column], room: int) -> tuple[list[Column], bool]:
    """Return the columns that fit `room`, and whether they need their short cells."""
    kept, short = list(columns), False
    while sum(each.width(short) + GAP for each in kept) > room and kept:
        if short:
            kept.remove(min(kept, key=lambda each: each.worth))
        short = True
    return kept, short


def fitted(
    head: str, names: Sequence[str], columns: Sequence[Column], width: int, footers: int = 0,
    least_name: int = LEAST_NAME,
) -> tuple[Table, list[str]]:  # fmt: skip
    """Return a table of `names`, the last `footers` of them set off, and the heads of columns that had no room."""
    kept, short = fitting(columns, width - min(max(map(cell_len, (head, *names))), least_name))
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
    table.add_column(Text(head), overflow="fold")
    for each in kept:
        table.add_column(Text(each.head), justify="right", no_wrap=True)
    for row, name in enumerate(names):
        is_footer = row >= len(names) - footers
        if is_footer and row == len(names) - footers:
            table.add_section()
        cells = ((each.short if short else each.cells)[row] for each in kept)
        table.add_row(Text(name), *map(Text, cells), style="bold" if is_footer else None)
    return table, [each.head for each in columns if each not in kept]
