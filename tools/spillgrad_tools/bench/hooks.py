"""`spillgrad bench hooks`: training steps of PyTorch's and Paddle's models, in RAM and with saved tensors on disk."""

from collections.abc import Sequence

import spillgrad as sg
from spillgrad.errors import ArgumentError, MissingPackageError
from spillgrad_tools.bench.bars import Verdict
from spillgrad_tools.bench.harness import PIP_NAMES, is_installed, require_agreement
from spillgrad_tools.bench.options import HookOptions
from spillgrad_tools.bench.report import scratch_folder
from spillgrad_tools.bench.train import SPILL_BUDGET, Contender, Process, Results, gpt_config, measure_in_turns, tell

SPILLED, FILES, OFFLOADED = "spilled", "a file per tensor", "offloaded"
WARM_STEPS = 1
OFFLOAD_CAP, OFFLOAD_BUDGET = "2GiB", "512MiB"
_SPILLS = {"spill_budget": SPILL_BUDGET}
# By package: training in RAM first, then under spillgrad's hooks, then under other hooks.
CONTENDERS = {
    "torch": (
        Contender("PyTorch", "torch"),
        Contender(f"PyTorch, {SPILLED}", "torch", options=_SPILLS),
        Contender(f"PyTorch, {FILES}", "torch", options={"file_per_tensor": True}),
        Contender(f"PyTorch, {OFFLOADED}", "torch", OFFLOAD_CAP, {"offload_budget": OFFLOAD_BUDGET}),
    ),
    "paddle": (Contender("Paddle", "paddle"), Contender(f"Paddle, {SPILLED}", "paddle", options=_SPILLS)),
}


def check_weights(processes: Sequence[Process], step: int) -> None:
    """Raise RuntimeError unless the losses so far and the updated weights of all processes are bitwise equal."""
    losses = {process.contender.name: [answer["loss"] for answer in process.taken] for process in processes}
    require_agreement("bench hooks: losses", losses, step)
    digests = {process.contender.name: process.weights() for process in processes}
    require_agreement("bench hooks: weights", digests, step)


def verdicts(results: Results) -> list[Verdict]:
    """Return the verdicts on each framework that ran."""
    judged = []
    for in_ram, spilled, *others in CONTENDERS.values():
        if in_ram.name not in results:
            continue
        seconds = {name: result["seconds"] for name, result in results.items()}
        saved = results[spilled.name]
        off_ram = 1 - saved["left_in_ram_bytes"] / saved["saved_bytes_per_step"]
        extra_s = seconds[spilled.name] - seconds[in_ram.name]
        judged.append(Verdict(f"{spilled.name}: × {in_ram.name}", 1 + extra_s / seconds[in_ram.name], 1.06, most=True))
        judged.append(Verdict(f"{spilled.name}: share of what is saved that is off RAM after forward", off_ram, 0.9))
        for other in (each for each in others if FILES in each.name):
            times = (seconds[other.name] - seconds[in_ram.name]) / max(extra_s, 1e-9)
            judged.append(Verdict(f"{other.name}: extra time × that of spilled", times, 3))
    return judged


def comparisons(results: Results) -> list[str]:
    """Return what the hooks of each framework cost, beside its training in RAM."""
    lines = []
    for in_ram, *others in CONTENDERS.values():
        for other in (each.name for each in others if in_ram.name in results):
            ratio = results[other]["seconds"] / results[in_ram.name]["seconds"]
            lines.append(f"{other}: {ratio:.2f} × the time of a step in RAM")
            if "saved_bytes_per_step" in results[other]:
                left = results[other]["left_in_ram_bytes"] / results[other]["saved_bytes_per_step"]
                lines.append(f"{other}: {1 - left:.0%} of what is saved is off RAM after forward")
    return lines


def run(options: HookOptions) -> None:
    """Time training steps under each framework's hooks and print the times; write them to a folder if one is named.

    Raises UnknownModelError if the model is not in the catalogue. Raises ArgumentError if the model is no GPT-2.
    Raises MissingPackageError if no framework is installed, or if a framework that the file needs is missing.
    """
    config = gpt_config(options.model, options.context)
    packages = [name for name in CONTENDERS if options.framework in (None, name)]
    if not packages:
        raise ArgumentError(f"bench hooks: got --framework {options.framework}; it takes {' or '.join(CONTENDERS)}")
    if options.page and options.framework:
        raise ArgumentError(
            f"bench hooks: got --framework {options.framework} with --write, whose page shows all; leave one out"
        )
    installed = [name for name in packages if is_installed(name)]
    missing = [name for name in packages if name not in installed]
    if not installed or (options.page and missing):
        commands = " and ".join(f"pip install {PIP_NAMES[name]}" for name in missing)
        raise MissingPackageError(
            f"bench hooks: got no package {' and no '.join(missing)}; {commands}", name=missing[0]
        )
    threads = options.threads or sg.get_num_threads()
    results: Results = {}
    libraries: list[str] = []
    with scratch_folder(options.directory, "training") as (folder, _):
        for name in installed:
            found, versions = measure_in_turns(
                CONTENDERS[name], config, options.batch, options.steps, threads, folder, check_weights, WARM_STEPS
            )
            results |= found
            libraries += versions
    tell(options, "hooks", threads, libraries, results, comparisons(results), verdicts(results))
