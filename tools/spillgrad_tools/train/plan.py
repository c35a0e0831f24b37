"""`spillgrad plan`: print a plan of a training run."""

import dataclasses
import functools
import json
import shlex
from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Column, Table

import spillgrad as sg
from spillgrad.distributed.process_group import member
from spillgrad.errors import ArgumentError, SpillError
from spillgrad.spill.planning.candidate import DRIFT_BYTES
from spillgrad.spill.planning.profile import in_steps
from spillgrad.storage.counters import rss_bytes
from spillgrad.storage.sizes import format_bytes
from spillgrad_tools import fresh_process, start_anew
from spillgrad_tools.named_values import named_values
from spillgrad_tools.quantities import format_duration
from spillgrad_tools.train.display import output_console, show_line
from spillgrad_tools.train.options import DEFAULT_LATENCY, PlanOptions
from spillgrad_tools.train.ranks import Ranks

# What planning takes, beside what is in memory when it begins, for the smallest model: the compiler's libraries,
# threads, files. Measured as the least control group that does not end it.
_PLANNING_BYTES = 100 << 20
OPTIMIZERS = {"adamw": sg.optim.AdamW, "sgd": sg.optim.SGD, "lion": sg.optim.Lion}


def run(options: PlanOptions) -> None:
    """Plan a training run, and print the plan.

    Raises BudgetError if `options.ram` is too small; the message gives the least memory that suffices. Raises
    SpillError if the disk is too small.
    """
    _require_consistent(options)
    ranks = Ranks()
    link = _link(options, ranks)
    console = output_console(is_quiet=not ranks.is_first)
    with Console(stderr=True, quiet=not ranks.is_first).status("training two layers of it, and measuring this machine"):
        # All processes measure at the same time: those of one machine share its cores and its disk.
        arguments = options, link, options.ranks or ranks.size, sg.get_num_threads()
        if start_anew.is_possible() and ranks.size == 1:  # as train does, so that both name the same memory
            least_bytes, make = least_to_plan(), functools.partial(plan, *arguments)
            found = fresh_process.without_compiler(make, start_anew.handed_over(), dict)
            found = with_room_to_plan(found, least_bytes)
        else:
            found = fresh_process.call(plan, *arguments)
    again = command(found, options) if options.optimizer == "adamw" else None
    if options.as_json and ranks.is_first:
        print(json.dumps({**found.as_dict(), "command": again}, indent=2))
    elif not options.as_json:
        show(console, found, options.directory)
        if again is not None:
            show_line(console, again)
    require_disk("plan", found, options.directory, "--dir")


def least_to_plan() -> int:
    """Return the least memory in which this process, as it is now, can plan."""
    return rss_bytes() + _PLANNING_BYTES


def with_room_to_plan(found: sg.planning.Plan, least_bytes: int) -> sg.planning.Plan:
    """Return a plan that names no less memory than `least_to_plan` did, with some to spare for another process."""
    least_bytes = in_steps(least_bytes + DRIFT_BYTES)
    return dataclasses.replace(found, least_bytes=min(max(found.least_bytes, least_bytes), found.ram_bytes))


def _require_consistent(options: PlanOptions) -> None:
    """Raise ArgumentError if options contradict each other, or say no model."""
    if (options.model is None) == (options.weights is None):
        got = "neither --model nor --weights" if options.model is None else "--model and --weights"
        raise ArgumentError(f"plan: got {got}; wanted one of them: a size such as --model gpt2, or a folder of weights")
    if options.master not in (None, "whole") and not options.autocast:
        raise ArgumentError(
            f"plan: got --master {options.master} without --autocast, whose products read bfloat16; give both"
        )


def require_disk(who: str, found: sg.planning.Plan, directory: Path, option: str) -> None:
    """Raise SpillError if the folder that an option names has too little room for what a plan stores."""
    if not found.fits_disk:
        raise SpillError(
            f"{who}: got {directory} with {format_bytes(found.machine.disk.free_bytes)} free, wanted "
            f"{format_bytes(found.prediction.disk_bytes)}; free space there, or name another folder with {option}"
        )


def _link(options: PlanOptions, ranks: Ranks) -> sg.planning.Link | None:
    """Return the network between the processes: as given, or measured; None if a plan for one process is wanted.

    Raises ArgumentError if the network is not known, or if an option has nothing to say.
    """
    if options.link is not None:
        speed = sg.planning.parse_link(options.link)
        if options.ranks is None and ranks.size == 1:
            raise ArgumentError(f"plan: got --link {options.link} for one process; say how many with --ranks")
        return sg.planning.Link(speed, sg.planning.parse_latency(options.latency or DEFAULT_LATENCY))
    if options.latency is not None:
        raise ArgumentError(f"plan: got --latency {options.latency} without --link; give the network's speed, too")
    if ranks.size > 1:
        return sg.planning.measure_link(member())
    if options.ranks is not None:
        raise ArgumentError(
            f"plan: got --ranks {options.ranks}, but no network; give its speed, such as --link 1Gbit, or measure it: "
            "spillgrad launch -n 2 -- plan ..."
        )
    return None


