"""Run every check of the CUDA side on a machine with a GPU, in under ten minutes: `python tools/check_gpu.py`.

The script needs only spillgrad and its extra `cuda`. If PyTorch is installed, the benchmark compares with it, and its
adapters are tested. The tests need pytest. Every part runs in a process of its own with a time limit; if a part fails,
the other parts still run. The folder `--out` keeps all output; the last lines are a summary, and the exit status is 0
if all parts passed.

NUMBA_ENABLE_CUDASIM=1 runs every part in Numba's simulator, which takes many minutes.
"""

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PATHS = [str(ROOT), str(ROOT / "kernels"), str(ROOT / "tools")]
sys.path[:0] = PATHS
CORES = len(os.sched_getaffinity(0))
PACKAGES = (
    "numpy", "numba", "numba-cuda", "cuda-bindings", "cuda-core", "ml_dtypes", "h5py", "safetensors", "xxhash",
    "msgspec", "zstandard", "psutil", "rich", "typer", "torch", "pytest", "hypothesis",
)  # fmt: skip
STEPS = 6
# The allowed relative difference of losses: devices sum in different orders, and six steps amplify the differences.
LOSS_TOLERANCE = 1e-3
SHOWN_FAILURES = 8
HOST_LOSSES = "host-losses.json"


class Outcome(NamedTuple):
    """The result of a part: whether it passed, a summary, and lines to print before the table."""

    passed: bool
    text: str
    lines: Sequence[str] = ()


class Part(NamedTuple):
    """A check: `run` is called with the path of the log and the time limit in seconds."""

    name: str
    limit_s: float
    run: Callable[[Path, float], Outcome]


# The environment of the parts' processes: this checkout's code, and the GPU unless simulated.
ENVIRONMENT = {
    "NUMBA_ENABLE_CUDASIM": "0", **os.environ,
    "PYTHONPATH": os.pathsep.join([*PATHS, *filter(None, [os.environ.get("PYTHONPATH")])]),
    "PYTHONUNBUFFERED": "1", "NO_COLOR": "1", "COLUMNS": "160",
}  # fmt: skip


