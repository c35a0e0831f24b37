"""The tables of a report: the counters of a run by module, operation, kind, dtype and step."""

from collections.abc import Callable
from typing import Any, NamedTuple

from spillgrad.inspection.printable import printable
from spillgrad.inspection.ranks import DistributedRun
from spillgrad.inspection.records import KEYS, Run
from spillgrad.storage.origin_counters import OriginCounters
from spillgrad.storage.sizes import format_bytes
from spillgrad_tools.inspect.groups import COLUMNS, choose
from spillgrad_tools.inspect.ranks import rank_rows, totals
from spillgrad_tools.quantities import format_duration

NAMES = {"rank": "rank", "module": "module", "op": "operation", "kind": "kind", "dtype": "dtype", "step": "step"}
# The most rows of a table; those with the fewest bytes are left out.
MOST_ROWS = 1_000
# Columns that are shown even if all their values are 0.
_ALWAYS = ("arrays", "wait")


# The columns of the table by rank: the counter, the title, and how values are written.
_OF_RANKS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("steps", "steps", "{:,}".format),
    ("duration_s", "took", format_duration),
    ("peak_ram_bytes", "most RAM", format_bytes),
    ("peak_rss_bytes", "process", format_bytes),
    ("written_bytes", "written", format_bytes),
    ("read_bytes", "read", format_bytes),
    ("waited_disk_s", "waited for the disk", format_duration),
    ("hidden_s", "communication hidden", format_duration),
    ("exposed_s", "communication exposed", format_duration),
    ("sent_bytes", "sent", format_bytes),
    ("awaited_s", "others waited for it", format_duration),
)


class Cell(NamedTuple):
    """The text of a cell, and the number by which its column is sorted."""

    text: str
    value: float


class Table(NamedTuple):
    """A table: each row has a name and cells. `total` is the sum, which includes the `left_out` rows not shown."""

    key: str
    titles: list[str]
    rows: list[tuple[str, list[Cell]]]
    total: list[Cell]
    left_out: int


def tables(run: Run, most_rows: int = MOST_ROWS) -> list[Table]:
    """Return a table of a run's counters for each of KEYS: module, operation, kind, dtype and step."""
    made = [_table(run, key, most_rows) for key in KEYS]
    return [_with_times(run, table) if table.key == "step" else table for table in made]


def of_ranks(together: DistributedRun | None) -> list[Table]:
    """Return the table by rank of a run of several processes; none for a process alone."""
    if together is None:
        return []
    found = rank_rows(together)
    whole = totals(found)
    made = [
        (
            f"{row.rank}{f' on {printable(row.host)}' if row.host else ''}",
            [Cell(write(getattr(row, name)), getattr(row, name)) for name, _, write in _OF_RANKS],
        )
        for row in found[:MOST_ROWS]
    ]
    total = [Cell(write(whole[name]) if name in whole else "", whole.get(name, 0)) for name, _, write in _OF_RANKS]
    return [Table("rank", [title for _, title, _ in _OF_RANKS], made, total, len(found) - len(made))]


def _table(run: Run, key: str, most_rows: int) -> Table:
    groups = choose(run, key, None, most_rows)
    columns = [column for name, column in COLUMNS.items() if name in _ALWAYS or column.matters(groups.total)]

    def cells(moved: OriginCounters) -> list[Cell]:
        return [Cell(column.write(column.of(moved)), column.of(moved)) for column in columns]

    rows = [(printable(group.name), cells(group.moved)) for group in groups.shown]
    return Table(key, [column.title for column in columns], rows, cells(groups.total), groups.left_out)


def _with_times(run: Run, table: Table) -> Table:
    """Return the table of steps with two more columns: when each step began, and how long the step took."""
    steps = run.steps[len(run.steps) - len(table.rows) :]
    rows = [
        (name, [*(Cell(format_duration(each), each) for each in (step.began_s, step.took_s)), *cells])
        for step, (name, cells) in zip(steps, table.rows, strict=True)
    ]
    took_s = sum(step.took_s for step in run.steps)
    whole = [Cell("", 0), Cell(format_duration(took_s), took_s), *table.total]
    return table._replace(titles=["began", "took", *table.titles], rows=rows, total=whole)
