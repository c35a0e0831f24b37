"""`spillgrad inspect`: show the runs or the segment at a path, in the way that the options ask for."""

from pathlib import Path

from rich.console import Console
from rich.console import Group as Lines
from rich.text import Text

from spillgrad.errors import ArgumentError
from spillgrad.inspection.find import is_segment_file, require_not_stored
from spillgrad.inspection.memory_viz import write_memory_viz
from spillgrad.inspection.perfetto import write_perfetto
from spillgrad.inspection.printable import printable
from spillgrad.inspection.ranks import distributed_runs, inspect_together
from spillgrad.inspection.runs import inspect, inspect_one
from spillgrad.inspection.segments import inspect_segment
from spillgrad_tools.inspect import json_output
from spillgrad_tools.inspect import tables as inspect_tables
from spillgrad_tools.inspect.array import show_array
from spillgrad_tools.inspect.groups import choose
from spillgrad_tools.inspect.options import InspectOptions
from spillgrad_tools.inspect.ranks import of_distributed
from spillgrad_tools.inspect.segment import is_sound, of_segment
from spillgrad_tools.inspect.tree import segment_as_dict, show_tree
from spillgrad_tools.inspect.watch import watch
from spillgrad_tools.paged import show, write
from spillgrad_tools.report.page import report

# The number of rows without --top; JSON has all rows.
TOP = 20
# The options that each mode allows. Modes exclude each other; without a mode, runs are shown.
_MODES = {
    "--tree": ("--json",), "--tensor": ("--json", "--slice", "--export", "--force"), "--html": (), "--watch": (),
    "--perfetto": ("--force",), "--memory-viz": ("--force",),
}  # fmt: skip
_OVERWRITING = ("--export", "--perfetto", "--memory-viz")


def run(options: InspectOptions) -> bool:
    """Show the runs or the segment at the path; return False if files are damaged.

    Raises ArgumentError if options contradict each other.
    """
    _require_consistent(options.given())
    if options.watch:
        watch(options.path)
    elif options.html is not None:
        report(options.path, options.html)
        if options.html.is_file():
            _say_wrote(options.html)
    elif options.perfetto is not None:
        require_not_stored(options.perfetto)
        write_perfetto(inspect_together("perfetto", options.path), options.perfetto, options.force)
        _say_wrote(options.perfetto)
    elif options.memory_viz is not None:
        require_not_stored(options.memory_viz)
        write_memory_viz(inspect_one("memory-viz", options.path), options.memory_viz, options.force)
        _say_wrote(options.memory_viz)
    elif options.tree:
        return show_tree(Console(), options.path, options.as_json)
    elif options.tensor is not None:
        return show_array(options, options.tensor)
    elif is_segment_file(options.path):
        return _show_segment(options)
    else:
        return _show_runs(options)
    return True


def _require_consistent(given: list[str]) -> None:
    modes = [word for word in given if word in _MODES]
    if len(modes) > 1:
        raise ArgumentError(f"inspect: got {' and '.join(modes)}, which show different things; leave one out")
    for word in given:
        if word in ("--slice", "--export") and "--tensor" not in modes:
            raise ArgumentError(f"inspect: got {word} without --tensor; name an array with --tensor KEY")
        if word == "--force" and not any(each in given for each in _OVERWRITING):
            raise ArgumentError(f"inspect: got --force without {' or '.join(_OVERWRITING)} FILE; name the file")
        if modes and word != modes[0] and word not in _MODES[modes[0]]:
            raise ArgumentError(f"inspect: got {word} with {modes[0]}, which does not heed it; leave one out")


def _say_wrote(path: Path) -> None:
    write(f"wrote {printable(str(path), 4096)}\n")


def _show_runs(options: InspectOptions) -> bool:
    found = inspect(options.path)
    by = options.by or "module"
    several = [word for word in options.given() if word in ("--by", "--sort", "--top")] if len(found.runs) > 1 else []
    if several and not options.as_json:
        one = f"name one, such as the newest: {found.runs[-1].path}"
        raise ArgumentError(f"inspect: got {several[0]} with {len(found.runs)} runs; {one}")
    if options.as_json:
        json_output.show(json_output.of_runs(found, by, options.sort, options.top))
    else:
        console = Console()
        together = distributed_runs(found.runs)
        if len(together) == 1 and 1 < len(together[0].ranks) == len(found.runs):
            show(console, of_distributed(found.path, together[0], console.width))
        elif len(found.runs) == 1:
            groups = choose(found.runs[0], by, options.sort, options.top or TOP)
            show(console, inspect_tables.of_run(found.runs[0], groups, console.width))
        else:
            show(console, inspect_tables.of_runs(found.path, found.runs, console.width))
            if together:
                show(console, Lines(Text(), of_distributed(found.path, together[-1], console.width)))
    return not any(run.damaged_lines for run in found.runs)


def _show_segment(options: InspectOptions) -> bool:
    for word in options.given():
        if word in ("--by", "--sort"):
            why = "whose arrays are shown one by one; leave it out, or name the run's folder"
            raise ArgumentError(f"inspect: got {word} with a segment, {why}")
    segment = inspect_segment(options.path)
    if options.as_json:
        json_output.show({"segments": [segment_as_dict(segment)]})
    else:
        console = Console()
        show(console, of_segment(segment, options.top or TOP, console.width))
    return is_sound(segment)
