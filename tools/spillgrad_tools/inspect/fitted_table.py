"""A table that fits a width: if there is too little room, cells are shortened, and then columns are left out."""

import dataclasses
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

GAP = 2
# The least width of the first column, whose cells fold: a narrower column cannot be read.
LEAST_NAME = 14


@dataclasses.dataclass(frozen=True)
class Column:
    """A column: head, cells, and `short` cells for a narrow terminal. Columns of least `worth` are left out first."""

    head: str
    cells: Sequence[str]
    short: Sequence[str]
    worth: int

    def width(self, short: bool) -> int:
        """Return the width of the column in characters; if `short`, with the short cells."""
        return max(map(len, (self.head, *(self.short if short else self.cells))))


def fitting(columns: Sequence[Column], room: int) -> tuple[list[Column], bool]:
    """Return the columns that fit in `room` characters, and whether they fit only with their `short` cells.

    If even the short cells do not fit, columns of least `worth` are left out first.
    """
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
    """Return a table with a row for each of `names`, and the heads of the columns that had no room.

    The last `footers` rows are set off and bold. `least_name` is the least width of the column of names.
    """
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
