"""The runner of a process that trains for `spillgrad bench plan`, and says what it moved, held and took."""

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
# What the store counts of a step.
_COUNTED = ("written_bytes", "read_bytes", "writing_s", "reading_s")


class PlannedRun:
    """Trains as a plan says."""

    version, survives = None, False

    def __init__(self, *_: object) -> None:
        pass

    def train(
        self, policy: str, offload: bool, budget: int, steps: int, directory: str, **sizes: Any
    ) -> dict[str, Any]:
        """Train; return the bytes and seconds of the median step after the first ones, and the largest memory."""
        settings = TrainSettings(steps=steps + WARM_STEPS, **sizes)
        make = functools.partial(sg.disk_offload, directory=directory, ram_budget=budget) if offload else None
        training = Training(settings, np.random.default_rng(0).bytes(_TEXT_BYTES), offload=make)
        if training.offload is None:
            training.spill = sg.save_on_disk(directory, ram_budget=budget, policy=policy)
        else:
            training.spill = sg.save_on_disk(training.offload, policy=policy)
        taken, before = [], training.stats()
        for record in training.steps():
            after = training.stats()
            counted = {name: getattr(after, name) - getattr(before, name) for name in _COUNTED}
            taken.append({**counted, "step_s": record.duration_s, "waited_s": record.waited_s})
            before = after
        return {
            **medians(taken[WARM_STEPS:]), "peak_bytes": peak_rss_bytes(), "disk_bytes": before.peak_disk_bytes
        }  # fmt: skip
