"""The runner of a process that trains for `spillgrad bench plan`, and says what it moved, held and took."""

import time
from typing import Any

import numpy as np

import spillgrad as sg
from spillgrad.nn.utils.clip_grad import clip_grad_norm_
from spillgrad_tools.bench.harness import medians
from spillgrad_tools.memory_cap import peak_rss_bytes

WARM_STEPS = 3


class PlannedRun:
    """Trains as a plan says."""

    version, survives = None, False

    def __init__(self, *_: object) -> None:
        pass

    def train(self, model: str, batch: int, context: int, steps: int, directory: str, **how: Any) -> dict[str, Any]:
        """Train; return the bytes and seconds of the median step after the first ones, and the largest memory."""
        sg.manual_seed(0)
        policy, offload, budget = how["policy"], how["offload"], how["budget"]
        accumulate = how.get("accumulate", 1)
        overrides = how.get("overrides", {})
        if offload:
            offloaded = sg.disk_offload(
                lambda: sg.models.build(model, context, **overrides), sg.optim.AdamW, directory, ram_budget=budget,
                step_in_backward=accumulate == 1, max_grad_norm=1.0,
            )  # fmt: skip
            built, optimizer = offloaded.model, offloaded.optimizer or sg.optim.AdamW(offloaded.model.parameters())
            spill = sg.save_on_disk(offloaded, policy=policy)
        else:
            built = sg.models.build(model, context, **overrides)
            optimizer = sg.optim.AdamW(built.parameters())
            spill = sg.save_on_disk(directory, ram_budget=budget, policy=policy)
        tokens = np.random.default_rng(0).integers(0, 256, (batch, context + 1))
        taken = []
        for _ in range(steps + WARM_STEPS):
            before, began_s = spill.stats(), time.perf_counter()
            optimizer.zero_grad()
            for _ in range(accumulate):
                with spill:
                    _, loss = built(tokens[:, :-1], tokens[:, 1:])
                (loss if accumulate == 1 else loss / accumulate).backward()
                del loss
            if not offload:
                clip_grad_norm_(built.parameters(), 1.0)
            if not offload or accumulate > 1:
                optimizer.step()
            after, ended_s = spill.stats(), time.perf_counter()
            taken.append(
                {
                    "written_bytes": after.written_bytes - before.written_bytes,
                    "read_bytes": after.read_bytes - before.read_bytes,
                    "step_s": ended_s - began_s,
                    "waited_s": after.wait_write_s + after.wait_read_s - before.wait_write_s - before.wait_read_s,
                    "writing_s": after.writing_s - before.writing_s,
                    "reading_s": after.reading_s - before.reading_s,
                }
            )
        result = medians(taken[WARM_STEPS:])
        result["peak_bytes"] = peak_rss_bytes()
        result["disk_bytes"] = spill.stats().peak_disk_bytes
        return result
