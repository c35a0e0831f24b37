"""`spillgrad bench train`: training steps in RAM, spilled and offloaded, beside the same model in plain PyTorch."""

import contextlib
import dataclasses
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import spillgrad as sg
from spillgrad.errors import ArgumentError
from spillgrad.storage.disk.file_system import free_bytes
from spillgrad.storage.sizes import format_bytes, parse_bytes
from spillgrad_kernels.cpu.vector_instructions import multiplies_pairs
from spillgrad_tools.bench import results as files
from spillgrad_tools.bench.bars import Verdict
from spillgrad_tools.bench.harness import Worker, WorkerEnded, in_turns, is_installed, require_agreement
from spillgrad_tools.bench.machine import machine
from spillgrad_tools.bench.options import StepOptions, TrainOptions
from spillgrad_tools.bench.report import print_json, scratch_folder, show_train
from spillgrad_tools.bench.step_runner import StepRunner
from spillgrad_tools.memory_cap import MemoryCap

# The allowed relative difference of losses. Libraries sum some 10^8 products in different orders: after three steps of
# GPT-2 124M, losses differ by 1e-7. A bfloat16 number has 8 bits, a float32 number 24.
TOLERANCE = 1e-5
BFLOAT16_TOLERANCE = 2.0**-8

OURS, TORCH = "in RAM", "PyTorch"
OURS_BFLOAT16, TORCH_BFLOAT16 = "in RAM, bfloat16", "PyTorch, bfloat16"
SPILLED, OFFLOADED = "spilled", "offloaded"
LARGE, ADAPTERS = "large, offloaded", "large, adapters"
TORCH_CAPPED = "large, PyTorch"

Result = dict[str, Any]
Results = dict[str, Result]


@dataclass(frozen=True)
class Contender:
    """A training to time: its library, the cap on its memory, and keyword arguments for the library's `training`."""

    name: str
    library: str = "ours"
    cap: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


SPILL_BUDGET = "128MiB"
OFFLOAD_CAP, OFFLOAD_BUDGET = "1GiB", "592MiB"
LARGE_CAP, LARGE_BUDGET = "4GiB", "2GiB"
# Without a warm-up, a larger learning rate makes the loss of so deep a model rise at first.
LARGE_LR = 3e-5
ADAPTERS_CAP, ADAPTERS_BUDGET, ADAPTERS_RANK = "2GiB", "768MiB", 8
PEAK_GB = 2.7

IN_TURNS = (
    Contender(OURS),
    Contender(TORCH, "torch"),
    Contender(SPILLED, options={"spill_budget": SPILL_BUDGET}),
    Contender(OFFLOADED, cap=OFFLOAD_CAP, options={"offload_budget": OFFLOAD_BUDGET}),
    # Without the instructions, PyTorch's bfloat16 takes many times as long.
    *(
        (
            Contender(OURS_BFLOAT16, options={"autocast": True}),
            Contender(TORCH_BFLOAT16, "torch", options={"autocast": True}),
        )
        if multiplies_pairs()
        else ()
    ),
)
ONE_BY_ONE = (
    Contender(LARGE, cap=LARGE_CAP, options={"offload_budget": LARGE_BUDGET, "lr": LARGE_LR}),
    Contender(TORCH_CAPPED, "torch", cap=LARGE_CAP),
    Contender(ADAPTERS, cap=ADAPTERS_CAP, options={"offload_budget": ADAPTERS_BUDGET, "lora": ADAPTERS_RANK}),
)
LARGE_MODEL, LARGE_BATCH, LARGE_CONTEXT, LARGE_STEPS = "gpt2-xl", 2, 1024, 3
# Models of the same width with this few blocks fit in RAM; the difference between their times is that of two blocks.
FEW_BLOCKS = (1, 3)


def check_losses(processes: Sequence["Process"], step: int) -> None:
    """Check the last losses of the processes that have not ended, with `check`, which raises RuntimeError."""
    alive = [process for process in processes if process.status is None]
    check({process.contender.name: process.taken[-1]["loss"] for process in alive}, step)


