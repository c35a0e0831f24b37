"""The runner of a process that trains for `spillgrad bench plan`, and measures disk traffic, memory and time."""

import functools
from typing import Any

import numpy as np

import spillgrad as sg
from spillgrad_tools.bench.harness import medians
from spillgrad_tools.memory_cap import peak_rss_bytes
from spillgrad_tools.train.options import TrainSettings
from spillgrad_tools.train.training import Training

WARM_STEPS = 3
_TEXT_BYTES = 1 << 20
# The counters of the store whose increase in each step is measured.
_COUNTED = ("written_bytes", "read_bytes", "writing_s", "reading_s")


class PlannedRun:
    """Trains under a policy and a budget."""

    version, survives = None, False

    def __init__(self, *_: object) -> None:
        pass

    def train(
        self, policy: str, offload: bool, budget: int, steps: int, directory: str, **sizes: Any
    ) -> dict[str, Any]:
        """Train; return the medians of the later steps' bytes and seconds, and the run's peaks of memory and disk."""
        settings = TrainSettings(steps=steps + WARM_STEPS, **sizes)
        make = functools.partial(sg.disk_offload, directory=directory, ram_budget=budget) if offload else None
        training = Training(settings, np.random.default_rng(0).bytes(_TEXT_BYTES), offload=make)
        spill = functools.partial(sg.save_on_disk, policy=policy)
        offloaded = training.offload is not None
        training.spill = spill(training.offload) if offloaded else spill(directory, ram_budget=budget)
        taken, before = [], training.stats()
        for record in training.steps():
            after = training.stats()
            counted = {name: getattr(after, name) - getattr(before, name) for name in _COUNTED}
            taken.append({**counted, "step_s": record.duration_s, "waited_s": record.waited_s})
            before = after
        peaks = {"peak_bytes": peak_rss_bytes(), "disk_bytes": before.peak_disk_bytes}
        return {**medians(taken[WARM_STEPS:]), **peaks}
