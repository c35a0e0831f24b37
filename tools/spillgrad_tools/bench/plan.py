"""`spillgrad bench plan`: compare the planner's predictions with runs, each in a process of its own."""

import dataclasses
import os
from collections.abc import Iterator

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

import spillgrad as sg
from spillgrad.spill.planning.choose import Choice
from spillgrad.spill.planning.machine import measure_disk
from spillgrad.spill.planning.predict import NOTHING, Whole
from spillgrad.storage.sizes import format_bytes
from spillgrad_tools import fresh_process
from spillgrad_tools.bench.harness import Worker
from spillgrad_tools.bench.options import PlanOptions
from spillgrad_tools.bench.plan_run import PlannedRun
from spillgrad_tools.bench.report import machine, print_json
from spillgrad_tools.quantities import format_duration

# Budgets, as shares of all bytes that may be stored.
SHARES = (0.1, 0.25, 0.5, 0.9)
POLICIES = ("spill", "recompute", "keep")
# The allowed errors of a prediction: 15 % of bytes and memory, 30 % of time.
BYTES_WITHIN, SECONDS_WITHIN = 0.15, 0.3
# Disk traffic is not compared if it is below this share of the saved bytes.
NO_TRAFFIC = 0.02


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The values that were predicted of a run, and those that were measured, by the same names."""

    case: str
    predicted: dict[str, float]
    measured: dict[str, float]
    saved_bytes: int

    def ratio(self, name: str) -> float | None:
        """Return the predicted value as a multiple of the measured one; None for traffic too small to compare."""
        predicted, measured = self.predicted[name], self.measured[name]
        if name == "moved_bytes" and max(predicted, measured) < NO_TRAFFIC * self.saved_bytes:
            return None
        return predicted / measured if measured else float("inf")

    def within(self, name: str) -> bool:
        """Return whether the prediction's error is allowed."""
        ratio = self.ratio(name)
        allowed = SECONDS_WITHIN if name == "step_s" else BYTES_WITHIN
        return ratio is None or 1 - allowed <= ratio <= 1 + allowed


def compare(options: PlanOptions, offload: bool) -> Iterator[Comparison]:
    """Predict a run for each budget and policy, and train it; the disk is measured again before each run."""
    whole = fresh_process.call(
        sg.planning.observe, options.model, options.batch, options.context, options.ram, options.directory,
        offload=offload,
    )  # fmt: skip
    saved_bytes = whole.predict(1 << 50).saved_bytes
    persistent_bytes = whole.parameter_bytes + whole.trained_bytes + whole.state_bytes if offload else 0
    for policy in POLICIES:
        for share in SHARES if policy != "keep" else SHARES[:1]:
            budget_bytes = max(int(share * (saved_bytes + persistent_bytes)), whole.profile.least_budget)
            whole.machine = dataclasses.replace(whole.machine, disk=measure_disk(options.directory, 0.5))
            found = whole.predict(
                budget_bytes, recomputed(whole) if policy == "recompute" else NOTHING, keeps=policy == "keep"
            )
            with Worker(PlannedRun, "ours", threads=0) as worker:
                measured = worker.ask(
                    do="train", model=options.model, batch=options.batch, context=options.context, policy=policy,
                    directory=os.fspath(options.directory), offload=offload, budget=budget_bytes, steps=options.steps,
                )  # fmt: skip
            yield Comparison(
                f"{'offloaded, ' if offload else ''}{policy}, {format_bytes(budget_bytes)}",
                {"moved_bytes": found.written_bytes + found.read_bytes, **dataclasses.asdict(found)},
                {"moved_bytes": measured["written_bytes"] + measured["read_bytes"], **measured},
                saved_bytes,
            )


def recomputed(whole: Whole) -> Choice:
    """Return the choice of the policy "recompute": all units of the model are recomputed."""
    parts = [unit.whole for unit in whole.units]
    paths = frozenset(part.path for part in parts)
    return Choice(paths, sum(part.freed_bytes for part in parts), sum(part.seconds for part in parts), 0.0)


def run(options: PlanOptions) -> None:
    """Compare runs with their predictions, with the model in RAM and offloaded, and print both."""
    console = Console()
    comparisons: list[Comparison] = []
    with Console(stderr=True).status("training"):
        for offload in (False, True):
            comparisons += compare(options, offload)
    if options.as_json:
        print_json(machine=machine(), runs=[dataclasses.asdict(each) for each in comparisons])
        return
    table = Table("run", box=SIMPLE, caption="predicted / measured; ✗ beyond 15 % for bytes, 30 % for seconds")
    for heading in ("disk a step", "peak RAM", "a step"):
        table.add_column(heading, justify="right")
    for each in comparisons:
        table.add_row(each.case, _cell(each, "moved_bytes"), _cell(each, "peak_bytes"), _cell(each, "step_s"))
    console.print(table)
    names = ("moved_bytes", "peak_bytes", "step_s")
    met = sum(each.within(name) for each in comparisons for name in names)
    console.print(f"{met} of {len(names) * len(comparisons)} predictions within their limits", highlight=False)


def _cell(comparison: Comparison, name: str) -> str:
    values = comparison.predicted[name], comparison.measured[name]
    shown = [format_duration(value) if name == "step_s" else format_bytes(int(value)) for value in values]
    return f"{shown[0]} / {shown[1]} {'✓' if comparison.within(name) else '✗'}"
