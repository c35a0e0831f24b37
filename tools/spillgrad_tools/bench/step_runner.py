"""The runner of a process that trains a GPT-2 with one library, step by step."""

import contextlib
import time
from typing import Any

import numpy as np
import xxhash

from spillgrad_tools.bench.gpt import tokens
from spillgrad_tools.bench.operations import load
from spillgrad_tools.memory_cap import peak_rss_bytes


class StepRunner:
    """Trains one model with one library: `build` makes the model, `step` trains it on one batch."""

    survives = False

    def __init__(self, library: str, threads: int, device: str = "cpu") -> None:
        self.library = load(library, device)
        self.version = self.library.version
        self.library.set_num_threads(threads)
        self.training: Any = None
        self.config: dict[str, Any] = {}

    def build(self, config: dict[str, Any], weights: str | None, **options: Any) -> None:
        """Build the model of the sizes `config`; its parameters are in the file `weights`, or random if it is None."""
        self.config = config
        with contextlib.nullcontext() if weights is None else np.load(weights) as arrays:
            self.training = self.library.training(config, arrays, **options)

    def step(self, number: int, batch: int) -> dict[str, Any]:
        """Train on batch `number`; return the loss and seconds of the step, and the traffic and peak memory so far."""
        inputs, targets = tokens(self.config["vocab_size"], (batch, self.config["context"]), number)
        started = time.perf_counter()
        loss = self.training.step(inputs, targets)
        seconds = time.perf_counter() - started
        traffic = {} if self.training.spill is None else self.training.spill.traffic()
        return {"loss": loss, "seconds": seconds, "peak_rss_bytes": peak_rss_bytes(), **traffic}

    def weights(self) -> str:
        """Return a digest of the parameters' values, taken in their order."""
        digest = xxhash.xxh3_128()
        for values in self.training.weights():
            digest.update(np.ascontiguousarray(values).data)
        return digest.hexdigest()
