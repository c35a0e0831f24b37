"""`spillgrad bench kernels`: run each library in its own process, compare the results, then time them in turns."""

import dataclasses
import itertools
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from rich.console import Console

from spillgrad.device.device import as_device
from spillgrad.errors import ArgumentError
from spillgrad_kernels.cuda.driver.availability import SIMULATED
from spillgrad_kernels.threads.dispatch import get_num_threads
from spillgrad_tools.bench import report, results
from spillgrad_tools.bench.bars import Yardstick
from spillgrad_tools.bench.case_runner import CaseRunner
from spillgrad_tools.bench.cases import CASES, FLOATS_LOG2, Case, Result, cuda_cases
from spillgrad_tools.bench.harness import RequestFailed, Worker, WorkerEnded, in_turns, is_installed, medians, spreads
from spillgrad_tools.bench.machine import machine
from spillgrad_tools.bench.options import KernelOptions

# The libraries that are timed on each device.
TIMED = {"cpu": ("ours", "numpy", "torch"), "cuda": ("ours", "torch")}
# The number of arrays of an elementwise row that the two processes on a GPU hold at once.
ARRAYS = 24


class Contenders:
    """The processes that are timed in turns on a device, and a process with NumPy, which computes the references.

    PyTorch is left out if it is not installed. On a GPU it is left out also if it does not load, if it finds no device,
    or if the device is simulated.
    """

    def __init__(self, device: str, threads: int, stack: ExitStack) -> None:
        self.device = device
        self._threads, self._stack = threads, stack
        self.workers: dict[str, Worker] = {}
        for library in dict.fromkeys((*TIMED[device], "numpy")):
            if library == "torch" and (not is_installed("torch") or (device == "cuda" and SIMULATED)):
                continue
            try:
                self.start(library)
            except WorkerEnded:  # its stderr says why
                if device == "cpu" or library != "torch":
                    raise
            else:
                if self.workers[library].version is None:
                    self.stop(library)

    def start(self, library: str) -> None:
        """Start the process of a library."""
        worker = Worker(CaseRunner, library, self._threads, device=self.device)
        self.workers[library] = self._stack.enter_context(worker)

    def stop(self, library: str) -> None:
        """End the process of a library."""
        self.workers.pop(library).close()

    def timed(self) -> list[Worker]:
        """Return the processes that are timed."""
        return [self.workers[library] for library in TIMED[self.device] if library in self.workers]


def matching(every: Sequence[Case], name: str, quick: bool) -> list[Case]:
    """Return the cases whose name contains `name`, without heavy cases if `quick`. Raises ArgumentError for none."""
    cases = [case for case in every if name in case.name and not (quick and case.heavy)]
    if not cases:
        words = ", ".join(dict.fromkeys(case.name.split()[0].rstrip(",") for case in every))
        raise ArgumentError(f"bench: no case has '{name}' in its name; filter by one of {words}")
    return cases


