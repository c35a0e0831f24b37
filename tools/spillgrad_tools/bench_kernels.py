"""`spillgrad bench kernels`: each library in its own process, results compared first, then timed in turns."""

import dataclasses
import importlib.util
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from rich.console import Console

from spillgrad.errors import ArgumentError
from spillgrad_kernels.dispatch import get_num_threads
from spillgrad_tools.bench_report import machine, show_times
from spillgrad_tools.bench_worker import Case

LARGE = 1 << 22
SMALL = 1 << 14

# Results may differ by this much of the largest number: libraries sum in different orders.
TOLERANCE = {"float32": 3e-5, "float64": 1e-12}


def _matmul(dtype: str, size: int, layout: str) -> Case:
    kinds = layout.replace("N", "n").replace("T", "t")
    return Case(f"matmul {dtype} {size} {layout}", "matmul", ((size, size), (size, size)), kinds, dtype)


CASES = (
    *(
        _matmul(dtype, size, layout)
        for dtype, size, layout in itertools.product(
            ("float32", "float64"), (256, 512, 1024, 2048), ("NN", "NT", "TN", "TT")
        )
    ),
    *(Case(f"{name} {size}", name, ((size,),), "n") for name in ("exp", "tanh", "gelu") for size in (SMALL, LARGE)),
    *(Case(f"add {size}", "add", ((size,), (size,)), "nn") for size in (SMALL, LARGE)),
    Case("softmax 4096x1024", "softmax", ((4096, 1024),), "n"),
    Case("layer_norm 4096x768", "layer_norm", ((4096, 768), (768,), (768,)), "nnn"),
    Case("cross_entropy 4096x256", "cross_entropy", ((4096, 256), (4096,)), "ni"),
    Case("cross_entropy 512x50257", "cross_entropy", ((512, 50257), (512,)), "ni"),
    Case(f"adamw {LARGE}", "adamw", ((LARGE,),) * 4, "nnnp"),
)


class Worker:
    """A process that knows one library."""

    def __init__(self, library: str, threads: int) -> None:
        limits = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
        # Waiting threads sleep, so that they do not take the cores from the library whose turn it is.
        environment = {**os.environ, **limits, "OMP_WAIT_POLICY": "passive", "PYTHONPATH": os.pathsep.join(sys.path)}
        self.library = library
        self._process = subprocess.Popen(
            [sys.executable, "-m", "spillgrad_tools.bench_worker", library, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.version: str = self._answer()["version"]

    def __enter__(self) -> "Worker":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()

    def result(self, case: Case, directory: Path) -> np.ndarray:
        """Run the case once and return what came out."""
        path = directory / f"{self.library}.npy"
        self._ask(do="run", case=dataclasses.asdict(case), path=str(path))
        result: np.ndarray = np.load(path)
        return result

    def time(self) -> float:
        """Return the seconds of one call of the case run last."""
        seconds: float = self._ask(do="time")["seconds"]
        return seconds

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"bench: the {self.library} process ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def check(case: Case, results: dict[str, np.ndarray]) -> None:
    """Raise RuntimeError unless all results agree with NumPy's."""
    wanted = results["numpy"]
    allowed = TOLERANCE[case.dtype] * np.abs(wanted).max()
    for library, got in results.items():
        difference = np.abs(got - wanted).max()
        if got.shape != wanted.shape or not difference <= allowed:
            raise RuntimeError(
                f"bench {case.name}: {library} differs from NumPy by {difference:.3g}, allowed is {allowed:.3g}"
            )


def measure(cases: list[Case], workers: list[Worker], rounds: int) -> Iterator[dict[str, Any]]:
    """Yield, for each case, the median seconds of every library."""
    for case in cases:
        with tempfile.TemporaryDirectory() as directory:
            check(case, {worker.library: worker.result(case, Path(directory)) for worker in workers})
        times: dict[str, list[float]] = {worker.library: [] for worker in workers}
        for _ in range(rounds):
            for worker in workers:
                times[worker.library].append(worker.time())
        yield {"case": case.name, "seconds": {library: statistics.median(taken) for library, taken in times.items()}}


def run(as_json: bool, name: str, threads: int | None, rounds: int) -> None:
    """Time the cases whose name contains `name` and print them.

    Raises ArgumentError when no case does.
    """
    cases = [case for case in CASES if name in case.name]
    if not cases:
        operations = ", ".join(dict.fromkeys(case.operation for case in CASES))
        raise ArgumentError(f"bench: no case has '{name}' in its name; filter by one of {operations}")
    threads = threads or get_num_threads()
    libraries = ["ours", "numpy", *(["torch"] if importlib.util.find_spec("torch") else [])]
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(library, threads)) for library in libraries]
        about = {**machine(), "threads": threads, "rounds": rounds, "libraries": [worker.version for worker in workers]}
        results = []
        with Console(stderr=True).status("checking and timing") as status:
            for result in measure(cases, workers, rounds):
                status.update(f"{result['case']} done")
                results.append(result)
    if as_json:
        print(json.dumps({"machine": about, "results": results}, indent=2))
    else:
        show_times(about, results)
