"""One library in a process of its own, which checks and times what its standard input asks for, a JSON line each."""

import dataclasses
import importlib
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

# A timing covers as many calls as fill this time, so that the clock and one-off delays do not matter.
TIMING_S = 0.02


@dataclasses.dataclass(frozen=True)
class Case:
    """One benchmark: an operation and the shapes of its operands.

    `kinds` has a letter per operand: "n" normal numbers, "t" the same as a transposed view, "p" positive ones, "i"
    class numbers below the first operand's columns.
    """

    name: str
    operation: str
    shapes: tuple[tuple[int, ...], ...]
    kinds: str
    dtype: str = "float32"

    def operands(self) -> Iterator[np.ndarray]:
        """Yield the operands, the same in every process."""
        random = np.random.default_rng(0)
        for shape, kind in zip(self.shapes, self.kinds, strict=True):
            if kind == "i":
                yield random.integers(0, self.shapes[0][-1], shape)
            elif kind == "t":
                yield random.standard_normal(shape[::-1]).astype(self.dtype).T
            else:
                numbers = random.standard_normal(shape).astype(self.dtype)
                yield np.abs(numbers) if kind == "p" else numbers


def _calls_s(function: Any, operands: list[Any], calls: int) -> float:
    started = time.perf_counter()
    for _ in range(calls):
        function(*operands)
    return time.perf_counter() - started


def serve(library: str, threads: int) -> None:
    """Answer requests: "run" runs a case once and writes its result to a file; "time" times the case run last."""
    module = importlib.import_module(f"spillgrad_tools.bench_{library}")
    module.set_num_threads(threads)
    print(json.dumps({"version": module.VERSION}), flush=True)
    function, operands, calls = None, [], 1
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "run":
            case = Case(**request["case"])
            function = module.OPERATIONS[case.operation]
            operands = [module.prepare(operand) for operand in case.operands()]
            np.save(request["path"], module.as_numpy(function(*operands)))
            calls = max(1, round(TIMING_S / _calls_s(function, operands, 1)))
            answer = {}
        else:
            answer = {"seconds": _calls_s(function, operands, calls) / calls}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
