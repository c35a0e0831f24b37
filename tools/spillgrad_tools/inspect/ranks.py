"""The table by rank that `spillgrad inspect` prints of a run of several processes, and the same for programs."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group as Lines
from rich.console import RenderableType
from rich.text import Text

from spillgrad.inspection.printable import printable
from spillgrad.inspection.ranks import DistributedRun
from spillgrad.inspection.records import Run
from spillgrad.storage.sizes import format_bytes
from spillgrad_tools.inspect.fitted_table import Column, fitted
from spillgrad_tools.inspect.tables import lack, summary
from spillgrad_tools.inspect.words import began
from spillgrad_tools.quantities import UNKNOWN, format_duration, many, percent, short_bytes, short_duration

_MOST_MISSING = 8


@dataclasses.dataclass(frozen=True)
class RankRow:
    """What one rank of a run did.

    `began_s` counts from the beginning of the first rank, `waited_disk_s` for room and reads. `hidden_s` are the
    seconds of communication beside computing; for `exposed_s` its program stood still; for `awaited_s` those of the
    other ranks stood still for this one.
    """

    rank: int
    path: Path
    host: str | None
    process: int | None
    version: str | None
    state: str
    began_s: float
    duration_s: float
    steps: int
    peak_ram_bytes: int
    peak_rss_bytes: int
    written_bytes: int
    read_bytes: int
    waited_disk_s: float
    collectives: int
    sent_bytes: int
    received_bytes: int
    hidden_s: float
    exposed_s: float
    awaited_s: float


_ADDED = (
    "written_bytes", "read_bytes", "waited_disk_s", "collectives", "sent_bytes", "received_bytes", "hidden_s",
    "exposed_s", "awaited_s",
)  # fmt: skip


def rank_rows(found: DistributedRun) -> list[RankRow]:
    """Return a row for each rank whose journal was found."""
    zeros_s, awaited_s = found.zeros_s, found.waited_for_s
    return [_row(rank, run, zeros_s[rank], awaited_s.get(rank, 0.0)) for rank, run in found.ranks.items()]


def totals(made: Sequence[RankRow]) -> dict[str, Any]:
    """Return the sums over all ranks of what can be added up, by name."""
    return {name: sum(getattr(row, name) for row in made) for name in _ADDED}


def as_dict(found: DistributedRun) -> dict[str, Any]:
    """Return a run of several processes as `--json` prints it."""
    made = rank_rows(found)
    return {
        "ranks": found.size, "missing": found.missing, "state": found.state, "duration_s": found.duration_s,
        "clock_error_s": found.clock_error_s, "straggler": found.straggler, "waited_for_s": found.waited_for_s,
        "totals": totals(made), "by_rank": made,
    }  # fmt: skip


def of_distributed(path: Path, found: DistributedRun, width: int) -> RenderableType:
    """Return the summary of a run of several processes, and its table by rank."""
    return Lines(summary(_lines(path, found)), Text(), *table(found, width))


def table(found: DistributedRun, width: int) -> Iterator[RenderableType]:
    """Yield the table by rank, and below it what had no room."""
    made = rank_rows(found)
    several = len({row.host for row in made}) > 1
    names = [f"{row.rank}{f' on {printable(row.host or UNKNOWN, 40)}' if several else ''}" for row in made]
    shown, left_out = fitted("rank", [*names, "total"], rank_columns(made, totals(made)), width, footers=1)
    yield shown
    yield from lack(left_out)


def rank_columns(made: Sequence[RankRow], whole: Mapping[str, Any] | None = None) -> list[Column]:
    """Return the columns of a table with a row for each rank and, if `whole` is given, a last one for these sums."""

    def column(
        head: str, name: str, worth: int, write: Callable[[Any], str], short: Callable[[Any], str] | None = None
    ) -> Column:
        values = [getattr(row, name) for row in made]
        values += [] if whole is None else [whole.get(name)]  # peaks of several processes are of no one time
        full, brief = (["" if each is None else one(each) for each in values] for one in (write, short or write))
        return Column(head, full, brief, worth)

    def duration(head: str, name: str, worth: int) -> Column:
        written, brief = (lambda s, one=one: one(s) if s else "0" for one in (format_duration, short_duration))
        return column(head, name, worth, written, brief)

    states = [column("state", "state", 5, str)] if len({row.state for row in made}) > 1 else []
    return [
        *states,
        column("steps", "steps", 4, "{:,}".format),
        column("RAM", "peak_ram_bytes", 6, format_bytes, short_bytes),
        column("process", "peak_rss_bytes", 0, format_bytes, short_bytes),
        column("written", "written_bytes", 3, format_bytes, short_bytes),
        column("read", "read_bytes", 2, format_bytes, short_bytes),
        duration("disk", "waited_disk_s", 7),
        duration("hidden", "hidden_s", 8),
        duration("exposed", "exposed_s", 10),
        column("sent", "sent_bytes", 1, format_bytes, short_bytes),
        duration("awaited", "awaited_s", 9),
    ]


def missing_words(found: DistributedRun) -> str:
    """Return in words whose journals are missing; "" if none is."""
    missing = found.missing
    if not missing:
        return ""
    more = f" and {len(missing) - _MOST_MISSING:,} others" if len(missing) > _MOST_MISSING else ""
    ranks = f"rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing[:_MOST_MISSING]))}{more}"
    return f"no journal of {ranks} is here: copy what other machines have into this folder"


def straggler_words(found: DistributedRun) -> str:
    """Return in words which rank the others waited for most."""
    rank = found.straggler
    if rank is None:
        return "no rank waited for another"
    waited_s = found.waited_for_s[rank]
    others = max(len(found.ranks) - (rank in found.ranks), 1)
    mean_s = waited_s / others
    mean = " on average" if others > 1 else ""
    share = percent(mean_s, found.duration_s)
    return f"rank {rank}: the others waited {format_duration(mean_s)} for it{mean}, {share} of the time"


def _row(rank: int, run: Run, began_s: float, awaited_s: float) -> RankRow:
    stats = run.stats
    counters = run.rank.counters if run.rank is not None else None
    return RankRow(
        rank, run.path, run.host, run.process, run.version, run.state, began_s, run.duration_s,
        _steps(run), stats.peak_ram_bytes,
        max((sample.rss_bytes for sample in run.samples), default=0), stats.written_bytes, stats.read_bytes,
        stats.wait_write_s + stats.wait_read_s, *(
            (0, 0, 0, 0.0, 0.0) if counters is None
            else (counters.collectives, counters.sent_bytes, counters.received_bytes, counters.hidden_s,
                  counters.exposed_s)
        ), awaited_s,
    )  # fmt: skip


def _steps(run: Run) -> int:
    """Return how many training steps a run has done; how many the store counted, if no step has a label."""
    unlabelled = sum(step.label is None for step in run.steps)
    number = run.steps[-1].number if run.steps else 0
    return number if unlabelled == len(run.steps) else number - unlabelled


def _lines(path: Path, found: DistributedRun) -> Iterator[tuple[str, str]]:
    made, first = rank_rows(found), found.first
    whole = totals(made)
    yield "run", printable(str(path), 1000)
    yield "ranks", f"{len(made)} of {found.size}, {', '.join(_states(made))}"
    if words := missing_words(found):
        yield "", words
    if first.command:
        yield "command", printable(first.command)
    versions = sorted({row.version or UNKNOWN for row in made})
    several = "; ranks run different releases" if len(versions) > 1 else ""
    yield "version", f"spillgrad {', '.join(printable(version, 40) for version in versions[:4])}{several}"
    until = "for" if found.state != "live" else "until now"
    yield "began", f"{began(first)}, {until} {format_duration(found.duration_s)}"
    error_s = found.clock_error_s
    told = "as each machine says: the ranks have not compared them"
    yield "clocks", told if error_s is None else f"compared, to within {format_duration(error_s)}"
    ran_s = sum(row.duration_s for row in made)
    yield "sent", f"{format_bytes(whole['sent_bytes'])} in {many(whole['collectives'], 'collective')} of all ranks"
    yield (
        "communication",
        ", ".join(
            f"{format_duration(whole[name])} {word} ({percent(whole[name], ran_s)} of the time of all ranks)"
            for word, name in (("exposed", "exposed_s"), ("hidden", "hidden_s"))
        ),
    )
    yield "straggler", straggler_words(found)
    lines = sum(run.damaged_lines for run in found.ranks.values())
    if lines:
        where = ", ".join(str(rank) for rank, run in found.ranks.items() if run.damaged_lines)
        yield "damaged", f"{many(lines, 'line')} of the journals of rank {where}, without sense: not counted"


def _states(made: Sequence[RankRow]) -> Iterator[str]:
    for state in ("live", "finished", "dead"):
        count = sum(row.state == state for row in made)
        if count:
            yield f"{count} {state}" if count < len(made) else f"all {state}"