def check(losses: Mapping[str, float], step: int) -> None:
    """Raise RuntimeError unless all losses agree, and all of spillgrad's losses in float32 are equal.

    In float32, losses agree within TOLERANCE; in bfloat16, within BFLOAT16_TOLERANCE.
    """
    who, rounded = "bench train: losses", (OURS_BFLOAT16, TORCH_BFLOAT16)
    require_agreement(who, losses, step, BFLOAT16_TOLERANCE)
    require_agreement(who, {name: loss for name, loss in losses.items() if name not in rounded}, step, TOLERANCE)
    require_agreement(who, {name: loss for name, loss in losses.items() if name not in (TORCH, *rounded)}, step)


def write_weights(model: sg.models.GPT, path: Path) -> None:
    """Write the parameters of a model, by their names, to an .npz file."""
    arrays: dict[str, Any] = {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}
    np.savez(path, **arrays)


class Process:
    """A contender in training. If its capped process ends early, `step` does nothing more, and `result` has the status.

    `taken` holds the answers of all steps, `timed` the seconds of the timed steps.
    """

    def __init__(self, contender: Contender, threads: int, directory: Path, stack: ExitStack) -> None:
        self.contender = contender
        self.taken: list[dict[str, Any]] = []
        self.timed: list[float] = []
        self.status: int | None = None
        cap = None if contender.cap is None else parse_bytes(contender.cap)
        self._cap = None if cap is None else stack.enter_context(MemoryCap(cap))
        self._options = {**contender.options, "directory": str(directory)}
        self._worker: Worker | None = None
        with self._noting_the_end():
            self._worker = stack.enter_context(Worker(StepRunner, contender.library, threads, self._cap))
        self.version = None if self._worker is None else self._worker.version

    def build(self, config: sg.models.GPTConfig, weights: Path | None) -> None:
        """Build the model."""
        self._ask(do="build", config=vars(config), weights=weights and str(weights), **self._options)

    def step(self, number: int, batch: int, is_timed: bool = True) -> None:
        """Train on batch `number`, of `batch` sequences; keep the answer and, if `is_timed`, the seconds."""
        answer = self._ask(do="step", number=number, batch=batch)
        if answer is not None:
            self.taken.append(answer)
            if is_timed:
                self.timed.append(answer["seconds"])

    def turn(self, batch: int, warm_steps: int) -> None:
        """Take `warm_steps` untimed steps, then a timed step. In the first turn, take only one step, untimed."""
        is_first = not self.taken
        for i in range(1 if is_first else warm_steps + 1):
            self.step(len(self.taken), batch, is_timed=i == warm_steps and not is_first)

    def weights(self) -> str:
        """Return a digest of the parameters' values."""
        return str(self._ask(do="weights"))

    def result(self, tokens: int) -> Result:
        """Return the losses, the cap, and the median time, speed, memory and traffic of steps of `tokens` each."""
        found: Result = {"losses": [answer["loss"] for answer in self.taken]}
        if self._cap is not None:
            capped_by = "cgroup" if self._cap.is_group else "RLIMIT_DATA"
            found |= {"cap_bytes": self._cap.limit_bytes, "capped_by": capped_by}
            found["cgroup_peak_bytes"] = self._cap.peak_bytes()
        if self.status is not None:
            return found | {"ended_with_status": self.status}
        first, last, seconds = self.taken[0], self.taken[-1], statistics.median(self.timed)
        found |= {"seconds": seconds, "tokens_per_s": tokens / seconds, "peak_rss_bytes": last["peak_rss_bytes"]}
        if "left_in_ram_bytes" in last:
            found["left_in_ram_bytes"] = max(answer["left_in_ram_bytes"] for answer in self.taken)
        for name in ("saved_bytes", "written_bytes", "read_bytes", "waited_s"):
            if name in last:
                found[f"{name}_per_step"] = (last[name] - first[name]) / (len(self.taken) - 1)
        return found

    def _ask(self, **request: Any) -> Any:
        """Ask the process; return None if it has ended."""
        with self._noting_the_end():
            return None if self._worker is None else self._worker.ask(**request)

    @contextlib.contextmanager
    def _noting_the_end(self) -> Iterator[None]:
        """Context manager: if a capped process ends, record its status; if an uncapped process ends, raise."""
        try:
            yield
        except WorkerEnded as error:
            if self._cap is None:
                raise
            self.status, self._worker = error.status, None


