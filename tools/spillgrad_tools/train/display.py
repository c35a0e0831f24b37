"""Show a training run: progress, which is redrawn on a terminal and printed in lines elsewhere, and a final table."""

import contextlib
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

import spillgrad as sg
from spillgrad.distributed.process_group import is_under_mpi
from spillgrad.storage.sizes import format_bytes
from spillgrad_kernels.jit.compile import counts
from spillgrad_tools.memory_cap import peak_rss_bytes
from spillgrad_tools.named_values import named_values
from spillgrad_tools.quantities import format_duration
from spillgrad_tools.train.saves import Saves
from spillgrad_tools.train.training import Evaluation, StepRecord, Training

# The least time between two lines of progress where lines cannot be redrawn.
LINE_EVERY_S = 10.0


def numbers(record: StepRecord) -> str:
    """Return the loss, speed, memory, spilled bytes and share of waiting of a step, in one line."""
    return (
        f"loss {record.loss:.4f}  {record.tokens_per_s:,.0f} tokens/s  RSS {format_bytes(record.rss_bytes)}  "
        f"spilled {format_bytes(record.written_bytes)}  waiting {record.wait_share:.0%}"
    )


def output_console(is_quiet: bool = False) -> Console:
    """Return a console for standard output that redraws lines only on a terminal, and prints nothing if `is_quiet`.

    Rich alone would redraw lines in a pipe where FORCE_COLOR is set, as Jupyter sets it for the commands of a cell. To
    processes that MPI's launcher starts, it shows a terminal even where it passes their output on to a file.
    """
    if is_under_mpi():
        return Console(force_terminal=False, force_interactive=False, quiet=is_quiet)
    return Console(force_interactive=None if sys.stdout.isatty() else False, quiet=is_quiet)


class _Preparation:
    """A text for rich with the number of kernels compiled so far: the first step waits for the kernels."""

    def __rich__(self) -> Text:
        return Text(f"compiling kernels: {counts.compiled}" if counts.compiled else "preparing", style="dim")


def show_preparation(console: Console) -> contextlib.AbstractContextManager[object]:
    """Return a context manager that, on a terminal, shows how many kernels were compiled so far."""
    return Live(_Preparation(), console=console, transient=True) if console.is_interactive else contextlib.nullcontext()


def show_progress(console: Console, records: Iterable[StepRecord], first: int, last: int) -> Iterator[StepRecord]:
    """Yield each of the records, which are of the steps `first` + 1 to `last`, and show the progress."""
    if console.is_interactive:
        yield from _redrawn(console, records, first, last)
    else:
        yield from _lines(console, records, last)


def _redrawn(console: Console, records: Iterable[StepRecord], first: int, last: int) -> Iterator[StepRecord]:
    bar = Progress(
        TextColumn("step"), MofNCompleteColumn(), BarColumn(), TimeElapsedColumn(), TextColumn("left"),
        TimeRemainingColumn(),
    )  # fmt: skip
    task = bar.add_task("train", completed=first, total=last)
    with Live(Group(bar, _Preparation()), console=console) as live:
        for record in records:
            bar.update(task, completed=record.step)
            live.update(Group(bar, Text(numbers(record))))
            yield record


def _lines(console: Console, records: Iterable[StepRecord], last: int) -> Iterator[StepRecord]:
    printed_s = -LINE_EVERY_S
    # The first step compiles kernels, and tells nothing of the others.
    begun: tuple[int, float] | None = None
    for record in records:
        now_s = time.monotonic()
        if record.step == last or now_s - printed_s >= LINE_EVERY_S:
            left = ""
            if begun is not None and record.step < last:
                left_s = (now_s - begun[1]) / (record.step - begun[0]) * (last - record.step)
                left = f"  {format_duration(round(left_s))} left"
            printed_s = now_s
            show_line(console, f"step {record.step}/{last}  {numbers(record)}{left}")
        begun = begun or (record.step, now_s)
        yield record


def show_report(
    console: Console, training: Training, held_out: Evaluation, last_records: Sequence[StepRecord], duration_s: float,
    saves: Saves, best: str | None = None,
) -> None:  # fmt: skip
    """Print the final table of a run whose training took `duration_s`. Units: losses in nats per token."""
    stats = training.stats()
    waited_s = stats.wait_write_s + stats.wait_read_s
    last = last_records[-1]
    steps = last.step - training.first_step
    speed = sum(record.tokens for record in last_records) / sum(record.duration_s for record in last_records)
    batches = f"{held_out.batches} of {held_out.all_batches} batches"
    some = "" if held_out.batches == held_out.all_batches else f" ({batches})"
    unit = f"nats/{training.source.unit}"
    rows = {
        "train loss (last steps)": f"{statistics.fmean(record.loss for record in last_records):.4f} {unit}",
        f"held-out loss{some}": f"{held_out.loss:.4f} {unit}",
        **({} if best is None else {"best held-out loss": best}),
        "speed": f"{speed:,.0f} tokens/s",
        "peak RSS": format_bytes(peak_rss_bytes()),
    }
    if training.ranks.size > 1:
        rows["processes"] = f"{training.ranks.size}; what follows is of the first"
    if training.device.type == "cuda":
        rows["peak on the GPU"] = format_bytes(sg.cuda.max_memory_allocated())
    rows |= {
        "saved tensors packed": format_bytes(stats.packed_bytes),
        "deduplicated": format_bytes(stats.deduplicated_bytes),
        "written to disk": _moved(stats.written_bytes, stats.stored_bytes),
        "written a step": _moved(last.written_bytes // steps, last.stored_bytes // steps),
        "read from disk": _moved(stats.read_bytes, stats.fetched_bytes),
        "read a step": _moved(last.read_bytes // steps, last.fetched_bytes // steps),
        "waited for the disk": f"{waited_s:.1f} s ({waited_s / duration_s:.1%} of the time)",
        "saved checkpoints": f"{saves.count}, in {saves.seconds:.1f} s",
    }
    console.print(named_values(rows))


def _moved(nbytes: int, on_disk: int) -> str:
    return format_bytes(nbytes) + ("" if on_disk == nbytes else f", stored as {format_bytes(on_disk)}")


def show_sample(console: Console, sample: str) -> None:
    """Print text that a model wrote, with U+FFFD in place of control characters, which a terminal would obey."""
    console.rule("sample")
    console.print(Text("".join(letter if letter.isprintable() or letter == "\n" else "\ufffd" for letter in sample)))
    console.rule()


def show_line(console: Console, line: str) -> None:
    """Print a line without wrapping it, so that a path in it can be copied."""
    console.print(Text(line), soft_wrap=True)
