"""`spillgrad bench memory`: train one model with each way to save memory, and measure what it saves and costs."""

import contextlib
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Column, Table

import spillgrad as sg
from spillgrad.storage.sizes import format_bytes
from spillgrad.storage.store import StoreStats
from spillgrad_tools import fresh_process
from spillgrad_tools.bench import results
from spillgrad_tools.bench.gpt import LR, gpt_weights, tokens
from spillgrad_tools.bench.harness import is_installed
from spillgrad_tools.bench.machine import machine
from spillgrad_tools.bench.operations import load
from spillgrad_tools.bench.options import MemoryOptions
from spillgrad_tools.bench.report import print_json, scratch_folder
from spillgrad_tools.memory_cap import forget_peak_rss, peak_rss_bytes
from spillgrad_tools.quantities import UNKNOWN, format_duration

# A GPT of 11 million parameters, in batches that save about as much for backward as parameters, gradients and moments
# take together. So every method has something to save.
SIZES = {"vocab_size": 256, "context": 256, "n_layer": 6, "n_head": 6, "n_embd": 384}
BATCH = 4
BUDGET = "32MiB"
OFFLOAD_BUDGET = "64MiB"
RANK = 8
# Steps before those that are timed. The policy "auto" decides after three.
WARM_STEPS, WARM_STEPS_OF_AUTO = 1, 3

Row = dict[str, Any]


@dataclass(frozen=True)
class Method:
    """A way to train: arguments of `save_on_disk`, whether the model is offloaded, and what else saves memory.

    `parts` is the number of batches of a step. `library` is "ours" or "torch"; for "torch", `options` are arguments of
    the library's training.
    """

    name: str
    spill: Mapping[str, Any] | None = None
    offload: bool = False
    on_cpu: bool = False
    autocast: bool = False
    lora: bool = False
    parts: int = 1
    library: str = "ours"
    options: Mapping[str, Any] = field(default_factory=dict)


_SPILLED = {"ram_budget": BUDGET}
KEPT = Method("keep: everything in RAM")
METHODS = (
    KEPT,
    Method("spill", _SPILLED),
    Method("spill, codec lossless", {**_SPILLED, "codec": "lossless"}),
    Method("spill, codec bf16", {**_SPILLED, "codec": "bf16"}),
    Method("spill, codec int8", {**_SPILLED, "codec": "int8"}),
    Method("recompute", {**_SPILLED, "policy": "recompute"}),
    Method("policy auto", {**_SPILLED, "policy": "auto"}),
    Method("save_on_cpu", on_cpu=True),
    Method("autocast", autocast=True),
    Method("LoRA", lora=True),
    Method("gradient accumulation", parts=BATCH),
    Method("offload", {}, offload=True),
    Method("spill + autocast", _SPILLED, autocast=True),
    Method("spill + LoRA", _SPILLED, lora=True),
    Method("spill + LoRA + autocast", _SPILLED, lora=True, autocast=True),
    Method("offload + recompute", {"policy": "recompute"}, offload=True),
    Method("offload + accumulation", {}, offload=True, parts=BATCH),
)
TORCH_KEPT = Method("PyTorch: everything in RAM", library="torch")
TORCH_METHODS = (
    TORCH_KEPT,
    Method("PyTorch: spill", library="torch", options={"spill_budget": BUDGET}),
    Method("PyTorch: optimizer state on disk", library="torch", options={"optimizer_budget": BUDGET}),
    Method(
        "PyTorch: spill, optimizer state on disk", library="torch",
        options={"spill_budget": BUDGET, "optimizer_budget": BUDGET},
    ),
)  # fmt: skip


class Training:
    """The model in training with one method, as a program of this library writes it."""

    def __init__(self, method: Method, sizes: Mapping[str, Any], directory: Path) -> None:
        sg.manual_seed(0)
        self.method = method
        self.offload: sg.disk_offload | None = None
        build = partial(self._build, sizes)
        optimizer = partial(sg.optim.AdamW, lr=LR)
        self.model: sg.nn.Module
        self.optimizer: Any
        if method.offload:
            self.offload = sg.disk_offload(
                build, optimizer, directory, ram_budget=OFFLOAD_BUDGET, step_in_backward=method.parts == 1
            )
            self.model, self.optimizer = self.offload.model, self.offload.optimizer
        else:
            self.model = build()
            self.optimizer = optimizer([p for p in self.model.parameters() if p.requires_grad])
        self.spill: sg.save_on_disk | None = None
        if method.spill is not None:
            self.spill = sg.save_on_disk(directory if self.offload is None else self.offload, **method.spill)

    def step(self, inputs: np.ndarray, targets: np.ndarray) -> float:
        """Run forward, backward and the optimizer's step; return the loss."""
        self.optimizer.zero_grad()
        saving: Any = sg.autograd.graph.save_on_cpu() if self.method.on_cpu else self.spill or contextlib.nullcontext()
        parts, value = self.method.parts, 0.0
        for x, y in zip(np.split(inputs, parts), np.split(targets, parts), strict=True):
            with saving, sg.autocast("cpu") if self.method.autocast else contextlib.nullcontext():
                _, loss = self.model(sg.from_numpy(x), sg.from_numpy(y))
            (loss / parts).backward()
            value += loss.item() / parts
        self.optimizer.step()
        return value

    def stats(self) -> StoreStats:
        """Return the counters of the store."""
        store = self.offload or self.spill
        return StoreStats() if store is None else store.stats()

    def _build(self, sizes: Mapping[str, Any]) -> sg.nn.Module:
        model = sg.models.GPT(sg.models.GPTConfig(**sizes))
        return sg.nn.lora(model, RANK) if self.method.lora else model


