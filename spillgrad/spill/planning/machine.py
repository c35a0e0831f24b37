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
    """The speed of a store on a disk, and the free space.

    Parameters
    ----------
    write_bytes_per_s : float
        Bytes written in a second.
    read_bytes_per_s : float
        Bytes read in a second.
    busy_s_per_byte : float
        Seconds that one core spends on each byte moved.
    free_bytes : int
        Bytes that are free.
    """

    write_bytes_per_s: float
    read_bytes_per_s: float
    busy_s_per_byte: float
    free_bytes: int

    def seconds(self, written_bytes: int, read_bytes: int) -> float:
        """Return how long the disk takes to write and read.

        Parameters
        ----------
        written_bytes : int
            Bytes to write.
        read_bytes : int
            Bytes to read.

        Returns
        -------
        float
            Seconds.
        """
        return written_bytes / self.write_bytes_per_s + read_bytes / self.read_bytes_per_s


@dataclasses.dataclass(frozen=True)
class Machine:
    """The speed of a machine.

    Parameters
    ----------
    cores : int
        Number of cores.
    matmul_flop_per_s : float
        Floating-point operations of float32 matrix products in a second.
    disk : Disk
        The disk.
    """

    cores: int
    matmul_flop_per_s: float
    disk: Disk

    def among(self, processes: int) -> "Machine":
        """Return what each of several processes has that use the machine at the same time.

        The speed of matrix products stays: it is that of the threads which measured it.

        Parameters
        ----------
        processes : int
            Number of processes.

        Returns
        -------
        Machine
            With its share of the cores and of the disk.
        """
        speeds = self.disk.write_bytes_per_s / processes, self.disk.read_bytes_per_s / processes
        disk = Disk(*speeds, self.disk.busy_s_per_byte, self.disk.free_bytes // processes)
        return Machine(max(1, self.cores // processes), self.matmul_flop_per_s, disk)

    def busy_s(self, nbytes: int) -> float:
        """Return how long a computation on all cores is held up while a store moves data.

        Parameters
        ----------
        nbytes : int
            Bytes moved.

        Returns
        -------
        float
            Seconds that the computation loses.
        """
        return nbytes * self.disk.busy_s_per_byte / self.cores


def measure(directory: str | os.PathLike[str], seconds: float = 2.0) -> Machine:
    """Measure the speed of this machine, and of a disk.

    Parameters
    ----------
    directory : str or path
        Folder on the disk, to which this writes.
    seconds : float, default 2.0
        How long to write; reading comes on top.

    Returns
    -------
    Machine
        For `plan`.

    Raises
    ------
    SpillError
        If the directory cannot be written.
    """
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
