"""`spillgrad bench kernels`: each library in its own process, results compared first, then timed in turns."""

import importlib.util
import json
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from spillgrad.errors import ArgumentError
from spillgrad_kernels.dispatch import get_num_threads
from spillgrad_tools.bench import numpy as bench_numpy
from spillgrad_tools.bench.bars import Yardstick
from spillgrad_tools.bench.cases import CASES, Case, Result
from spillgrad_tools.bench.harness import Worker
from spillgrad_tools.bench.options import KernelOptions
from spillgrad_tools.bench.report import kernels_as_markdown, machine, show_kernels, write_between_markers

MARKER = "bench kernels"


def matching(every: Sequence[Case], name: str, quick: bool) -> list[Case]:
    """Return the cases whose name contains `name`, without the heavy ones if it has to be quick.

    Raises ArgumentError when there is none.
    """
    cases = [case for case in every if name in case.name and not (quick and case.heavy)]
    if not cases:
        words = ", ".join(dict.fromkeys(case.name.split()[0].rstrip(",") for case in every))
        raise ArgumentError(f"bench: no case has '{name}' in its name; filter by one of {words}")
    return cases


def rounds_of(case: Case, rounds: int) -> int:
    """Return the rounds of a case. Heavy ones, whose times vary less, get a third."""
    return min(rounds, max(3, rounds // 3)) if case.heavy else rounds


def check(case: Case, workers: Sequence[Worker], directory: Path) -> None:
    """Have every worker take up the case, and raise RuntimeError unless its results agree with the reference's."""
    for worker in workers:
        share = worker.ask(do="check", case=case.name, directory=str(directory))["disagreement"]
        if not share <= 1:
            raise RuntimeError(
                f"bench {case.name}: {worker.library} differs from NumPy by {share:.3g} × what is allowed"
            )


def time_case(case: Case, workers: Sequence[Worker], threads: int, rounds: int) -> Result:
    """Return the medians of so many rounds, in each of which the workers, and the yardsticks, take turns."""
    known = {worker.library: worker for worker in workers}
    wanted = [Yardstick(library, library) for library in known]
    for yardstick in {yardstick: None for bar in case.bars for yardstick in bar.yardsticks}:
        if yardstick.library in known and (yardstick.threads is None or threads == 2):
            wanted.append(yardstick)
    times: dict[str, list[float]] = {yardstick.name: [] for yardstick in wanted}
    for _ in range(rounds):
        for yardstick in wanted:
            what = "copy" if yardstick.copies else "case"
            answer = known[yardstick.library].ask(do="time", what=what, threads=yardstick.threads)
            times[yardstick.name].append(answer["seconds"])
    return Result(case, {name: statistics.median(taken) for name, taken in times.items()}, rounds)


def measure(cases: Sequence[Case], workers: Sequence[Worker], threads: int, rounds: int) -> Iterator[Result]:
    """Check and time each case."""
    (numpy,) = [worker for worker in workers if worker.library == "numpy"]
    with tempfile.TemporaryDirectory() as directory:
        computed: tuple[object, ...] | None = None
        for case in cases:
            if case.computes != computed:
                numpy.ask(do="reference", case=case.name, directory=directory)
                computed = case.computes
            numpy_can = case.operation in bench_numpy.OPERATIONS and not case.wants_gradient
            able = [worker for worker in workers if worker is not numpy or numpy_can]
            check(case, able, Path(directory))
            yield time_case(case, able, threads, rounds_of(case, rounds))


def run(options: KernelOptions) -> None:
    """Time the cases whose name contains `options.name`, print them, and write them into a page.

    Raises ArgumentError when there is no such case, or when the page would not get every row of every library.
    """
    page, rounds = options.page, options.rounds
    cases = matching(CASES, options.name, options.quick)
    libraries = ["ours", "numpy", *(["torch"] if importlib.util.find_spec("torch") else [])]
    if page and (len(cases) < len(CASES) or "torch" not in libraries):
        raise ArgumentError(
            "bench: a page gets every row and PyTorch's times; leave out --filter and --quick, and pip install torch"
        )
    threads = options.threads or get_num_threads()
    with ExitStack() as stack:
        workers = [
            stack.enter_context(Worker("spillgrad_tools.bench.case_runner", library, threads)) for library in libraries
        ]
        about = {**machine(), "threads": threads, "rounds": rounds, "libraries": [worker.version for worker in workers]}
        results: list[Result] = []
        with Console(stderr=True).status("checking and timing") as status:
            for result in measure(cases, workers, threads, rounds):
                status.update(f"{len(results) + 1} of {len(cases)}, {result.case.name} done")
                results.append(result)
    if page:
        write_between_markers(page, MARKER, kernels_as_markdown(about, results))
    if options.as_json:
        print(json.dumps({"machine": about, "results": [result.as_json() for result in results]}, indent=2))
    else:
        show_kernels(about, results)
