"""Draw the picture of README.md: the memory of one training over time, in RAM and with a budget for saved tensors.

Run it on a quiet machine, in an environment that has the extra `docs`: python tools/draw_memory.py
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import matplotlib.pyplot as plt
import psutil

PICTURE = Path(__file__).parents[1] / "docs/_static/memory.svg"
TRAINING = "train --batch 64 --steps 6"
CONTENDERS = {"--no-spill": "in RAM", "--ram-budget 64MiB": "saved tensors on disk, budget 64 MiB"}
COLOURS = ("#d9603b", "#2f8f9d")  # readable on white and on black
GREY = "#808080"


def memory_over_time(options: str) -> tuple[list[float], list[float]]:
    """Train in a process of its own; return the times in seconds, and its resident memory in GiB at each of them."""
    times, sizes = [], []
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "spillgrad_tools", *TRAINING.split(), *options.split(), "--out", folder]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            watched, begin = psutil.Process(process.pid), time.monotonic()
            while process.poll() is None:
                times.append(time.monotonic() - begin)
                sizes.append(watched.memory_info().rss / 2**30)
                time.sleep(0.05)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} ended with status {process.returncode}")
    return times, sizes


def main() -> None:
    """Measure both trainings and write the picture."""
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "spillgrad", "font.size": 11})
    figure, axes = plt.subplots(figsize=(8, 3), layout="constrained")
    for colour, (options, label) in zip(COLOURS, CONTENDERS.items(), strict=True):
        times, sizes = memory_over_time(options)
        axes.plot(times, sizes, color=colour, linewidth=2, label=f"{label}: at most {max(sizes):.2f} GiB")
    axes.set_xlabel(f"seconds of spillgrad {TRAINING}", color=GREY)
    axes.set_ylabel("memory of the process, GiB", color=GREY)
    axes.set_ylim(bottom=0)
    axes.tick_params(colors=GREY)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(GREY)
    axes.legend(frameon=False, labelcolor=GREY, loc="upper center", bbox_to_anchor=(0.5, 1.2), ncols=2)
    figure.savefig(PICTURE, transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    main()
