"""The view of a run that `spillgrad inspect --watch` shows, on a terminal of any size."""

import bisect
import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.text import Text

from spillgrad.inspection.printable import printable
from spillgrad.inspection.ranks import DistributedRun
from spillgrad.inspection.records import Run, Sample
from spillgrad.storage.sizes import format_bytes
from spillgrad_tools.inspect.fitted_table import GAP, Column, fitting
from spillgrad_tools.inspect.groups import COLUMNS
from spillgrad_tools.inspect.ranks import rank_columns, rank_rows
from spillgrad_tools.inspect.tables import group_column
from spillgrad_tools.inspect.words import HIT, ram_parts
from spillgrad_tools.quantities import format_duration, many, percent, short_bytes

# Rates are averages over this many last seconds.
NOW_S = 3.0
# The speed of the run is the average over this many last steps.
_STEPS = 10
# A plot has a bar for each of this many last seconds.
_PLOT_S = 30
_BARS = " ▁▂▃▄▅▆▇█"
_LABEL = 9
_PLOT_GAP = 3
_MOST_FAILURES = 3
_MOST_OPERATIONS = 12
_KEYS = "q leaves"

# The parts of RAM: name, sign and colour. Signs differ, so that colour is not needed to tell them apart.
_PARTS = (
    ("hot", "█", "blue"),
    ("writing", "▓", "magenta"),
    ("cached", "▒", "green"),
    ("lent", "░", "yellow"),
    ("other", "·", "white"),
)
_COUNTERS = ("written_bytes", "read_bytes", "wait_s")
_NOTHING = Sample(**{field.name: 0 for field in dataclasses.fields(Sample)})


@dataclasses.dataclass(frozen=True)
class Watched:
    """A run `now_s` seconds after it began: its phase, its training step, and in words how it `ended`, if it did.

    `ranks` has the runs of all processes that train together; it is None for a process alone.
    """

    run: Run
    now_s: float
    phase: str | None
    ended: str | None = None
    step: int | None = None
    ranks: DistributedRun | None = None


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of the view. If there is too little room, lines of the highest `rank` are left out first."""

    rank: int
    text: Text


class View:
    """Fills the screen with the most important lines that fit."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = options.max_width, options.height or console.height
        last = [Text(_KEYS, style="dim")]
        if self._watched.ended is not None:
            last = [*Text(self._watched.ended, style="bold yellow").wrap(console, width), *last]
        last = last[len(last) - min(len(last), height - 1) :]
        lines = list(_lines(self._watched, width))
        while len(lines) > max(height - len(last), 1):
            least = max(reversed(lines), key=lambda line: line.rank)
            lines = [line for line in lines if line is not least]
        texts = [line.text for line in lines]
        texts += _ranks(self._watched.ranks, width, height - len(texts) - len(last))
        texts += _operations(self._watched.run, width, height - len(texts) - len(last))
        texts += [Text()] * (height - len(texts) - len(last))
        yield from _cut(console, [*texts, *last], width, height)


class Message:
    """Fills the screen with a short message."""

    def __init__(self, words: str) -> None:
        self._words = words

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = options.max_width, options.height or console.height
        texts = [*Text(self._words).wrap(console, width), Text(), Text(_KEYS, style="dim")]
        yield from _cut(console, texts, width, height)


def _cut(console: Console, texts: Sequence[Text], width: int, height: int) -> Iterator[Segment]:
    for text in texts[:height]:
        text.truncate(width, overflow="ellipsis")
        yield from text.render(console, end="\n")


def _lines(watched: Watched, width: int) -> Iterator[Line]:
    run = watched.run
    sample = run.samples[-1] if run.samples else _NOTHING
    yield Line(0, _head(watched))
    if run.command:
        yield Line(11, Text(printable(run.command, 300), style="dim"))
    yield Line(12, Text())
    yield Line(2, _labelled("step", _step(watched)))
    yield Line(1, _labelled("RAM", _ram(run, sample)))
    yield Line(4, _labelled("", _bar(run, sample, max(width - _LABEL, 1))))
    yield Line(7, _labelled("", _legend(sample, width)))
    yield Line(8, _labelled("", Text(_more(run, sample))))
    yield Line(13, Text())
    yield from _rates(watched, sample, width)
    asked = sample.hits + sample.misses
    if asked:
        yield Line(9, _labelled("hits", f"{percent(sample.hits, asked)} of {asked:,} were {HIT}"))
    if run.failure_count:
        yield Line(3, Text(f"the disk refused {many(run.failure_count, 'time')}; the last reasons:", style="bold red"))
        for failure in run.failures[-_MOST_FAILURES:]:
            yield Line(10, Text(f"  at {format_duration(failure.t)}: {printable(failure.reason)}", style="red"))