def train(method: Method, sizes: Mapping[str, Any], batch: int, steps: int, threads: int, directory: Path) -> Row:
    """Train with a method; return the losses, the median seconds of a step, its traffic, and the peak memory."""
    library = load(method.library)
    library.set_num_threads(threads)
    start_bytes = peak_rss_bytes()
    training: Any
    if method.library == "ours":
        training = Training(method, sizes, directory)
    else:
        training = library.training(sizes, gpt_weights(sizes), directory=str(directory), **method.options)
    forget_peak_rss()
    losses, seconds = [], []
    warm_steps = WARM_STEPS_OF_AUTO if dict(method.spill or {}).get("policy") == "auto" else WARM_STEPS
    before = after = _moved(training)
    for number in range(warm_steps + steps):
        inputs, targets = tokens(sizes["vocab_size"], (batch, sizes["context"]), number)
        before, started = after, time.perf_counter()
        losses.append(training.step(inputs, targets))
        seconds.append(time.perf_counter() - started)
        after = _moved(training)
    timed = seconds[warm_steps:]
    return {
        "seconds": statistics.median(timed), "spread": [min(timed), max(timed)],
        "peak_rss_bytes": peak_rss_bytes(), "start_rss_bytes": start_bytes, "losses": losses,
        "disk_bytes": training.stats().peak_disk_bytes,
        "written_bytes_per_step": after[0] - before[0], "read_bytes_per_step": after[1] - before[1],
    }  # fmt: skip


def _moved(training: Any) -> tuple[int, int]:
    stats = training.stats()
    return stats.written_bytes, stats.read_bytes


def measure(methods: Sequence[Method], options: MemoryOptions, sizes: Mapping[str, Any], folder: Path) -> list[Row]:
    """Train with each method in a process of its own; return the rows, each beside the first of its library."""
    rows: list[Row] = []
    threads = options.threads or sg.get_num_threads()
    for method in methods:
        found = fresh_process.call(train, method, sizes, BATCH, options.steps, threads, folder)
        first = next((row for row in rows if row["library"] == method.library), None)
        losses = found["losses"] if first is None else first["losses"]
        apart = max(abs(a - b) / b for a, b in zip(found["losses"], losses, strict=False))
        rows.append({"method": method.name, "library": method.library, **found, "losses_apart": apart})
    return rows


def run(options: MemoryOptions) -> None:
    """Measure each method whose name contains `options.name`, and print the rows; write them to a folder if named.

    Raises ArgumentError if no method has such a name.
    """
    installed = (*METHODS, *(TORCH_METHODS if is_installed("torch") else ()))
    chosen = [each for each in installed if options.name in each.name or each in (KEPT, TORCH_KEPT)]
    with scratch_folder(options.directory, "training") as (folder, _):
        rows = measure(chosen, options, SIZES, folder)
    about = {
        **machine(options.directory), "threads": options.threads or sg.get_num_threads(), "model": SIZES,
        "batch": BATCH, "steps": options.steps, "ram_budget": BUDGET, "offload_budget": OFFLOAD_BUDGET, "rank": RANK,
    }  # fmt: skip
    if options.page:
        results.write(options.page, "memory", "spillgrad bench memory", about, rows)
    if options.as_json:
        print_json(machine=about, results=rows)
    else:
        show(rows)


def show(rows: Sequence[Row]) -> None:
    """Print the rows as a table."""
    columns = ("peak memory", "a step", "× keep", "disk", "losses")
    table = Table("method", *(Column(head, justify="right") for head in columns), box=SIMPLE)
    table.caption = "losses: the largest relative difference from the first row's"
    firsts = {row["library"]: row for row in reversed(rows)}
    for row in rows:
        table.add_row(
            row["method"], format_bytes(row["peak_rss_bytes"]), format_duration(row["seconds"]),
            f"{row['seconds'] / firsts[row['library']]['seconds']:.2f}",
            format_bytes(row["disk_bytes"]) if row["disk_bytes"] else UNKNOWN,
            f"{row['losses_apart']:.1e}" if row["losses_apart"] else "the same",
        )  # fmt: skip
    Console().print(table)