def rounds_of(case: Case, rounds: int) -> int:
    """Return the number of rounds of a case: a third of `rounds` for a heavy case, whose times vary less."""
    return min(rounds, max(3, rounds // 3)) if case.heavy else rounds


def log2_floats(gpu_bytes: int) -> int:
    """Return the base-2 logarithm of the number of elements of elementwise rows on a GPU with `gpu_bytes`."""
    fitting = max(1, gpu_bytes * 4 // 5 // (4 * ARRAYS)).bit_length() - 1
    return max(min(FLOATS_LOG2), min(max(FLOATS_LOG2), fitting))


def time_case(case: Case, workers: Sequence[Worker], threads: int, rounds: int) -> Result:
    """Time a case and return the medians; in each of the `rounds`, workers and the bars' yardsticks take turns."""
    known = {worker.library: worker for worker in workers}
    turns = {}
    own = [Yardstick(library, library) for library in known]
    for timed in itertools.chain(own, *(bar.yardsticks for bar in case.bars)):
        if timed.library in known and (timed.threads is None or threads == 2):
            what = "copy" if timed.copies else "case"
            turns[timed.name] = partial(known[timed.library].ask, do="time", what=what, threads=timed.threads)
    taken = list(in_turns(turns, rounds))
    return Result(case, medians(taken), rounds, spread=spreads(taken))


def measure(cases: Sequence[Case], contenders: Contenders, threads: int, rounds: int) -> Iterator[Result]:
    """Check and time each case, and yield its result.

    On the CPU, raises RuntimeError if a library fails or disagrees with NumPy's float64 results. On a GPU, the reason
    goes to the result's `failures` in place of the library's time, and the other libraries are timed. A library that
    failed gets a new process, as its memory may be lost.
    """
    ours: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as directory:
        computed: tuple[object, ...] | None = None
        for case in cases:
            if case.computes != computed:
                contenders.workers["numpy"].ask(do="reference", case=case.name, directory=directory)
                computed = case.computes
            result = _measured(case, contenders, directory, threads, rounds_of(case, rounds))
            if case.beside is not None and case.beside[1] in ours:
                result.seconds[case.beside[0]] = ours[case.beside[1]]
            if "ours" in result.seconds:
                ours[case.name] = result.seconds["ours"]
            yield result


def _measured(case: Case, contenders: Contenders, directory: str, threads: int, rounds: int) -> Result:
    failures: dict[str, str] = {}

    def note(worker: Worker, why: str, error: Exception | None = None) -> None:
        """On the CPU, raise. On a GPU, record `why` in `failures`; after an `error`, replace the library's process."""
        if contenders.device == "cpu":
            raise error or RuntimeError(f"bench {case.name}: {worker.library} differs from NumPy by {why}")
        failures[worker.library] = why if error else f"wrong: {why}"
        if error:
            contenders.stop(worker.library)
            contenders.start(worker.library)

    able = []
    for worker in contenders.timed():
        try:
            share = worker.ask(do="check", case=case.name, directory=directory)
        except (RequestFailed, WorkerEnded) as error:
            note(worker, str(error), error)
            continue
        if share is not None and not share <= 1:
            note(worker, f"{share:.3g} × what is allowed")
        elif share is not None:
            able.append(worker)
    while able:
        try:
            result = dataclasses.replace(time_case(case, able, threads, rounds), failures=failures)
            if (
                contenders.device == "cpu" and "ours" in result.seconds
            ):  # the machine's speed changes: its limit is measured with each row
                limit_s = contenders.workers["ours"].ask(do="limit_s", case=case.name)
                result = dataclasses.replace(result, limit_s=limit_s)
            return result
        except (RequestFailed, WorkerEnded) as error:
            failing = next(worker for worker in able if worker.library == error.library)
            note(failing, str(error), error)
            able = [worker for worker in able if worker is not failing]
    return Result(case, {}, rounds, failures)


def run(options: KernelOptions) -> None:
    """Time the cases whose name contains `options.name` and print the times; write them to a folder if one is named.

    Raises DeviceError if the options ask for a GPU and there is none. Raises ArgumentError if no case has such a name,
    or if the file would lack a row or a library.
    """
    on_gpu, rounds = options.device == "cuda", options.rounds
    every: Sequence[Case] = CASES
    if on_gpu:
        as_device("cuda")
    else:
        matching(every, options.name, options.quick)  # raises before processes start
        _require_all(options, every, is_installed("torch"))
    threads = options.threads or get_num_threads()
    with ExitStack() as stack:
        contenders = Contenders(options.device, threads, stack)
        about: dict[str, Any] = {**machine(), "threads": threads}
        if on_gpu:
            gpu = contenders.workers["ours"].ask(do="about")
            every = cuda_cases(SIMULATED, log2_floats(gpu["gpu_bytes"]))
            _require_all(options, every, "torch" in contenders.workers)
            about = {**machine(), **gpu}
        else:
            about["limits"] = contenders.workers["ours"].ask(do="limits")
        cases = matching(every, options.name, options.quick)
        about |= {"rounds": rounds, "libraries": [worker.version for worker in contenders.timed()]}
        found: list[Result] = []
        with Console(stderr=True).status("checking and timing") as status:
            for result in measure(cases, contenders, threads, rounds):
                found.append(result)
                if on_gpu:  # the rows take minutes: if the run ends early, the rows so far were printed
                    status.console.print(report.row_as_text(result, TIMED["cuda"]), highlight=False, soft_wrap=True)
                status.update(f"{len(found)} of {len(cases)}, {result.case.name} done")
    rows = [result.as_json() for result in found]
    if options.page:
        name, command = ("cuda", " --device cuda") if on_gpu else ("kernels", "")
        results.write(options.page, name, f"spillgrad bench kernels{command}", about, rows)
    if options.as_json:
        report.print_json(machine=about, results=rows)
    else:
        report.show_kernels(about, found, TIMED[options.device], options.bars)


def _require_all(options: KernelOptions, every: Sequence[Case], has_torch: bool) -> None:
    if options.page and (len(matching(every, options.name, options.quick)) < len(every) or not has_torch):
        mend = "install a PyTorch that finds the GPU" if options.device == "cuda" else "pip install torch"
        raise ArgumentError(
            f"bench: --write takes every row and PyTorch's times; leave out --filter and --quick, and {mend}"
        )
