"""`spillgrad plan`: print a plan of a training run."""

import json
import shlex
from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Column, Table

import spillgrad as sg
from spillgrad.errors import SpillError
from spillgrad.storage.sizes import format_bytes
from spillgrad_tools import fresh_process
from spillgrad_tools.named_values import named_values
from spillgrad_tools.quantities import format_duration
from spillgrad_tools.train.display import show_line
from spillgrad_tools.train.options import PlanOptions

OPTIMIZERS = {"adamw": sg.optim.AdamW, "sgd": sg.optim.SGD, "lion": sg.optim.Lion}


def run(options: PlanOptions) -> None:
    """Plan a training run, and print the plan.

    Raises BudgetError if `options.ram` is too small; the message gives the least memory that suffices. Raises
    SpillError if the disk is too small.
    """
    console = Console()
    with Console(stderr=True).status("training two layers of it, and measuring this machine"):
        found = fresh_process.call(plan, options)
    again = command(found, options) if options.optimizer == "adamw" else None
    if options.as_json:
        print(json.dumps({**found.as_dict(), "command": again}, indent=2))
    else:
        show(console, found, options.directory)
        if again is not None:
            show_line(console, again)
    if not found.fits_disk:
        raise SpillError(
            f"plan: got {options.directory} with {format_bytes(found.machine.disk.free_bytes)} free, wanted "
            f"{format_bytes(found.prediction.disk_bytes)}; free space there, or name another folder with --dir"
        )


def plan(options: PlanOptions) -> sg.planning.Plan:
    """Make a plan for the options with `sg.planning.plan`, and return the plan."""
    make = OPTIMIZERS[options.optimizer]
    return sg.planning.plan(
        options.model, options.batch, options.context, options.ram, options.directory, accumulate=options.accumulate,
        lora=options.lora, autocast=options.autocast, offload=options.offload,
        optimizer=lambda parameters: make(parameters, lr=1e-3),
    )  # fmt: skip


def command(plan: sg.planning.Plan, options: PlanOptions) -> str:
    """Return the `spillgrad train` command line that follows a plan."""
    words = ["spillgrad", "train", "--model", options.model, "--batch", str(plan.batch), "--context", str(plan.context)]
    words += ["--accumulate", str(plan.accumulate)] if plan.accumulate > 1 else []
    words += ["--offload"] if plan.offload else []
    if plan.policy == "keep":
        words += ["--no-spill"]
    else:
        words += ["--ram-budget", f"{plan.prediction.budget_bytes >> 20}MiB", "--policy", plan.policy]
        words += [] if options.directory == Path() else ["--spill-dir", str(options.directory)]
    words += [] if options.lora is None else ["--lora", str(options.lora)]
    words += ["--autocast"] if options.autocast else []
    return shlex.join(words)


def show(console: Console, plan: sg.planning.Plan, directory: Path) -> None:
    """Print a plan as tables."""
    sizes = [
        (f"{plan.parameter_bytes / 4e6:,.1f} M parameters", plan.parameter_bytes),
        ("gradients", plan.trained_bytes),
        ("optimizer state", plan.state_bytes),
    ]
    listed = ", ".join(f"{name} {format_bytes(nbytes)}" for name, nbytes in sizes)
    times = f", {plan.accumulate} a step" if plan.accumulate > 1 else ""
    show_line(console, f"{plan.model}, batch {plan.batch} × {plan.context}{times}: {listed}")
    disk = plan.machine.disk
    show_line(
        console,
        f"{plan.machine.cores} cores, {plan.machine.matmul_flop_per_s / 1e9:,.0f} GFLOP/s in float32 products; "
        f"{directory} writes {disk.write_bytes_per_s / 1e9:.2f} GB/s, reads {disk.read_bytes_per_s / 1e9:.2f} GB/s, "
        f"{format_bytes(disk.free_bytes)} free",
    )
    console.print(_treatments(plan))
    console.print(_prediction(plan))
    if plan.alternatives:
        console.print(_alternatives(plan))


def _treatments(plan: sg.planning.Plan) -> Table:
    table = Table("", *(Column(head, justify="right") for head in ("kept", "spilled", "recomputed")), box=SIMPLE)
    persistent = format_bytes(plan.parameter_bytes + plan.trained_bytes + plan.state_bytes)
    kept, spilled = ("what fits", f"of {persistent}") if plan.offload else (persistent, "")
    table.add_row("parameters, gradients, optimizer state", kept, spilled, "")
    for each in plan.treatments:
        cells = (each.kept_bytes, each.spilled_bytes, each.recomputed_bytes)
        table.add_row(f"saved in {each.modules}", *(format_bytes(nbytes) if nbytes else "" for nbytes in cells))
    return table


def _prediction(plan: sg.planning.Plan) -> Table:
    found = plan.prediction
    tokens = plan.batch * plan.context * plan.accumulate
    return named_values(
        {
            "peak RAM of the process": f"{format_bytes(found.peak_bytes)} of {format_bytes(plan.ram_bytes)}",
            "the least --ram that works": format_bytes(plan.least_bytes),
            "RAM budget of the store": format_bytes(found.budget_bytes),
            "disk": format_bytes(found.disk_bytes),
            "written a step": format_bytes(found.written_bytes),
            "read a step": format_bytes(found.read_bytes),
            "computing a step": format_duration(found.compute_s),
            "writing and reading a step": format_duration(found.io_s),
            "a step": f"{format_duration(found.step_s)}, {tokens / found.step_s:,.0f} tokens/s",
        }
    )


def _alternatives(plan: sg.planning.Plan) -> Table:
    table = Table(*(Column(head, justify="right") for head in ("with RAM of", "a step", "disk a step")), "", box=SIMPLE)
    for each in plan.alternatives:
        ram, moved = format_bytes(each.ram_bytes), format_bytes(each.moved_bytes)
        table.add_row(ram, format_duration(each.step_s), moved, "offloaded" if each.offload else "model in RAM")
    return table
