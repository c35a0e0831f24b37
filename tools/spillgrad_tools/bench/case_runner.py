"""The runner of a process that checks and times the cases of `spillgrad bench kernels` with one library."""

import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from spillgrad_kernels.cpu import limits
from spillgrad_tools.bench.cases import CASES_ON
from spillgrad_tools.bench.operations import OPERATIONS, Call, call_of, load

# A timing repeats the call for about this long, so that the clock's resolution and single delays do not matter.
TIMING_S = 0.04
# A pause before each timing, in which the threads of the library timed before fall asleep.
SETTLE_S = 0.005
# A number may differ by this share of the sum of its magnitude and the root mean square of all numbers: libraries sum
# in different orders.
TOLERANCE = {"float32": 3e-5, "float64": 1e-12, "bfloat16": 1e-2}
BLOCK = 1 << 22
# A case of fewer bytes is limited by the time of a call, not by memory; more bytes than the largest move as fast.
LEAST_BYTES, MEMORY_BYTES = 1 << 20, 1 << 28


def disagreement(got: np.ndarray, wanted: np.ndarray, tolerance: float) -> float:
    """Return the largest difference as a multiple of the allowed one. The results disagree if it is above 1, or NaN."""
    if got.shape != wanted.shape:
        return float("inf")
    # Compared in blocks: the largest reference takes 0.8 GB, and there may be no memory for several copies.
    got, wanted = got.reshape(-1), wanted.reshape(-1)
    blocks = [slice(start, start + BLOCK) for start in range(0, got.size, BLOCK)]
    rms = np.sqrt(sum(float(wanted[b] @ wanted[b]) for b in blocks) / max(1, got.size))
    shares = [np.abs(got[b] - wanted[b]) / (tolerance * (np.abs(wanted[b]) + rms)) for b in blocks]
    return float(np.max([share.max() for share in shares], initial=0))


def periods(result: np.ndarray, period: int) -> Sequence[np.ndarray]:
    """Split a result into its periods, and return the distinct ones; each must agree with the reference."""
    if not period:
        return [result]
    first, *others = result.reshape(-1, period)
    return [first, *(part for part in others if not np.array_equal(part, first))]


def as_list(results: Any) -> Sequence[Any]:
    """Return `results` as a sequence; a single result becomes a list of one."""
    return results if isinstance(results, list | tuple) else [results]


class CaseRunner:
    """Runs cases with one library on a device: `check` prepares a case and compares its results, `time` times it."""

    def __init__(self, library: str, threads: int, device: str = "cpu") -> None:
        self.library = load(library, device)
        self.version = self.library.version
        self.survives = device != "cpu"
        self.cases = CASES_ON[device]
        self.threads = threads
        self.library.set_num_threads(threads)
        self.calls: dict[str, Call] = {}
        self.counts: dict[str, int] = {}

    def about(self) -> dict[str, Any]:
        """Return the name and memory of the device."""
        return self.library.about()

    def reference(self, case: str, directory: str) -> None:
        """Compute a case's results in float64 with NumPy, and write each to a file in `directory`."""
        wanted = self.cases[case]
        inputs = [x if x.dtype.kind == "i" else x.astype(np.float64) for x in wanted.operands(whole=False)]
        inputs = inputs[: len(wanted.kinds.rstrip("o"))]
        results = OPERATIONS[wanted.operation.removesuffix(" out=")].expected(*inputs)
        for number, result in enumerate(as_list(results)):
            np.save(Path(directory) / f"{number}.npy", result)

    def check(self, case: str, directory: str) -> float | None:
        """Prepare and run a case; return the `disagreement` of its results, or None if the library cannot run it."""
        self.calls, self.counts = {}, {}  # frees the operands of the case before
        self.library.release_memory()
        asked = self.cases[case]
        if asked.wants_gradient and not self.library.has_gradients:
            return None
        operands = [
            self.library.prepare(operand, kind.isupper())
            for operand, kind in zip(asked.operands(), asked.kinds, strict=True)
        ]
        call = call_of(asked.operation, self.library, operands)
        copy = call_of("copy out=", self.library, [operands[0], operands[-1]])
        if call is None or copy is None:
            return None
        self.calls = {"case": call, "copy": copy}
        self.is_heavy = asked.heavy
        self.grad_mode = nullcontext if asked.wants_gradient else self.library.no_grad
        with self.grad_mode():
            results = as_list(call())
        tolerance = TOLERANCE[asked.dtype]
        shares = [
            disagreement(part, np.load(Path(directory) / f"{number}.npy", "r"), tolerance)
            for number, result in enumerate(results)
            for part in periods(self.library.as_numpy(result), asked.period)
        ]
        return float(np.max(shares))

    def time(self, what: str = "case", threads: int | None = None) -> float:
        """Return the seconds of one call of the case that `check` prepared last, or of one copy if `what` is "copy".

        The copy is of the case's first operand. `threads` replaces the number of threads for this timing.
        """
        if threads:
            self.library.set_num_threads(threads)
        time.sleep(SETTLE_S)
        with self.grad_mode():
            key = f"{what} {threads}"
            if key not in self.counts:
                self.counts[key] = self._count(self.calls[what])
            # Since the last call, another library has used the caches, and the threads of this one fell asleep.
            self.library.seconds_of(self.counts[key] // 2, self.calls[what])
            seconds = self.library.seconds_of(self.counts[key], self.calls[what]) / self.counts[key]
        if threads:
            self.library.set_num_threads(self.threads)
        return seconds

    def limits(self) -> dict[str, Any]:
        """Return what the processor can do at most, with all threads (see `spillgrad_kernels.cpu.limits`)."""
        return {
            "float32_flop_per_s": limits.flop_per_s(np.float32),
            "float64_flop_per_s": limits.flop_per_s(np.float64),
            "bytes_per_s": limits.bytes_per_s(MEMORY_BYTES),
            "cache_bytes": limits.cache_bytes(),
        }

    def limit_s(self, case: str) -> float:
        """Return the seconds that a case takes at least; 0 if no limit is known.

        Arithmetic takes as long as its multiply-adds. Moving bytes takes as long as moving as many in a memory of the
        case's size, which may be a cache.
        """
        asked = self.cases[case]
        computing_s = moving_s = 0.0
        if asked.flop and asked.dtype != "bfloat16":
            computing_s = asked.flop / limits.flop_per_s(asked.dtype)
        if asked.nbytes >= LEAST_BYTES:
            moving_s = asked.nbytes / limits.bytes_per_s(min(asked.nbytes, MEMORY_BYTES))
        return max(computing_s, moving_s)

    def _count(self, call: Call) -> int:
        """Return the number of calls that fill a timing. The first call is slower, so the number is estimated twice."""
        if self.is_heavy:
            return 1
        count = max(1, round(TIMING_S / self.library.seconds_of(1, call)))
        seconds = self.library.seconds_of(count, call)
        return max(1, round(TIMING_S * count / seconds))
