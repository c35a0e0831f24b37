"""The tables that `spillgrad inspect` prints of runs: one run in detail, or a line for each of several runs."""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich.console import Group as Lines
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from spillgrad.inspection.printable import printable
from spillgrad.inspection.records import Group, Run
from spillgrad.storage.sizes import format_bytes
from spillgrad_tools.inspect.fitted_table import Column, fitted
from spillgrad_tools.inspect.groups import COLUMNS, Groups
from spillgrad_tools.inspect.words import HIT, began, beyond_budget, state
from spillgrad_tools.quantities import UNKNOWN, format_duration, many, percent, short_bytes

_FAILURES = 3
# How long the column of logical bytes stays where there is too little room: see `Counted.worth`.
_LOGICAL_WORTH = 4


def of_run(run: Run, groups: Groups, width: int) -> RenderableType:
    """Return the summary of a run and the table of its groups."""
    return Lines(summary(_lines(run)), Text(), *_table(run, groups, width))


def of_runs(path: Path, runs: Sequence[Run], width: int) -> RenderableType:
    """Return a table with a row for each run, and below the table the command that shows the newest run."""
    stats = [run.stats for run in runs]
    peaks = [(each.peak_ram_bytes, run.settings.budget_bytes) for each, run in zip(stats, runs, strict=True)]
    columns = [
        _words("state", [run.state for run in runs], 9),
        _words("host", [_known(run.host) for run in runs], 0),
        _words("process", [_known(run.process) for run in runs], 1),
        Column("began", [began(run) for run in runs], [began(run, fine=False) for run in runs], 10),
        _words("lasted", [format_duration(run.duration_s) for run in runs], 3),
        bytes_column("packed", [each.packed_bytes for each in stats], 5),
        bytes_column("written", [each.written_bytes for each in stats], 7),
        bytes_column("read", [each.read_bytes for each in stats], 6),
        _words("waited", [format_duration(each.wait_write_s + each.wait_read_s) for each in stats], 2),
        Column(
            "RAM, budget",
            [f"{format_bytes(peak)}, {UNKNOWN if of is None else format_bytes(of)}" for peak, of in peaks],
            [f"{short_bytes(peak)}, {UNKNOWN if of is None else short_bytes(of)}" for peak, of in peaks],
            8,
        ),
    ]
    names = [printable(_below(run.path, path)) for run in runs]
    table, left_out = fitted("run", names, columns, width, least_name=max(map(len, names)))
    # The command is not folded, so that it can be copied.
    newest = printable(shlex.quote(str(runs[-1].path)), 1000)
    words = f"{len(runs)} runs, the newest last; to see it: spillgrad inspect {newest}"
    end = Text(words, no_wrap=True, overflow="ignore")
    return Lines(table, *lack(left_out), Text(), end)


