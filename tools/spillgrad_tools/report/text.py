"""The sentences, key figures and settings in the report of a run."""

import json
import statistics
from typing import NamedTuple

from spillgrad.inspection.printable import printable
from spillgrad.inspection.ranks import DistributedRun
from spillgrad.inspection.records import Advice, Run
from spillgrad.storage.sizes import format_bytes
from spillgrad_tools.inspect.ranks import missing_words, straggler_words
from spillgrad_tools.inspect.words import died
from spillgrad_tools.quantities import format_duration, many

_MIB = 1 << 20

STATES = {"live": "running when this page was made", "finished": "finished"}


class Figure(NamedTuple):
    """A key figure: its name, its value, and a note that puts the value in relation."""

    name: str
    value: str
    note: str


def format_share(part: float, whole: float) -> str:
    """Return the percentage that `part` is of `whole`, or "" if `whole` is 0."""
    if not whole:
        return ""
    share = 100 * part / whole
    return f"{share:.1f} %" if 0.05 <= share < 9.95 else f"{share:.0f} %"


def state(run: Run) -> str:
    """Return in words whether a run is live, finished or dead, and how a dead run ended."""
    return STATES.get(run.state) or f"dead: {died(run)}"


def headline(run: Run) -> str:
    """Return a few sentences about how much was spilled, and how long callers waited for the disk."""
    stats, took = run.stats, format_duration(run.duration_s)
    if not stats.packed_bytes:
        return f"In {took}, nothing was given to the store."
    came = f"In {took}, {format_bytes(stats.packed_bytes)} came to the store."
    if not stats.written_bytes:
        return f"{came} All of it fitted in RAM: nothing went to disk."
    share = format_share(stats.written_bytes, stats.packed_bytes)
    written, read = format_bytes(stats.written_bytes), format_bytes(stats.read_bytes)
    moved = f"{written} ({share}) went to disk, and {read} came back."
    waited_s = stats.wait_write_s + stats.wait_read_s
    if not waited_s:
        return f"{came} {moved} Nobody waited for it."
    parts = ((stats.wait_write_s, "for room in RAM"), (stats.wait_read_s, "for data to be read"))
    causes = ", ".join(f"{format_duration(each)} {what}" for each, what in parts if each)
    share = f" ({format_share(waited_s, run.duration_s)} of the time)" if run.duration_s else ""
    return f"{came} {moved} Callers waited {format_duration(waited_s)}{share}: {causes}."


def ranks(run: Run, together: DistributedRun | None) -> list[str]:
    """Return sentences about the processes that trained together, and about what of the page is of which."""
    if together is None or run.rank is None:
        return []
    error_s = together.clock_error_s
    clocks = "as each machine's clock says" if error_s is None else f"aligned to within {format_duration(error_s)}"
    missing = missing_words(together)
    return [
        f"{many(together.size, 'rank')} trained together. {_sentence(straggler_words(together))}"
        + (f" {_sentence(missing)}" if missing else ""),
        f"The timeline and the table by rank show all ranks, with times {clocks}. All else is of rank {run.rank.rank}; "
        "the journal of another rank gives its page.",
    ]


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def figures(run: Run) -> list[Figure]:
    """Return the key figures of a run."""
    stats = run.stats
    waited_s = stats.wait_write_s + stats.wait_read_s
    asked = stats.cache_hits + stats.cache_misses
    arrays = sum(moved.arrays for moved in run.origins.values())
    written = _share(stats.written_bytes, stats.packed_bytes, "of what came")
    if stats.stored_bytes != stats.written_bytes:
        written += f", stored as {format_bytes(stats.stored_bytes)}"
    read = "came back"
    if stats.fetched_bytes != stats.read_bytes:
        read += f", from {format_bytes(stats.fetched_bytes)}"
    budget = run.settings.budget_bytes
    limit = "" if budget is None else f"of a budget of {format_bytes(budget)}"
    left = f"{format_bytes(stats.disk_bytes)} at the end" if stats.disk_bytes else ""
    found = [
        Figure("packed", format_bytes(stats.packed_bytes), f"{arrays:,} arrays came" if arrays else ""),
        Figure("written", format_bytes(stats.written_bytes), written),
        Figure("read", format_bytes(stats.read_bytes), read),
        Figure("waited", format_duration(waited_s), _share(waited_s, run.duration_s, "of the time")),
        Figure("most RAM", format_bytes(stats.peak_ram_bytes), limit),
        Figure("most disk", format_bytes(stats.peak_disk_bytes), left),
    ]
    if run.steps:
        median = format_duration(statistics.median(step.took_s for step in run.steps))
        found.append(Figure("steps", f"{run.steps[-1].number:,}", f"{median} each (median)"))
    if asked:
        note = f"of {asked:,} asked for, or read ahead in time"
        found.append(Figure("found in RAM", format_share(stats.cache_hits, asked), note))
    if stats.deduplicated_bytes:
        found.append(Figure("deduplicated", format_bytes(stats.deduplicated_bytes), "there already, stored once"))
    if run.kept_bytes:
        found.append(Figure("kept", format_bytes(run.kept_bytes), "in RAM beside the store"))
    return found


