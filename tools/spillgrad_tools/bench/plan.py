"""`spillgrad bench plan`: compare the planner's predictions with real runs, each in a process of its own."""

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Column, Table

import spillgrad as sg
from spillgrad.spill.planning.candidate import NOTHING
from spillgrad.spill.planning.choose import Choice
from spillgrad.spill.planning.machine import measure_disk
from spillgrad.spill.planning.predict import Whole
from spillgrad.storage.sizes import format_bytes
from spillgrad_tools import fresh_process
from spillgrad_tools.bench.harness import medians
from spillgrad_tools.bench.machine import machine
from spillgrad_tools.bench.options import PlanOptions
from spillgrad_tools.bench.report import print_json
from spillgrad_tools.memory_cap import peak_rss_bytes
from spillgrad_tools.quantities import format_duration
from spillgrad_tools.train.options import TrainSettings
from spillgrad_tools.train.training import Training

# Budgets, as shares of all bytes that may be stored.
SHARES = (0.1, 0.25, 0.5, 0.9)
POLICIES = ("spill", "recompute", "keep")
# The compared values, by their headings.
COMPARED = {"disk a step": "moved_bytes", "peak RAM": "peak_bytes", "a step": "step_s"}
# The allowed errors of a prediction: 15 % of bytes and memory, 30 % of time.
BYTES_WITHIN, SECONDS_WITHIN = 0.15, 0.3
# Disk traffic is not compared if it is below this share of the saved bytes.
NO_TRAFFIC = 0.02
WARM_STEPS = 3
_TEXT_BYTES = 1 << 20
# The counters of the store whose increase in each step is measured.
_COUNTED = ("written_bytes", "read_bytes", "writing_s", "reading_s")


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The predicted and the measured values of a run, under the same names."""

    case: str
    predicted: dict[str, float]
    measured: dict[str, float]
    saved_bytes: int

    def ratio(self, name: str) -> float | None:
        """Return the predicted value divided by the measured value; None for traffic too small to compare."""
        predicted, measured = self.predicted[name], self.measured[name]
        if name == "moved_bytes" and max(predicted, measured) < NO_TRAFFIC * self.saved_bytes:
            return None
        return predicted / measured if measured else float("inf")

    def within(self, name: str) -> bool:
        """Return whether the error of a predicted value is within its limit."""
        ratio = self.ratio(name)
        allowed = SECONDS_WITHIN if name == "step_s" else BYTES_WITHIN
        return ratio is None or 1 - allowed <= ratio <= 1 + allowed


def train(policy: str, offload: bool, budget: int, settings: TrainSettings, directory: Path) -> dict[str, Any]:
    """Train; return the median bytes and seconds of the steps after warm-up, and the run's peaks of memory and disk."""
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


def compare(options: PlanOptions, offload: bool) -> Iterator[Comparison]:
    """Predict and train a run for each budget and policy; yield the comparisons. Measure the disk before each run."""
    whole = fresh_process.call(
        sg.planning.observe, options.model, options.batch, options.context, options.ram, options.directory,
        offload=offload,
    )  # fmt: skip
    saved_bytes = whole.predict(1 << 50).saved_bytes
    settings = TrainSettings(
        model=options.model, steps=options.steps + WARM_STEPS, batch=options.batch, context=options.context
    )
    persistent_bytes = whole.parameter_bytes + whole.trained_bytes + whole.state_bytes if offload else 0
    for policy in POLICIES:
        for share in SHARES if policy != "keep" else SHARES[:1]:
            budget_bytes = max(int(share * (saved_bytes + persistent_bytes)), whole.profile.least_budget)
            whole.machine = dataclasses.replace(whole.machine, disk=measure_disk(options.directory, 0.5))
            found = whole.predict(
                budget_bytes, recomputed(whole) if policy == "recompute" else NOTHING, keeps=policy == "keep"
            )
            measured = fresh_process.call(train, policy, offload, budget_bytes, settings, options.directory)
            yield Comparison(
                f"{'offloaded, ' if offload else ''}{policy}, {format_bytes(budget_bytes)}",
                {"moved_bytes": found.written_bytes + found.read_bytes, **dataclasses.asdict(found)},
                {"moved_bytes": measured["written_bytes"] + measured["read_bytes"], **measured},
                saved_bytes,
            )


def recomputed(whole: Whole) -> Choice:
    """Return the choice that the policy "recompute" makes: all units of the model are recomputed."""
    parts = [unit.whole for unit in whole.units]
    paths = frozenset(part.path for part in parts)
    return Choice(paths, sum(part.freed_bytes for part in parts), sum(part.seconds for part in parts), 0.0)


def run(options: PlanOptions) -> None:
    """Compare runs with their predictions, with the model in RAM and offloaded, and print the comparisons."""
    console = Console()
    comparisons: list[Comparison] = []
    with Console(stderr=True).status("training"):
        for offload in (False, True):
            comparisons += compare(options, offload)
    if options.as_json:
        print_json(machine=machine(), runs=[dataclasses.asdict(each) for each in comparisons])
        return
    table = Table("run", *(Column(head, justify="right") for head in COMPARED), box=SIMPLE)
    table.caption = "predicted / measured; ✗ beyond 15 % for bytes, 30 % for seconds"
    for each in comparisons:
        table.add_row(each.case, *(_cell(each, name) for name in COMPARED.values()))
    console.print(table)
    met = [each.within(name) for each in comparisons for name in COMPARED.values()]
    console.print(f"{sum(met)} of {len(met)} predictions within their limits", highlight=False)


def _cell(comparison: Comparison, name: str) -> str:
    values = comparison.predicted[name], comparison.measured[name]
    shown = [format_duration(value) if name == "step_s" else format_bytes(int(value)) for value in values]
    return f"{shown[0]} / {shown[1]} {'✓' if comparison.within(name) else '✗'}"
