"""Print the results of benchmarks, and the machine they ran on, as tables, JSON or Markdown."""

import contextlib
import datetime
import json
import platform
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
from rich.box import SIMPLE
from rich.console import Console
from rich.status import Status
from rich.table import Column, Table

from spillgrad.errors import ArgumentError
from spillgrad.storage.sizes import format_bytes
from spillgrad_tools.bench.bars import Row, Verdict
from spillgrad_tools.bench.cases import Case, Result
from spillgrad_tools.bench.harness import LIBRARY_NAMES
from spillgrad_tools.quantities import UNKNOWN, format_duration


def machine() -> dict[str, Any]:
    """Return the processor, memory and Python of this machine, and the date."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor() or platform.machine(),
        "memory": format_bytes(psutil.virtual_memory().total),
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
    }


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


def show_kernels(about: dict[str, Any], results: Sequence[Result], libraries: Sequence[str]) -> None:
    """Print a table with a row per case: times, or the reasons for missing times, and the verdicts of its bars."""
    named = "numpy" in libraries
    table = Table(box=SIMPLE)
    if named:
        table.caption = "× NumPy 1.70 / 1.6: NumPy's time is 1.7 of ours; wanted is 1.6"
    table.add_column("case", no_wrap=named)
    for library in libraries:
        table.add_column(LIBRARY_NAMES[library], justify="right" if named else "left", no_wrap=named)
    table.add_column("reached / wanted")
    for result in results:
        table.add_row(result.case.name, *_times(result, libraries), "\n".join(map(str, result.verdicts)))
    _show(about, table, _reached(results))


def show_rows(as_json: bool, about: dict[str, Any], rows: Sequence[Row], **more: Any) -> None:
    """Print a table with a row per case: measured values and verdicts. If `as_json`, print them and `more` as JSON."""
    if as_json:
        print_json(machine=about, results=[row.as_json() for row in rows], **more)
        return
    table = Table("case", "measured", "reached / wanted", box=SIMPLE)
    for row in rows:
        measured = (f"{name} {format_measured(value, row.unit)}" for name, value in row.measured.items())
        table.add_row(row.case, "\n".join(measured), "\n".join(map(str, row.verdicts)))
    _show(about, table, _reached(rows))


def kernels_as_markdown(about: dict[str, Any], results: Sequence[Result]) -> str:
    """Return the results as Markdown: a table of the bars of each group, then a table with a row per case."""
    lines = [
        "| what | wanted | reached: worst … best | bars reached |",
        "|---|---|---|---|",
        *_summary_rows(results),
        "",
        f"{_about_as_text(about)}; medians of {about['rounds']} rounds ({min(r.rounds for r in results)} where long).",
        "",
        "<details><summary>Every row</summary>",
        "",
        f"| row | {' | '.join(LIBRARY_NAMES.values())} | reached / wanted |",
        "|---|---|---|---|---|",
        *(f"| {r.case.name} | {' | '.join(_times(r, (*LIBRARY_NAMES,)))} | {_verdicts(r)} |" for r in results),
        "",
        "</details>",
    ]
    return "\n".join(lines)


def row_as_text(result: Result, libraries: Sequence[str]) -> str:
    """Return the result of a case in one line."""
    cells = zip(libraries, _times(result, libraries), strict=True)
    times = [f"{LIBRARY_NAMES[library]} {cell}" for library, cell in cells]
    return f"{result.case.name}: {', '.join((*times, *map(str, result.verdicts)))}"


def cuda_as_markdown(cases: Sequence[Case], about: dict[str, Any], results: Sequence[Result]) -> str:
    """Return a Markdown table with a row per case; the cells of a case without a result are empty."""
    cells_of = {result.case.name: [*_times(result, ("ours", "torch")), _verdicts(result)] for result in results}
    lines = ["| on a GPU | at least | spillgrad | PyTorch | reached / wanted |", "|---|---|---|---|---|"]
    for case in cases:
        cells = cells_of.get(case.name, ["", "", ""])
        lines.append(f"| {case.name} | {', '.join(map(str, case.bars))} | {' | '.join(cells)} |")
    if results:
        libraries = ", ".join(about["libraries"])
        lines += ["", f"{about['gpu']}; {libraries}; {about['date']}; medians of {about['rounds']} rounds."]
    return "\n".join(lines)


def show_train(about: dict[str, Any], results: dict[str, dict[str, Any]], verdicts: Sequence[Verdict]) -> None:
    """Print a table with a row per contender: tokens a second, seconds a step, memory, traffic; then the verdicts."""
    table = Table("contender", *(Column(head, justify="right") for head in _TRAIN_COLUMNS), box=SIMPLE)
    for name, result in results.items():
        table.add_row(name, *_train_row(result))
    _show(about, table, *map(str, verdicts))


def train_as_markdown(about: dict[str, Any], results: dict[str, dict[str, Any]], verdicts: Sequence[Verdict]) -> str:
    """Return the table and the verdicts that `show_train` prints, as Markdown."""
    lines = [
        f"| {about['model']}, batch {about['batch']} × {about['context']}, float32 | {' | '.join(_TRAIN_COLUMNS)} |",
        "|" + "---|" * (1 + len(_TRAIN_COLUMNS)),
        *(f"| {name} | {' | '.join(_train_row(result))} |" for name, result in results.items()),
        "",
        *(f"* {verdict}" for verdict in verdicts),
        "",
        f"{_about_as_text(about)}; medians of {about['steps']} steps.",
    ]
    return "\n".join(lines)


def write_between_markers(page: Path, name: str, text: str) -> None:
    """Replace the text between `<!-- name -->` and `<!-- end of name -->` in a file.

    Raises ArgumentError if the file has no such markers. Raises OSError if it cannot be read or written.
    """
    start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, found_start, rest = page.read_text().partition(start)
    _, found_end, after = rest.partition(end)
    if not (found_start and found_end):
        raise ArgumentError(f"bench: {page} lacks the lines {start} and {end}; put them where the table belongs")
    page.write_text(f"{before}{start}\n\n{text}\n\n{end}{after}")


def _reached(rows: Sequence[Result | Row]) -> str:
    verdicts = [verdict for row in rows for verdict in row.verdicts]
    return f"{sum(verdict.met for verdict in verdicts)} of {len(verdicts)} bars reached"


def _show(about: dict[str, Any], table: Table, *lines: str) -> None:
    """Print the machine and options of a benchmark, its table, and the lines below the table."""
    console = Console()
    console.print(*(f"{key}: {value}" for key, value in about.items()), sep="\n", highlight=False)
    console.print(table)
    for line in lines:
        console.print(line, highlight=False)


def _about_as_text(about: dict[str, Any]) -> str:
    libraries = [", ".join(about["libraries"])] if "libraries" in about else []
    machine = f"{about['cpu']}, {about['threads']} threads"
    return "; ".join((machine, *libraries, f"Python {about['python']}", about["date"]))


_TRAIN_COLUMNS = ("tokens/s", "a step", "peak memory", "capped at", "written a step", "read a step")


def _train_row(result: dict[str, Any]) -> list[str]:
    cap = format_bytes(result["cap_bytes"]) if "cap_bytes" in result else UNKNOWN
    if "ended_with_status" in result:
        return [f"ended with status {result['ended_with_status']}", UNKNOWN, UNKNOWN, cap, UNKNOWN, UNKNOWN]
    traffic = (result.get(f"{name}_bytes_per_step") for name in ("written", "read"))
    moved = [UNKNOWN if nbytes is None else format_bytes(int(nbytes)) for nbytes in traffic]
    speed, step = f"{result['tokens_per_s']:,.0f}", format_duration(result["seconds"])
    return [speed, step, format_bytes(result["peak_rss_bytes"]), cap, *moved]


def _verdicts(result: Result) -> str:
    return ", ".join(map(str, result.verdicts))


def _times(result: Result, libraries: Sequence[str]) -> list[str]:
    """Return a cell for each library: its time, or the reason why it was not timed."""
    times = {name: format_duration(seconds) for name, seconds in result.seconds.items()}
    return [result.failures.get(library, times.get(library, UNKNOWN)) for library in libraries]


def _summary_rows(results: Sequence[Result]) -> Iterator[str]:
    """Yield a line of a Markdown table for each group and each kind of bar in the group."""
    groups: dict[tuple[str, str], list[Verdict]] = {}
    for result in results:
        for verdict in result.verdicts:
            groups.setdefault((result.case.group, verdict.bar), []).append(verdict)
    for (group, bar), verdicts in groups.items():
        reached = sorted((verdict.reached for verdict in verdicts), reverse=verdicts[0].most)
        wanted = " or ".join(f"{value:g}" for value in sorted({verdict.wanted for verdict in verdicts}))
        sign = "≤" if verdicts[0].most else "≥"
        met = sum(verdict.met for verdict in verdicts)
        yield f"| {group} | {sign} {wanted} {bar} | {reached[0]:.2f} … {reached[-1]:.2f} | {met} of {len(verdicts)} |"
