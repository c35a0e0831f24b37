"""`spillgrad bench soak`: use stores at random from several threads on a failing disk, and check what they return."""

import contextlib
import errno
import gc
import mmap
import os
import random
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil

from spillgrad.errors import SpillCorruptionError, SpillError
from spillgrad.storage.disk.chunks import PAGE_BYTES
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.sizes import format_bytes
from spillgrad.storage.store import Handle
from spillgrad_kernels.memory import buffers
from spillgrad_tools.bench.bars import Row, Verdict
from spillgrad_tools.bench.harness import Measured, grown_after_a_quarter
from spillgrad_tools.bench.machine import machine
from spillgrad_tools.bench.report import scratch_folder, show_rows

THREADS = 4
# The seconds that each store is used; after it is closed, no bytes, files or threads of it may be left.
CYCLE_S = 5.0
LARGEST_ELEMENTS = 300_000
KEPT_PER_THREAD = 24
BUDGETS_BYTES = (0, 1 << 20, 8 << 20, 64 << 20)
DTYPES = ("uint8", "float16", "float32", "float64")
# One call in this many fails, or flips a bit.
CALLS_PER_FAULT = 150
# The errors that the disk reports.
REFUSALS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO}
# The errors that callers get, each with the faults that can cause it.
TOLD: dict[str, tuple[str, ...]] = {
    "damage told": ("flip on write", "flip on read"),
    "EIO told": ("EIO on write", "EIO on read"),
    "ENOSPC told": ("ENOSPC",),
}
# How much resident memory may grow after the first quarter of the stores. 12 MiB were measured over 40 stores, 38 over
# 30 stores of longer life, while caches by shape fill up.
MOST_GROWN_BYTES = 64 << 20
# The longest time for a thread to end, or a file to close.
PATIENCE_S = 30.0
# The least number of stores: with fewer, the growth after a quarter of them shows nothing.
LEAST_STORES = 8


class FailingDisk:
    """Context manager: make `os.pwritev` and `os.preadv` fail at random, and count the faults.

    Calls from the writers' threads never fail: they transfer HDF5's own structure, which has no checksums.
    """

    def __init__(self, seed: int) -> None:
        self.injected: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._real: dict[str, Callable[..., int]] = {}

    def __enter__(self) -> "FailingDisk":
        self._real = {"pwritev": os.pwritev, "preadv": os.preadv}
        os.pwritev, os.preadv = self._pwritev, self._preadv  # type: ignore[assignment]
        return self

    def __exit__(self, *_: object) -> None:
        os.pwritev, os.preadv = self._real["pwritev"], self._real["preadv"]

    def _draw(self, *faults: str) -> str | None:
        """Return one of `faults`, or mostly None, at random. Raises OSError if the fault is an error of the disk."""
        if threading.current_thread().name.startswith("spillgrad-writer"):
            return None
        with self._lock:
            fault = self._random.choice(faults) if self._random.randrange(CALLS_PER_FAULT) == 0 else None
            if fault is not None:
                self.injected[fault] += 1
        if fault is not None and (number := REFUSALS.get(fault.split()[0])):
            raise OSError(number, os.strerror(number))
        return fault

    def _pwritev(self, descriptor: int, buffers: list[memoryview], place: int) -> int:
        fault = self._draw("ENOSPC", "EIO on write", "flip on write")
        count = self._real["pwritev"](descriptor, buffers, place)
        if fault == "flip on write":
            nbytes = min(PAGE_BYTES, len(buffers[0]))
            with mmap.mmap(-1, PAGE_BYTES) as page, memoryview(page)[:nbytes] as damaged:  # aligned: for direct I/O
                damaged[:] = buffers[0][:nbytes]
                damaged[0] ^= 1
                self._real["pwritev"](descriptor, [damaged], place)
        return count

    def _preadv(self, descriptor: int, buffers: list[memoryview], place: int) -> int:
        fault = self._draw("EIO on read", "flip on read")
        count = self._real["preadv"](descriptor, buffers, place)
        if fault == "flip on read":
            buffers[0][0] ^= 1
        return count


