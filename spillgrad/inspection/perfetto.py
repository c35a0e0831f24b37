"""Write a run as a trace for https://ui.perfetto.dev and chrome://tracing.

Source: Trace Event Format, https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

import contextlib
import gzip
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from spillgrad.inspection.export import whole_file
from spillgrad.inspection.printable import printable
from spillgrad.inspection.ranks import DistributedRun, Part, parts
from spillgrad.inspection.records import Run, Span
from spillgrad.inspection.runs import ram_changes, spans

# A track has a row for each span that overlaps others, up to so many; further ones share the last row.
_ROWS = 32
# Journals round times to microseconds: a span that begins as another ends must not seem to overlap it.
_ROUNDING_S = 2e-6
_TRACKS = (
    "step", "phase", "wait for room", "wait for data", "wait for ranks", "collective", "write", "read", "read ahead",
)  # fmt: skip
_OF_STEPS = ("packed_bytes", "written_bytes", "read_bytes", "wait_s")
_PHASES = ("forward", "backward", "update")

Event = dict[str, Any]


def write_perfetto(run: Run | DistributedRun, path: Path, overwrite: bool = False) -> None:
    """Write a run's memory, steps, phases, waits, collectives, writes and reads to a trace for Perfetto and Chrome.

    Of several ranks, each has tracks of its own, and all times count from the beginning of the first. The file is
    compressed if its name ends with ".gz". Raises the errors of `whole_file`.
    """
    with whole_file(path, "a trace", overwrite) as whole, contextlib.ExitStack() as stack:
        file = stack.enter_context(gzip.open(whole, "wb")) if path.suffix == ".gz" else whole
        before = b'{"displayTimeUnit":"ms","traceEvents":[\n'
        for number, part in enumerate(parts(run)):
            for event in _Trace(part, 2 * number + 1).events():
                file.write(before + msgspec.json.encode(event))
                before = b",\n"
        file.write(b"\n]}\n")


class _Trace:
    """The trace of a run: a "process" for its store, with the number `process`, and one for the RAM of each module."""

    def __init__(self, part: Part, process: int) -> None:
        self._part = part
        self._store, self._modules = process, process + 1

    def events(self) -> Iterator[Event]:
        """Yield the events. Units: bytes; microseconds since the run began."""
        run, name, zero_s = self._part
        of_rank = f"{name}{f' on {printable(run.host)}' if run.host else ''}, " if name else ""
        yield _named("process_name", self._store, 0, f"{of_rank}spillgrad: {printable(str(run.path))}")
        yield from [_named("process_sort_index", self._store, 0, self._store)] if name else ()
        rows = _Rows(self._store)
        for step_name, step in zip(run.step_names(), run.steps, strict=True):
            about = {each: getattr(step.moved, each) for each in _OF_STEPS}
            yield from rows.place("step", f"step {step_name}", zero_s + step.began_s, step.took_s, about)
        for span in spans(run):
            is_phase = span.kind in _PHASES
            shown, track = (span.kind, "phase") if is_phase else (span.name, span.title)
            yield from rows.place(track, shown, zero_s + span.began_s, span.took_s, {} if is_phase else _about(span))
        ram_bytes, modules = 0, dict[str, int]()
        for change in ram_changes(run):
            if not modules:
                yield _named("process_name", self._modules, 0, f"{of_rank}RAM by module")
            module = printable(change.origin.module or "(none)")
            ram_bytes += change.nbytes
            modules[module] = modules.get(module, 0) + change.nbytes
            yield _counter(self._store, "RAM", zero_s + change.t, ram_bytes)
            yield _counter(self._modules, module, zero_s + change.t, modules[module])
        for sample in run.samples:
            t = zero_s + sample.t
            if not modules:  # the journal has no changes
                yield _counter(self._store, "RAM", t, sample.ram_bytes)
            yield _counter(self._store, "live", t, sample.live_bytes)
            yield _counter(self._store, "disk", t, sample.disk_bytes)
            yield _counter(self._store, "process", t, sample.rss_bytes)


class _Rows:
    """Finds a row for each slice: a viewer shows slices of one row only if they do not overlap."""

    def __init__(self, process: int) -> None:
        self._process = process
        self._ends: dict[str, list[float]] = defaultdict(list)

    def place(self, track: str, name: str, began_s: float, took_s: float, about: Event) -> Iterator[Event]:
        """Yield the event of a slice, and before it the name of its row, if the row is new."""
        ends = self._ends[track]
        row = next((row for row, end in enumerate(ends) if end <= began_s + _ROUNDING_S), len(ends))
        row = min(row, _ROWS - 1)
        number = 1 + _TRACKS.index(track) * _ROWS + row
        if row == len(ends):
            ends.append(0.0)
            yield _named("thread_name", self._process, number, track if row == 0 else f"{track} {row + 1}")
            yield _named("thread_sort_index", self._process, number, number)
        ended_s = max(began_s + took_s, ends[row])
        began_s, ends[row] = min(max(began_s, ends[row]), ended_s), ended_s
        yield {
            "ph": "X",
            "pid": self._process,
            "tid": number,
            "cat": track,
            "name": name,
            "ts": _us(began_s),
            "dur": _us(ended_s - began_s),
            "args": about,
        }


def _about(span: Span) -> Event:
    if span.what is not None:
        return {"sent bytes": span.nbytes, "slowest rank": span.slowest}
    told = {"array": span.array, "bytes": span.nbytes, **span.origin._asdict()}
    return {key: printable(value) if isinstance(value, str) else value for key, value in told.items()}


def _counter(process: int, name: str, t: float, nbytes: int) -> Event:
    return {"ph": "C", "pid": process, "name": name, "ts": _us(t), "args": {"bytes": nbytes}}


def _named(what: str, process: int, thread: int, name: str | int) -> Event:
    """Return the event that names a process or a thread, or orders a thread among others."""
    key = "sort_index" if isinstance(name, int) else "name"
    return {"ph": "M", "pid": process, "tid": thread, "name": what, "args": {key: name}}


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 1)
