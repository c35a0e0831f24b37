"""Choose and sort the groups of arrays that `spillgrad inspect` shows."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

from spillgrad.inspection.records import Group, Run
from spillgrad.storage.origin_counters import OriginCounters, total
from spillgrad_tools.inspect.columns import COLUMNS


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
        groups = sorted(groups, key=natural) if sort == "name" else sorted(groups, key=_falling(sort))
        shown, rest = groups[:top], groups[len(groups[:top]) :]
    return Groups(by, sort, shown, len(rest), *(total(each.moved for each in part) for part in (rest, groups)))


def _falling(sort: str) -> Callable[[Group], Any]:
    return lambda group: -COLUMNS[sort].of(group.moved)


def natural(group: Group) -> list[tuple[int, str]]:
    """Return a sort key that puts names in the order of their numbers: `blocks.2` before `blocks.10`."""
    # Digits sort by length, then as text: a file may hold too many digits for a number.
    parts = re.split(r"([0-9]+)", group.name)
    return [(len(part.lstrip("0")), part.lstrip("0")) if part.isdecimal() else (0, part) for part in parts]
