"""Sentences about a run: when it began, how it ended, and why its RAM exceeded the budget."""

import datetime
import shlex
import socket
from collections.abc import Iterator

from spillgrad.inspection.printable import printable
from spillgrad.inspection.records import Run, Sample
from spillgrad.storage.sizes import format_bytes
from spillgrad_tools.quantities import UNKNOWN, format_duration, many

# What a cache hit means: the array was there before a caller asked for it.
HIT = "in RAM, or read ahead in time"
# The parts of a store's RAM: fields of `Sample`, and the rest.
RAM_PARTS = {
    "lent": "held by callers",
    "hot": "not on disk yet",
    "writing": "being written",
    "cached": "on disk as well",
    "other": "being read, or encoded",
}


def began(run: Run, fine: bool = True) -> str:
    """Return the time in UTC at which a run began: to the second if `fine`, else to the minute."""
    try:
        when = datetime.datetime.fromisoformat(run.began or "").astimezone(datetime.UTC)
    except (ValueError, OverflowError):  # a journal may hold any text
        return printable(run.began, 40) if run.began else UNKNOWN
    return f"{when:%Y-%m-%d %H:%M:%S} UTC" if fine else f"{when:%Y-%m-%d %H:%M}"


def state(run: Run) -> str:
    """Return in words whether a run is live, finished or dead, with the command that removes a dead run's files."""
    if run.state == "live":
        return "live: its process runs"
    if run.state == "finished":
        return "finished: its store was closed"
    left = sum(run.segments.values())
    what = f", which frees {format_bytes(left)}" if left else ""
    return f"dead: {died(run)}" + swept_by(run) + what


def died(run: Run) -> str:
    """Return in words how a dead run ended, as far as is known: a killed run keeps its folder until it is swept."""
    words = "its process ended without closing its store"
    if run.folder is not None:
        return words
    host = run.host or socket.gethostname()
    goes_on = f", or it goes on, on {printable(host)}" if host != socket.gethostname() else ""
    return f"{words}, or the disk refused the journal's last lines{goes_on}"


def swept_by(run: Run) -> str:
    """Return words with the command that removes the folder that a run left; "" if the run left no folder."""
    if run.folder is None:
        return ""
    place = printable(shlex.quote(str(run.folder.parent)), 1000)
    return f"; `spillgrad sweep {place}` removes what it left"


def beyond_budget(run: Run) -> Iterator[str]:
    """Yield sentences about when and why RAM exceeded the budget, as far as the journal shows."""
    budget = run.settings.budget_bytes
    if budget is None or run.stats.peak_ram_bytes <= budget:
        return
    beyond = [sample for sample in run.samples if sample.ram_bytes > budget]
    if beyond:
        most = max(beyond, key=lambda sample: sample.ram_bytes)
        yield (
            f"beyond the budget in {len(beyond):,} of {many(len(run.samples), 'sample')}, most after "
            f"{format_duration(most.t)}: {', '.join(_parts(most))}"
        )
    else:
        yield "beyond the budget for so short a time, or so long ago, that no sample in the journal shows it"
    if run.settings.on_full == "ram" and run.failure_count:
        yield f"the disk refused {many(run.failure_count, 'time')}, and then arrays stay in RAM, as on_full says"
    largest = max((nbytes for nbytes, _ in run.step_plan.arrays), default=0) if run.step_plan else 0
    if largest > budget:
        yield f"a step has an array of {format_bytes(largest)}: more than the budget, and read whole when it is needed"
    elif any(sample.lent_bytes for sample in beyond):
        yield "what is asked for is read also while callers hold so much that it does not fit beside that"


def ram_parts(sample: Sample) -> dict[str, int]:
    """Return the bytes of each part of RAM; the keys are those of `RAM_PARTS`."""
    parts = {name: getattr(sample, f"{name}_bytes") for name in RAM_PARTS if name != "other"}
    return {**parts, "other": max(sample.ram_bytes - sum(parts.values()), 0)}


def _parts(sample: Sample) -> Iterator[str]:
    """Yield the bytes and the name of each part of RAM in words, the largest part first."""
    for name, nbytes in sorted(ram_parts(sample).items(), key=lambda part: -part[1]):
        if nbytes > 0:
            yield f"{format_bytes(nbytes)} {RAM_PARTS[name]}"