def plan(options: PlanOptions, link: sg.planning.Link | None, ranks: int, threads: int) -> sg.planning.Plan:
    """Make a plan for the options with `sg.planning.plan`, and return the plan."""
    sg.set_num_threads(threads)
    make = OPTIMIZERS[options.optimizer]
    return sg.planning.plan(
        Path(options.weights or "") if options.model is None else options.model, options.batch, options.context,
        options.ram, options.directory, accumulate=options.accumulate, lora=options.lora, autocast=options.autocast,
        offload=options.offload, optimizer=lambda parameters: make(parameters, lr=1e-3), ranks=ranks, link=link,
        wire=options.wire, shard=options.shard, state=options.state, master=options.master, lossy=options.lossy,
    )  # fmt: skip


def command(plan: sg.planning.Plan, options: PlanOptions) -> str:
    """Return the `spillgrad train` command line that follows a plan."""
    ranks = plan.recommended_ranks
    batches = max(plan.accumulate, ranks)  # each process needs one
    words = ["spillgrad", *(["launch", "-n", str(ranks), "--"] if ranks > 1 else []), "train"]
    words += ["--weights", options.weights] if options.weights is not None else ["--model", str(options.model)]
    words += ["--batch", str(plan.batch), "--context", str(plan.context)]
    words += ["--accumulate", str(batches)] if batches > 1 else []
    words += ["--offload"] if plan.offload else []
    words += ["--shard", plan.shard] if plan.shard != "state" else []
    if plan.policy == "keep":
        words += ["--no-spill"]
    else:
        words += ["--ram-budget", f"{plan.prediction.budget_bytes >> 20}MiB", "--policy", plan.policy]
        words += [] if options.directory == Path() else ["--spill-dir", str(options.directory)]
    words += [] if options.lora is None else ["--lora", str(options.lora)]
    words += ["--autocast"] if options.autocast else []
    words += ["--state", plan.state] if plan.state not in (None, "float32") else []
    words += ["--master", plan.master] if plan.master != "whole" else []
    words += ["--wire", options.wire] if options.wire != "float32" else []
    return shlex.join(words)


def show(console: Console, plan: sg.planning.Plan, directory: Path) -> None:
    """Print a plan as tables."""
    sizes = [
        (f"{plan.parameters / 1e6:,.1f} M parameters", plan.parameter_bytes),
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
    for line in plan.accuracy:
        show_line(console, line)
    if plan.alternatives:
        console.print(_alternatives(plan))
    if plan.scaling:
        show_scaling(console, plan)


def show_scaling(console: Console, plan: sg.planning.Plan) -> None:
    """Print the steps of several processes as a table, and how many are recommended."""
    link = plan.link
    assert link is not None
    shared = "all in parts" if plan.shard == "all" else "optimizer state in parts"
    how = shared if plan.offload else "the whole model in each"
    show_line(
        console,
        f"several processes, {how}, gradients as {plan.wire}, over {link.bytes_per_s / 1e6:,.0f} MB/s with a latency "
        f"of {format_duration(link.latency_s)}:",
    )
    heads = ("processes", "batches a step", "a step", "tokens/s", "efficiency", "sent by each", "network", "exposed")
    table = Table(*(Column(head, justify="right") for head in (*heads, "peak RAM of each")), box=SIMPLE)
    for row in plan.scaling:
        tokens = plan.batch * plan.context * row.batches
        table.add_row(
            str(row.ranks), str(row.batches), format_duration(row.step_s), f"{tokens / row.step_s:,.0f}",
            f"{row.efficiency:.0%}", format_bytes(row.sent_bytes), format_duration(row.network_s),
            format_duration(row.exposed_s), format_bytes(row.peak_bytes),
        )  # fmt: skip
    console.print(table)
    most = plan.recommended_ranks
    kept = next(row.efficiency for row in plan.scaling if row.ranks == most)
    if most > 1:
        show_line(console, f"recommended: {most} processes, each of which keeps {kept:.0%} of its speed")
    else:
        show_line(console, "recommended: 1 process; several would lose more than a fifth of their speed")
    large = [row for row in plan.scaling if row.peak_bytes > plan.ram_bytes]
    if large:
        show_line(
            console,
            f"with {large[0].ranks} or more, each takes {format_bytes(large[0].peak_bytes)}, which is more than --ram; "
            "gradients that travel take room, too",
        )


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
