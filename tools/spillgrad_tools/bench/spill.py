"""`spillgrad bench spill`: compare the store with plain file I/O, and a spilled training step with one in RAM."""

import dataclasses
import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import psutil
from rich.console import Console

import spillgrad as sg
from spillgrad.storage.disk.direct_io import open_direct, speeds
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.store import Handle
from spillgrad_kernels.memory import buffers
from spillgrad_tools.bench.bars import Row, Verdict
from spillgrad_tools.bench.file_per_tensor import file_per_tensor
from spillgrad_tools.bench.harness import Measured, in_turns, medians, require_agreement
from spillgrad_tools.bench.report import machine, print_json, show_rows
from spillgrad_tools.train.options import TrainSettings
from spillgrad_tools.train.training import StepRecord, Training

MIB = 1 << 20
# Throughput: the sizes of the arrays, the bytes of all arrays of a size, and the RAM budget.
SIZES_BYTES = (4 * MIB, 64 * MIB)
FILE_BYTES = 512 * MIB
FILE_BUDGET_BYTES = 128 * MIB
# Plain I/O beside a training step moves pieces as large as the store's arrays, out of so many that no processor's cache
# holds them all.
PIECE_BYTES = 4 * MIB
RING_PIECES = 16
CALLS = 32
MIXED_STEPS = 200
MIXED_STEP_BYTES = 16 * MIB


def _check(same: bool, what: str) -> None:
    if not same:
        raise RuntimeError(f"bench: {what} differs")


class PlainFile:
    """A file without a name, which is read and written by pread and pwrite alone; if `direct`, past the page cache.

    Raises OSError when the folder cannot be written, or its file system has no direct I/O.
    """

    def __init__(self, directory: Path, direct: bool) -> None:
        flags = os.O_RDWR | os.O_TMPFILE
        opened = open_direct(directory, flags) if direct else os.open(directory, flags | os.O_CLOEXEC, 0o600)
        if opened is None:
            raise OSError(f"bench: no direct I/O in {directory}")
        self._descriptor = opened

    def __enter__(self) -> "PlainFile":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def write(self, array: np.ndarray, place: int) -> None:
        """Write all of `array` at `place`."""
        _check(os.pwritev(self._descriptor, [array.data], place) == array.nbytes, "bytes written")

    def read(self, nbytes: int, place: int) -> np.ndarray:
        """Return the bytes at `place` in a new array."""
        array = buffers.empty((nbytes,), np.uint8)
        _check(os.preadv(self._descriptor, [array.data], place) == nbytes, "bytes read")
        return array


def plain_rates(blocks: Sequence[np.ndarray], directory: Path, direct: bool) -> Measured:
    """Write the blocks to one file and read them back in reverse order; return the bytes a second of each."""
    nbytes = blocks[0].nbytes
    with PlainFile(directory, direct) as file:
        started = time.perf_counter()
        for index, block in enumerate(blocks):
            file.write(block, index * nbytes)
        written = time.perf_counter()
        for index in reversed(range(len(blocks))):
            block = file.read(nbytes, index * nbytes)
        read = time.perf_counter()
    _check(bool((block == blocks[0]).all()), "what was read")
    return {"write": len(blocks) * nbytes / (written - started), "read": len(blocks) * nbytes / (read - written)}


def store_rates(blocks: Sequence[np.ndarray], directory: Path, direct: bool, budget_bytes: int) -> Measured:
    """Put the blocks, wait until all are on disk, and get them in reverse order, as the backward pass does.

    Return the bytes a second that were written and read; arrays that stayed in RAM are written, but not read.
    """
    store = DiskStore(directory, ram_budget=budget_bytes, direct_io=direct)
    try:
        started = time.perf_counter()
        handles = [store.put(block) for block in blocks]
        store.flush()
        written = time.perf_counter()
        while handles:
            handle = handles.pop()
            block = store.get(handle)
            store.drop(handle)
        read = time.perf_counter()
        stats = store.stats()
        _check(bool((block == blocks[0]).all()), "what was read")
    finally:
        store.close()
    return {"write": stats.written_bytes / (written - started), "read": stats.read_bytes / (read - written)}


