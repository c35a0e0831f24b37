"""`spillgrad train --ram`: train as a plan for so much memory says, or in RAM where all plainly fits."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

import spillgrad as sg
from spillgrad.errors import ArgumentError, BudgetError
from spillgrad.models.catalogue import Config
from spillgrad.spill.planning.plan import Model
from spillgrad.storage.counters import rss_bytes
from spillgrad.storage.sizes import format_bytes, parse_bytes
from spillgrad_kernels.jit import cache
from spillgrad_kernels.jit.compile import DISABLE_JIT
from spillgrad_kernels.memory.system_memory import system_memory
from spillgrad_tools import fresh_process, start_anew
from spillgrad_tools.quantities import format_duration
from spillgrad_tools.train.data import TrainingData
from spillgrad_tools.train.display import show_line
from spillgrad_tools.train.options import TrainOptions, TrainSettings
from spillgrad_tools.train.plan import least_to_plan, require_disk, with_room_to_plan
from spillgrad_tools.train.ranks import Ranks
from spillgrad_tools.train.rough_need import rough_need
from spillgrad_tools.train.training import config_of

# What `--ram auto` leaves to other programs, which may begin later: bytes, or a share of the free memory if that is
# more; but at most half of that memory.
_LEFT_BYTES, _LEFT_SHARE, _MOST_LEFT_SHARE = 512 << 20, 0.1, 0.5
# Data that takes less than this share of the memory is a part of the plan's margin.
_NOTICED_SHARE = 0.02
# What compiling takes beside planning, where no kernels are on disk yet. Measured as the least control group, too.
_COMPILING_BYTES = 192 << 20
# What MPI takes in each process when messages travel, beside what it takes at the beginning.
_MESSAGES_BYTES = 32 << 20
# The share of the memory that a rough guess, which is too high, may take: then nothing is measured.
_PLAINLY_SHARE = 0.5


class Within(NamedTuple):
    """The options and settings to train with, the memory that a plan keeps the process within, and a line.

    The line says where tensors are. Without a plan, there is no such memory. `is_split` says whether weights are stored
    in two halves, which changes no number, so it is no setting.
    """

    options: TrainOptions
    settings: TrainSettings
    ram_bytes: int | None = None
    where: str = "all in RAM"
    is_split: bool = False


class _Chosen(NamedTuple):
    """What a plan says: options, settings, and whether weights are in two halves."""

    options: dict[str, Any]
    settings: dict[str, Any]
    is_split: bool

    def within(self, options: TrainOptions, settings: TrainSettings, ram_bytes: int) -> Within:
        options = dataclasses.replace(options, **self.options)
        return Within(options, dataclasses.replace(settings, **self.settings), ram_bytes, is_split=self.is_split)


class _Ram(NamedTuple):
    """The memory for each process, words that say where the number comes from, and the processes of this machine.

    There are no words if the number was named. There is none where it is not known how much is free, and --ram does not
    ask for it.
    """

    nbytes: int | None
    free: str
    ranks_here: int


def is_automatic(options: TrainOptions) -> bool:
    """Return whether nothing on the command line says where tensors are to be, so that `--ram auto` holds."""
    is_said = options.codec or options.encrypt or options.report  # these are about what is spilled
    return not (options.ram is not None or is_said or any(_decided(options)))


def within(
    options: TrainOptions, settings: TrainSettings, data: TrainingData, place: Path, console: Console, ranks: Ranks,
    handed: Mapping[str, Any], leave: Callable[[], Mapping[str, Any]],
) -> Within:  # fmt: skip
    """Return the options and settings with which each process stays within `options.ram`; print what they are.

    Without `options.ram`, the options stay as they are, unless they say nothing about RAM and disk: then this stays
    within the memory that is free, as with `--ram auto`. Where all plainly fits, nothing is measured. Of several
    processes, which all call this, the first one decides for all.

    A process keeps some of the memory that planning takes. So if this process runs nothing but the command, it calls
    `leave` and starts anew, and does not return; the call of the new program, to which is `handed` what was planned and
    what `leave` has returned, returns the plan.
    Raises BudgetError if that is too little; the message gives the least memory that works. Raises SpillError if the
    disk is too small. Raises ArgumentError if the free memory is not known, and for data that do not fit the model.
    """
    if "chosen" in handed:
        return _Chosen(*handed["chosen"]).within(options, settings, handed["ram_bytes"])
    is_planned = settings.master == "whole" or (ranks.size == 1 and settings.wire == "float32")
    if options.ram is None and not (is_automatic(options) and is_planned):
        return Within(options, settings)
    ram = _ram(options, ranks)
    if ram.nbytes is None:
        return Within(options, settings)
    config = config_of(settings, data, options.resume)  # a plan would take its time before a mistake is said
    if ram.free and not options.report:  # which is of a store
        need_bytes = max(ranks.everyones(rss_bytes() + rough_need(config, settings)))
        if need_bytes <= _PLAINLY_SHARE * ram.nbytes:
            where = f"all in RAM: it takes less than {format_bytes(need_bytes)}, and {ram.free}"
            return Within(dataclasses.replace(options, spill=False), settings, where=where)
    if options.ram is None and ranks.size == 1 and ram.nbytes < least_to_plan():
        return Within(options, settings)  # too little to plan in
    chosen = None
    if ranks.is_first:
        chosen = _planned(options, settings, data, place, console, ranks, leave, handed, ram, config)
    chosen = ranks.firsts(chosen)
    assert chosen is not None
    return chosen.within(options, settings, ram.nbytes)


def _planned(
    options: TrainOptions, settings: TrainSettings, data: TrainingData, place: Path, console: Console, ranks: Ranks,
    leave: Callable[[], Mapping[str, Any]], handed: Mapping[str, Any], ram: _Ram, config: Config,
) -> _Chosen:  # fmt: skip
    """Plan, print the plan, and return what it chooses; or start anew with that."""
    assert ram.nbytes is not None
    starts_anew = start_anew.is_possible() and not sg.distributed.is_initialized()  # MPI has no second beginning
    _require_room_to_compile()
    least_bytes = least_to_plan()
    if starts_anew and ram.nbytes < least_bytes:  # a control group of that size would end the process while it plans
        raise BudgetError(
            f"train: got {format_bytes(ram.nbytes)} of RAM, and to plan alone takes {format_bytes(least_bytes)}; give "
            "more with --ram, or train without a plan: --offload --ram-budget SIZE"
        )
    is_named = options.resume is None and settings.weights is None and data.tokenizer is None
    model: Model = settings.model if is_named else config
    if settings.weights is not None and (options.resume is None or settings.lora is not None):
        model = Path(settings.weights)  # as `Training` builds it
    asked = _formats_asked(options, settings)
    # This process has the data and MPI in memory, and another one has not.
    beside_bytes = 0 if starts_anew or data.nbytes <= _NOTICED_SHARE * ram.nbytes else data.nbytes
    beside_bytes += ranks.mpi_bytes + _MESSAGES_BYTES if ranks.size > 1 else 0
    place.mkdir(parents=True, exist_ok=True)  # as a store does
    make = functools.partial(
        _plan, model, settings, ram.nbytes, place, may_offload=not (options.codec or options.encrypt),
        threads=sg.get_num_threads(), ranks=ranks.size, ranks_here=ram.ranks_here, beside_bytes=beside_bytes,
        lossy=options.lossy, **asked,
    )  # fmt: skip
    with Console(stderr=True, quiet=console.quiet).status("training two layers of it, and measuring this machine"):
        if starts_anew:
            found = with_room_to_plan(fresh_process.without_compiler(make, handed, leave), least_bytes)
        else:
            found = _in_child(make)
    if ranks.size == 1:  # of several, each has its part on a disk, which the offload checks
        require_disk("train", found, place, "--spill-dir")
    needs_store = found.policy != "keep" or options.report  # even if nothing leaves its RAM
    of_options: dict[str, Any] = {
        "offload": found.offload, "spill": needs_store, "policy": "spill" if found.policy == "keep" else found.policy,
        "ram_budget": f"{found.prediction.budget_bytes >> 10}KiB" if needs_store else None,
    }  # fmt: skip
    is_split = found.master == "split"
    of_settings = {"state": found.state or settings.state, "master": settings.master if is_split else found.master}
    chosen = _Chosen(of_options, of_settings, is_split)
    each = f" for each of {ranks.size} processes" if ranks.size > 1 else ""
    for line in (
        f"within {format_bytes(ram.nbytes)} of RAM{each}{ram.free and f': {ram.free}'}",
        *_lines(found),
    ):
        show_line(console, line)
    if starts_anew:
        start_anew.start_anew(chosen=chosen, ram_bytes=ram.nbytes, **leave())
    return chosen


def _require_room_to_compile() -> None:
    """Raise BudgetError if this machine has too little memory to compile kernels, and has none from an earlier run."""
    memory, kernels = system_memory(), cache.info()
    if memory is None or kernels.files or not kernels.writable or DISABLE_JIT:
        return
    need_bytes = least_to_plan() + _COMPILING_BYTES
    there_bytes = min(memory.available_bytes + rss_bytes(), memory.total_bytes)
    if there_bytes < need_bytes:
        raise BudgetError(
            f"train: got {format_bytes(there_bytes)} of free memory on this machine, and the first run compiles "
            f"kernels, which takes {format_bytes(need_bytes)}; run it once where there is more: later runs load them "
            f"from {kernels.directory}"
        )


def _formats_asked(options: TrainOptions, settings: TrainSettings) -> dict[str, str | None]:
    """Return the formats that the plan must take; None is for it to choose.

    A run that is resumed keeps the numbers that it had; weights in two halves are those of whole ones.
    """
    is_resumed = options.resume is not None
    is_state_said = is_resumed or "state" in options.settings or not options.lossy
    is_master_said = settings.master == "none" if is_resumed else "master" in options.settings
    return {
        "state": settings.state if is_state_said else None,
        "master": settings.master if is_master_said else None,
    }


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
    for words in _decided(options):
        yield f"--ram {options.ram} with {words}"


def _decided(options: TrainOptions) -> Iterator[str]:
    """Yield options that a plan would decide, or that there is no plan for, and why."""
    fields = {field.name: field.default for field in dataclasses.fields(options)}
    given = {"offload": "--offload", "ram_budget": f"--ram-budget {options.ram_budget}",
             "policy": f"--policy {options.policy}", "spill": "--no-spill"}  # fmt: skip
    for name, words in given.items():
        if getattr(options, name) != fields[name]:
            yield f"{words}, which the plan decides"
    if options.device != "cpu":
        yield f"--device {options.device}, for which there is no plan"
    if options.shard != "state" and options.ram is not None:
        yield f"--shard {options.shard}, which no plan chooses: it wants --offload --ram-budget SIZE"


def _ram(options: TrainOptions, ranks: Ranks) -> _Ram:
    memory = None if options.ram not in (None, "auto") else system_memory()
    machines = ranks.by_machine((memory, rss_bytes()))
    here = len(machines[0])
    if options.ram not in (None, "auto"):
        return _Ram(parse_bytes(options.ram), "", here)
    shares = []
    for machine in machines:
        known = [each for each, _ in machine if each is not None]
        if len(known) < len(machine):
            if options.ram is None:
                return _Ram(None, "", here)
            raise ArgumentError(
                "train: got --ram auto, but the free memory cannot be read here; give a size, such as 4GiB"
            )
        # Not all of a process counts in its control group: pages of libraries may count in another one.
        available_bytes = min(each.available_bytes for each in known) + sum(taken_bytes for _, taken_bytes in machine)
        free_bytes = min(available_bytes, *(each.total_bytes for each in known))
        left_bytes = int(min(max(_LEFT_BYTES, _LEFT_SHARE * free_bytes), _MOST_LEFT_SHARE * free_bytes))
        shares.append(((free_bytes - left_bytes) // len(machine), free_bytes, left_bytes))
    ram_bytes, free_bytes, left_bytes = min(shares)
    return _Ram(ram_bytes, f"{format_bytes(free_bytes)} are free, {format_bytes(left_bytes)} stay so", here)


def _plan(
    model: Model, settings: TrainSettings, ram_bytes: int, place: Path, may_offload: bool, threads: int, ranks: int,
    ranks_here: int, beside_bytes: int, state: str | None, master: str | None, lossy: bool,
) -> sg.planning.Plan:  # fmt: skip
    sg.set_num_threads(threads)
    # The others of this machine wait now, and compute and write at the same time later.
    machine = sg.planning.measure(place).among(ranks_here)
    return sg.planning.plan(
        model, settings.batch, settings.context, ram_bytes, place, accumulate=settings.accumulate, lora=settings.lora,
        autocast=settings.autocast, offload=None if may_offload else False, machine=machine, wire=settings.wire,
        optimizer=lambda parameters: sg.optim.AdamW(parameters, lr=1e-3), processes=ranks, beside_bytes=beside_bytes,
        state=state, master=master, lossy=lossy,
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
    if plan.master == "split":
        saved += "; weights in two halves"
    yield f"plan: {where}, {saved}"
    yield from plan.accuracy
    yield (
        f"predicted: peak {format_bytes(found.peak_bytes)}, disk {format_bytes(found.disk_bytes)}; a step writes "
        f"{format_bytes(found.written_bytes)} and reads {format_bytes(found.read_bytes)}"
    )
    yield (
        f"predicted: a step takes {format_duration(found.step_s)}; it computes {format_duration(found.compute_s)}, and "
        f"the disk works {format_duration(found.io_s)}"
    )
    yield f"the least --ram that works is {format_bytes(plan.least_bytes)}"