def _rates(watched: Watched, sample: Sample, width: int) -> Iterator[Line]:
    """Yield lines with the rates of writing, reading and waiting, and plots if they fit; after the end, averages."""
    samples, now_s = watched.run.samples, watched.now_s
    over_s = now_s if watched.ended else min(NOW_S, now_s)
    written_s, read_s, share = (_rise(samples, now_s, over_s, name) for name in _COUNTERS)
    words = (
        f"{format_bytes(round(written_s))}/s, {format_bytes(sample.written_bytes)} in all",
        f"{format_bytes(round(read_s))}/s, {format_bytes(sample.read_bytes)} in all",
        f"{share:.0%} of the time, {percent(sample.wait_s, now_s)} in all ({format_duration(sample.wait_s)})",
    )
    widest = max(map(len, words))
    for rank, label, each, name in zip((5, 6, 3), ("writing", "reading", "waiting"), words, _COUNTERS, strict=True):
        # A full bar of waiting is a whole second in each second.
        plot = _plot(samples, now_s, name, full=1.0 if label == "waiting" else 0.0)
        room = _LABEL + widest + _PLOT_GAP + _PLOT_S <= width
        yield Line(rank, _labelled(label, f"{each:<{widest + _PLOT_GAP}}", plot) if room else _labelled(label, each))


def _head(watched: Watched) -> Text:
    run = watched.run
    head = Text(printable(run.path.name), style="bold")
    state = run.state if watched.ended is None else "ended"
    head.append(f"  {state}", style="bold green" if watched.ended is None else "bold yellow")
    head.append(f"  {format_duration(watched.now_s)}")
    if run.rank is not None:
        head.append(f"  rank {run.rank.rank} of {run.rank.ranks}")
    if run.process is not None:
        head.append(f"  process {run.process}" + (f" on {printable(run.host, 60)}" if run.host else ""), style="dim")
    return head


def _labelled(label: str, *parts: str | Text) -> Text:
    return Text.assemble((f"{label:<{_LABEL}}", "bold"), *parts)


def _step(watched: Watched) -> str:
    run, phase = watched.run, watched.phase
    now = f", {printable(phase, 20)}" if phase else ""
    if not run.steps:
        return f"the first{now}"
    last, first = run.steps[-1], run.steps[-_STEPS:][0]
    took_s = last.began_s + last.took_s - first.began_s
    speed = f", {len(run.steps[-_STEPS:]) / took_s:.3g} a second" if took_s > 0 else ""
    label = next((step.label for step in reversed(run.steps) if step.label is not None), None)
    number = (last.number if label is None else label) + bool(phase)
    if phase and watched.step is not None and label is not None:
        number = watched.step  # with several batches a step, the last label may be that of the running step
    return f"{number}{now}{speed}, the last took {format_duration(last.took_s)}"


def _ram(run: Run, sample: Sample) -> str:
    budget = run.settings.budget_bytes
    of = "" if budget is None else f" of {format_bytes(budget)} ({percent(sample.ram_bytes, budget)})"
    return f"{format_bytes(sample.ram_bytes)}{of}, peak {format_bytes(_peak(run, sample))}"


def _peak(run: Run, sample: Sample) -> int:
    return max(run.stats.peak_ram_bytes, sample.ram_bytes)