def file_rows(size_bytes: int, total_bytes: int, budget_bytes: int, directory: Path, rounds: int) -> Iterator[Row]:
    """Time the store beside plain file I/O, through the page cache and past it."""
    random_bytes = np.random.default_rng(0)
    blocks = []
    for _ in range(total_bytes // size_bytes):
        blocks.append(buffers.empty((size_bytes,), np.uint8))
        blocks[-1][:] = np.frombuffer(random_bytes.bytes(size_bytes), np.uint8)
    for direct in (False, True):
        try:
            turns = {
                "plain": partial(plain_rates, blocks, directory, direct),
                "spillgrad": partial(store_rates, blocks, directory, direct, budget_bytes),
            }
            taken = list(in_turns(turns, rounds + 1))[1:]
        except OSError:
            if not direct:
                raise
            return  # this file system has no direct I/O
        for part in ("write", "read"):
            measured = medians({name: rates[part] for name, rates in each.items()} for each in taken)
            how = "O_DIRECT" if direct else "page cache"
            verdict = Verdict("× plain", measured["spillgrad"] / measured["plain"], 0.9)
            yield Row(f"{part} {size_bytes // MIB} MiB arrays, {how}", "B/s", measured, (verdict,))


def call_rows(calls: int, directory: Path, rounds: int) -> Iterator[Row]:
    """Time the pack hook with room in the budget, and the unpack hook of a tensor that is in RAM."""
    tensors = [sg.full((1024, 1024), float(i)) for i in range(calls)]
    budget_bytes = 4 * sum(tensor.nbytes for tensor in tensors)
    taken = []
    for _ in range(rounds + 1):
        spill = sg.save_on_disk(directory, ram_budget=budget_bytes)
        times: dict[str, list[float]] = {"pack": [], "hit": []}
        packed = []
        for tensor in tensors:
            started = time.perf_counter()
            packed.append(spill.pack_hook(tensor))
            times["pack"].append(time.perf_counter() - started)
        while packed:
            started = time.perf_counter()
            tensor = spill.unpack_hook(packed[-1])
            times["hit"].append(time.perf_counter() - started)
            _check(tensor.storage is tensors[len(packed) - 1].storage, "what came back")
            packed.pop()
        taken.append({part: statistics.median(each) for part, each in times.items()})
    for part, seconds in medians(taken[1:]).items():
        verdict = Verdict("µs", seconds * 1e6, 25, most=True)
        yield Row(f"{part} a 4 MiB tensor in RAM", "s", {"spillgrad": seconds}, (verdict,))


class PlainTraffic:
    """Moves the bytes of a spilled step between RAM and a file, by plain pwrite and pread in pieces."""

    def __init__(self, file: PlainFile, write_bytes: int, read_bytes: int) -> None:
        self._file = file
        self._writes, self._reads = (max(1, round(nbytes / PIECE_BYTES)) for nbytes in (write_bytes, read_bytes))
        self._ring = [buffers.zeros((PIECE_BYTES,), np.uint8) for _ in range(RING_PIECES)]
        self.move()  # allocates the file's blocks

    def move(self) -> None:
        """Write as many bytes as one step, then read as many as the step, the newest first."""
        for i in range(self._writes):
            self._file.write(self._ring[i % RING_PIECES], i * PIECE_BYTES)
        for i in range(self._reads):
            self._file.read(PIECE_BYTES, (self._writes - 1 - i % self._writes) * PIECE_BYTES)


def _save(tensor: sg.Tensor, path: Path) -> None:
    with open(path, "wb") as file:
        np.save(file, tensor.numpy())


def saved_bytes(settings: TrainSettings, text: bytes, directory: Path) -> int:
    """Return the bytes that one step saves for backward, each storage counted once."""
    training = Training(settings, text)
    x, y = next(training.data.train_batches(0))
    spill = sg.save_on_disk(directory, ram_budget="1TiB")
    with spill:
        _, loss = training.model(x, y)
    found = spill.stats().live_bytes
    del loss
    return found


def step_rows(settings: TrainSettings, directory: Path, rounds: int) -> Iterator[Row]:
    """Time training steps: in RAM, spilled, in RAM beside plain traffic of as many bytes, and a file per tensor."""
    text = sg.data.load_text()
    budget_bytes = saved_bytes(settings, text, directory) // 8
    trainings = {name: Training(settings, text) for name in ("in RAM", "spilled", "plain traffic", "file per tensor")}
    spill = trainings["spilled"].spill = sg.save_on_disk(directory, ram_budget=budget_bytes)
    steps = {name: training.steps() for name, training in trainings.items()}
    pack_and_unpack = file_per_tensor(directory, _save, lambda path: sg.from_numpy(np.load(path)))
    moved: list[tuple[int, int]] = []

    def spilled_step() -> StepRecord:
        before = spill.stats()
        record = next(steps["spilled"])
        after = spill.stats()
        moved.append((after.written_bytes - before.written_bytes, after.read_bytes - before.read_bytes))
        return record

    def step_beside_traffic() -> StepRecord:
        started = time.perf_counter()
        mover = threading.Thread(target=traffic.move)
        mover.start()
        record = next(steps["plain traffic"])
        mover.join()
        return dataclasses.replace(record, duration_s=time.perf_counter() - started)

    def step_under_hooks() -> StepRecord:
        with sg.autograd.saved_tensors_hooks(*pack_and_unpack):
            return next(steps["file per tensor"])

    spilled_step()
    for name in steps.keys() - {"spilled"}:
        next(steps[name])
    taken: list[Measured] = []
    with PlainFile(directory, speeds(directory).direct_io_pays) as file:
        traffic = PlainTraffic(file, *moved[0])
        turns: dict[str, Callable[[], StepRecord]] = {
            "in RAM": partial(next, steps["in RAM"]), "spilled": spilled_step, "plain traffic": step_beside_traffic,
            "file per tensor": step_under_hooks,
        }  # fmt: skip
        for records in in_turns(turns, rounds):
            losses = {name: record.loss for name, record in records.items()}
            require_agreement("bench spill: losses", losses, records["in RAM"].step)
            started = time.perf_counter()
            traffic.move()
            alone_s = time.perf_counter() - started
            times = {name: record.duration_s for name, record in records.items()}
            taken.append({**times, "traffic alone": alone_s, "waited": records["spilled"].waited_s})
    yield from judged_steps(settings.model, medians(taken), budget_bytes, *moved[-1])


def judged_steps(model: str, seconds: Measured, budget_bytes: int, write_bytes: int, read_bytes: int) -> Iterator[Row]:
    """Yield the rows of a step from the median seconds of its contenders."""
    shown = {name: seconds[name] for name in ("in RAM", "spilled", "plain traffic", "file per tensor")}
    in_ram, spilled, beside_traffic, file_per_tensor = shown.values()
    moved: Measured = {"budget": budget_bytes, "written": write_bytes, "read": read_bytes}
    yield Row(f"a step's bytes, {model}, budget 1/8", "B", moved)
    verdicts = (
        Verdict("× a step beside plain traffic", spilled / beside_traffic, 1.05, most=True),
        Verdict("× in RAM", spilled / in_ram, 1.1, most=True),
        Verdict("file per tensor's overhead × ours", (file_per_tensor - in_ram) / max(spilled - in_ram, 1e-9), 2),
    )
    yield Row(f"training step, {model}, budget 1/8", "s", shown, verdicts)
    waited, alone = 100 * seconds["waited"] / spilled, 100 * seconds["traffic alone"] / in_ram
    # Where the disk is busy for most of the step, waiting cannot be avoided and is not judged.
    bars = (Verdict("% waited", waited, 3, most=True),) if alone < 60 else ()
    yield Row("share of the step", "%", {"waited": waited, "plain traffic alone": alone}, bars)


def batches(drawn: random.Random) -> tuple[int, ...]:
    """Return a random shape as models save it: sequences, tokens, features."""
    return drawn.choice((2, 4, 8)), drawn.randrange(16, 257), drawn.choice((64, 192, 384, 768))


def odd(drawn: random.Random) -> tuple[int, ...]:
    """Return a random shape of a matrix whose rows fill no whole pages."""
    return drawn.randrange(1, 1025), drawn.randrange(1, 1025)


def mixed_rows(
    shapes: Callable[[random.Random], tuple[int, ...]], steps: int, step_bytes: int, directory: Path
) -> Iterator[Row]:
    """Store the arrays of many steps, of random shapes, with budget 0; `shapes` draws a shape.

    Yield the peak of the disk beside the largest live set, and the growth of the process after a quarter of the steps.
    """
    drawn = random.Random(0)
    process = psutil.Process()
    largest_live_bytes = 0
    rss_bytes: list[int] = []
    store = DiskStore(directory, ram_budget=0)
    try:
        for _ in range(steps):
            handles: list[Handle] = []
            live_bytes = 0
            while live_bytes < step_bytes:
                array = buffers.empty(shapes(drawn), np.float32)
                array.fill(len(handles))
                handles.append(store.put(array))
                live_bytes += array.nbytes
            largest_live_bytes = max(largest_live_bytes, live_bytes)
            while handles:
                handle = handles.pop()
                array = store.get(handle)
                _check(array.flat[0] == array.flat[-1] == len(handles), "what was read")
                store.drop(handle)
            rss_bytes.append(process.memory_info().rss)
        disk_bytes = store.stats().peak_disk_bytes
    finally:
        store.close()
    verdict = Verdict("× largest live set", disk_bytes / largest_live_bytes, 1.1, most=True)
    name = f"{steps} steps of mixed {shapes.__name__}"
    yield Row(f"disk, {name}", "B", {"largest live set": largest_live_bytes, "peak": disk_bytes}, (verdict,))
    grown_bytes = max(rss_bytes[steps // 4 :]) - max(rss_bytes[: steps // 4])
    yield Row(f"memory, {name}", "B", {"grown after a quarter": max(0, grown_bytes)})


def rows(directory: Path, rounds: int) -> Iterator[Row]:
    """Measure everything; yield each row as soon as it is measured."""
    for shapes in (batches, odd):
        yield from mixed_rows(shapes, MIXED_STEPS, MIXED_STEP_BYTES, directory)
    yield from call_rows(CALLS, directory, rounds)
    for size_bytes in SIZES_BYTES:
        yield from file_rows(size_bytes, FILE_BYTES, FILE_BUDGET_BYTES, directory, rounds)
    yield from step_rows(TrainSettings(steps=rounds + 1), directory, rounds)


def run(as_json: bool, directory: Path, rounds: int) -> None:
    """Measure in a temporary folder below `directory`, and print the rows. Raises OSError if it cannot be written."""
    with (
        tempfile.TemporaryDirectory(dir=directory.absolute(), prefix="spillgrad-bench-") as folder,
        Console(stderr=True).status("timing") as status,
    ):
        found = []
        for row in rows(Path(folder), rounds):
            found.append(row)
            status.update(f"timing; {row.case} done")
    about = {**machine(), "threads": sg.get_num_threads(), "rounds": rounds}
    if as_json:
        print_json(machine=about, results=[row.as_json() for row in found])
    else:
        show_rows(about, found)