def execute(command: Sequence[str], log: Path, limit_s: float, output: Path | None = None) -> int | None:
    """Run Python with the arguments `command`; return the exit status, or None if the time limit was exceeded.

    Standard error is appended to `log`; standard output is appended to `output` if it is given, else to `log`.
    """
    with open(log, "a") as file, open(output or log, "a") as out:
        process = subprocess.Popen(
            [sys.executable, *command], cwd=ROOT, env=ENVIRONMENT, stdout=out, stderr=file, stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        try:
            return process.wait(max(0.0, limit_s))
        except subprocess.TimeoutExpired:
            return None
        finally:
            # Kill the children of the process, too; they may outlive it.
            with contextlib.suppress(ProcessLookupError):  # all processes of the group have ended
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def ended(status: int | None) -> str:
    """Describe how a process failed: it ran out of time if `status` is None, else it ended with that exit status."""
    return "ran out of time" if status is None else f"ended with status {status}"


# Parts that run as `python tools/check_gpu.py --part NAME`. The last line that such a process prints is its result.


def say_machine() -> str:
    """Print the GPU, the driver and the versions of packages; return the device's name, generation and free memory."""
    if shutil.which("nvidia-smi"):
        query = "--query-gpu=name,driver_version,memory.total,compute_cap,clocks.max.sm"
        asked = subprocess.run(["nvidia-smi", query, "--format=csv,noheader"], capture_output=True, text=True)
        print(asked.stdout.strip())
    print(f"Python {sys.version.split()[0]}, {CORES} cores")
    for package in PACKAGES:
        try:
            print(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            print(f"{package} is not installed")
    import spillgrad as sg

    sg.empty(1, device="cuda")  # without a device, the DeviceError says what is missing
    major, minor = sg.cuda.get_device_capability()
    free, total = sg.cuda.mem_get_info()
    return f"{sg.cuda.get_device_name()}, {major}.{minor}, {free >> 20} of {total >> 20} MiB free"


def train(device: str, spills: bool) -> list[float]:
    """Train a small GPT for a few steps and return the losses; if `spills`, the saved tensors go to disk."""
    import tempfile

    from spillgrad_tools.bench.gpt import SIMULATED_GPT, tokens
    from spillgrad_tools.bench.ours import Training

    if small := os.environ.get("NUMBA_ENABLE_CUDASIM") == "1":
        sizes, batch, steps = SIMULATED_GPT, 1, 2
    else:
        sizes = {"vocab_size": 256, "context": 128, "n_layer": 4, "n_head": 4, "n_embd": 128}
        batch, steps = 8, STEPS
    with tempfile.TemporaryDirectory() as directory:
        budgets = {"spill_budget": 0 if small else "1MiB", "device_budget": 0, "min_bytes": 1} if spills else {}
        training = Training(sizes, None, directory, lr=1e-3, device=device, **budgets)
        losses = [training.step(*tokens(sizes["vocab_size"], (batch, sizes["context"]), step)) for step in range(steps)]
        if training.spill is not None:
            traffic = training.spill.traffic()
            print(traffic)
            if traffic["written_bytes"] == 0:
                raise RuntimeError("training with spilling: nothing was written to disk")
    print(f"{device}{', spilled' if spills else ''}: {losses}")
    return losses


def say_training(out: Path, spills: bool) -> str:
    """Train on the device, and return in words how far the losses are from the host's.

    The first call computes the host's losses, and keeps them in `out`. Raises RuntimeError if the relative difference
    exceeds LOSS_TOLERANCE.
    """
    import numpy as np

    kept = out / HOST_LOSSES
    if not kept.exists():
        kept.write_text(json.dumps(train("cpu", False)))
    wanted, got = json.loads(kept.read_text()), train("cuda", spills)
    apart = float(np.max(np.abs(np.subtract(got, wanted)) / np.abs(wanted)))  # NaN if a loss is NaN
    text = f"{len(got)} losses, {got[0]:.4f} … {got[-1]:.4f}, at most {apart:.1e} from the host's"
    if not apart <= LOSS_TOLERANCE:
        raise RuntimeError(f"{text}; {LOSS_TOLERANCE:g} is allowed")
    return text


def say_memory() -> str:
    """Allocate more memory than the device has, three times, and check that the device still computes.

    Raises RuntimeError if a result is wrong, or if memory is not free again afterwards.
    """
    import spillgrad as sg

    x = sg.ones(1000).to("cuda")
    free, total = sg.cuda.mem_get_info()
    held: list[Any] = []
    refused = 0
    for _ in range(3):
        try:
            while True:
                held.append(sg.empty(total // 32, device="cuda"))  # an eighth of the memory: 4 bytes a number
        except sg.cuda.OutOfMemoryError as error:
            print(error)
            refused += 1
        if (x + len(held)).sum().item() != 1000 * (1 + len(held)):
            raise RuntimeError("the device computes wrong once memory ran out")
        held.clear()
        sg.cuda.empty_cache()
    after = sg.cuda.mem_get_info()[0]
    if free - after > 64 << 20:
        raise RuntimeError(f"{(free - after) >> 20} MiB did not come back after running out of memory")
    return f"refused {refused} times, computes on, all came back"


# The checks: each runs processes and judges their output.


def by_process(name: str, *options: str) -> Callable[[Path, float], Outcome]:
    """Return a check that runs the part `name` of this file, with `options`, in a process of its own."""

    def check(log: Path, limit_s: float) -> Outcome:
        status = execute([__file__, "--part", name, "--out", str(log.parent), *options], log, limit_s)
        lines = log.read_text().strip().splitlines() or [""]
        if status != 0:
            return Outcome(False, f"{ended(status)}: {lines[-1]}", lines[-3:])
        return Outcome(True, lines[-1], lines if name == "machine" else ())

    return check


def tests(*paths: str) -> Callable[[Path, float], Outcome]:
    """Return a check that runs the tests on all cores in chunks, each in its own process: a crash loses one chunk."""

    def check(log: Path, limit_s: float) -> Outcome:
        if importlib.util.find_spec("pytest") is None:
            return Outcome(False, "not run: pytest is not installed")
        until = time.monotonic() + limit_s
        listed = log.with_suffix(".list")
        status = execute(["-m", "pytest", "--collect-only", "-q", *paths], log, limit_s, listed)
        names = [line for line in listed.read_text().splitlines() if "::" in line and not line.startswith("ERROR")]
        failures = [] if status == 0 else [f"collecting the tests {ended(status)}, see {log}"]
        count = min(4 * CORES, len(names))
        chunks = [names[first::count] for first in range(count)]  # a file's slow tests are in different chunks

        def run(number: int) -> tuple[int, int, list[str]]:
            """Run a chunk; return how many tests passed, how many were skipped, and a line for each failure."""
            chosen, own = log.with_suffix(f".{number}.args"), log.with_suffix(f".{number}.log")
            chosen.write_text("\n".join(chunks[number]))
            left = until - time.monotonic()
            options = ["-q", "--tb=short", "-rfE", "--color=no", "-p", "no:cacheprovider"]
            status = None if left <= 0 else execute(["-m", "pytest", *options, f"@{chosen}"], own, left)
            said = own.read_text().splitlines() if own.exists() else []
            last = said[-1] if said else ""
            passed, skipped = (sum(map(int, re.findall(rf"(\d+) {word}", last))) for word in ("passed", "skipped"))
            lines = [line[:160] for line in said if line.startswith(("FAILED ", "ERROR "))]
            missing = len(chunks[number]) - passed - skipped - len(lines)
            if status not in (0, 1) or missing > 0:
                lines.append(f"{max(0, missing)} tests from {chunks[number][0]} on: {ended(status)}, see {own}")
            return passed, skipped, lines

        with ThreadPoolExecutor(CORES) as pool:
            outcomes = list(pool.map(run, range(len(chunks))))
        passed, skipped = sum(outcome[0] for outcome in outcomes), sum(outcome[1] for outcome in outcomes)
        failures += [line for outcome in outcomes for line in outcome[2]]
        text = f"{passed} passed, {skipped} skipped, {len(names) - passed - skipped} failed"
        # Of a test with many parameters, show only the first failure.
        shown = list({line.partition("[")[0]: line for line in reversed(failures)}.values())[::-1][:SHOWN_FAILURES]
        more = [f"and {len(failures) - len(shown)} more"] if len(failures) > len(shown) else []
        return Outcome(not failures and passed > 0, text, [*shown, *more])

    return check


def as_markdown(answer: dict[str, Any]) -> str:
    """Convert the benchmark's JSON output to a Markdown table."""
    from spillgrad_tools.quantities import UNKNOWN, format_duration

    lines = ["| on a GPU | spillgrad | PyTorch | × PyTorch |", "|---|---|---|---|"]
    for row in answer["results"]:
        seconds, failures = row["seconds"], row.get("failures", {})
        cells = [
            failures.get(name) or (format_duration(seconds[name]) if name in seconds else UNKNOWN)
            for name in ("ours", "torch")
        ]
        ratio = f"{seconds['torch'] / seconds['ours']:.2f}" if {"ours", "torch"} <= seconds.keys() else UNKNOWN
        lines.append(f"| {row['case']} | {' | '.join(cells)} | {ratio} |")
    about = answer["machine"]
    return "\n".join([*lines, "", f"{about['gpu']}; {', '.join(about['libraries'])}; {about['date']}."])


def benchmark(*options: str) -> Callable[[Path, float], Outcome]:
    """Return a check that runs the benchmark; it passes if all rows were timed, even if rows miss their bars."""

    def check(log: Path, limit_s: float) -> Outcome:
        found = log.with_suffix(".json")
        command = ["-m", "spillgrad_tools", "bench", "kernels", "--device", "cuda", "--json", *options]
        status = execute(command, log, limit_s, found)
        printed = log.read_text().splitlines()
        rows = [line for line in printed if ": spillgrad " in line]
        if status != 0:
            text = f"{ended(status)} after {len(rows)} rows: {printed[-1] if printed else ''}"
            return Outcome(False, text[:200], rows)
        answer = json.loads(found.read_text())
        results = answer["results"]
        log.with_suffix(".md").write_text(as_markdown(answer))
        bars = [bar for result in results for bar in result["bars"]]
        failed = [result["case"] for result in results if "ours" not in result["seconds"]]
        text = f"{len(results)} rows, {sum(bar['met'] for bar in bars)} of {len(bars)} bars reached"
        if failed:
            text += f", not timed: {'; '.join(failed)}"
        return Outcome(not failed, text, rows)

    return check


def parts(quick: bool) -> list[Part]:
    """Return the checks in the order in which they run; the sum of their limits is under ten minutes."""
    rounds = ("--quick", "--rounds", "1") if quick else ("--rounds", "5")
    has_torch = not quick and importlib.util.find_spec("torch") is not None
    chosen = ["tests/cuda/test_array.py", "tests/cuda/test_dlpack.py"] if quick else ["tests/cuda"]
    return [
        Part("machine", 15, by_process("machine")),
        Part("memory", 20, by_process("memory")),
        Part("training", 75, by_process("training")),
        Part("training, spilled", 15, by_process("training-spilled")),
        Part("benchmark", 180, benchmark(*rounds)),
        Part("tests on the device", 215, tests(*chosen)),
        *([] if quick else [Part("PTX code", 45, tests("tests/kernels/cuda/test_code.py"))]),
        *([Part("PyTorch's models", 30, tests("tests/interop/test_torch_cuda.py"))] if has_torch else []),
    ]


def main() -> int:
    """Run the parts that the command line chooses, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few minutes: few tests, short rows timed once, no PTX")
    parser.add_argument("--only", metavar="NAME", help="only parts whose name contains this")
    parser.add_argument("--out", type=Path, default=Path("check-gpu"), help="the folder for all that is printed")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args()
    out = options.out.resolve()
    if options.part:
        parts_by_name: dict[str, Callable[[], str]] = {
            "machine": say_machine, "memory": say_memory, "training": lambda: say_training(out, False),
            "training-spilled": lambda: say_training(out, True),
        }  # fmt: skip
        print(parts_by_name[options.part]())
        return 0
    out.mkdir(parents=True, exist_ok=True)
    (out / HOST_LOSSES).unlink(missing_ok=True)
    rows, failed = [], 0
    for part in parts(options.quick):
        if options.only and options.only not in part.name:
            continue
        print(f"== {part.name}", flush=True)
        started = time.monotonic()
        log = out / f"{part.name.replace(',', '').replace(' ', '-')}.log"
        for former in out.glob(f"{log.stem}.*"):
            former.unlink()
        try:
            outcome = part.run(log, part.limit_s)
        except Exception as error:  # run the other parts all the same
            outcome = Outcome(False, f"{type(error).__name__}: {error}")
        for line in outcome.lines:
            print(line, flush=True)
        failed += not outcome.passed
        rows.append((part.name, outcome, time.monotonic() - started))
    print("\n| check | result | time |\n|---|---|---|")
    for name, outcome, seconds in rows:
        print(f"| {name} | {'passed' if outcome.passed else 'FAILED'}: {outcome.text[:240]} | {seconds:.0f} s |")
    print(f"\n{len(rows) - failed} of {len(rows)} checks passed; everything printed is in {out}")
    return 1 if failed or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
