"""`spillgrad bench ranks`: compare steps of two processes with their predictions, and predict those of up to 1,024."""

import dataclasses
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Column, Table

import spillgrad as sg
from spillgrad.spill.planning.scaling import numbers_up_to, recommended
from spillgrad_tools import fresh_process
from spillgrad_tools.bench import results
from spillgrad_tools.bench.machine import machine
from spillgrad_tools.bench.options import RankOptions
from spillgrad_tools.bench.report import print_json
from spillgrad_tools.quantities import format_duration

# Trainings of two processes on this machine: model, batch, context.
MEASURED = (("small", 4, 128), ("gpt2", 1, 128))
PROCESSES = 2
# Enough that nothing is spilled.
_BUDGET_BYTES, _WATCHED_IN = 1 << 40, "64GiB"
LATENCY_S = 50e-6
# Machines of a prediction: their cores, and the seconds in which they compute a step of one batch. What this machine
# takes is another number each time that others use it, too; only its shares of the phases count.
MACHINES = ((2, 128.0), (8, 32.0), (32, 8.0))
# Batches of a step: as many as processes, or a fixed number that they share.
WEAK, STRONG = 1, 1024

Row = dict[str, Any]


def measured(options: RankOptions) -> Iterator[Row]:
    """Train in two processes, predict their steps meanwhile, and yield a row for each model. The medians count."""
    for model, batch, context in MEASURED:
        if options.name not in model:
            continue
        words = ["-m", "spillgrad_tools.bench.ranks_program", model, batch, context, options.rounds, options.directory]
        command = [sys.executable, "-m", "spillgrad", "launch", "-n", str(PROCESSES), "--", *map(str, words)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode:
            sys.stderr.write(ran.stderr)
            raise ChildProcessError(f"bench ranks: the processes of {model} ended with status {ran.returncode}")
        rounds = json.loads(ran.stdout)
        medians = {name: statistics.median(each[name] for each in rounds) for name in ("predicted_s", "measured_s")}
        yield {
            "kind": "measured", "model": model, "batch": batch, "context": context, "ranks": PROCESSES, **medians,
            "rounds": rounds,
        }  # fmt: skip


def predicted(options: RankOptions) -> Iterator[Row]:
    """Predict steps of the model of the options, and yield a row for each number of batches, speed and network."""
    whole = fresh_process.call(
        sg.planning.observe, options.model, options.batch, options.context, _WATCHED_IN, options.directory,
        offload=False,
    )  # fmt: skip
    alone_s = whole.predict(_BUDGET_BYTES).compute_s
    for batches in (WEAK, STRONG):
        for cores, seconds in MACHINES:
            for network in options.links.split(","):
                link = sg.planning.Link(sg.planning.parse_link(network), LATENCY_S)
                machines = whole.with_speed(alone_s / seconds).with_batches(batches)
                numbers = numbers_up_to(options.ranks)
                cells = sg.planning.scale(machines, _BUDGET_BYTES, link, cores, numbers)
                yield {
                    "kind": "predicted", "model": options.model, "batch": options.batch, "context": options.context,
                    "parameters": whole.parameters, "batches": batches, "seconds": seconds, "cores": cores,
                    "network": network, "recommended": recommended(cells),
                    "cells": [dataclasses.asdict(cell) for cell in cells],
                }  # fmt: skip


def run(options: RankOptions) -> None:
    """Compare and predict; print tables, and write the rows to a folder if one is named."""
    about = {**machine(options.directory), "threads": sg.get_num_threads()}
    with Console(stderr=True).status("training in two processes") as status:
        rows = list(measured(options)) if options.rounds else []
        status.update("training two layers of the predicted model")
        rows += predicted(options)
    if options.page:
        results.write(options.page, "ranks", "spillgrad bench ranks", about, rows)
    if options.as_json:
        print_json(machine=about, results=rows)
        return
    console = Console()
    _show_measured(console, [row for row in rows if row["kind"] == "measured"])
    _show_predicted(console, [row for row in rows if row["kind"] == "predicted"])


def _show_measured(console: Console, rows: list[Row]) -> None:
    if not rows:
        return
    heads = ("batch", "context", "a step, predicted", "measured", "ratio")
    table = Table("model, in two processes", *(Column(head, justify="right") for head in heads), box=SIMPLE)
    for row in rows:
        both = row["predicted_s"], row["measured_s"]
        table.add_row(
            row["model"], str(row["batch"]), str(row["context"]), *map(format_duration, both),
            f"{both[0] / both[1]:.2f}",
        )  # fmt: skip
    console.print(table)


def _show_predicted(console: Console, rows: list[Row]) -> None:
    ranks = [cell["ranks"] for cell in rows[0]["cells"]]
    heads = ("network", *(f"{count:,}" for count in ranks))
    table = Table(
        "batches a step", "cores, a batch alone", *(Column(head, justify="right") for head in heads), box=SIMPLE
    )
    table.caption = "efficiency of so many processes"
    for row in rows:
        batches = "one for each process" if row["batches"] == 1 else f"{row['batches']:,}"
        shares = [f"{cell['efficiency']:.0%}" for cell in row["cells"]]
        table.add_row(batches, f"{row['cores']}, {format_duration(row['seconds'])}", row["network"], *shares)
    console.print(table)
