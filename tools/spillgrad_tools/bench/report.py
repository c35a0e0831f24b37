"""Print the results of benchmarks, and the machine they ran on, as tables or JSON."""

import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.status import Status
from rich.table import Column, Table

from spillgrad.storage.sizes import format_bytes
from spillgrad_tools.bench.bars import Row, Verdict
from spillgrad_tools.bench.cases import Result
from spillgrad_tools.bench.harness import LIBRARY_NAMES
from spillgrad_tools.quantities import UNKNOWN, format_duration

PIPED_COLUMNS = 120


@contextlib.contextmanager
def scratch_folder(directory: Path, doing: str) -> Iterator[tuple[Path, Status]]:
    """Context manager: a temporary folder in `directory`, and the status line, which begins with the text `doing`."""
    with (
        tempfile.TemporaryDirectory(dir=directory.absolute(), prefix="spillgrad-bench-") as folder,
        Console(stderr=True).status(doing) as status,
    ):
        yield Path(folder), status


def format_measured(value: float, unit: str) -> str:
    """Format a measured value. Units: s, B, B/s, %, or an empty unit for a count."""
    if unit == "s":
        return format_duration(value)
    if unit == "B":
        return format_bytes(int(value))
    if unit == "B/s":
        return f"{value / 1e9:.2f} GB/s"
    return f"{value:.1f} %" if unit == "%" else f"{value:,.0f}"


def print_json(**answer: Any) -> None:
    """Print the keyword arguments as a JSON object."""
    print(json.dumps(answer, indent=2))


def show_kernels(
    about: dict[str, Any], results: Sequence[Result], libraries: Sequence[str], bars: bool = False
) -> None:
    """Print a table with a row per case: times, or the reasons for missing times, and comparisons with the peers.

    If `bars`, also say which bars were reached.
    """
    named = "numpy" in libraries
    table = Table(box=SIMPLE)
    if named:
        table.caption = (
            "× NumPy 1.70: NumPy takes 1.7 times as long as spillgrad. Of limit 0.90: spillgrad has 0.9 of the speed "
            "that the processor's arithmetic or memory allows."
        )
    table.add_column("case", no_wrap=named)
    for library in libraries:
        table.add_column(LIBRARY_NAMES[library], justify="right" if named else "left", no_wrap=named)
    table.add_column("compared")
    for result in results:
        table.add_row(result.case.name, *_times(result, libraries), "\n".join(result.comparisons))
    verdicts = [(f"{result.case.name}: ", verdict) for result in results for verdict in result.verdicts]
    _show(about, table, *(exit_report(verdicts) if bars else ()))


def show_rows(as_json: bool, about: dict[str, Any], rows: Sequence[Row], bars: bool = False, **more: Any) -> None:
    """Print a table with a row per case: measured values and comparisons. If `as_json`, print them and `more` as JSON.

    If `bars`, also say which bars were reached.
    """
    if as_json:
        print_json(machine=about, results=[row.as_json() for row in rows], **more)
        return
    table = Table("case", "measured", "compared", box=SIMPLE)
    for row in rows:
        measured = (f"{name} {format_measured(value, row.unit)}" for name, value in row.measured.items())
        table.add_row(row.case, "\n".join(measured), "\n".join(verdict.measured for verdict in row.verdicts))
    verdicts = [(f"{row.case}: ", verdict) for row in rows for verdict in row.verdicts]
    _show(about, table, *(exit_report(verdicts) if bars else ()))


def row_as_text(result: Result, libraries: Sequence[str]) -> str:
    """Return the result of a case in one line."""
    cells = zip(libraries, _times(result, libraries), strict=True)
    times = [f"{LIBRARY_NAMES[library]} {cell}" for library, cell in cells]
    return f"{result.case.name}: {', '.join((*times, *result.comparisons))}"


def show_train(
    about: dict[str, Any], results: dict[str, dict[str, Any]], comparisons: Sequence[str],
    verdicts: Sequence[Verdict] = (),
) -> None:  # fmt: skip
    """Print a table with a row per contender: tokens a second, seconds a step, memory, traffic; then the comparisons.

    If there are `verdicts`, also say which bars were reached.
    """
    table = Table("contender", *(Column(head, justify="right") for head in _TRAIN_COLUMNS), box=SIMPLE)
    for name, result in results.items():
        table.add_row(name, *_train_row(result))
    _show(about, table, *comparisons, *(exit_report([("", verdict) for verdict in verdicts]) if verdicts else ()))


def exit_report(verdicts: Sequence[tuple[str, Verdict]]) -> Iterator[str]:
    """Yield how many bars were reached, and a line for each that was missed, which begins with the name of its row."""
    yield f"{sum(verdict.met for _, verdict in verdicts)} of {len(verdicts)} bars reached"
    for name, verdict in verdicts:
        if not verdict.met:
            yield f"{name}{verdict}"


def _show(about: dict[str, Any], table: Table, *lines: str) -> None:
    """Print the machine and options of a benchmark, its table, and the lines below the table."""
    # In a pipe, rich would assume 80 columns, into which the tables do not fit.
    console = Console(width=None if sys.stdout.isatty() else PIPED_COLUMNS)
    shown = {**about, **({"limits": limits_as_text(about["limits"])} if "limits" in about else {})}
    console.print(*(f"{key}: {value}" for key, value in shown.items()), sep="\n", highlight=False)
    console.print(table)
    for line in lines:
        console.print(line, highlight=False)


def limits_as_text(limits: dict[str, Any]) -> str:
    """Return what `bench kernels` measured of a processor's limits in words."""
    caches = ", ".join(format_bytes(nbytes) for nbytes in limits["cache_bytes"])
    return (
        f"{limits['float32_flop_per_s'] / 1e9:,.0f} GFLOP/s in float32, {limits['float64_flop_per_s'] / 1e9:,.0f} in "
        f"float64; memory {limits['bytes_per_s'] / 1e9:,.1f} GB/s; caches {caches}"
    )


_TRAIN_COLUMNS = ("tokens/s", "a step", "peak memory", "capped at", "written a step", "read a step")


def _train_row(result: dict[str, Any]) -> list[str]:
    cap = format_bytes(result["cap_bytes"]) if "cap_bytes" in result else UNKNOWN
    if "ended_with_status" in result:
        return [f"ended with status {result['ended_with_status']}", UNKNOWN, UNKNOWN, cap, UNKNOWN, UNKNOWN]
    traffic = (result.get(f"{name}_bytes_per_step") for name in ("written", "read"))
    moved = [UNKNOWN if nbytes is None else format_bytes(int(nbytes)) for nbytes in traffic]
    speed, step = f"{result['tokens_per_s']:,.0f}", format_duration(result["seconds"])
    return [speed, step, format_bytes(result["peak_rss_bytes"]), cap, *moved]


def _times(result: Result, libraries: Sequence[str]) -> list[str]:
    """Return a cell for each library: its time, or the reason why it was not timed."""
    times = {name: format_duration(seconds) for name, seconds in result.seconds.items()}
    return [result.failures.get(library, times.get(library, UNKNOWN)) for library in libraries]