def _below(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


def _known(value: object) -> str:
    return UNKNOWN if value is None else printable(str(value))


def _words(head: str, cells: Sequence[str], worth: int) -> Column:
    return Column(head, cells, cells, worth)


def bytes_column(head: str, counts: Sequence[int], worth: int) -> Column:
    """Return a column of numbers of bytes."""
    return Column(head, [*map(format_bytes, counts)], [*map(short_bytes, counts)], worth)


def summary(lines: Iterable[tuple[str, str | Text]]) -> Table:
    """Return a table without a header, with a name and a value in each row; long values fold."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for name, value in lines:
        table.add_row(Text(name), value if isinstance(value, Text) else Text(value))
    return table


def _lines(run: Run) -> Iterator[tuple[str, str]]:
    stats = run.stats
    yield "run", printable(str(run.path), 1000)
    yield "state", state(run)
    if run.process is not None:
        yield "process", f"{run.process} on {_known(run.host)}"
    if run.command:
        yield "command", printable(run.command)
    if (told := run.rank) is not None:
        yield "rank", f"{told.rank} of {told.ranks} that train together"
    if run.version:
        yield "version", f"spillgrad {printable(run.version)}"
    yield "began", f"{began(run)}, {'for' if run.state != 'live' else 'until now'} {format_duration(run.duration_s)}"
    if settings := ", ".join(_settings(run)):
        yield "settings", settings
    arrays = many(sum(each.arrays for each in run.origins.values()), "array")
    yield "packed", f"{format_bytes(stats.packed_bytes)} in {arrays}"
    yield "deduplicated", f"{format_bytes(stats.deduplicated_bytes)}{_share(stats.deduplicated_bytes, run)}"
    yield "kept in RAM", f"{format_bytes(run.kept_bytes)}, beside the store"
    written = f"{format_bytes(stats.written_bytes)}{_share(stats.written_bytes, run)}"
    written += _on_disk(stats.written_bytes, stats.stored_bytes)
    yield "written", f"{written}{_speed(stats.written_bytes, stats.writing_s)}"
    read = f"{format_bytes(stats.read_bytes)}{_on_disk(stats.read_bytes, stats.fetched_bytes)}"
    yield "read", f"{read}{_speed(stats.read_bytes, stats.reading_s)}"
    hits, misses = stats.cache_hits, stats.cache_misses
    if hits + misses:
        yield "hits", f"{hits:,}, and {misses:,} misses ({percent(hits, hits + misses)} were {HIT})"
    waits = [
        f"{format_duration(waited_s)} for {cause} ({percent(waited_s, run.duration_s)} of the time)"
        for cause, waited_s in (("room", stats.wait_write_s), ("reads", stats.wait_read_s))
    ]
    yield "waited", ", ".join(waits)
    if told is not None and (counters := told.counters).collectives:
        moved = f"{format_bytes(counters.sent_bytes)} sent, {format_bytes(counters.received_bytes)} received"
        yield "communication", f"{moved} in {many(counters.collectives, 'collective')}"
        yield (
            "",
            ", ".join(
                f"{format_duration(each_s)} {word} ({percent(each_s, run.duration_s)} of the time)"
                for word, each_s in (("exposed", counters.exposed_s), ("hidden", counters.hidden_s))
            ),
        )
    budget = run.settings.budget_bytes
    of = "" if budget is None else f" of {format_bytes(budget)} ({percent(stats.peak_ram_bytes, budget)})"
    now = f", now {format_bytes(stats.ram_bytes)}" if run.state == "live" else ""
    yield "RAM", f"peak {format_bytes(stats.peak_ram_bytes)}{of}{now}"
    for words in beyond_budget(run):
        yield "", words
    held = format_bytes(sum(run.segments.values()))
    files = f", now {held} in {many(len(run.segments), 'file')}" if run.segments else ""
    yield "disk", f"peak {format_bytes(stats.peak_disk_bytes)}{files}"
    if run.failure_count:
        yield "failures", f"the disk refused {many(run.failure_count, 'time')}; the last reasons:"
        for failure in run.failures[-_FAILURES:]:
            yield "", f"at {format_duration(failure.t)}: {printable(failure.reason, 1000)}"
    if run.lost_lines:
        yield "lost", f"{many(run.lost_lines, 'line')} of the journal, which the disk refused"
    if run.damaged_lines:
        yield "damaged", f"{many(run.damaged_lines, 'line')} of the journal, without sense: not counted"


def _settings(run: Run) -> Iterator[str]:
    settings = run.settings
    if settings.budget_bytes is not None:
        yield f"RAM budget {format_bytes(settings.budget_bytes)}"
    if settings.codec:
        yield f"codec {printable(settings.codec)}"
    if settings.encrypt:
        yield "encrypted"
    if settings.checksums is False:
        yield "without checksums"
    if settings.on_full:
        yield f"when the disk is full: {printable(settings.on_full)}"


def _share(part_bytes: int, run: Run) -> str:
    return f" ({percent(part_bytes, run.stats.packed_bytes)} of that packed)" if part_bytes else ""


def _on_disk(nbytes: int, stored_bytes: int) -> str:
    if stored_bytes in (0, nbytes):
        return ""
    return f", stored as {format_bytes(stored_bytes)} ({nbytes / stored_bytes:.1f}:1)"


def _speed(nbytes: int, seconds: float) -> str:
    return f", at {format_bytes(round(nbytes / seconds))}/s" if nbytes and seconds else ""


def _table(run: Run, groups: Groups, width: int) -> Iterator[RenderableType]:
    shown = list(groups.shown)
    if groups.left_out:
        shown.append(Group(many(groups.left_out, "other"), groups.rest, groups.rest_logical_bytes))
    shown.append(Group("total", groups.total, groups.logical_bytes))
    names = [printable(group.name, 80) for group in shown]
    columns = [
        group_column(name, shown) for name in COLUMNS if name == groups.sort or COLUMNS[name].matters(groups.total)
    ]
    if groups.has_codes:
        columns.insert(1, bytes_column("logical", [group.logical_bytes or 0 for group in shown], _LOGICAL_WORTH))
    table, left_out = fitted(groups.by, names, columns, width, footers=1 + bool(groups.left_out))
    yield table
    if groups.has_codes:
        yield Text("logical: the bytes of the numbers that codes stand for, as float32", style="dim")
    if groups.by == "step" and run.steps and run.steps[0].number > 1:
        yield Text(f"not in the journal any more: the first {many(run.steps[0].number - 1, 'step')}", style="dim")
    yield from lack(left_out)


def group_column(name: str, groups: Sequence[Group]) -> Column:
    """Return the table column of a counter, which is called `name` in `--sort`, with a cell for each group."""
    column = COLUMNS[name]
    values = [column.of(group.moved) for group in groups]
    cells, short = ([write(x) if x else "0" for x in values] for write in (column.write, column.write_short))
    return Column(column.head, cells, short, column.worth)


def lack(left_out: Sequence[str]) -> Iterator[Text]:
    """Yield a line that names the columns left out for lack of room, if there are any."""
    if left_out:
        yield Text(f"no room for: {', '.join(left_out)}; --json has all", style="dim")
