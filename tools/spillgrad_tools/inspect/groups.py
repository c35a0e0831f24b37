"""The groups of arrays that the tables of `spillgrad inspect` and of reports show: their choice, order and columns."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from spillgrad.inspection.records import Group, Run
from spillgrad.storage.origin_counters import OriginCounters, total
from spillgrad.storage.sizes import format_bytes
from spillgrad_tools.quantities import format_duration, short_bytes, short_duration


class Counted(NamedTuple):
    """A counter: its names in `--sort`, in a report (`title`) and on the terminal (`head`), and how it is written.

    Where not all columns have room, those of the least `worth` are left out first.
    """

    name: str
    attribute: str
    worth: int
    title: str
    head: str
    write: Callable[[Any], str] = format_bytes
    write_short: Callable[[Any], str] = short_bytes

    def of(self, moved: OriginCounters) -> Any:
        """Return the counter's value."""
        return getattr(moved, self.attribute)

    def matters(self, total: OriginCounters) -> bool:
        """Return whether to show the counter of arrays with these totals: `stored` only if a codec changed the size."""
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
    """The groups that are shown, the sum (`rest`) of the `left_out` others, and the sum (`total`) of all."""

    by: str
    sort: str
    shown: list[Group]
    left_out: int
    rest: OriginCounters
    total: OriginCounters


def choose(run: Run, by: str, sort: str | None, top: int | None) -> Groups:
    """Return at most `top` groups of a run: the largest in the column `sort` first, or in the order of their names.

    If `sort` is None, it is "packed"; but steps stay in their order, and the last steps are shown.
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
    return Groups(by, sort, shown, len(rest), *(total(each.moved for each in part) for part in (rest, groups)))


def natural(group: Group) -> list[tuple[int, str]]:
    """Return a sort key that puts names in the order of their numbers: `blocks.2` before `blocks.10`."""
    # Digits sort by length, then as text: a file may hold too many digits for a number.
    parts = re.split(r"([0-9]+)", group.name)
    return [(len(part.lstrip("0")), part.lstrip("0")) if part.isdecimal() else (0, part) for part in parts]