def measure_in_turns(
    contenders: Iterable[Contender], config: sg.models.GPTConfig, batch: int, steps: int, threads: int, folder: Path,
    compare: Callable[[Sequence[Process], int], None] = check_losses, warm_steps: int = 0,
) -> tuple[Results, list[str]]:  # fmt: skip
    """Train contenders in turns from the same weights; return their results, and the versions of the libraries.

    The first step, in which kernels compile and memory is touched for the first time, is compared but not timed. The
    first `warm_steps` of each turn are not timed either: a process that waits for the others closes files and returns
    memory, which a training that does not wait would keep. `compare` is called with the processes and the number of the
    step, and raises if the processes differ.
    """
    weights = folder / "weights.npz"
    sg.manual_seed(0)
    write_weights(sg.models.GPT(config), weights)
    with ExitStack() as stack:
        processes = [Process(contender, threads, folder, stack) for contender in contenders]
        for process in processes:
            process.build(config, weights)
        turns = {process.contender.name: partial(process.turn, batch, warm_steps) for process in processes}
        for turn, _ in enumerate(in_turns(turns, steps + 1)):
            compare(processes, turn * (warm_steps + 1))
        versions = list(dict.fromkeys(process.version for process in processes if process.version))
        return {p.contender.name: p.result(batch * config.context) for p in processes}, versions


def measure_one_by_one(
    contenders: Iterable[Contender], config: sg.models.GPTConfig, batch: int, steps: int, threads: int, folder: Path
) -> Results:
    """Train contenders one after the other, each from random weights on a single batch; return their results."""
    results = {}
    for contender in contenders:
        with ExitStack() as stack:
            process = Process(contender, threads, folder, stack)
            process.build(config, None)
            for step in range(steps):
                process.step(0, batch, is_timed=step > 0)
            results[contender.name] = process.result(batch * config.context)
    return results


def pure_compute_s(config: sg.models.GPTConfig, batch: int, threads: int, folder: Path, lora: int | None) -> float:
    """Return the seconds that a step would take with the whole model in RAM, extrapolated from models of few blocks."""
    seconds = []
    for blocks in FEW_BLOCKS:
        few = Contender(f"{blocks} blocks", options={} if lora is None else {"lora": lora})
        found = measure_one_by_one([few], dataclasses.replace(config, n_layer=blocks), batch, 4, threads, folder)
        seconds.append(found[few.name]["seconds"])
    fewest, more = FEW_BLOCKS
    a_block_s = (seconds[1] - seconds[0]) / (more - fewest)
    return float(seconds[0] + (config.n_layer - fewest) * a_block_s)


