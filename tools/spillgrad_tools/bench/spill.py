"""`spillgrad bench spill`: compare the store with plain file I/O, and a spilled training step with one in RAM."""

import contextlib
import dataclasses
import os
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from io import FileIO
from pathlib import Path

import numpy as np
import psutil

import spillgrad as sg
from spillgrad.storage.disk.direct_io import open_direct, speeds
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.store import Handle
from spillgrad_kernels.memory import buffers
from spillgrad_tools.bench import results
from spillgrad_tools.bench.bars import Row, Verdict
from spillgrad_tools.bench.file_per_tensor import file_per_tensor
from spillgrad_tools.bench.harness import Measured, grown_after_a_quarter, in_turns, medians, require_agreement
from spillgrad_tools.bench.machine import machine
from spillgrad_tools.bench.options import SpillOptions
from spillgrad_tools.bench.report import scratch_folder, show_rows
from spillgrad_tools.train.options import TrainSettings
from spillgrad_tools.train.training import StepRecord, Training

MIB = 1 << 20
# Throughput: the sizes of the arrays, the bytes of all arrays of a size, and the RAM budget.
SIZES_BYTES = (4 * MIB, 64 * MIB)
FILE_BYTES = 512 * MIB
FILE_BUDGET_BYTES = 128 * MIB
# Plain I/O beside a training step moves pieces as large as the store's arrays, from a ring of RING_PIECES pieces, which
# is larger than a processor's cache.
PIECE_BYTES = 4 * MIB
RING_PIECES = 16
CALLS = 32
MIXED_STEPS = 200
MIXED_STEP_BYTES = 16 * MIB


def _check(same: bool, what: str) -> None:
    if not same:
        raise RuntimeError(f"bench: {what} differs")


def plain_file(directory: Path, direct: bool) -> FileIO:
    """Return an unnamed file for `write` and `read`; if `direct`, its I/O bypasses the page cache.

    Raises OSError if the folder cannot be written. Raises OSError if `direct` and the file system has no direct I/O.
    """
    flags = os.O_RDWR | os.O_TMPFILE
    opened = open_direct(directory, flags) if direct else os.open(directory, flags | os.O_CLOEXEC, 0o600)
    if opened is None:
        raise OSError(f"bench: no direct I/O in {directory}")
    return FileIO(opened, "r+")


def write(file: FileIO, array: np.ndarray, place: int) -> None:
    """Write an array to a file at the offset `place`."""
    _check(os.pwritev(file.fileno(), [array.data], place) == array.nbytes, "bytes written")


def read(file: FileIO, nbytes: int, place: int) -> np.ndarray:
    """Read `nbytes` from a file at the offset `place` into a new array."""
    array = buffers.empty((nbytes,), np.uint8)
    _check(os.preadv(file.fileno(), [array.data], place) == nbytes, "bytes read")
    return array


def plain_rates(blocks: Sequence[np.ndarray], directory: Path, direct: bool) -> Measured:
    """Write the blocks to one file, and read them back in reverse order; return the bytes a second of both."""
    nbytes = blocks[0].nbytes
    with plain_file(directory, direct) as file:
        started = time.perf_counter()
        for index, block in enumerate(blocks):
            write(file, block, index * nbytes)
        written = time.perf_counter()
        for index in reversed(range(len(blocks))):
            block = read(file, nbytes, index * nbytes)
        ended = time.perf_counter()
    _check(bool((block == blocks[0]).all()), "what was read")
    return {"write": len(blocks) * nbytes / (written - started), "read": len(blocks) * nbytes / (ended - written)}


def store_rates(blocks: Sequence[np.ndarray], directory: Path, direct: bool, budget_bytes: int) -> Measured:
    """Put the blocks into a store, flush them to disk, and get them in reverse order, as the backward pass does.

    Return the bytes a second of both. Arrays that stay in RAM count as written, but not as read.
    """
    with contextlib.closing(DiskStore(directory, ram_budget=budget_bytes, direct_io=direct)) as store:
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
    return {"write": stats.written_bytes / (written - started), "read": stats.read_bytes / (read - written)}


def file_rows(size_bytes: int, total_bytes: int, budget_bytes: int, directory: Path, rounds: int) -> Iterator[Row]:
    """Time the store and plain file I/O, both through the page cache and with O_DIRECT; yield the rows."""
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
    """Time the pack hook with room in the budget, and the unpack hook of a tensor in RAM; yield the rows."""
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


def plain_traffic(file: FileIO, write_bytes: int, read_bytes: int) -> Callable[[], None]:
    """Return a function that does the file I/O of a spilled step with plain pwrite and pread.

    It writes about `write_bytes` piece by piece, then reads about `read_bytes`, the newest piece first.
    """
    writes, reads = (max(1, round(nbytes / PIECE_BYTES)) for nbytes in (write_bytes, read_bytes))
    ring = [buffers.zeros((PIECE_BYTES,), np.uint8) for _ in range(RING_PIECES)]

    def move() -> None:
        for i in range(writes):
            write(file, ring[i % RING_PIECES], i * PIECE_BYTES)
        for i in range(reads):
            read(file, PIECE_BYTES, (writes - 1 - i % writes) * PIECE_BYTES)

    move()  # allocates the file's blocks
    return move


