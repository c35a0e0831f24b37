"""`spillgrad bench models`: training steps of ordinary models, beside the same code with PyTorch."""

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
from rich.console import Console

from spillgrad.errors import ArgumentError
from spillgrad_kernels.threads.dispatch import get_num_threads
from spillgrad_tools.bench import results
from spillgrad_tools.bench.bars import Row, Verdict
from spillgrad_tools.bench.harness import (
    LIBRARY_NAMES,
    Worker,
    in_turns,
    is_installed,
    medians,
    require_agreement,
    spreads,
)
from spillgrad_tools.bench.machine import machine
from spillgrad_tools.bench.operations import load
from spillgrad_tools.bench.options import ModelOptions
from spillgrad_tools.bench.programs import convolutional, others, transformers
from spillgrad_tools.bench.programs.program import Program, Step
from spillgrad_tools.bench.report import print_json, show_rows

PROGRAMS = {program.name: program for program in (*convolutional.PROGRAMS, *transformers.PROGRAMS, *others.PROGRAMS)}
# The losses of this many first steps are compared, in float64: what two libraries round differently in float32 grows
# from step to step, in deep networks with normalisation over a batch by orders of magnitude.
COMPARED_STEPS = 3
TOLERANCE = 1e-9
# A timing takes steps for about this long, after steps for a fifth of that, in which threads and caches get ready.
TIMING_S = 0.5
# The goals: of each program, and of the median of all.
LEAST, LEAST_MEDIAN = 0.9, 1.2


class ProgramRunner:
    """Trains programs with one library: `losses` returns a program's first ones, `build` makes it, `time` times it."""

    survives = False

    def __init__(self, library: str, threads: int, device: str = "cpu") -> None:
        self.library = load(library, device)
        self.version = self.library.version
        self.library.set_num_threads(threads)
        self.step: Step | None = None
        self.count = 0

    def losses(self, program: str) -> list[float]:
        """Return the losses of a program's first steps, computed in float64."""
        top = self.library.top
        top.set_default_dtype(top.float64)
        try:
            step = PROGRAMS[program].make(top, np.random.default_rng(0))
            return [float(step().item()) for _ in range(COMPARED_STEPS)]
        finally:
            top.set_default_dtype(top.float32)

    def build(self, program: str) -> None:
        """Make a program in float32, and find out how many steps fill a timing."""
        self.step = None  # frees the program before
        self.step = PROGRAMS[program].make(self.library.top, np.random.default_rng(0))
        self._seconds(2)  # the first steps compile kernels, and make the optimizer's state
        self.count = max(1, round(TIMING_S / self._seconds(2)))

    def time(self) -> float:
        """Return the seconds of a step."""
        self._seconds(max(1, self.count // 5))
        return self._seconds(self.count)

    def _seconds(self, steps: int) -> float:
        assert self.step
        started = time.perf_counter()
        for _ in range(steps):
            self.step()
        return (time.perf_counter() - started) / steps


def measure(programs: Sequence[Program], workers: Sequence[Worker], rounds: int) -> Iterator[dict[str, Any]]:
    """Compare and time each program; yield the medians of its seconds, and their quartiles, by library.

    Raises RuntimeError if the losses of the libraries differ.
    """
    for program in programs:
        losses = {worker.library: worker.ask(do="losses", program=program.name) for worker in workers}
        for number in range(COMPARED_STEPS):
            found = {library: each[number] for library, each in losses.items()}
            require_agreement(f"bench models, {program.name}: losses", found, number + 1, TOLERANCE)
        for worker in workers:
            worker.ask(do="build", program=program.name)
        taken = list(in_turns({worker.library: partial(worker.ask, do="time") for worker in workers}, rounds))
        yield {"seconds": medians(taken), "spread": spreads(taken)}


def run(options: ModelOptions) -> None:
    """Time the programs whose name contains `options.name`; write the times to a folder if one is named.

    Raises ArgumentError if no program has such a name, or if the file would lack a program or PyTorch.
    """
    chosen = [program for program in PROGRAMS.values() if options.name.lower() in program.name.lower()]
    if not chosen:
        raise ArgumentError(f"bench: got --filter {options.name}; the models are {', '.join(PROGRAMS)}")
    libraries = [library for library in ("ours", "torch") if is_installed(library)]
    if options.page and (len(chosen) < len(PROGRAMS) or "torch" not in libraries):
        raise ArgumentError("bench: --write takes every model and PyTorch's times; leave out --filter, install torch")
    threads = options.threads or get_num_threads()
    rows = []
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(ProgramRunner, library, threads)) for library in libraries]
        status = stack.enter_context(Console(stderr=True).status("compiling and timing"))
        for program, found in zip(chosen, measure(chosen, workers, options.rounds), strict=True):
            rows.append({"case": program.name, "describes": program.describes, **found})
            status.update(f"{len(rows)} of {len(chosen)}, {program.name} done")
    about = {**machine(), "threads": threads, "rounds": options.rounds}
    about["libraries"] = [worker.version for worker in workers]
    if options.page:
        results.write(options.page, "models", "spillgrad bench models", about, rows)
    if options.as_json:
        print_json(machine=about, results=rows)
    else:
        show_rows(False, about, list(judged(rows)), options.bars)


def judged(rows: Sequence[dict[str, Any]]) -> Iterator[Row]:
    """Yield the rows with their verdicts, and a last row with the median of all ratios, if PyTorch was timed."""
    ratios = []
    for row in rows:
        seconds = row["seconds"]
        verdicts = []
        if "torch" in seconds:
            ratios.append(seconds["torch"] / seconds["ours"])
            verdicts.append(Verdict("× PyTorch", ratios[-1], LEAST))
        yield Row(row["case"], "s", {LIBRARY_NAMES[key]: value for key, value in seconds.items()}, tuple(verdicts))
    if ratios:
        yield Row("median of all", "s", {}, (Verdict("× PyTorch", statistics.median(ratios), LEAST_MEDIAN),))
