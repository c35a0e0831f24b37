"""`spillgrad train`: train with the options of the command line, and show the run."""

import collections
import contextlib
import dataclasses
import functools
import gc
import itertools
import shlex
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

import spillgrad as sg
from spillgrad.device.device import as_device
from spillgrad.errors import ArgumentError, SpillError
from spillgrad.inspection.runs import RunReader
from spillgrad.storage.disk.preflight import Preflight
from spillgrad.storage.sizes import parse_bytes
from spillgrad_kernels.memory.system_memory import system_memory
from spillgrad_tools import start_anew
from spillgrad_tools.report.page import report, require_packages
from spillgrad_tools.train.data import TrainingData, tokenizer_of
from spillgrad_tools.train.display import (
    output_console,
    show_line,
    show_preparation,
    show_progress,
    show_report,
    show_sample,
)
from spillgrad_tools.train.evaluation import Evaluations, require_not_ended
from spillgrad_tools.train.folders import metrics_folder, output_folder, require_writable
from spillgrad_tools.train.handed_data import hand_over, taken
from spillgrad_tools.train.metrics import Metrics
from spillgrad_tools.train.options import DEFAULT_RAM_BUDGET, TrainOptions, TrainSettings
from spillgrad_tools.train.ranks import Ranks
from spillgrad_tools.train.saves import Saves
from spillgrad_tools.train.schedule import require_consistent
from spillgrad_tools.train.step_profile import StepProfile
from spillgrad_tools.train.training import MakeOffload, StepRecord, Training
from spillgrad_tools.train.within import Within, contradictions, is_automatic, within

SAMPLE_BYTES = 300
# The reported train loss and speed are averages over this many last steps: a single batch is noisy.
REPORTED_STEPS = 20
# The longest wait for a store to close after its last owner died.
CLOSING_S = 10.0
# The settings that a resumed run may change: they decide no number of a step.
_CHANGEABLE = ("steps", "eval_every", "patience")


@contextlib.contextmanager
def stop_request(console: Console) -> Iterator[threading.Event]:
    """Context manager: the first Ctrl-C, SIGTERM or SIGUSR1 sets the event and prints a line; the second ends the run.

    SIGUSR1 is what `spillgrad launch` sends, and what schedulers of clusters can send before the time is up.
    """
    stop = threading.Event()

    def receive(*_: object) -> None:
        stop.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        show_line(console, "stopping after this step; Ctrl-C again stops at once, without saving")

    former = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    try:
        yield stop
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def run(options: TrainOptions) -> bool:
    """Train, save and report; return False if training was stopped before the last step, which saves a checkpoint."""
    ranks = Ranks()
    console = output_console(is_quiet=not ranks.is_first)
    _require_consistent(options)
    settings = _settings(options)
    ranks.require_batches(settings.accumulate)
    with contextlib.ExitStack() as stack:
        out = ranks.firsts(stack.enter_context(output_folder(options)) if ranks.is_first else Path())
        out.mkdir(parents=True, exist_ok=True)  # on another machine
        ranks.everyones("made")  # before the first process removes it again, if the run does not begin
        if ranks.is_first:
            stack.enter_context(metrics_folder(options.log_dir, out))
            if options.spill_dir is not None:
                require_writable(options.spill_dir, "--spill-dir")
        handed = start_anew.handed_over()
        data = taken(handed, settings.tokenizer) or TrainingData.load(
            options.data, options.eval_data, settings.tokenizer, options.skip_bad
        )

        def leave() -> dict[str, Any]:
            values = hand_over(data, options.spill_dir or out)
            stack.close()
            return values

        chosen = within(options, settings, data, options.spill_dir or out, console, ranks, handed, leave)
        if data.left_out:
            show_line(console, data.left_out)
        journal = _journal(out, ranks)
        finished = _run(chosen, options, data, out, journal, console, ranks)
        if options.report and ranks.is_first:
            show_line(console, f"report: {_write_page(out, journal)}")
    return finished