def _save(tensor: sg.Tensor, path: Path) -> None:
    with open(path, "wb") as file:
        np.save(file, tensor.numpy())


def saved_bytes(settings: TrainSettings, text: bytes, directory: Path) -> int:
    """Return the bytes that one training step saves for backward; each storage counts once."""
    training = Training(settings, text)
    batch = next(training.data.train_batches(0))
    spill = sg.save_on_disk(directory, ram_budget="1TiB")
    with spill:
        _, loss = training.model(*batch)
    found = spill.stats().live_bytes
    del loss
    return found


def step_rows(settings: TrainSettings, directory: Path, rounds: int) -> Iterator[Row]:
    """Time training steps: in RAM; spilled; in RAM while plain I/O moves as many bytes; with one file per tensor."""
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
        mover = threading.Thread(target=move_plainly)
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
    with plain_file(directory, speeds(directory).direct_io_pays) as file:
        move_plainly = plain_traffic(file, *moved[0])
        turns: dict[str, Callable[[], StepRecord]] = {
            "in RAM": partial(next, steps["in RAM"]), "spilled": spilled_step, "plain traffic": step_beside_traffic,
            "file per tensor": step_under_hooks,
        }  # fmt: skip
        for records in in_turns(turns, rounds):
            losses = {name: record.loss for name, record in records.items()}
            require_agreement("bench spill: losses", losses, records["in RAM"].step)
            started = time.perf_counter()
            move_plainly()
            alone_s = time.perf_counter() - started
            times = {name: record.duration_s for name, record in records.items()}
            taken.append({**times, "traffic alone": alone_s, "waited": records["spilled"].waited_s})
    yield from judged_steps(settings.model, medians(taken), budget_bytes, *moved[-1])


def judged_steps(model: str, seconds: Measured, budget_bytes: int, write_bytes: int, read_bytes: int) -> Iterator[Row]:
    """Yield the rows about a training step, judged by the median seconds of each contender."""
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
    """Return a random shape as models save it: (sequences, tokens, features)."""
    return drawn.choice((2, 4, 8)), drawn.randrange(16, 257), drawn.choice((64, 192, 384, 768))


def odd(drawn: random.Random) -> tuple[int, ...]:
    """Return a random shape of a matrix, whose rows seldom fill whole pages."""
    return drawn.randrange(1, 1025), drawn.randrange(1, 1025)


def mixed_rows(
    shapes: Callable[[random.Random], tuple[int, ...]], steps: int, step_bytes: int, directory: Path
) -> Iterator[Row]:
    """Store and drop arrays in many steps with budget 0; `shapes` draws the shape of each array.

    Yield a row that compares the peak disk space with the bytes of the largest step, and a row with the growth of the
    process's memory after a quarter of the steps.
    """
    drawn = random.Random(0)
    process = psutil.Process()
    largest_live_bytes = 0
    rss_bytes: list[int] = []
    with contextlib.closing(DiskStore(directory, ram_budget=0)) as store:
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
    verdict = Verdict("× largest live set", disk_bytes / largest_live_bytes, 1.1, most=True)
    name = f"{steps} steps of mixed {shapes.__name__}"
    yield Row(f"disk, {name}", "B", {"largest live set": largest_live_bytes, "peak": disk_bytes}, (verdict,))
    yield Row(f"memory, {name}", "B", {"grown after a quarter": grown_after_a_quarter(rss_bytes)})


def rows(directory: Path, rounds: int) -> Iterator[Row]:
    """Run all measurements, and yield each row as soon as it is measured."""
    for shapes in (batches, odd):
        yield from mixed_rows(shapes, MIXED_STEPS, MIXED_STEP_BYTES, directory)
    yield from call_rows(CALLS, directory, rounds)
    for size_bytes in SIZES_BYTES:
        yield from file_rows(size_bytes, FILE_BYTES, FILE_BUDGET_BYTES, directory, rounds)
    yield from step_rows(TrainSettings(steps=rounds + 1), directory, rounds)


def run(options: SpillOptions) -> None:
    """Measure in a temporary folder, and print the rows; write them to a folder if one is named.

    Raises OSError if the folders cannot be written.
    """
    found = []
    with scratch_folder(options.directory, "timing") as (folder, status):
        for row in rows(folder, options.rounds):
            found.append(row)
            status.update(f"timing; {row.case} done")
    about = {**machine(options.directory), "threads": sg.get_num_threads(), "rounds": options.rounds}
    if options.page:
        results.write(options.page, "spill", "spillgrad bench spill", about, [row.as_json() for row in found])
    show_rows(options.as_json, about, found, options.bars)
