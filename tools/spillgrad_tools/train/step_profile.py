"""`spillgrad train --profile`: where the time of a few steps goes, as tables and as a trace for Perfetto."""

import re
from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Column, Table

from spillgrad.profiler import PYTHON, profile, schedule
from spillgrad_tools.train.training import StepRecord

# The first steps compile kernels and learn the order of use; so many steps are recorded after them.
WARMUP_STEPS, RECORDED_STEPS = 2, 5
WAITS = "waits for the disk"
# The most modules that are printed: those that take longest.
MOST_MODULES = 20


class StepProfile:
    """A context manager for the training loop that records a few of its steps, of which there are `steps`."""

    def __init__(self, steps: int) -> None:
        self._first = min(WARMUP_STEPS, max(0, steps - 1))
        active = max(1, min(RECORDED_STEPS, steps - self._first))
        self._profile = profile(schedule=schedule(wait=0, warmup=self._first, active=active, repeat=1))
        self._done = self._recorded = 0
        self._waited_s = 0.0

    def __enter__(self) -> "StepProfile":
        self._profile.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._profile.stop()

    def after_step(self, record: StepRecord) -> None:
        """Note that a step has ended."""
        if self._first <= self._done < self._first + RECORDED_STEPS:
            self._recorded += 1
            self._waited_s += record.waited_s
        self._done += 1
        self._profile.step()

    def categories(self) -> dict[str, float]:
        """Return the seconds of a step by what it did; categories in which it did nothing are left out."""
        found = self._profile.by_category()
        found[WAITS] = min(self._waited_s, found[PYTHON])  # the thread waits without a kernel
        found[PYTHON] -= found[WAITS]
        return {name: seconds / max(self._recorded, 1) for name, seconds in found.items() if seconds > 0}

    def modules(self) -> dict[str, dict[str, float]]:
        """Return the seconds of a step's kernels by module and category; all layers count as one, "*" in its path."""
        found: dict[str, dict[str, float]] = {}
        for path, seconds in self._profile.by_module().items():
            name = re.sub(r"(^|\.)\d+(\.|$)", r"\1*\2", path, count=1) or "outside of modules"
            of_module = found.setdefault(name, {})
            for category, value in seconds.items():
                of_module[category] = of_module.get(category, 0.0) + value / max(self._recorded, 1)
        return found

    def show(self, console: Console, folder: Path) -> None:
        """Print the tables, and write the trace to `profile.json` in `folder`. Raises OSError if that is impossible."""
        if not self._recorded:
            console.print("profile: the run ended before the first step to record")
            return
        categories, modules = self.categories(), self.modules()
        whole = sum(categories.values())
        table = Table(f"a step, mean of {self._recorded}", "time", "share", box=SIMPLE)
        for column in table.columns[1:]:
            column.justify = "right"
        for name, seconds in sorted(categories.items(), key=lambda item: -item[1]):
            table.add_row(name, f"{seconds * 1e3:,.1f} ms", f"{seconds / whole:.1%}")
        table.add_row("all", f"{whole * 1e3:,.1f} ms", "")
        console.print(table)
        used = [name for name in categories if any(name in of_module for of_module in modules.values())]
        columns = (Column(f"{name}, ms", justify="right", min_width=9) for name in used)
        table = Table(Column("module", no_wrap=True), *columns, Column("share", justify="right"), box=SIMPLE)
        longest = sorted(modules.items(), key=lambda item: -sum(item[1].values()))
        for module, of_module in longest[:MOST_MODULES]:
            cells = [f"{of_module[name] * 1e3:,.1f}" if name in of_module else "" for name in used]
            table.add_row(module, *cells, f"{sum(of_module.values()) / whole:.1%}")
        console.print(table)
        path = folder / "profile.json"
        self._profile.export_chrome_trace(path)
        console.print(f"profile: {path}, for https://ui.perfetto.dev", soft_wrap=True, highlight=False)
