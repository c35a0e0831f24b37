"""`spillgrad bench spill`: the store beside plain file I/O, a training step spilled beside one in RAM."""

import contextlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import spillgrad as sg
from spillgrad.storage.disk_store import DiskStore
from spillgrad_kernels.memory import empty
from spillgrad_tools.bench_report import machine, show_times
from spillgrad_tools.train import StepRecord, Training
from spillgrad_tools.train_settings import TrainSettings

BLOCK_BYTES = 4 << 20
BLOCKS = 64
RAM_BUDGET = "64MiB"

# Seconds of each part, by its name.
Times = dict[str, float]


@contextlib.contextmanager
def _timed(times: Times, part: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    times[part] = time.perf_counter() - started


def _check(same: bool, what: str) -> None:
    if not same:
        raise RuntimeError(f"bench: {what} differs")


def plain_io(blocks: list[np.ndarray], directory: Path) -> Times:
    """Write the blocks to one file and read them back in reverse, with nothing but pwrite and pread."""
    times: Times = {}
    with tempfile.TemporaryFile(dir=directory) as file:
        descriptor = file.fileno()
        with _timed(times, "write"):
            for index, block in enumerate(blocks):
                _check(os.pwrite(descriptor, block.data, index * BLOCK_BYTES) == BLOCK_BYTES, "bytes written")
        with _timed(times, "read"):
            for index in reversed(range(len(blocks))):
                buffer = empty((BLOCK_BYTES,), np.uint8)
                _check(os.preadv(descriptor, [buffer.data], index * BLOCK_BYTES) == BLOCK_BYTES, "bytes read")
        _check(bool((buffer == blocks[0]).all()), "what was read")
    return times


def store_io(blocks: list[np.ndarray], directory: Path) -> Times:
    """Put the blocks into a store, wait until all are on disk, and get them in reverse, as backward does."""
    times: Times = {}
    store = DiskStore(directory, ram_budget=RAM_BUDGET)
    try:
        with _timed(times, "write"):
            handles = [store.put(block) for block in blocks]
            store.flush()
        with _timed(times, "read"):
            while handles:
                handle = handles.pop()
                block = store.get(handle)
                store.drop(handle)
        _check(bool((block == blocks[0]).all()), "what was read")
    finally:
        store.close()
    return times


def alternate(contenders: dict[str, Callable[[], Times]], rounds: int) -> list[dict[str, Any]]:
    """Run the contenders in turns; return, for each part, the median seconds of each."""
    taken = [{name: contender() for name, contender in contenders.items()} for _ in range(rounds)]
    first = next(iter(contenders))
    return [
        {
            "case": part,
            "seconds": {name: statistics.median(times[name][part] for times in taken) for name in contenders},
        }
        for part in taken[0][first]
    ]


def file_results(count: int, directory: Path, rounds: int) -> list[dict[str, Any]]:
    """Time the store beside plain file I/O, on `count` blocks."""
    random = np.random.default_rng(0)
    blocks = [np.frombuffer(random.bytes(BLOCK_BYTES), np.uint8).copy() for _ in range(count)]
    contenders: dict[str, Callable[[], Times]] = {
        "plain": lambda: plain_io(blocks, directory),
        "spillgrad": lambda: store_io(blocks, directory),
    }
    for contender in contenders.values():
        contender()
    return alternate(contenders, rounds)


def step_results(settings: TrainSettings, directory: Path, rounds: int) -> list[dict[str, Any]]:
    """Time training steps whose saved tensors stay in RAM beside spilled ones."""
    text = sg.data.load_text()
    in_ram, spilled = Training(settings, text), Training(settings, text)
    spilled.spill = sg.save_on_disk(directory, ram_budget=RAM_BUDGET)
    records = {"plain": in_ram.steps(), "spillgrad": spilled.steps()}
    first = {name: next(steps).loss for name, steps in records.items()}
    _check(first["plain"] == first["spillgrad"], f"the loss of the first step ({first})")
    part = f"training step, {settings.model}"

    def contender(steps: Iterator[StepRecord]) -> Callable[[], Times]:
        return lambda: {part: next(steps).duration_s}

    return alternate({name: contender(steps) for name, steps in records.items()}, rounds)


def run(as_json: bool, directory: Path, rounds: int) -> None:
    """Time everything in a temporary folder below `directory` and print it.

    Raises OSError when the folder cannot be written.
    """
    with (
        tempfile.TemporaryDirectory(dir=directory, prefix="spillgrad-bench-") as folder,
        Console(stderr=True).status("timing"),
    ):
        results = file_results(BLOCKS, Path(folder), rounds)
        results += step_results(TrainSettings(steps=rounds + 1), Path(folder), rounds)
    about = {**machine(), "rounds": rounds, "blocks": f"{BLOCKS} x {BLOCK_BYTES >> 20} MiB", "RAM budget": RAM_BUDGET}
    if as_json:
        print(json.dumps({"machine": about, "results": results}, indent=2))
    else:
        show_times(about, results)
