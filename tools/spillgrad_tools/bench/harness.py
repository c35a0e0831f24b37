"""The harness of all benchmarks: contenders run in processes of their own, take turns, and must agree.

A process loads one library. Each request is a JSON line that names a method of the process's runner; the answer is
a JSON line, too.
"""

import importlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar

from spillgrad_tools.memory_cap import MemoryCap

Measured = dict[str, float]
Turn = TypeVar("Turn")

LIBRARY_NAMES = {"ours": "spillgrad", "numpy": "NumPy", "torch": "PyTorch"}
# The name for `pip install` of each package, by its name for `import`.
PIP_NAMES = {"torch": "torch==2.13.0", "paddle": "paddlepaddle"}


def is_installed(library: str) -> bool:
    """Return whether a library can be imported; `library` is the name of its package, or "ours"."""
    return library == "ours" or importlib.util.find_spec(library) is not None


class WorkerEnded(RuntimeError):
    """Raised if a process ended before it answered; `status` is its exit status, or minus a signal's number."""

    def __init__(self, library: str, status: int) -> None:
        super().__init__(f"bench: the {library} process ended with status {status}")
        self.library, self.status = library, status


class RequestFailed(RuntimeError):
    """Raised if a process could not answer a request; the message is the reason that the process gave."""

    def __init__(self, library: str, why: str) -> None:
        super().__init__(why)
        self.library = library


class Worker:
    """A process in which an object of the class `runner` uses `library` on `device`, and answers the calls of `ask`.

    The object gets `library`, `threads` and `device`. Unless `threads` is 0, it is also the limit for the threads of
    OpenMP and BLAS libraries. `cap` limits the memory of the process. Raises WorkerEnded if the process ends before it
    is ready.
    """

    def __init__(
        self, runner: type, library: str, threads: int, cap: MemoryCap | None = None, device: str = "cpu"
    ) -> None:
        limits = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
        # OpenBLAS's idle threads spin for 2^26 cycles, into the turn of the next library; 2^20 bridge the gap between
        # two calls just as well.
        limits["OPENBLAS_THREAD_TIMEOUT"] = "20"
        self.library = library
        words = [f"{runner.__module__}:{runner.__qualname__}", library, str(threads), device]
        command = [sys.executable, "-m", __name__, *words]
        self._process = subprocess.Popen(
            command if cap is None else cap.command(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, **(limits if threads else {}), "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        try:
            self.version: str | None = self._answer()["version"]
        except WorkerEnded:
            self._process.communicate()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:  # after an error, do not wait: the process may compute for minutes
            self._process.kill()
        self.close()

    def close(self) -> None:
        """Close the process's input, and wait until the process has answered and ended."""
        self._process.communicate()

    def ask(self, do: str, **request: Any) -> Any:
        """Call the runner's method `do` with the arguments `request`, and return its answer.

        Raises WorkerEnded if the process ended; its stderr says why. Raises RequestFailed if the method raised.
        """
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps({"do": do, **request}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise WorkerEnded(self.library, self._process.wait()) from None
        answer = self._answer()
        if "failed" in answer:
            raise RequestFailed(self.library, answer["failed"])
        return answer["answer"]

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise WorkerEnded(self.library, self._process.wait())
        answer: dict[str, Any] = json.loads(line)
        return answer


def _serve(runner: Any) -> None:
    """Answer each request on standard input with a method of the runner, until the input ends.

    An error ends the process, unless `runner.survives`: then the error is printed and sent as the answer.
    """
    print(json.dumps({"version": runner.version}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"answer": getattr(runner, request.pop("do"))(**request)}
        except Exception as error:
            if not runner.survives:
                raise
            traceback.print_exc()
            answer = {"failed": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


def in_turns(turns: Mapping[str, Callable[[], Turn]], rounds: int) -> Iterator[dict[str, Turn]]:
    """Run rounds in which each contender takes one turn; yield the results of each round by contender."""
    for _ in range(rounds):
        yield {name: turn() for name, turn in turns.items()}


def medians(rounds: Iterable[Mapping[str, float]]) -> Measured:
    """Return the median of each contender's values over all rounds."""
    taken = list(rounds)
    return {name: statistics.median(each[name] for each in taken) for name in taken[0]}


def spreads(rounds: Iterable[Mapping[str, float]]) -> dict[str, list[float]]:
    """Return the quartiles below and above the median of each contender's values over all rounds."""
    taken = list(rounds)
    found = {}
    for name in taken[0]:
        values = [each[name] for each in taken]
        quartiles = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
        found[name] = [quartiles[0], quartiles[2]]
    return found


def grown_after_a_quarter(values: Sequence[int]) -> int:
    """Return by how much the later values exceed the largest value of the first quarter."""
    warm_up = max(1, len(values) // 4)
    return max(0, max(values[warm_up:], default=0) - max(values[:warm_up], default=0))


def require_agreement(what: str, found: Mapping[str, Any], step: int, tolerance: float = 0.0) -> None:
    """Raise RuntimeError unless all values of `found` are equal; a `tolerance` allows that relative difference.

    `what` and `step` appear in the message.
    """
    values = list(found.values())
    if tolerance:
        allowed = tolerance * max(values)
        if not max(values) - min(values) <= allowed:
            raise RuntimeError(f"{what} {dict(found)} of step {step} differ by more than {allowed:.2g}")
    elif any(value != values[0] for value in values):
        raise RuntimeError(f"{what} {dict(found)} of step {step} differ")


if __name__ == "__main__":
    module, _, name = sys.argv[1].partition(":")
    _serve(getattr(importlib.import_module(module), name)(sys.argv[2], int(sys.argv[3]), sys.argv[4]))
