"""`spillgrad bench within`: train within many sizes of memory, each run in a control group of that size."""

import contextlib
import dataclasses
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Column, Table

import spillgrad as sg
from spillgrad.errors import ArgumentError
from spillgrad.storage.sizes import format_bytes, parse_bytes
from spillgrad_tools.bench.machine import machine
from spillgrad_tools.bench.options import WithinOptions
from spillgrad_tools.bench.report import print_json
from spillgrad_tools.memory_cap import MemoryCap

# Each is planned and trained within several sizes.
CASES: dict[str, tuple[str, ...]] = {
    "tiny": ("--model", "tiny", "--batch", "64", "--context", "64"),
    "small, short": ("--model", "small", "--batch", "4", "--context", "64"),
    "small": ("--model", "small", "--batch", "8", "--context", "128"),
    "small, long": ("--model", "small", "--batch", "2", "--context", "512"),
    "small, accumulated": ("--model", "small", "--batch", "8", "--context", "128", "--accumulate", "2"),
    "small, adapters": ("--model", "small", "--batch", "8", "--context", "128", "--lora", "4"),
    "small, bfloat16": ("--model", "small", "--batch", "8", "--context", "128", "--autocast"),
    "small, fewer bits": ("--model", "small", "--batch", "8", "--context", "128", "--autocast", "--lossy"),
    "small, quantized": ("--weights", "NF4", "--batch", "8", "--context", "128", "--lora", "4", "--autocast"),
    "small, large batch": ("--model", "small", "--batch", "24", "--context", "128"),
    "llama": ("--model", "llama-tiny", "--batch", "64", "--context", "64"),
    "gpt2": ("--model", "gpt2", "--batch", "1", "--context", "64"),
}
# The word in a case for a folder of weights in 4 bits, and the model that has such weights.
NF4, _QUANTIZED = "NF4", "small"
# Sizes, as shares of the least one that a plan names.
SHARES = (1.0, 1.05, 1.15, 1.3, 1.6, 2.0)
_STEPS = 2
# Trained with `--ram auto` in control groups of these sizes, and in none, beside another program that takes memory of
# the group when training begins.
AUTOMATIC = ("--model", "gpt2", "--batch", "4", "--context", "512")
GROUPS: tuple[int | None, ...] = (2 << 30, 4 << 30, None)
NEIGHBOUR_BYTES = 500 << 20
# Waits for a line, then holds so much memory until nobody writes any more.
_NEIGHBOUR = "import sys; sys.stdin.readline(); held = b'1' * int(sys.argv[1]); sys.stdin.read()"
_SIZE = r"([\d.]+ [KMGT]?i?B)"


@dataclasses.dataclass(frozen=True)
class Run:
    """A run within a size: how it ended, and the predicted and the measured peak memory, if it came so far.

    The size is None where nothing limits the run.
    """

    case: str
    ram_bytes: int | None
    ended: str
    predicted_bytes: int | None = None
    peak_bytes: int | None = None
    group_peak_bytes: int | None = None
    said: str = ""


def least_bytes(words: tuple[str, ...], directory: Path) -> int:
    """Return the least memory that `spillgrad plan` names for a training."""
    done = _ran(["plan", *words, "--ram", "1TiB", "--dir", str(directory), "--json"])
    if done.returncode:
        raise ArgumentError(f"bench within: spillgrad plan failed: {done.stderr.strip()}")
    return int(json.loads(done.stdout)["least_bytes"])


def trained(case: str, words: tuple[str, ...], ram_bytes: int, directory: Path) -> Run:
    """Train within `ram_bytes`, in a control group of that size, or under RLIMIT_DATA where no group can be made."""
    with tempfile.TemporaryDirectory(dir=directory) as folder, MemoryCap(ram_bytes) as cap:
        said = ["train", *words, "--steps", str(_STEPS), "--ram", str(ram_bytes), "--out", f"{folder}/out"]
        done = _ran([*said, "--save-every", "0"], cap)
        group_peak = cap.peak_bytes()
    return _ended(case, ram_bytes, done, group_peak)


