"""Choose and order the groups of arrays in the tables of `spillgrad inspect` and of reports; define the columns."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from spillgrad.inspection.records import Group, Run
from spillgrad.storage.origin_counters import OriginCounters, total
from spillgrad.storage.sizes import format_bytes
from spillgrad_tools.quantities import format_duration, short_bytes, short_duration


class Counted(NamedTuple):
    """A column for a counter of OriginCounters, and the functions that format the counter's values.

    The column is called `name` in `--sort`, `title` in a report and `head` on the terminal. Columns of the least
    `worth` are left out first if there is too little room.
    """

    name: str
    attribute: str
    worth: int
    title: str
    head: str
    write: Callable[[Any], str] = format_bytes
    write_short: Callable[[Any], str] = short_bytes

    def of(self, moved: OriginCounters) -> Any:
        """Return the value of the column's counter in `moved`."""
        return getattr(moved, self.attribute)

    def matters(self, total: OriginCounters) -> bool:
        """Return whether to show the column for these totals; "stored" is shown only if a codec changed the size."""
        if self.name == "stored":
            return total.stored_bytes not in (0, total.written_bytes)
        return self.name in ("packed", "written", "read") or self.of(total) > 0


COLUMNS = {
    column.name: column
    for column in (
        Counted("arrays", "arrays", 0, "arrays", "arrays", "{:,}".format, str),
        Counted("packed", "packed_bytes", 4, "packed", "packed"),
        Counted("deduplicated", "deduplicated_bytes", 2, "deduplicated", "dedup"),
        Counted("kept", "kept_bytes", 1, "kept", "kept"),
        Counted("written", "written_bytes", 7, "written", "written"),
        Counted("stored", "stored_bytes", 3, "stored", "stored"),
        Counted("read", "read_bytes", 6, "read", "read"),
        Counted("wait", "wait_s", 5, "waited", "waited", format_duration, short_duration),
    )
}


@dataclasses.dataclass(frozen=True)
class Groups:
    """The groups to show. `rest` is the sum of the `left_out` groups that are not shown; `total` is the sum of all.

    So are `rest_logical_bytes` and `logical_bytes`, which are None for steps.
    """

    by: str
    sort: str
    shown: list[Group]
    left_out: int
    rest: OriginCounters
    total: OriginCounters
    rest_logical_bytes: int | None
    logical_bytes: int | None

    @property
    def has_codes(self) -> bool:
        """Whether some arrays stand for other numbers of bytes than their own."""
        return self.logical_bytes not in (None, self.total.packed_bytes)


def choose(run: Run, by: str, sort: str | None, top: int | None) -> Groups:
    """Choose at most `top` groups of a run, sorted by the column `sort`, the largest value first, or by "name".

    If `sort` is None, groups are sorted by "packed"; but steps keep their order, and the last `top` steps are chosen.
    """
    groups = run.by(by)
    if sort is None and by == "step":
        shown = groups[-top:] if top else groups
        rest = groups[: len(groups) - len(shown)]
        sort = "name"
    else:
        sort = sort or "packed"
        if sort == "name":
            groups = sorted(groups, key=natural)
        else:
            groups = sorted(groups, key=lambda group: COLUMNS[sort].of(group.moved), reverse=True)
        shown, rest = groups[:top], groups[len(groups[:top]) :]
    rest_total, all_total = (total(each.moved for each in part) for part in (rest, groups))
    return Groups(
        by, sort, shown, len(rest), rest_total, all_total, _logical_bytes(rest, by), _logical_bytes(groups, by)
    )


def _logical_bytes(groups: list[Group], by: str) -> int | None:
    return None if by == "step" else sum(group.logical_bytes or 0 for group in groups)


def natural(group: Group) -> list[tuple[int, str]]:
    """Return a sort key for a group's name that compares numbers in names by value: `blocks.2` before `blocks.10`."""
    # Digits sort by length, then as text: a file may hold too many digits for a number.
    parts = re.split(r"([0-9]+)", group.name)
    return [(len(part.lstrip("0")), part.lstrip("0")) if part.isdecimal() else (0, part) for part in parts]
