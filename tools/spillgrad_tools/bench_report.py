"""How benchmarks say what they ran on and what came out."""

import platform
from pathlib import Path
from typing import Any

import psutil
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from spillgrad.storage.budget import format_bytes


def machine() -> dict[str, Any]:
    """Return what a reader needs to place the numbers."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor() or platform.machine(),
        "memory": format_bytes(psutil.virtual_memory().total),
        "python": platform.python_version(),
    }


def format_seconds(seconds: float) -> str:
    """Return a duration with a unit that keeps the number between 1 and 1000: 12.3 us, 4.56 ms, 7.8 s."""
    for unit, scale in (("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3)):
        if seconds < 999.5 * scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds:.3g} s"


def show_times(about: dict[str, Any], results: list[dict[str, Any]]) -> None:
    """Print a table with a row per case: the first library's time, and how many times as long the others took."""
    first, *others = results[0]["seconds"]
    table = Table(box=SIMPLE, caption="2.00x: takes twice as long as the first column", caption_justify="left")
    table.add_column("case")
    for library in (first, *others):
        table.add_column(library, justify="right")
    for result in results:
        seconds = result["seconds"]
        beside = [f"{format_seconds(seconds[name])} {seconds[name] / seconds[first]:5.2f}x" for name in others]
        table.add_row(result["case"], format_seconds(seconds[first]), *beside)
    console = Console()
    console.print(*(f"{key}: {value}" for key, value in about.items()), sep="\n", highlight=False)
    console.print(table)
