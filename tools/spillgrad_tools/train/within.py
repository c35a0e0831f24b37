"""`spillgrad train --ram`: train as a plan for so much memory says."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

import spillgrad as sg
from spillgrad.errors import ArgumentError, BudgetError
from spillgrad.models.catalogue import Config
from spillgrad.storage.counters import rss_bytes
from spillgrad.storage.sizes import format_bytes, parse_bytes
from spillgrad_kernels.memory.system_memory import system_memory
from spillgrad_tools import fresh_process, start_anew
from spillgrad_tools.quantities import format_duration
from spillgrad_tools.train.data import TrainingData
from spillgrad_tools.train.display import show_line
from spillgrad_tools.train.options import TrainOptions, TrainSettings
from spillgrad_tools.train.plan import require_disk
from spillgrad_tools.train.training import config_of

# What `--ram auto` leaves to other programs, which may begin later: bytes, or a share of the free memory if that is
# more; but at most half of that memory.
_LEFT_BYTES, _LEFT_SHARE, _MOST_LEFT_SHARE = 512 << 20, 0.1, 0.5
# Data that takes less than this share of the memory is a part of the plan's margin.
_NOTICED_SHARE = 0.02
# What planning takes, beside what is in memory when it begins, for the smallest model: the compiler's libraries,
# threads, files. Measured as the least control group that does not end it.
_PLANNING_BYTES = 100 << 20
# What a plan decides.
DECIDED = ("offload", "ram_budget", "policy", "spill")


class Within(NamedTuple):
    """The options that a plan chose, and the memory that they keep the process within."""

    options: TrainOptions
    ram_bytes: int


def within(
    options: TrainOptions, settings: TrainSettings, data: TrainingData, place: Path, console: Console,
    leave: Callable[[], None],
) -> Within:  # fmt: skip
    """Return the options with which training stays within `options.ram`; print what they are.

    A process keeps some of the memory that planning takes. So if this process runs nothing but the command, it calls
    `leave` and starts anew, and does not return; the call of the new program returns what was planned.
    Raises BudgetError if that is too little; the message gives the least memory that works. Raises SpillError if the
    disk is too small. Raises ArgumentError if the free memory is not known.
    """
    handed = start_anew.handed_over()
    if "chosen" in handed:
        return Within(dataclasses.replace(options, **handed["chosen"]), handed["ram_bytes"])
    ram_bytes, what = _ram(options)
    starts_anew = start_anew.is_possible() and not sg.distributed.is_initialized()  # MPI has no second beginning
    least_bytes = rss_bytes() + _PLANNING_BYTES
    if starts_anew and ram_bytes < least_bytes:  # a control group of that size would end the process while it plans
        raise BudgetError(
            f"train: got --ram {options.ram}, and to plan alone takes {format_bytes(least_bytes)}; give more, or train "
            "without a plan: --offload --ram-budget SIZE"
        )
    is_named = options.resume is None and settings.weights is None and data.tokenizer is None
    model = settings.model if is_named else config_of(settings, options.resume, data.vocab_size)
    # This process has the data in memory, and another one has not.
    beside_bytes = data.mask_bytes(settings) + (0 if starts_anew else data.nbytes)
    beside_bytes = beside_bytes if beside_bytes > _NOTICED_SHARE * ram_bytes else 0
    make = functools.partial(
        _plan, model, settings, ram_bytes - beside_bytes, place, may_offload=not (options.codec or options.encrypt),
        threads=sg.get_num_threads(),
    )  # fmt: skip
    with Console(stderr=True, quiet=console.quiet).status("training two layers of it, and measuring this machine"):
        found = fresh_process.without_compiler(make, handed, leave) if starts_anew else _in_child(make)
    require_disk("train", found, place, "--spill-dir")
    chosen: dict[str, Any] = {
        "offload": found.offload, "spill": found.policy != "keep",
        "policy": "spill" if found.policy == "keep" else found.policy,
        "ram_budget": None if found.policy == "keep" else f"{found.prediction.budget_bytes >> 10}KiB",
    }  # fmt: skip
    for line in (f"within {format_bytes(ram_bytes)} of RAM{what}", *_lines(found)):
        show_line(console, line)
    if starts_anew:
        leave()
        start_anew.start_anew(chosen=chosen, ram_bytes=ram_bytes)
    return Within(dataclasses.replace(options, **chosen), ram_bytes)


def _in_child(make: "functools.partial[sg.planning.Plan]") -> sg.planning.Plan:
    """Plan in a process of its own. Raises BudgetError if the system ends that for want of memory."""
    try:
        return fresh_process.call(make.func, *make.args, **make.keywords)
    except ChildProcessError as error:
        raise BudgetError(
            f"train: to plan took more memory than there is ({error}); give more, or a smaller --batch or --context, "
            "or plan with spillgrad plan on a larger machine"
        ) from error


def contradictions(options: TrainOptions) -> Iterator[str]:
    """Yield the options that contradict --ram."""
    fields = {field.name: field.default for field in dataclasses.fields(options)}
    given = {"offload": "--offload", "ram_budget": f"--ram-budget {options.ram_budget}",
             "policy": f"--policy {options.policy}", "spill": "--no-spill"}  # fmt: skip
    for name, words in given.items():
        if getattr(options, name) != fields[name]:
            yield f"--ram {options.ram} with {words}, which the plan decides"
    master = options.settings.get("master", "whole")
    if master != "whole":
        yield f"--ram {options.ram} with --master {master}, for which there is no plan"
    if options.device != "cpu":
        yield f"--ram {options.ram} with --device {options.device}, for which there is no plan"


def _ram(options: TrainOptions) -> tuple[int, str]:
    """Return the memory for the process, and words that say where the number comes from."""
    assert options.ram is not None
    if options.ram != "auto":
        return parse_bytes(options.ram), ""
    memory = system_memory()
    if memory is None:
        raise ArgumentError("train: got --ram auto, but the free memory cannot be read here; give a size, such as 4GiB")
    # Not all of this process counts in its control group: pages of libraries may count in another one.
    free_bytes = min(memory.available_bytes + rss_bytes(), memory.total_bytes)
    left_bytes = int(min(max(_LEFT_BYTES, _LEFT_SHARE * free_bytes), _MOST_LEFT_SHARE * free_bytes))
    return free_bytes - left_bytes, f": {format_bytes(free_bytes)} are free, {format_bytes(left_bytes)} stay so"


def _plan(
    model: str | Config, settings: TrainSettings, ram_bytes: int, place: Path, may_offload: bool, threads: int
) -> sg.planning.Plan:  # fmt: skip
    sg.set_num_threads(threads)
    return sg.planning.plan(
        model, settings.batch, settings.context, ram_bytes, place, accumulate=settings.accumulate, lora=settings.lora,
        autocast=settings.autocast, offload=None if may_offload else False,
    )  # fmt: skip


def _lines(plan: sg.planning.Plan) -> Iterator[str]:
    found = plan.prediction
    where = "all on disk" if plan.offload else "the model in RAM"
    saved = {
        "keep": "what backward needs, too",
        "spill": f"what backward needs on disk beyond {format_bytes(found.budget_bytes)}",
        "recompute": "what blocks save is computed again",
        "auto": "some of what blocks save is computed again",
    }[plan.policy]
    if plan.offload:
        saved = f"{format_bytes(found.budget_bytes)} of it in RAM" + ("" if plan.policy == "spill" else f"; {saved}")
    yield f"plan: {where}, {saved}"
    yield (
        f"predicted: peak {format_bytes(found.peak_bytes)}, disk {format_bytes(found.disk_bytes)}; a step writes "
        f"{format_bytes(found.written_bytes)} and reads {format_bytes(found.read_bytes)}"
    )
    yield (
        f"predicted: a step takes {format_duration(found.step_s)}; it computes {format_duration(found.compute_s)}, and "
        f"the disk works {format_duration(found.io_s)}"
    )
    yield f"the least --ram that works is {format_bytes(plan.least_bytes)}"