class Client:
    """Uses a store from one thread, and compares the store's arrays with copies in RAM.

    `seen` counts operations, and errors that injected faults explain. `wrong` lists events that must not happen.
    """

    def __init__(self, store: DiskStore, seed: int) -> None:
        self.seen: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._store = store
        self._random = random.Random(seed)
        self._numpy = np.random.default_rng(seed)
        self._kept: dict[int, tuple[Handle, np.ndarray]] = {}  # handles, and the arrays that they must give
        self._held: list[np.ndarray] = []

    def run(self, until_s: float) -> None:
        """Do random operations until `until_s`, then drop all arrays."""
        try:
            while time.monotonic() < until_s and not self.wrong:
                self._act()
        except Exception as error:
            self.wrong.append(f"{type(error).__name__}: {error}")
        finally:
            self._held.clear()
            for handle, _ in self._kept.values():
                self._store.drop(handle)
            self._kept.clear()

    def _act(self) -> None:
        drawn = self._random.random()
        self.seen["operations"] += 1
        if drawn < 0.4 or not self._kept:
            self._put()
        elif drawn < 0.75:
            self._get(self._random.choice(list(self._kept)))
        elif drawn < 0.9 or len(self._kept) > KEPT_PER_THREAD:
            self._drop(self._random.choice(list(self._kept)))
        elif drawn < 0.99:
            self._store.prefetch([self._kept[self._random.choice(list(self._kept))][0]])
        else:
            with self._told("flush"):
                self._store.flush()
        while len(self._held) > self._random.randrange(3):
            self._held.pop(0)

    def _put(self) -> None:
        elements = self._random.choice((0, 1, 1000, self._random.randrange(LARGEST_ELEMENTS)))
        dtype = np.dtype(self._random.choice(DTYPES))
        shape = (elements,) if self._random.random() < 0.5 else (self._random.choice((1, 2, 3, 7)), elements // 7)
        wanted = buffers.empty(shape, dtype)
        wanted.reshape(-1).view(np.uint8)[:] = np.frombuffer(self._numpy.bytes(wanted.nbytes), np.uint8)
        with self._told("put"):
            handle = self._store.put(buffers.copy(wanted))
            self._kept[handle.sequence] = handle, wanted

    def _get(self, key: int) -> None:
        handle, wanted = self._kept[key]
        for _ in range(2):
            with self._told("get"):
                got = self._store.get(handle)
                if (got.shape, got.dtype) != (wanted.shape, wanted.dtype) or bytes(got) != bytes(wanted):
                    self.wrong.append(f"get: {handle!r} came back as something else")
                self._held.append(got)
                return
        self.seen["arrays given up"] += 1  # the array is damaged on the disk, or two reads failed
        self._drop(key)

    def _drop(self, key: int) -> None:
        self._store.drop(self._kept.pop(key)[0])

    @contextlib.contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """Context manager: count errors that the failing disk may have caused; add any other SpillError to `wrong`."""
        try:
            yield
        except SpillCorruptionError:
            self.seen["damage told"] += 1
        except SpillError as error:
            (name,) = [name for name, number in REFUSALS.items() if os.strerror(number) in str(error)] or [""]
            if not name:
                self.wrong.append(f"{what}: {error}")
            self.seen[f"{name} told"] += 1


def _leaks(store: DiskStore, directory: Path) -> list[str]:
    """Close a store that no thread uses any more; return a line for each resource that the store leaves behind."""
    deadline_s = time.monotonic() + PATIENCE_S
    state = store._state

    def counted() -> dict[str, int]:
        stats, tier = store.stats(), state.tier
        return {
            "live bytes": stats.live_bytes,
            "bytes in RAM": stats.ram_bytes,
            "pinned bytes": tier.pinned_bytes,
            "unwritten bytes": tier.dirty.nbytes,
            "entries": len(state.entries) + len(tier.dirty) + len(tier.clean) + len(tier.absent),
            "readers": state.readers,
            "waiting puts": store._room.waiting_puts,
        }

    while any(counted().values()) and time.monotonic() < deadline_s:
        time.sleep(0.005)  # an array may still be written or read
    left = [f"{count} {what}" for what, count in counted().items() if count]
    store.close()
    return left + [f"file {path.name}" for path in directory.iterdir()]


def _threads_and_files() -> tuple[int, int]:
    """Return how many threads this process has, besides the I/O threads that stores share, and how many open files."""
    threads = [thread for thread in threading.enumerate() if not thread.name.startswith("spillgrad-io-")]
    return len(threads), len(os.listdir("/proc/self/fd"))


def cycle(seed: int, seconds: float, directory: Path) -> tuple[Counter[str], list[str]]:
    """Use one store with random options from several threads; return counts of events, and a list of what was wrong."""
    drawn = random.Random(seed)
    store = DiskStore(
        directory, ram_budget=drawn.choice(BUDGETS_BYTES), segment_bytes=drawn.choice((2 << 20, 256 << 20)),
        direct_io=drawn.choice((None, False, True)), on_full=drawn.choice(("raise", "ram")),
    )  # fmt: skip
    clients = [Client(store, seed * THREADS + i) for i in range(THREADS)]
    until_s = time.monotonic() + seconds
    threads = [threading.Thread(target=client.run, args=(until_s,), name="soak") for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + PATIENCE_S)
    if hung := sum(thread.is_alive() for thread in threads):
        return Counter(), [f"{hung} threads hang"]  # they still use the store: do not close it
    stats = store.stats()
    seen: Counter[str] = sum((client.seen for client in clients), Counter())
    seen.update({"bytes written": stats.written_bytes, "bytes read": stats.read_bytes})
    wrong = [what for client in clients for what in client.wrong]
    return seen, wrong + _leaks(store, directory)


def soak(seconds: float, directory: Path, seed: int = 0) -> tuple[list[Row], list[str]]:
    """Use at least `LEAST_STORES` stores, one by one, for `seconds`; return rows and a list of what was wrong."""
    process = psutil.Process()
    seen: Counter[str] = Counter()
    rss_bytes: list[int] = []
    began_s = time.monotonic()
    with FailingDisk(seed) as disk, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # on_full="ram" warns
        _, wrong = cycle(seed, 0.1, directory)  # starts the threads that all stores share
        before = _threads_and_files()
        while (time.monotonic() < began_s + seconds or len(rss_bytes) < LEAST_STORES) and not wrong:
            seed += 1
            gc.disable()  # memory must be freed without the garbage collector
            try:
                happened, wrong = cycle(seed, min(CYCLE_S, seconds / 4), directory)
            finally:
                gc.enable()
            seen += happened
            gc.collect()
            buffers.empty_cache()
            rss_bytes.append(process.memory_info().rss)
            after = _threads_and_files()
            if not wrong and any(now > then for now, then in zip(after, before, strict=True)):
                wrong.append(f"threads and open files: {before} before, {after} after")
    injected = disk.injected
    for what, causes in TOLD.items():
        # Damage by a write is reported at each read; a client reads twice, then drops the array.
        most = 2 * sum(injected[cause] for cause in causes)
        if seen[what] > most:
            wrong.append(f"{seen[what]} times {what}, which {most} faults do not explain")
    grown_bytes = grown_after_a_quarter(rss_bytes)
    if grown_bytes > MOST_GROWN_BYTES:
        wrong.append(f"memory grew by {format_bytes(grown_bytes)} after a quarter of the stores")
    grown = Verdict("MiB grown", grown_bytes / (1 << 20), MOST_GROWN_BYTES / (1 << 20), most=True)
    bytes_moved: Measured = {name.removeprefix("bytes "): seen.pop(name, 0) for name in ("bytes written", "bytes read")}
    return [
        Row(f"{len(rss_bytes)} stores, {THREADS} threads each", "", dict(seen)),
        Row("moved", "B", bytes_moved),
        Row("faults injected", "", dict(injected)),
        Row("not asked for: errors, leaks", "", {"found": len(wrong)}, (Verdict("found", len(wrong), 0, most=True),)),
        Row("memory", "B", {"grown after a quarter": grown_bytes}, (grown,)),
    ], wrong


def run(as_json: bool, directory: Path, minutes: float) -> None:
    """Soak stores in a temporary folder in `directory`, and print the counts of events.

    Raises SpillError if something was wrong. Raises OSError if the folder cannot be written.
    """
    with scratch_folder(directory, f"soaking for {minutes:g} minutes") as (folder, _):
        rows, wrong = soak(60 * minutes, folder)
    show_rows(as_json, {**machine(directory), "minutes": minutes}, rows, bars=True, wrong=wrong)
    if wrong:
        raise SpillError(f"soak: found what nobody asked for: {'; '.join(wrong)}; report it, please")