def _run(
    chosen: Within, given: TrainOptions, data: TrainingData, out: Path, journal: Path, console: Console, ranks: Ranks
) -> bool:  # fmt: skip
    options, settings, ram_bytes, where, is_split = chosen
    try:
        with show_preparation(console):
            offload = _offload(options, out, journal, is_split)
            ranks.share_clock()
            training = Training(settings, data, options.resume, offload, options.device, ranks)
        say = functools.partial(show_line, console)
        metrics = Metrics(options.log_dir if ranks.is_first else None, training.first_step, say)
        show_line(console, _begin_spilling(training, options, out, journal) or where)
        saves = Saves(training, out, options.save_every, say)
        evaluations = Evaluations(training, out, options.keep_best, metrics, say)
    except BaseException:
        journal.unlink(missing_ok=True)  # the run never began
        raise
    if training.data.left_out:
        show_line(console, training.data.left_out)
    watch: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if ram_bytes is not None:
        tell = functools.partial(show_line, console)
        watch = sg.planning.keep_within(ram_bytes, training.offload or training.spill, tell)
    try:
        with watch:
            records, duration_s, profiled = _train(training, console, saves, evaluations, metrics, options.profile)
    except SpillError:  # the step is lost, but the run can go on from its last checkpoint
        go_on = f"; go on with: {_again(given, out)}" if saves.saved is not None else ""
        show_line(console, f"stopped after step {training.step}: {saves.what_stays}{go_on}")
        raise
    if profiled is not None:
        profiled.show(console, out)
    if evaluations.end_run and training.step < settings.steps:
        show_line(console, f"ended early at step {training.step}; best held-out loss: {evaluations.best_in_words}")
    elif training.step < settings.steps:
        show_line(console, f"stopped after step {training.step}; go on with: {_again(given, out)}")
        return False
    held_out = training.held_out_loss()  # which all processes compute
    sample = training.sample(SAMPLE_BYTES)  # in which all take part
    if ranks.is_first:
        show_sample(console, sample)
        show_report(console, training, held_out, records, duration_s, saves, evaluations.best_in_words)
        show_line(console, f"checkpoint: {out}")
    return True


def _write_page(out: Path, journal: Path) -> Path:
    """Wait until the store of a run is closed, write the run's page, and return the page's path."""
    gc.collect()  # models have reference cycles, and hold their store
    with RunReader(journal) as reader:
        deadline_s = time.monotonic() + CLOSING_S
        while (reader.read() or reader.run().state == "live") and time.monotonic() < deadline_s:
            time.sleep(0.02)
    page = out / "report.html"
    report(journal, page)
    return page


def _require_consistent(options: TrainOptions) -> None:
    """Raise ArgumentError if options contradict each other, or if an option needs a package that is missing.

    Raises BudgetError for an invalid budget. Raises DeviceError for a device that this machine does not have.
    """
    for size in (options.ram_budget, None if options.ram == "auto" else options.ram):
        if size is not None:
            parse_bytes(size)
    for words in _contradictions(options):
        raise ArgumentError(f"train: got {words}; leave one out")
    if options.report:
        require_packages("--report")
    as_device(options.device)


def _contradictions(options: TrainOptions) -> Iterator[str]:
    if options.ram is not None:
        yield from contradictions(options)
    if not options.spill and options.policy != "spill":
        yield f"--policy {options.policy} with --no-spill, which keeps all in RAM"
    if not options.spill and not options.offload:
        if options.ram_budget is not None:
            yield f"--ram-budget {options.ram_budget} with --no-spill, which keeps all in RAM"
        if options.report:
            yield "--report with --no-spill, which leaves no journal"
    master = options.settings.get("master", "whole")
    if master == "split" and not options.offload and options.ram is None:
        yield "--master split without --offload, which stores weights"
    if options.lossy and options.ram is None and not is_automatic(options):
        yield "--lossy without a plan, which --ram makes"
    if options.lossy and options.resume is not None:
        yield "--lossy with --resume, whose run keeps the formats that it has"
    if options.shard != "state" and not options.offload:
        yield f"--shard {options.shard} without --offload, which shares what is on disk"
    for option in ("codec", "encrypt"):
        if options.offload and getattr(options, option):
            yield f"--{option} with --offload, which keeps parameters exact and as they are"
    if options.settings.get("weights") is not None and "model" in options.settings:
        yield f"--model {options.settings['model']} with --weights, whose config says the model"


def _offload(options: TrainOptions, out: Path, journal: Path, is_split: bool) -> MakeOffload | None:
    if not options.offload:
        return None
    master: dict[str, Any] = {"master": "split"} if is_split else {}
    return functools.partial(
        sg.disk_offload, directory=options.spill_dir or out, ram_budget=_offload_budget(options),
        on_full=options.on_full, keep_journal=journal, shard=options.shard, **master,
    )  # fmt: skip


def _journal(out: Path, ranks: Ranks) -> Path:
    """Return an unused path for the journal; the folder may have journals of the runs that this run resumes."""
    stem = "journal" if ranks.is_first else f"journal-r{ranks.rank:03}"
    names = itertools.chain([f"{stem}.jsonl"], (f"{stem}-{number}.jsonl" for number in itertools.count(2)))
    return next(out / name for name in names if not (out / name).exists())


