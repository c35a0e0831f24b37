"""A table with two columns: names and values."""

from collections.abc import Mapping
from typing import Literal

from rich.box import SIMPLE
from rich.table import Table


def named_values(values: Mapping[str, str], justify: Literal["left", "right"] = "right") -> Table:
    """Return a table with a row for each name and value; long values fold."""
    table = Table(box=SIMPLE, show_header=False)
    table.add_column()
    table.add_column(justify=justify, overflow="fold")
    for name, value in values.items():
        table.add_row(name, value)
    return table