def verdicts(results: Results) -> list[Verdict]:
    """Return the verdicts of the bars whose contenders ran."""
    judged: list[Verdict] = []

    def ratio(name: str, to: str, wanted: float) -> None:
        if name in results and "tokens_per_s" in results.get(to, {}):
            reached = results[name].get("tokens_per_s", 0.0) / results[to]["tokens_per_s"]
            judged.append(Verdict(f"{name}: × {'PyTorch' if to == TORCH else to}", reached, wanted))

    def memory(name: str, wanted_bytes: float, unit: str, unit_bytes: float) -> None:
        if "peak_rss_bytes" in results.get(name, {}):
            peak = results[name]["peak_rss_bytes"]
            judged.append(Verdict(f"{name}: {unit} at most", peak / unit_bytes, wanted_bytes / unit_bytes, most=True))

    ratio(OURS, TORCH, 1.3)
    ratio(SPILLED, OURS, 0.97)
    memory(SPILLED, PEAK_GB * 1e9, "GB", 1e9)
    ratio(OFFLOADED, TORCH, 1)
    ratio(OURS_BFLOAT16, OURS, 1.8)
    ratio(OURS_BFLOAT16, TORCH_BFLOAT16, 1.3)
    for name, cap in ((OFFLOADED, OFFLOAD_CAP), (LARGE, LARGE_CAP), (ADAPTERS, ADAPTERS_CAP)):
        if name in results:
            judged.append(Verdict(f"{name}: finishes within {cap}", float("seconds" in results[name]), 1))
        memory(name, parse_bytes(cap), "GiB", 1 << 30)
    for name in (LARGE, ADAPTERS):
        if name not in results:
            continue
        losses = results[name]["losses"]
        judged.append(Verdict(f"{name}: steps", len(losses), 2))
        if len(losses) > 1:
            judged.append(Verdict(f"{name}: last × first loss", losses[-1] / losses[0], 0.999, most=True))
        if {"seconds", "pure_compute_s"} <= results[name].keys():
            times = results[name]["seconds"] / results[name]["pure_compute_s"]
            judged.append(Verdict(f"{name}: × pure compute", times, 2, most=True))
    if TORCH_CAPPED in results:
        was_ended = float("ended_with_status" in results[TORCH_CAPPED])
        judged.append(Verdict(f"{TORCH_CAPPED}: ended by the same cap", was_ended, 1))
    return judged


def chosen(contenders: Sequence[Contender], name: str) -> list[Contender]:
    """Return the installed contenders whose name contains `name`, and the contenders that these are compared with."""
    found = [each.name for each in contenders if name in each.name]
    if found and contenders is IN_TURNS:
        found += [OURS, TORCH]
    return [each for each in contenders if each.name in found and is_installed(each.library)]


def disk_bytes_needed(config: sg.models.GPTConfig, batch: int) -> int:
    """Return the bytes of the parameters, gradients and moments, plus an estimate of the saved tensors' bytes."""
    parameters = (config.vocab_size + config.context) * config.n_embd + config.n_layer * 12 * config.n_embd**2
    # A block saves the features of its stream, the wider ones of attention and MLP, and the sums of attention.
    saved = batch * config.context * config.n_layer * 16 * config.n_embd
    return 4 * (4 * parameters + saved)


def run(options: TrainOptions) -> None:
    """Time training steps and print the times; write them to a folder if one is named.

    Raises UnknownModelError if the model is not in the catalogue. Raises ArgumentError if the file would lack PyTorch
    or another contender, if no contender has the name, or if the disk is too small for the large model.
    """
    config = gpt_config(options.model, options.context)
    in_turns, one_by_one = chosen(IN_TURNS, options.name), chosen(ONE_BY_ONE, options.name) if options.large else []
    if not in_turns and not one_by_one:
        known = ", ".join(contender.name for contender in (*IN_TURNS, *ONE_BY_ONE))
        raise ArgumentError(
            f"bench: got --filter {options.name}; the contenders are {known}; the large ones need --large"
        )
    if options.page and in_turns and len(in_turns) < len(IN_TURNS):
        mend = "leave out --filter" if is_installed("torch") else "pip install torch"
        raise ArgumentError(f"bench: --write takes every contender, and PyTorch's times; {mend}")
    threads = options.threads or sg.get_num_threads()
    results: Results = {}
    libraries: list[str] = []
    with scratch_folder(options.directory, "training") as (folder, status):
        if one_by_one:
            status.console.print(_room_for_large(folder))
        if in_turns:
            results, libraries = measure_in_turns(in_turns, config, options.batch, options.steps, threads, folder)
        for contender in one_by_one:
            status.update(f"training; {contender.name}")
            results |= measure_large(contender, threads, folder)
    large = {name: result for name, result in results.items() if name not in {each.name for each in in_turns}}
    if options.page and large:
        sizes = {"model": LARGE_MODEL, "batch": LARGE_BATCH, "context": LARGE_CONTEXT, "steps": LARGE_STEPS - 1}
        about = {**machine(options.directory), "threads": threads, **sizes}
        files.write(options.page, "train-large", "spillgrad bench train --large --filter large", about, as_rows(large))
    tell(
        options, "train" if in_turns else "", threads, libraries, results, comparisons(results), verdicts(results),
        [each.name for each in in_turns],
    )  # fmt: skip