def _bar(run: Run, sample: Sample, width: int) -> Text:
    """Return a bar of the parts of RAM, with marks at the budget and the peak; the larger of both is its width."""
    peak = _peak(run, sample)
    full = max(run.settings.budget_bytes or 0, peak, 1)
    bar, end, held, parts = Text(), 0, 0, ram_parts(sample)
    for name, sign, style in _PARTS:
        held += parts[name]
        begin, end = end, min(round(width * held / full), width)
        bar.append(sign * (end - begin), style=style)
    bar.append(" " * (width - end))
    for nbytes, sign, style in ((peak or None, "▏", "bold"), (run.settings.budget_bytes, "│", "bold red")):
        mark = min(width * (nbytes or 0) // full, width - 1)
        if nbytes is not None and mark >= (end if sign == "▏" else 0):
            bar = Text.assemble(bar[:mark], (sign, style), bar[mark + 1 :])
    return bar


def _legend(sample: Sample, width: int) -> Text:
    show = format_bytes if width >= 96 else short_bytes
    words: list[str | tuple[str, str]] = []
    parts = ram_parts(sample)
    for name, sign, style in _PARTS:
        if parts[name]:
            words += [(f"{sign} ", style), f"{name} {show(parts[name])}  "]
    return Text.assemble(*words or ["empty"])


def _more(run: Run, sample: Sample) -> str:
    disk = max(run.stats.peak_disk_bytes, sample.disk_bytes)
    return (
        f"arrays {format_bytes(sample.live_bytes)}, disk {format_bytes(sample.disk_bytes)} "
        f"(peak {format_bytes(disk)}), process {format_bytes(sample.rss_bytes)}"
    )


def _at(samples: Sequence[Sample], t: float) -> Sample:
    """Return the last sample up to `t`: it holds at `t`, as there is a new sample after each change."""
    place = bisect.bisect_right(samples, t, key=lambda sample: sample.t)
    return samples[place - 1] if place else samples[0]


def _rise(samples: Sequence[Sample], now_s: float, over_s: float, name: str) -> float:
    """Return the rise of the counter `name` per second, averaged over the last `over_s` seconds."""
    if not samples or over_s <= 0:
        return 0.0
    rise: float = getattr(samples[-1], name) - getattr(_at(samples, now_s - over_s), name)
    return max(rise, 0) / over_s


def _plot(samples: Sequence[Sample], now_s: float, name: str, full: float = 0.0) -> Text:
    """Return a plot of the counter `name`, with a bar for its rise in each of the last seconds.

    A full bar stands for `full` or, if that is 0, for the largest rise.
    """
    if not samples:
        return Text(" " * _PLOT_S)
    values = [getattr(_at(samples, now_s - ago), name) for ago in range(_PLOT_S, -1, -1)]
    rises = [max(after - before, 0) for before, after in itertools.pairwise(values)]
    full = full or max(rises)
    last = len(_BARS) - 1
    signs = (_BARS[min(-int(-rise * last // full), last)] if full else " " for rise in rises)
    return Text("".join(signs), style="cyan")


def _operations(run: Run, width: int, room: int) -> list[Text]:
    """Return a table, of at most `room` lines, of the operations whose arrays callers waited for longest."""
    groups = sorted((group for group in run.by("op") if group.moved.wait_s > 0), key=lambda each: -each.moved.wait_s)
    groups = groups[: min(room - 2, _MOST_OPERATIONS)] if room > 2 else []  # below an empty line and the heads
    if not groups:
        return []
    waited = dataclasses.replace(group_column("wait", groups), worth=len(COLUMNS))  # the last to be left out
    columns = [waited, *(group_column(name, groups) for name in ("read", "written", "packed"))]
    return _table("waited longest for", [printable(group.name, 40) for group in groups], columns, width)


def _ranks(found: DistributedRun | None, width: int, room: int) -> list[Text]:
    """Return a table, of at most `room` lines, of the ranks: of all, or of those that the others waited for most."""
    if found is None or room < 3:
        return []
    shown = rank_rows(found)
    if len(shown) > room - 2:
        shown = sorted(shown, key=lambda row: -row.awaited_s)[: room - 2]
    columns = rank_columns(shown)
    return _table("rank", [f"{row.rank} of {found.size}" for row in shown], columns, width)


def _table(head: str, names: Sequence[str], columns: Sequence[Column], width: int) -> list[Text]:
    """Return the lines of a table below an empty line; one of rich takes longer to draw than the rest of the view."""
    names = [head, *names]
    widest = max(map(cell_len, names))
    kept, short = fitting(columns, width - widest)
    rows = [[each.head, *(each.short if short else each.cells)] for each in kept]
    texts = [Text()]
    for name, *cells in zip(names, *rows, strict=True):
        padded = (f"{cell:>{each.width(short) + GAP}}" for each, cell in zip(kept, cells, strict=True))
        texts.append(Text(set_cell_size(name, widest) + "".join(padded)))
    texts[1].stylize("bold")
    return texts