def _share(part: float, whole: float, of_what: str) -> str:
    return f"{format_share(part, whole)} {of_what}" if whole else ""


def name(run: Run) -> str:
    """Return the name of a run: the name of its directory, or `folder/journal` for a run known by its journal."""
    path = run.path.absolute()
    return printable(path.name if path.suffix != ".jsonl" else f"{path.parent.name}/{path.name}")


def ram_words(run: Run) -> str:
    """Return the text alternative of the plot of RAM."""
    budget = run.settings.budget_bytes
    most = f"at most {format_bytes(run.stats.peak_ram_bytes)}"
    return most if budget is None else f"{most}, of a budget of {format_bytes(budget)}"


def disk_words(run: Run) -> str:
    """Return the text alternative of the plot of the disk."""
    live = max((sample.live_bytes for sample in run.samples), default=0)
    return f"at most {format_bytes(run.stats.peak_disk_bytes)} on the disk, arrays of {format_bytes(live)} alive"


def call(advice: Advice) -> str:
    """Return the arguments that `advice` recommends as Python source text."""
    return ", ".join(f"{name}={_as_argument(value)}" for name, value in advice.arguments.items())


def _as_argument(value: object) -> str:
    """Return a value as Python source text; a number of whole MiB becomes text such as "64MiB"."""
    whole = isinstance(value, int) and value >= _MIB and not value % _MIB
    return printable(f'"{value // _MIB}MiB"' if whole else json.dumps(value))  # type: ignore[operator]


def settings(run: Run) -> list[tuple[str, str]]:
    """Return the known settings of a run, and where and when the run was made, as pairs of name and value."""
    told = run.settings
    budget = None if told.budget_bytes is None else f"{format_bytes(told.budget_bytes)} ({told.budget_bytes:,} bytes)"
    segments = f"{len(run.segments):,}, {format_bytes(sum(run.segments.values()))}" if run.segments else "none left"
    known = (
        ("command", run.command),
        ("host", run.host),
        ("process", run.process),
        ("spillgrad", run.version),
        ("began", run.began),
        ("took", format_duration(run.duration_s)),
        ("RAM budget", budget),
        ("codec", told.codec or (None if told.encrypt is None else "none: exact")),
        ("encrypted", _yes_or_no(told.encrypt)),
        ("checksums", _yes_or_no(told.checksums)),
        ("on a full disk", told.on_full),
        ("journal", run.journal),
        ("segments", segments),
        ("lines of the journal lost to a full disk", f"{run.lost_lines:,}" if run.lost_lines else None),
        ("damaged lines of the journal", f"{run.damaged_lines:,}" if run.damaged_lines else None),
    )
    return [(name, printable(str(value), 1000)) for name, value in known if value is not None]


def _yes_or_no(value: bool | None) -> str | None:
    return None if value is None else "yes" if value else "no"