def comparisons(results: Results) -> list[str]:
    """Return the speed of each contender in that of training in RAM, in that of PyTorch, and in that of computing."""
    lines = []
    for name, result in results.items():
        for other in (OURS, TORCH):
            if name != other and "tokens_per_s" in result and "tokens_per_s" in results.get(other, {}):
                ratio = result["tokens_per_s"] / results[other]["tokens_per_s"]
                lines.append(f"{name}: {ratio:.2f} × the speed of {other if other == TORCH else f'training {other}'}")
        if {"seconds", "pure_compute_s"} <= result.keys():
            lines.append(f"{name}: {result['seconds'] / result['pure_compute_s']:.2f} × the time of computing alone")
    return lines


def as_rows(results: Results) -> list[dict[str, Any]]:
    """Return the results as rows, each with the name of its contender."""
    return [{"contender": name, **result} for name, result in results.items()]


def tell(
    options: StepOptions, name: str, threads: int, libraries: list[str], results: Results, compared: Sequence[str],
    judged: Sequence[Verdict], written: Sequence[str] | None = None,
) -> None:  # fmt: skip
    """Print results as a table or JSON; if `options` names a folder, also write them there, to the file of `name`.

    `written` has the contenders that the file gets; None means all. An empty `name` writes nothing.
    """
    about: dict[str, Any] = {**machine(options.directory), "threads": threads}
    about |= {name: getattr(options, name) for name in ("model", "batch", "context", "steps")}
    if libraries:
        about["libraries"] = libraries
    if options.page and name:
        chosen = {key: result for key, result in results.items() if written is None or key in written}
        files.write(options.page, name, f"spillgrad bench {name}", about, as_rows(chosen))
    if options.as_json:
        print_json(machine=about, results=results, bars=[verdict.as_json() for verdict in judged])
    else:
        show_train(about, results, compared, judged if options.bars else ())


def measure_large(contender: Contender, threads: int, folder: Path) -> Results:
    """Train the large model with a contender; return its result, with the pure compute time if it is spillgrad's."""
    config = gpt_config(LARGE_MODEL, LARGE_CONTEXT)
    compute: Result = {}
    if contender.library == "ours":  # measured first: it takes a minute, and shows whether there is enough RAM
        lora = contender.options.get("lora")
        compute["pure_compute_s"] = pure_compute_s(config, LARGE_BATCH, threads, folder, lora)
    found = measure_one_by_one([contender], config, LARGE_BATCH, LARGE_STEPS, threads, folder)
    return {name: result | compute for name, result in found.items()}


def gpt_config(model: str, context: int) -> sg.models.GPTConfig:
    """Return a GPT-2's sizes. Raises UnknownModelError for an unknown name, and ArgumentError for another model."""
    config = sg.models.config(model, context=context)
    if not isinstance(config, sg.models.GPTConfig):
        raise ArgumentError(f"bench: got model {model}; the peers' model is a GPT-2: take gpt2 or another of its sizes")
    return config


def _room_for_large(folder: Path) -> str:
    """Return a line about the disk space that the large model needs. Raises ArgumentError if less is free."""
    needed, free = disk_bytes_needed(gpt_config(LARGE_MODEL, LARGE_CONTEXT), LARGE_BATCH), free_bytes(folder)
    if free < needed:
        raise ArgumentError(
            f"bench: {LARGE_MODEL} needs about {format_bytes(needed)} of disk, {folder} has {format_bytes(free)}; name "
            "another folder with --dir"
        )
    return f"{LARGE_MODEL}: needs about {format_bytes(needed)} in {folder}, {format_bytes(free)} free"
