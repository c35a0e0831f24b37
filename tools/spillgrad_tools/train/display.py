"""What a user sees of a training run: progress on a terminal, a line now and then elsewhere, the report at the end."""

import contextlib
import dataclasses
import time
from collections.abc import Iterable, Iterator

from rich.box import SIMPLE
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from spillgrad.storage.sizes import format_bytes
from spillgrad_kernels.jit.compile import counts
from spillgrad_tools.train.training import Evaluation, StepRecord

# The least time between two lines where lines cannot be redrawn.
LINE_EVERY_S = 10.0


def numbers(record: StepRecord) -> str:
    """Return what is worth watching, in one line."""
    return (
        f"loss {record.loss:.4f}  {record.tokens_per_s:,.0f} tokens/s  RSS {format_bytes(record.rss_bytes)}  "
        f"spilled {format_bytes(record.written_bytes)}  waiting {record.wait_share:.0%}"
    )


class _Preparation:
    """Shows what the first step waits for."""

    def __rich__(self) -> Text:
        return Text(f"compiling kernels: {counts.compiled}" if counts.compiled else "preparing", style="dim")


def show_preparation(console: Console) -> contextlib.AbstractContextManager[object]:
    """On a terminal, say inside the block how many kernels were compiled so far."""
    return Live(_Preparation(), console=console, transient=True) if console.is_interactive else contextlib.nullcontext()


def show_progress(console: Console, records: Iterable[StepRecord], first: int, last: int) -> Iterator[StepRecord]:
    """Pass the records of steps `first` + 1 to `last` on, showing each as it comes."""
    if console.is_interactive:
        yield from _redrawn(console, records, first, last)
    else:
        yield from _lines(console, records, last)


def _redrawn(console: Console, records: Iterable[StepRecord], first: int, last: int) -> Iterator[StepRecord]:
    bar = Progress(
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    task = bar.add_task("train", completed=first, total=last)
    with Live(Group(bar, _Preparation()), console=console) as live:
        for record in records:
            bar.update(task, completed=record.step)
            live.update(Group(bar, Text(numbers(record))))
            yield record


def _lines(console: Console, records: Iterable[StepRecord], last: int) -> Iterator[StepRecord]:
    printed_s = -LINE_EVERY_S
    for record in records:
        if record.step == last or time.monotonic() - printed_s >= LINE_EVERY_S:
            printed_s = time.monotonic()
            show_line(console, f"step {record.step}/{last}  {numbers(record)}")
        yield record


@dataclasses.dataclass(frozen=True)
class Report:
    """The results of a finished run; losses in nats per byte."""

    train_loss: float
    held_out: Evaluation
    tokens_per_s: float
    peak_rss_bytes: int
    peak_device_bytes: int | None  # of a CUDA device
    packed_bytes: int
    deduplicated_bytes: int
    written_bytes: int
    written_bytes_per_step: int
    stored_bytes: int  # their size after a codec
    read_bytes: int
    read_bytes_per_step: int
    waited_s: float
    wait_share: float
    saves: int
    saving_s: float


def show_report(console: Console, report: Report) -> None:
    """Print the table at the end of a run."""
    written = format_bytes(report.written_bytes)
    if report.stored_bytes != report.written_bytes:
        written += f", stored as {format_bytes(report.stored_bytes)}"
    table = Table(box=SIMPLE, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    of_device = (
        [] if report.peak_device_bytes is None else [("peak on the GPU", format_bytes(report.peak_device_bytes))]
    )
    for name, value in (
        ("train loss (last steps)", f"{report.train_loss:.4f} nats/byte"),
        (f"held-out loss{_share(report.held_out)}", f"{report.held_out.loss:.4f} nats/byte"),
        ("speed", f"{report.tokens_per_s:,.0f} tokens/s"),
        ("peak RSS", format_bytes(report.peak_rss_bytes)),
        *of_device,
        ("saved tensors packed", format_bytes(report.packed_bytes)),
        ("deduplicated", format_bytes(report.deduplicated_bytes)),
        ("written to disk", written),
        ("written a step", format_bytes(report.written_bytes_per_step)),
        ("read from disk", format_bytes(report.read_bytes)),
        ("read a step", format_bytes(report.read_bytes_per_step)),
        ("waited for the disk", f"{report.waited_s:.1f} s ({report.wait_share:.1%} of the time)"),
        ("saved checkpoints", f"{report.saves}, in {report.saving_s:.1f} s"),
    ):
        table.add_row(name, value)
    console.print(table)


def _share(evaluation: Evaluation) -> str:
    if evaluation.batches == evaluation.all_batches:
        return ""
    return f" ({evaluation.batches} of {evaluation.all_batches} batches)"


def show_sample(console: Console, sample: str) -> None:
    """Print a model's text; replace control characters, which could command the terminal."""
    console.rule("sample")
    shown = "".join(
        letter if letter.isprintable() or letter == "\n" else "\N{REPLACEMENT CHARACTER}" for letter in sample
    )
    console.print(Text(shown))
    console.rule()


def show_line(console: Console, line: str) -> None:
    """Print a line as it is: not wrapped, so that a path in it can be copied."""
    console.print(Text(line), soft_wrap=True)