def trained_beside(
    case: str, words: tuple[str, ...], limit_bytes: int | None, neighbour_bytes: int, directory: Path
) -> Run:
    """Train with `--ram auto` in a control group, or in none, where a neighbour takes memory when training begins."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=directory))
        cap = None if limit_bytes is None else stack.enter_context(MemoryCap(limit_bytes))

        def start(command: list[str], **streams: Any) -> "subprocess.Popen[str]":
            capped = command if cap is None else cap.command(command)
            return stack.enter_context(subprocess.Popen(capped, text=True, stdin=subprocess.PIPE, **streams))

        neighbour = start([sys.executable, "-c", _NEIGHBOUR, str(neighbour_bytes)])
        complaints = stack.enter_context(tempfile.TemporaryFile("w+", dir=folder))
        command = [sys.executable, "-u", "-m", "spillgrad_tools", "train", *words, "--steps", str(_STEPS)]
        running = start(
            [*command, "--ram", "auto", "--out", f"{folder}/out", "--save-every", "0"],
            stdout=subprocess.PIPE, stderr=complaints,
        )  # fmt: skip
        assert running.stdout is not None and neighbour.stdin is not None
        said: list[str] = []
        for line in running.stdout:
            if not said:  # the plan has been made
                neighbour.stdin.write("now\n")
                neighbour.stdin.flush()
            said.append(line)
        status = running.wait()
        neighbour_ended = neighbour.poll()
        neighbour.communicate()
        complaints.seek(0)
        done = subprocess.CompletedProcess(command, status, "".join(said), complaints.read())
        group_peak = None if cap is None else cap.peak_bytes()
    found = _ended(case, limit_bytes, done, group_peak)
    return found if neighbour_ended is None else dataclasses.replace(found, ended="killed", said="the neighbour was")


def _ended(
    case: str, ram_bytes: int | None, done: "subprocess.CompletedProcess[str]", group_peak: int | None
) -> Run:  # fmt: skip
    peaks = re.search(rf"predicted: peak {_SIZE}", done.stdout), re.search(rf"peak RSS +{_SIZE}", done.stdout)
    predicted, measured = (None if found is None else parse_bytes(found[1]) for found in peaks)
    ended = {0: "finished", 2: "no plan"}.get(done.returncode, "killed")
    error = "" if done.returncode == 0 else done.stderr.strip().rpartition("\n")[2]
    return Run(case, ram_bytes, ended, predicted, measured, group_peak, error)


def _ran(words: list[str], cap: MemoryCap | None = None) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "spillgrad_tools", *words]
    return subprocess.run(command if cap is None else cap.command(command), capture_output=True, text=True)


@contextlib.contextmanager
def _weights(words: tuple[str, ...], directory: Path) -> Iterator[tuple[str, ...]]:
    """Context manager: the words of a case, with a folder of quantized weights if it has such a word."""
    if NF4 not in words:
        yield words
        return
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        checkpoint = sg.save_checkpoint(f"{folder}/base", sg.models.build(_QUANTIZED))
        quantized = sg.models.quantize(checkpoint, "nf4", f"{folder}/nf4")
        yield tuple(str(quantized) if word == NF4 else word for word in words)


def runs(options: WithinOptions) -> Iterator[Run]:
    """Train each case within each size."""
    for case, words in CASES.items():
        if options.name not in case:
            continue
        with _weights(words, options.directory) as named:
            least = least_bytes(named, options.directory)
            for share in SHARES:
                yield trained(case, named, int(least * share), options.directory)
    for limit_bytes in GROUPS:
        case = f"auto, {'no group' if limit_bytes is None else format_bytes(limit_bytes)}"
        for _ in range(options.times if options.name in case else 0):
            yield trained_beside(case, AUTOMATIC, limit_bytes, NEIGHBOUR_BYTES, options.directory)


def run(options: WithinOptions) -> bool:
    """Print how the runs ended; return False if one was killed, or if there was no plan for a size that was named."""
    found: list[Run] = []
    with Console(stderr=True).status("training") as status:
        for each in runs(options):
            found.append(each)
            # The runs take an hour: one that is interrupted has printed those that ended.
            status.console.print(_as_text(each), highlight=False, soft_wrap=True)
            status.update(f"training; {len(found)} runs done")
    if options.as_json:
        print_json(machine=machine(), runs=[dataclasses.asdict(each) for each in found])
    else:
        _show(found)
    return all(each.ended == "finished" for each in found)


def _show(found: list[Run]) -> None:
    console = Console()
    heads = ("within", "predicted peak", "peak RSS", "peak of the group")
    table = Table("run", *(Column(head, justify="right") for head in heads), "", box=SIMPLE)
    for each in found:
        sizes: list[Any] = [each.ram_bytes, each.predicted_bytes, each.peak_bytes, each.group_peak_bytes]
        cells = ("" if size is None else format_bytes(size) for size in sizes)
        table.add_row(each.case, *cells, _ending(each))
    console.print(table)
    ended = sum(each.ended == "finished" for each in found)
    console.print(f"{ended} of {len(found)} runs finished within their memory", highlight=False)


def _as_text(found: Run) -> str:
    within = "no limit" if found.ram_bytes is None else format_bytes(found.ram_bytes)
    peak = "" if found.peak_bytes is None else f", peak {format_bytes(found.peak_bytes)}"
    return f"{found.case}, within {within}{peak}: {_ending(found)}"


def _ending(found: Run) -> str:
    return found.ended if found.ended == "finished" else f"{found.ended}: {found.said}"
