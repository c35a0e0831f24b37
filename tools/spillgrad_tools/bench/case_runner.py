"""One library in a process of its own, which checks and times the cases its standard input names."""

import importlib
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from spillgrad_tools.bench import numpy as bench_numpy
from spillgrad_tools.bench.cases import BY_NAME, Case
from spillgrad_tools.bench.cuda_cases import CUDA_BY_NAME
from spillgrad_tools.bench.harness import answer_requests

# A timing covers as many calls as fill this time, so that the clock and one-off delays do not matter.
TIMING_S = 0.04
# Before it, the threads of the library whose turn it was fall asleep.
SETTLE_S = 0.005
# Results may differ by this much of a number and of the root mean square of all: libraries sum in different orders.
TOLERANCE = {"float32": 3e-5, "float64": 1e-12, "bfloat16": 1e-2}
BLOCK = 1 << 22
CASES_ON = {"cpu": BY_NAME, "cuda": CUDA_BY_NAME}


def write_reference(case: Case, directory: Path) -> None:
    """Write what the case should give, computed by NumPy in float64, one file for each result."""
    inputs = [x if x.dtype.kind == "i" else x.astype(np.float64) for x in case.operands(whole=False)]
    inputs = inputs[: len(case.kinds.rstrip("o"))]
    results = bench_numpy.REFERENCES[case.operation.removesuffix(" out=")](*inputs)
    for number, result in enumerate(as_list(results)):
        np.save(directory / f"{number}.npy", result)


def disagreement(got: np.ndarray, wanted: np.ndarray, tolerance: float) -> float:
    """Return the largest difference, in units of what is allowed; above 1, or NaN, the results disagree."""
    if got.shape != wanted.shape:
        return float("inf")
    # In blocks: the largest reference has 0.8 GB, and several copies of it need not fit.
    got, wanted = got.reshape(-1), wanted.reshape(-1)
    blocks = [slice(start, start + BLOCK) for start in range(0, got.size, BLOCK)]
    rms = np.sqrt(sum(float(wanted[b] @ wanted[b]) for b in blocks) / max(1, got.size))
    shares = [np.abs(got[b] - wanted[b]) / (tolerance * (np.abs(wanted[b]) + rms)) for b in blocks]
    return float(np.max([share.max() for share in shares], initial=0))


def as_list(results: Any) -> Sequence[Any]:
    """Return one result, or several, as a sequence."""
    return results if isinstance(results, list | tuple) else [results]


class CaseRunner:
    """Runs the cases of one library on a device: `check` takes one up, `time` times it."""

    def __init__(self, library: str, threads: int, device: str = "cpu") -> None:
        suffix = "" if device == "cpu" or library == "numpy" else f"_{device}"
        self.module = importlib.import_module(f"spillgrad_tools.bench.{library}{suffix}")
        self.cases = CASES_ON[device]
        self.threads = threads
        self.module.set_num_threads(threads)
        self.case: Case | None = None
        self.calls: dict[str, Callable[[], Any]] = {}
        self.counts: dict[str, int] = {}

    def version(self) -> dict[str, Any]:
        """Return what runs here."""
        return {"version": self.module.VERSION}

    def about(self) -> dict[str, Any]:
        """Return what a reader needs to know of the device."""
        about: dict[str, Any] = self.module.about()
        return about

    def reference(self, case: str, directory: str) -> dict[str, Any]:
        """Write the case's reference."""
        write_reference(self.cases[case], Path(directory))
        return {}

    def check(self, case: str, directory: str) -> dict[str, Any]:
        """Take up a case: run it once, and return how far it is from the reference; None where the library lacks it."""
        self.calls, self.counts = {}, {}  # lets go of the last case's operands first
        self.module.release_memory()
        self.case = self.cases[case]
        if self.case.operation not in self.module.OPERATIONS:
            return {"disagreement": None}
        operands = [
            self.module.prepare(operand, kind.isupper())
            for operand, kind in zip(self.case.operands(), self.case.kinds, strict=True)
        ]
        self.calls["case"] = self.module.OPERATIONS[self.case.operation](*operands)
        self.calls["copy"] = self.module.OPERATIONS["copy out="](operands[0], operands[-1])
        with self._gradients():
            results = as_list(self.calls["case"]())
        tolerance = TOLERANCE[self.case.dtype]
        shares = [
            disagreement(part, np.load(Path(directory) / f"{number}.npy", "r"), tolerance)
            for number, result in enumerate(results)
            for part in self._periods(self.module.as_numpy(result))
        ]
        return {"disagreement": float(np.max(shares))}

    def time(self, what: str = "case", threads: int | None = None) -> dict[str, Any]:
        """Return the seconds of one call of the case taken up last, or of a copy of its first operand."""
        if threads:
            self.module.set_num_threads(threads)
        time.sleep(SETTLE_S)
        with self._gradients():
            key = f"{what} {threads}"
            if key not in self.counts:
                self.counts[key] = self._count(self.calls[what])
            # Another library's turn has cooled caches and put this one's threads to sleep.
            self.module.seconds_of(self.counts[key] // 2, self.calls[what])
            seconds = self.module.seconds_of(self.counts[key], self.calls[what]) / self.counts[key]
        if threads:
            self.module.set_num_threads(self.threads)
        return {"seconds": seconds}

    def _periods(self, result: np.ndarray) -> Sequence[np.ndarray]:
        """Return the parts of a result that have to be the reference's; of equal ones the first."""
        assert self.case
        if not self.case.period:
            return [result]
        first, *others = result.reshape(-1, self.case.period)
        return [first, *(part for part in others if not np.array_equal(part, first))]

    def _count(self, call: Callable[[], Any]) -> int:
        """Return how many calls fill a timing; the first ones, with caches and threads still cold, do not tell."""
        assert self.case
        if self.case.heavy:
            return 1
        count: int = max(1, round(TIMING_S / self.module.seconds_of(1, call)))
        seconds: float = self.module.seconds_of(count, call)
        return max(1, round(TIMING_S * count / seconds))

    def _gradients(self) -> Any:
        assert self.case
        return nullcontext() if self.case.wants_gradient else self.module.no_grad()


def serve(library: str, threads: int, device: str) -> None:
    """Answer what `CaseRunner` answers, until standard input ends."""
    runner = CaseRunner(library, threads, device)
    names = ("version", "about", "reference", "check", "time")
    answer_requests({name: getattr(runner, name) for name in names}, survives=device != "cpu")


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), sys.argv[3])