def _offload_budget(options: TrainOptions) -> int:
    if options.ram_budget is not None:
        return parse_bytes(options.ram_budget)
    memory = system_memory()
    return parse_bytes(DEFAULT_RAM_BUDGET) if memory is None else memory.available_bytes // 4


def _begin_spilling(training: Training, options: TrainOptions, out: Path, journal: Path) -> str:
    """Set the training's `spill` according to the options; return a line about the folder that tensors spill to.

    The line is empty if they stay in RAM.
    """
    if training.offload is not None:
        if options.spill:
            training.spill = sg.save_on_disk(training.offload, policy=options.policy)
        return f"offloading to {_as_named(training.offload.preflight(), options.spill_dir or out)}"
    if not options.spill:
        return ""
    budget = parse_bytes(options.ram_budget or DEFAULT_RAM_BUDGET)
    training.spill = sg.save_on_disk(
        options.spill_dir or out, ram_budget=budget, keep_journal=journal, codec=options.codec, on_full=options.on_full,
        encrypt=options.encrypt, policy=options.policy,
    )  # fmt: skip
    return f"spilling to {_as_named(training.spill.preflight(), options.spill_dir or out)}"


def _as_named(found: Preflight, place: Path) -> Preflight:
    """Return a copy of a preflight with the folder as the command line names it, `place`, not as an absolute path."""
    return dataclasses.replace(found, directory=place / found.directory.name)


def _again(options: TrainOptions, out: Path) -> str:
    """Return the command that resumes a run: with the options that were given, but those that a checkpoint holds."""
    words = ["spillgrad", "train", "--resume", str(out)]
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if field.name not in ("settings", "out", "resume", "lossy") and value != field.default:
            words += _words(field.name, value)
    return shlex.join(words)


def _train(
    training: Training, console: Console, saves: Saves, evaluations: Evaluations, metrics: Metrics, profiles: bool
) -> tuple[collections.deque[StepRecord], float, StepProfile | None]:
    """Train until the last step, an early end or a stop request, and save.

    Return the last records, the time in seconds, and, if `profiles`, the profile of a few steps.
    """
    records: collections.deque[StepRecord] = collections.deque(maxlen=REPORTED_STEPS)
    started = time.perf_counter()
    profiled = StepProfile(training.settings.steps - training.step) if profiles else None
    with stop_request(console) as stop:
        with profiled or contextlib.nullcontext():
            for record in show_progress(console, training.steps(), training.step, training.settings.steps):
                records.append(record)
                if profiled is not None:
                    profiled.after_step(record)
                metrics.stepped(record)
                evaluations.after_step()
                if evaluations.end_run:
                    break
                saves.after_step()
                if any(training.ranks.everyones(stop.is_set())):
                    break
        duration_s = time.perf_counter() - started
        saves.at_end()
    return records, duration_s, profiled


def _settings(options: TrainOptions) -> TrainSettings:
    """Return the settings of the command line, completed by the defaults or by the settings of the run to resume.

    Raises ArgumentError if an option contradicts a setting of the run to resume that decides the run's numbers, or
    another option. Raises ArgumentError if the run to resume has done all steps, or has ended early.
    """
    if options.resume is None:
        settings = dataclasses.replace(TrainSettings(), **options.settings)
        require_consistent(settings)
        return dataclasses.replace(settings, tokenizer=settings.tokenizer or tokenizer_of(settings.weights))
    settings, done = Training.settings_of(options.resume)
    for name, value in options.settings.items():
        # The weights that adapters are for, and the tokenizer, may have moved: checksums show if they are the same.
        if name not in (*_CHANGEABLE, "weights", "tokenizer") and value != getattr(settings, name):
            raise ArgumentError(
                f"train: got {' '.join(_words(name, value))}, but {options.resume} was trained with "
                f"{' '.join(_words(name, getattr(settings, name)))}; leave that out to go on, or leave --resume out to "
                "start anew"
            )
    named = dict(options.settings)
    if "weights" in named and settings.tokenizer == tokenizer_of(settings.weights, is_there=False):
        named.setdefault("tokenizer", tokenizer_of(named["weights"]))
    settings = dataclasses.replace(settings, **named)
    if done >= settings.steps:
        short = f"has gone through {done} steps, wanted {settings.steps}; give --steps a larger number"
        raise ArgumentError(f"train: {options.resume} {short}")
    require_consistent(settings)
    require_not_ended(options.resume, settings)
    return settings


def _words(name: str, value: Any) -> list[str]:
    """Return the words of the command-line option that gives the field `name` this value."""
    option = name.replace("_", "-")
    if value is None:
        return ["no", f"--{option}"]
    if isinstance(value, bool):
        return [f"--{option}" if value else f"--no-{option}"]
    return [f"--{option}", str(value)]
