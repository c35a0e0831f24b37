"""The harness of all benchmarks: contenders in processes of their own take turns, and must agree.

A process loads one library. It reads a JSON line for each request, which names a method of its runner, and answers with
a JSON line.
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
# The names for `pip install`, by the names for `import`.
PIP_NAMES = {"torch": "torch==2.13.0", "paddle": "paddlepaddle"}


def is_installed(library: str) -> bool:
    """Return whether a library, by the name of its package or "ours", can be imported."""
    return library == "ours" or importlib.util.find_spec(library) is not None


class WorkerEnded(RuntimeError):
    """A process ended before it answered, with `status`: minus the number of the signal that killed it."""

    def __init__(self, library: str, status: int) -> None:
        super().__init__(f"bench: the {library} process ended with status {status}")
        self.library, self.status = library, status


class RequestFailed(RuntimeError):
    """A process could not answer a request; the message is the reason it gave."""

    def __init__(self, library: str, why: str) -> None:
        super().__init__(why)
        self.library = library


class Worker:
    """A process that runs one library on a device; an object of the class `runner` answers its requests.

    `threads` limits the threads of BLAS libraries, too; 0 leaves theirs as they are. `cap` limits the memory of the
    process. Raises WorkerEnded when the process ends before it is ready.
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
        """Wait until the process has answered and ended."""
        self._process.communicate()

    def ask(self, do: str, **request: Any) -> Any:
        """Call the runner's method `do` with the arguments `request`, and return its answer.

        Raises WorkerEnded when the process has ended; its stderr says why. Raises RequestFailed when the method raised.
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
    """Answer requests on standard input by the runner's methods, until the input ends.

    An error ends the process, unless `runner.survives`: then the error is printed, and is the answer.
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
    """Yield the results of each round, by contender; in a round, each contender takes one turn."""
    for _ in range(rounds):
        yield {name: turn() for name, turn in turns.items()}


def medians(rounds: Iterable[Mapping[str, float]]) -> Measured:
    """Return the median of each contender's values over all rounds."""
    taken = list(rounds)
    return {name: statistics.median(each[name] for each in taken) for name in taken[0]}


def grown_after_a_quarter(values: Sequence[int]) -> int:
    """Return by how much the largest value of the first quarter was exceeded later."""
    warm_up = max(1, len(values) // 4)
    return max(0, max(values[warm_up:], default=0) - max(values[:warm_up], default=0))


def require_agreement(what: str, found: Mapping[str, Any], step: int, tolerance: float = 0.0) -> None:
    """Raise RuntimeError unless all values `found` are equal, or differ by at most the share `tolerance`.

    `what` and `step` are for the message.
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
