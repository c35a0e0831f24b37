"""`spillgrad doctor`: what this machine has, what will be slow, and why."""

import importlib.metadata
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import llvmlite.binding
from rich.console import Console

from spillgrad import cuda
from spillgrad.release import __version__
from spillgrad.spill.planning.machine import matmul_rate
from spillgrad.storage.disk.preflight import Preflight, preflight
from spillgrad.storage.sizes import format_bytes
from spillgrad_kernels.jit import cache
from spillgrad_kernels.memory.system_memory import system_memory
from spillgrad_kernels.threads.dispatch import get_num_threads
from spillgrad_tools.bench.machine import machine
from spillgrad_tools.bench.report import print_json
from spillgrad_tools.named_values import named_values
from spillgrad_tools.train.display import show_line

# Instructions that the kernels use where there are any, the best last.
_INSTRUCTIONS = ("avx2", "fma", "avx512f", "avx512bf16", "neon")
_PACKAGES = ("numpy", "numba", "h5py", "torch", "paddlepaddle", "mpi4py")
# A disk below this speed holds up nearly every training; with less RAM or room on the disk, few models fit.
_SLOW_BYTES_PER_S, _LITTLE_RAM_BYTES, _LITTLE_DISK_BYTES = 100e6, 1 << 30, 10 << 30


def run(directory: Path, as_json: bool) -> None:
    """Look at this machine and at a folder on its disk, and print what was found and what follows from it."""
    with Console(stderr=True).status("measuring the processor and the disk"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what they would say is among the advice
        found = _found(directory, preflight(directory))
    if as_json:
        print_json(**found)
        return
    console = Console()
    console.print(named_values(dict(_rows(found)), justify="left"))
    for line in found["advice"] or ["nothing here will be slow for a reason that spillgrad knows"]:
        show_line(console, line)


def _found(directory: Path, disk: Preflight) -> dict[str, Any]:
    kernels, memory = cache.info(), system_memory()
    features = llvmlite.binding.get_host_cpu_features()
    found = {
        **machine(),
        "threads": get_num_threads(),
        "machine_cores": os.cpu_count(),
        "instructions": [name for name in _INSTRUCTIONS if features.get(name)],
        "matmul_flop_per_s": matmul_rate(),
        "available_ram_bytes": None if memory is None else memory.available_bytes,
        "ram_limit_bytes": None if memory is None else memory.total_bytes,
        "directory": str(directory),
        "file_system": disk.file_system,
        "is_ram_disk": disk.is_ram_disk,
        "free_disk_bytes": disk.free_bytes,
        "direct_io": disk.direct_io,
        "write_bytes_per_s": None if disk.speed is None else disk.speed.write_bytes_per_s,
        "read_bytes_per_s": None if disk.speed is None else disk.speed.read_bytes_per_s,
        "packages": {name: version for name in _PACKAGES if (version := _version(name)) is not None},
        "hdf5": h5py.version.hdf5_version,
        "gpu": cuda.get_device_name() if cuda.is_available() else None,
        "kernel_cache": str(kernels.directory),
        "kernel_cache_writable": kernels.writable,
        "cached_kernels": kernels.files,
    }
    return {**found, "advice": list(_advice(found))}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _rows(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the names and values that a person reads."""
    yield "processor", f"{found['processor']}, {found['cores']} of {found['machine_cores']} cores usable"
    yield "instructions", ", ".join(found["instructions"]) or "none that the kernels use"
    yield "float32 products", f"{found['matmul_flop_per_s'] / 1e9:,.0f} GFLOP/s in {found['threads']} threads"
    available, limit = found["available_ram_bytes"], found["ram_limit_bytes"]
    known = available is not None
    yield "RAM", f"{format_bytes(available)} available of {format_bytes(limit)}" if known else "cannot be read"
    free, system = format_bytes(found["free_disk_bytes"]), found["file_system"] or "unknown"
    yield "folder", f"{found['directory']} ({system}), {free} free"
    written, read = found["write_bytes_per_s"], found["read_bytes_per_s"]
    way = "direct I/O" if found["direct_io"] else "through the page cache"
    speed = f"writes {format_bytes(int(written))}/s, reads {format_bytes(int(read))}/s, {way}" if written else "unknown"
    yield "its disk", speed
    listed = {"spillgrad": __version__, "Python": found["python"], **found["packages"], "HDF5": found["hdf5"]}
    yield "software", ", ".join(f"{name} {version}" for name, version in listed.items())
    yield "GPU", found["gpu"] or "none"
    yield "kernel cache", f"{found['kernel_cache']}, {found['cached_kernels']} kernels"


def _advice(found: dict[str, Any]) -> Iterator[str]:
    """Yield a sentence for each thing that will be slow or small, with what helps."""
    if not found["instructions"]:
        yield "products will be slow: the processor has no vector instructions that the kernels use"
    if found["cores"] < found["machine_cores"]:
        yield (
            f"computation will be slower than this machine can: the process may use {found['cores']} of "
            f"{found['machine_cores']} cores; see taskset, or the limits of the container"
        )
    available = found["available_ram_bytes"]
    if available is not None and available < _LITTLE_RAM_BYTES:
        yield f"few models fit: {format_bytes(available)} of RAM are available; end other programs, or raise the limit"
    if found["is_ram_disk"]:
        yield f"spilling to {found['directory']} frees no memory: it is a RAM disk; name a folder on a real one"
    elif found["write_bytes_per_s"] is None:
        yield f"nothing can be spilled to {found['directory']}: it cannot be written, or is full; name another folder"
    elif min(found["write_bytes_per_s"], found["read_bytes_per_s"]) < _SLOW_BYTES_PER_S:
        yield "steps will wait for the disk; recompute instead of spilling (policy='recompute'), or use another disk"
    elif not found["direct_io"]:
        yield "files pass through the page cache, which takes memory and time of the processor; a local disk may not"
    if found["free_disk_bytes"] < _LITTLE_DISK_BYTES and not found["is_ram_disk"]:
        yield f"the disk may fill up: {format_bytes(found['free_disk_bytes'])} are free in {found['directory']}"
    if not found["kernel_cache_writable"]:
        yield "each process compiles its kernels again: their cache cannot be written; set XDG_CACHE_HOME to a folder"
    elif not found["cached_kernels"]:
        yield "the first run compiles its kernels, for a minute or two; spillgrad cache warm does it now"
