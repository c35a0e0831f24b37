"""Measure the speed of a machine: of matrix products, and of writing to and reading from a disk."""

import dataclasses
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from spillgrad.errors import SpillError
from spillgrad.ops import creation, matrix_products
from spillgrad.storage.disk.file_system import free_bytes
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.store import Handle
from spillgrad_kernels.memory import buffers

_BLOCK_BYTES = 16 << 20
_BUDGET_BLOCKS = 4
# A measurement takes at most this share of the disk's free space.
_SPACE_SHARE = 0.25
_MATRIX = 1024
_PRODUCTS = 5


@dataclasses.dataclass(frozen=True)
class Disk:
    """The write and read speed of a store, the free space, and the time that one core spends on each byte moved."""

    write_bytes_per_s: float
    read_bytes_per_s: float
    busy_s_per_byte: float
    free_bytes: int

    def seconds(self, written_bytes: int, read_bytes: int) -> float:
        """Return the seconds that the disk takes to write and read these numbers of bytes."""
        return written_bytes / self.write_bytes_per_s + read_bytes / self.read_bytes_per_s


@dataclasses.dataclass(frozen=True)
class Machine:
    """The speed of a machine: the number of cores, the speed of float32 matrix products, and the disk."""

    cores: int
    matmul_flop_per_s: float
    disk: Disk

    def busy_s(self, nbytes: int) -> float:
        """Return the seconds that a computation on all cores loses while a store moves `nbytes` bytes."""
        return nbytes * self.disk.busy_s_per_byte / self.cores


def measure(directory: str | os.PathLike[str], seconds: float = 2.0) -> Machine:
    """Measure this machine; write to `directory` for `seconds` to measure the disk. Raises SpillError if that fails."""
    return Machine(os.cpu_count() or 1, matmul_rate(), measure_disk(directory, seconds))


def matmul_rate() -> float:
    """Return the median speed of a float32 matrix product, in floating-point operations per second."""
    a = creation.ones(_MATRIX, _MATRIX)
    matrix_products.matmul(a, a)  # compiles
    taken = []
    for _ in range(_PRODUCTS):
        began_s = time.perf_counter()
        matrix_products.matmul(a, a)
        taken.append(time.perf_counter() - began_s)
    return 2 * _MATRIX**3 / statistics.median(taken)


def measure_disk(directory: str | os.PathLike[str], seconds: float = 2.0) -> Disk:
    """Write arrays to a store for `seconds`, read them back, and return the speeds.

    Raises SpillError if the directory cannot be written.
    """
    free = _free_bytes(directory)
    blocks = [buffers.empty((_BLOCK_BYTES,), np.uint8) for _ in range(_BUDGET_BLOCKS)]
    for block in blocks:
        block[:] = np.frombuffer(np.random.default_rng(0).bytes(_BLOCK_BYTES), np.uint8)
    store = DiskStore(directory, ram_budget=_BUDGET_BLOCKS * _BLOCK_BYTES)
    try:
        busy_s, began_s = time.process_time(), time.perf_counter()
        handles: list[Handle] = []
        while len(handles) < 2 * _BUDGET_BLOCKS or (
            time.perf_counter() - began_s < seconds and len(handles) * _BLOCK_BYTES < free * _SPACE_SHARE
        ):
            handles.append(store.put(blocks[len(handles) % _BUDGET_BLOCKS]))
        del blocks, block
        while handles:
            handle = handles.pop()
            store.get(handle)
            store.drop(handle)
        busy_s = time.process_time() - busy_s
        stats = store.stats()
    finally:
        store.close()
    moved_bytes = stats.written_bytes + stats.read_bytes
    return Disk(stats.written_bytes / stats.writing_s, stats.read_bytes / stats.reading_s, busy_s / moved_bytes, free)


def _free_bytes(directory: str | os.PathLike[str]) -> int:
    place = Path(directory)
    try:
        with tempfile.TemporaryFile(dir=place):
            return free_bytes(place)
    except OSError as error:
        raise SpillError(
            f"plan: cannot write to {place}: {error.strerror}; name a folder that can be written"
        ) from error
