"""One library in a process of its own, which trains a GPT step by step as its standard input asks."""

import contextlib
import importlib
import sys
import time
from types import TracebackType
from typing import Any

import numpy as np
import xxhash

from spillgrad.storage.store import StoreStats
from spillgrad_tools.bench.harness import answer_requests
from spillgrad_tools.memory_cap import peak_rss_bytes

LR = 3e-4
BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.1


def tokens(vocabulary: int, shape: tuple[int, int], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a batch of random tokens, and those that follow each; the same in every process."""
    drawn = np.random.default_rng(seed).integers(0, vocabulary, (shape[0], shape[1] + 1))
    return np.ascontiguousarray(drawn[:, :-1]), np.ascontiguousarray(drawn[:, 1:])


class Spilling:
    """The context of forwards under hooks that spill, which notes what they leave in RAM."""

    def __init__(self, hooks: Any) -> None:
        self.hooks = hooks
        self.left_in_ram_bytes = 0

    def __enter__(self) -> None:
        self.hooks.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.hooks.__exit__(kind, error, trace)
        self.left_in_ram_bytes = self.hooks.stats().ram_bytes

    def traffic(self) -> dict[str, float]:
        """Return what was saved so far, went to disk and came back, and how long training waited for it."""
        stats: StoreStats = self.hooks.stats()
        return {
            "saved_bytes": stats.packed_bytes - stats.deduplicated_bytes, "left_in_ram_bytes": self.left_in_ram_bytes,
            "written_bytes": stats.written_bytes, "read_bytes": stats.read_bytes,
            "waited_s": stats.wait_write_s + stats.wait_read_s,
        }  # fmt: skip


class StepRunner:
    """Trains one model in one library: `build` makes it, `step` trains it by one batch, `gradients` tells its own."""

    def __init__(self, library: str, threads: int) -> None:
        self.module = importlib.import_module(f"spillgrad_tools.bench.gpt_{library}")
        self.module.set_num_threads(threads)
        self.training: Any = None
        self.config: dict[str, Any] = {}

    def version(self) -> dict[str, Any]:
        """Return what runs here."""
        return {"version": self.module.VERSION}

    def build(self, config: dict[str, Any], weights: str | None, lr: float = LR, **options: Any) -> dict[str, Any]:
        """Build the model of these sizes with the parameters in a file, or with drawn ones."""
        self.config = config
        with contextlib.nullcontext() if weights is None else np.load(weights) as arrays:
            self.training = self.module.Training(config, arrays, lr, BETAS, WEIGHT_DECAY, **options)
        return {}

    def step(self, number: int, batch: int) -> dict[str, Any]:
        """Train by one batch; return its loss, the seconds it took, traffic and the most memory so far."""
        inputs, targets = tokens(self.config["vocab_size"], (batch, self.config["context"]), number)
        started = time.perf_counter()
        loss = self.training.step(inputs, targets)
        seconds = time.perf_counter() - started
        traffic = {} if self.training.spill is None else self.training.spill.traffic()
        return {"loss": loss, "seconds": seconds, "peak_rss_bytes": peak_rss_bytes(), **traffic}

    def gradients(self) -> dict[str, Any]:
        """Return a digest of the gradients of the last step, in the parameters' order."""
        digest = xxhash.xxh3_128()
        for gradient in self.training.gradients():
            digest.update(np.ascontiguousarray(gradient).data)
        return {"gradients": digest.hexdigest()}


def serve(library: str, threads: int) -> None:
    """Answer what `StepRunner` answers, until standard input ends."""
    runner = StepRunner(library, threads)
    answer_requests({name: getattr(runner, name) for name in ("version", "build", "step", "gradients")})


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
