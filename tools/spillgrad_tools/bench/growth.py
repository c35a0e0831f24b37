"""`spillgrad bench growth`: how the time of a step grows with layers, batch, context, saved tensors and parameters."""

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Column, Table

import spillgrad as sg
from spillgrad.errors import ArgumentError
from spillgrad_kernels.threads.dispatch import get_num_threads
from spillgrad_tools.bench import results
from spillgrad_tools.bench.harness import Worker
from spillgrad_tools.bench.machine import machine
from spillgrad_tools.bench.operations import load
from spillgrad_tools.bench.options import GrowthOptions
from spillgrad_tools.bench.report import print_json
from spillgrad_tools.quantities import UNKNOWN, format_duration

Step = Callable[[], object]
# A size is timed for at least this long, after one step that is not timed, but at most this often.
TIMING_S, MOST_STEPS = 1.0, 50
# The numbers in each tensor of the series that count tensors: a call costs more than they do. With fewer numbers,
# tensors would not go to disk.
NUMBERS, NUMBERS_ON_DISK = 4, 1024


def _gpt(layers: int = 4, batch: int = 4, context: int = 128) -> Step:
    config = sg.models.GPTConfig(vocab_size=256, context=context, n_layer=layers, n_head=4, n_embd=128)
    model = sg.models.build(config)
    optimizer = sg.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = np.random.default_rng(0).integers(0, 256, (batch, context + 1))

    def step() -> None:
        optimizer.zero_grad()
        _, loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()

    return step


def _chain(operations: int, directory: str | None = None) -> Step:
    """Return a step of a chain of operations, each of which saves a tensor."""
    start = sg.ones(NUMBERS if directory is None else NUMBERS_ON_DISK, requires_grad=True)

    def step() -> None:
        with nullcontext() if directory is None else sg.save_on_disk(directory, ram_budget=0):
            x = start
            for _ in range(operations):
                x = sg.tanh(x)
        x.sum().backward()

    return step


def _parameters(count: int) -> Step:
    parameters = [sg.nn.Parameter(sg.ones(NUMBERS)) for _ in range(count)]
    for parameter in parameters:
        parameter.grad = sg.ones(NUMBERS)
    optimizer = sg.optim.AdamW(parameters, lr=1e-3)
    return optimizer.step


@dataclasses.dataclass(frozen=True)
class Series:
    """Sizes of one kind: `make` returns the step of a size. `more_than_linear` says why the time may grow faster."""

    name: str
    sizes: tuple[int, ...]
    make: Callable[[int, str], Step]
    more_than_linear: str = ""


SERIES = {
    series.name: series
    for series in (
        Series("layers", (2, 4, 8, 16), lambda size, _: _gpt(layers=size)),
        Series("batch", (2, 4, 8, 16), lambda size, _: _gpt(batch=size)),
        Series(
            "context", (64, 128, 256, 512), lambda size, _: _gpt(context=size), "attention grows with the square"
        ),
        Series("saved tensors", (10**3, 10**4, 10**5, 10**6), lambda size, _: _chain(size)),
        Series("saved tensors on disk", (10**3, 10**4, 10**5), _chain),
        Series("parameters", (10**3, 10**4, 10**5, 10**6), lambda size, _: _parameters(size)),
    )
}  # fmt: skip


class GrowthRunner:
    """Times steps of one size."""

    survives = False

    def __init__(self, library: str, threads: int, device: str = "cpu") -> None:
        loaded = load(library, device)
        self.version = loaded.version
        loaded.set_num_threads(threads)

    def time(self, series: str, size: int) -> float:
        """Return the median of the seconds of a step."""
        with tempfile.TemporaryDirectory() as directory:
            step = SERIES[series].make(size, directory)
            step()
            seconds: list[float] = []
            while not seconds or (sum(seconds) < TIMING_S and len(seconds) < MOST_STEPS):
                started = time.perf_counter()
                step()
                seconds.append(time.perf_counter() - started)
        return statistics.median(seconds)


def measure(chosen: list[Series], largest: int, threads: int) -> Iterator[dict[str, Any]]:
    """Time each size up to `largest` in a process of its own; yield the rows."""
    for series in chosen:
        before: dict[str, Any] | None = None
        for size in series.sizes:
            if size > largest:
                continue
            with Worker(GrowthRunner, "ours", threads) as worker:
                seconds = worker.ask("time", series=series.name, size=size)
            row = {"series": series.name, "size": size, "seconds": seconds}
            if before is not None:
                times = row["seconds"] / before["seconds"]
                row["growth"] = times / (size / before["size"])
            if series.more_than_linear:
                row["more_than_linear"] = series.more_than_linear
            yield row
            before = row


def run(options: GrowthOptions) -> None:
    """Time the series whose name contains `options.name`; write the times to a folder if one is named.

    Raises ArgumentError if no series has such a name, or if the file would lack one.
    """
    chosen = [series for series in SERIES.values() if options.name in series.name]
    if not chosen:
        raise ArgumentError(f"bench: got --filter {options.name}; it takes one of {', '.join(SERIES)}")
    if options.page and (len(chosen) < len(SERIES) or options.largest is not None):
        raise ArgumentError("bench: --write takes every size; leave out --filter and --largest")
    threads = options.threads or get_num_threads()
    largest = options.largest or max(size for series in chosen for size in series.sizes)
    rows = []
    with Console(stderr=True).status("timing") as status:
        for row in measure(chosen, largest, threads):
            rows.append(row)
            status.update(f"{row['series']} {row['size']:,} done")
    about = {**machine(), "threads": threads}
    if options.page:
        results.write(options.page, "growth", "spillgrad bench growth", about, rows)
    if options.as_json:
        print_json(machine=about, results=rows)
        return
    table = Table(
        "what", *(Column(head, justify="right") for head in ("number", "a step", "each", "× linear")), box=SIMPLE
    )
    for row in rows:
        each = format_duration(row["seconds"] / row["size"])
        growth = f"{row['growth']:.2f}" if "growth" in row else UNKNOWN
        table.add_row(row["series"], f"{row['size']:,}", format_duration(row["seconds"]), each, growth)
    table.caption = "× linear 1.10: the step takes 1.1 times as much longer as there is more than in the line above"
    Console().print(table)
