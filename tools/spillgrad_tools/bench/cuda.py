"""`spillgrad bench kernels --device cuda`: spillgrad beside PyTorch on one GPU, each in a process of its own."""

import importlib.util
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from rich.console import Console

from spillgrad.device import as_device
from spillgrad.errors import ArgumentError
from spillgrad_kernels.cuda.availability import SIMULATED
from spillgrad_kernels.dispatch import get_num_threads
from spillgrad_tools.bench.cases import Case, Result
from spillgrad_tools.bench.cuda_cases import FLOATS_LOG2, cuda_cases
from spillgrad_tools.bench.harness import RequestFailed, Worker, WorkerEnded
from spillgrad_tools.bench.kernels import matching, rounds_of, time_case
from spillgrad_tools.bench.options import KernelOptions
from spillgrad_tools.bench.report import cuda_as_markdown, cuda_row_as_text, machine, show_cuda, write_between_markers

MARKER = "bench cuda"
MODULE = "spillgrad_tools.bench.case_runner"
# Arrays of the elementwise rows that two processes hold at once.
ARRAYS = 24


class Contenders:
    """The processes that take turns on the device, and NumPy's for what should come out.

    One that failed is replaced: what failed on a GPU may have taken its memory with it.
    """

    def __init__(self, threads: int, stack: ExitStack) -> None:
        self._threads, self._stack = threads, stack
        self._open: dict[str, ExitStack] = {}
        self.workers: dict[str, Worker] = {}
        # PyTorch beside a device that is simulated would be beside nothing.
        for library in ("numpy", "ours"):
            self.start(library)
        if importlib.util.find_spec("torch") and not SIMULATED:
            with suppress(WorkerEnded):  # a PyTorch that does not load has said why, and there is no such column
                self.start("torch")
            if "torch" in self.workers and self.workers["torch"].version is None:  # it finds no device
                self.stop("torch")

    def start(self, library: str) -> None:
        """Start a process."""
        self._open[library] = self._stack.enter_context(ExitStack())
        self.workers[library] = self._open[library].enter_context(Worker(MODULE, library, self._threads, device="cuda"))

    def stop(self, library: str) -> None:
        """End a process."""
        del self.workers[library]
        self._open.pop(library).close()

    def timed(self) -> list[Worker]:
        """Return those that are timed."""
        return [worker for library, worker in self.workers.items() if library != "numpy"]


def log2_floats(gpu_bytes: int) -> int:
    """Return the logarithm of how many numbers the elementwise rows have on a device of so much memory."""
    fitting = max(1, gpu_bytes * 4 // 5 // (4 * ARRAYS)).bit_length() - 1
    return max(min(FLOATS_LOG2), min(max(FLOATS_LOG2), fitting))


def measure(cases: Sequence[Case], contenders: Contenders, rounds: int) -> Iterator[Result]:
    """Check and time each case; who disagrees with float64, or fails, is not timed, and the result says why."""
    ours: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as directory:
        computed: tuple[object, ...] | None = None
        for case in cases:
            if case.computes != computed:
                contenders.workers["numpy"].ask(do="reference", case=case.name, directory=directory)
                computed = case.computes
            failures: dict[str, str] = {}
            able = [worker for worker in contenders.timed() if _agrees(case, worker, directory, failures, contenders)]
            result = _timed(case, able, rounds_of(case, rounds), failures, contenders)
            if case.beside is not None and case.beside[1] in ours:
                result.seconds[case.beside[0]] = ours[case.beside[1]]
            if "ours" in result.seconds:
                ours[case.name] = result.seconds["ours"]
            yield result


def _agrees(
    case: Case, worker: Worker, directory: str, failures: dict[str, str], contenders: Contenders
) -> bool:  # fmt: skip
    """Return whether a library has a case and agrees with the reference; where it has and does not, note why."""
    try:
        share = worker.ask(do="check", case=case.name, directory=directory)["disagreement"]
    except (RequestFailed, WorkerEnded) as error:
        _replace(worker, error, failures, contenders)
        return False
    if share is None:
        return False
    if not share <= 1:
        failures[worker.library] = f"wrong: {share:.3g} × what is allowed"
    return bool(share <= 1)


def _timed(
    case: Case, able: Sequence[Worker], rounds: int, failures: dict[str, str], contenders: Contenders
) -> Result:  # fmt: skip
    while able:
        try:
            timed = time_case(case, able, threads=0, rounds=rounds)
            return Result(case, timed.seconds, rounds, failures)
        except (RequestFailed, WorkerEnded) as error:
            failing = next(worker for worker in able if worker.library == error.library)
            _replace(failing, error, failures, contenders)
            able = [worker for worker in able if worker is not failing]
    return Result(case, {}, rounds, failures)


def _replace(worker: Worker, error: Exception, failures: dict[str, str], contenders: Contenders) -> None:
    failures[worker.library] = str(error)
    contenders.stop(worker.library)
    contenders.start(worker.library)


def run(options: KernelOptions) -> None:
    """Time the cases whose name contains `options.name` on the GPU, print them, and write them into a page.

    Raises DeviceError where there is none, ArgumentError when there is no such case, or when the page would not get
    every row of both libraries.
    """
    page, rounds = options.page, options.rounds
    as_device("cuda")
    with ExitStack() as stack:
        contenders = Contenders(options.threads or get_num_threads(), stack)
        gpu: dict[str, Any] = contenders.workers["ours"].ask(do="about")
        every = cuda_cases(SIMULATED, log2_floats(gpu["gpu_bytes"]))
        cases = matching(every, options.name, options.quick)
        if page and (len(cases) < len(every) or "torch" not in contenders.workers):
            raise ArgumentError(
                "bench: a page gets every row and PyTorch's times; leave out --filter and --quick, and install a "
                "PyTorch that finds the GPU"
            )
        libraries = [worker.version for worker in contenders.timed()]
        about = {**machine(), **gpu, "rounds": rounds, "libraries": libraries}
        results: list[Result] = []
        with Console(stderr=True).status("checking and timing") as status:
            for result in measure(cases, contenders, rounds):
                results.append(result)
                # Minutes of work: who ends it before its time has at least the rows so far.
                status.console.print(cuda_row_as_text(result), highlight=False, soft_wrap=True)
                status.update(f"{len(results)} of {len(cases)} done")
    if page:
        write_between_markers(page, MARKER, cuda_as_markdown(every, about, results))
    if options.as_json:
        print(json.dumps({"machine": about, "results": [result.as_json() for result in results]}, indent=2))
    else:
        show_cuda(about, results)
