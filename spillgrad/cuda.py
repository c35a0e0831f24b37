"""Queries and controls of the CUDA device, under PyTorch's names; only the first device is used.

Scripts can choose a device by `"cuda" if sg.cuda.is_available() else "cpu"`. CUDA's modules are imported and started
only when a device is first used.
"""

import sys
from typing import Any

from spillgrad.errors import DeviceError
from spillgrad.typed_tensors import on_cuda as _typed
from spillgrad_kernels.cuda.driver.availability import device_count, missing
from spillgrad_kernels.cuda.driver.failures import CudaError
from spillgrad_kernels.cuda.driver.memory import MemoryStats
from spillgrad_kernels.cuda.driver.memory import OutOfMemory as OutOfMemoryError

FloatTensor, DoubleTensor, HalfTensor = (_typed[f"{word}Tensor"] for word in ("Float", "Double", "Half"))
BFloat16Tensor, BoolTensor, ByteTensor = (_typed[f"{word}Tensor"] for word in ("BFloat16", "Bool", "Byte"))
CharTensor, ShortTensor, IntTensor, LongTensor = (_typed[f"{word}Tensor"] for word in ("Char", "Short", "Int", "Long"))


def is_available() -> bool:
    """Return whether there is a CUDA device to compute on."""
    return missing() is None


def is_initialized() -> bool:
    """Return whether CUDA has been started; the first use of a device starts it."""
    driver = sys.modules.get("spillgrad_kernels.cuda.driver.driver")
    return driver is not None and bool(driver.is_started())


def _driver(device: Any = None) -> Any:
    """Return the CUDA driver. Raises DeviceError if there is no CUDA device, or if `device` is not the first."""
    why = missing()
    if why is not None:
        raise DeviceError(f"cuda: {why}")
    if str(device) not in ("None", "0", "cuda", "cuda:0"):
        raise DeviceError(f"cuda: got the device {str(device)!r}; this version computes on the first, 'cuda:0'")
    from spillgrad_kernels.cuda.driver import driver

    return driver


def current_device() -> int:
    """Return 0, the number of the only device used. Raises DeviceError if there is no CUDA device."""
    _driver()
    return 0


def get_device_name(device: Any = None) -> str:
    """Return the name of a device. Raises DeviceError if there is no such device."""
    return str(_driver(device).calls.name())


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """Return a device's compute capability (major, minor). Raises DeviceError if there is no such device."""
    major, minor = _driver(device).calls.capability()
    return major, minor


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Return whether the CUDA device computes in bfloat16; by default, emulation counts, which every device can do."""
    return is_available() and (including_emulation or get_device_capability() >= (8, 0))


def manual_seed(seed: int) -> None:
    """Do nothing: the device has no generator of its own; `sg.manual_seed` seeds the generator of all devices."""


manual_seed_all = manual_seed


def synchronize(device: Any = None) -> None:
    """Wait until a device has finished all its work. Raises CudaError if the work failed."""
    if is_initialized():
        _driver(device).synchronize()


def empty_cache() -> None:
    """Return the allocator's unused memory to the device; `sg.empty_cache` frees the host's."""
    if is_initialized():
        _driver().empty_cache()


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Return the free and the total bytes of a device. Raises DeviceError if there is no such device."""
    free, total = _driver(device).calls.memory_bytes()
    return free, total


def _stats(device: Any) -> MemoryStats:
    if is_initialized():
        found: MemoryStats = _driver(device).allocator().stats()
        return found
    return MemoryStats()


def memory_stats(device: Any = None) -> dict[str, int]:
    """Return the allocator's counters under PyTorch's names.

    Units: bytes for names that contain `_bytes`, else counts. "allocated" is the memory of tensors; "reserved" is all
    memory taken from the device, for present and later tensors.
    """
    stats = _stats(device)
    return {
        "allocated_bytes.all.current": stats.live_bytes,
        "allocated_bytes.all.peak": stats.peak_live_bytes,
        "allocated_bytes.all.allocated": stats.allocated_bytes,
        "allocated_bytes.all.freed": stats.allocated_bytes - stats.live_bytes,
        "reserved_bytes.all.current": stats.reserved_bytes,
        "reserved_bytes.all.peak": stats.peak_reserved_bytes,
        "allocation.all.current": stats.blocks,
        "allocation.all.allocated": stats.allocations,
        "allocation.all.freed": stats.allocations - stats.blocks,
        "segment.all.current": stats.segments,
        "num_alloc_retries": stats.retries,
        "num_ooms": stats.failures,
    }


def memory_allocated(device: Any = None) -> int:
    """Return the bytes of device memory that tensors use."""
    return _stats(device).live_bytes


def max_memory_allocated(device: Any = None) -> int:
    """Return the peak of `memory_allocated` since the start, or since `reset_peak_memory_stats`."""
    return _stats(device).peak_live_bytes


def memory_reserved(device: Any = None) -> int:
    """Return the bytes taken from the device, for present and later tensors."""
    return _stats(device).reserved_bytes


def max_memory_reserved(device: Any = None) -> int:
    """Return the peak of `memory_reserved` since the start, or since `reset_peak_memory_stats`."""
    return _stats(device).peak_reserved_bytes


def reset_peak_memory_stats(device: Any = None) -> None:
    """Set the peaks of allocated and reserved memory to the present values."""
    if is_initialized():
        _driver(device).allocator().reset_peaks()


__all__ = [
    "BFloat16Tensor", "BoolTensor", "ByteTensor", "CharTensor", "CudaError", "DoubleTensor", "FloatTensor",
    "HalfTensor", "IntTensor", "LongTensor", "OutOfMemoryError", "ShortTensor", "current_device", "device_count",
    "empty_cache", "get_device_capability", "get_device_name", "is_available", "is_bf16_supported", "is_initialized",
    "manual_seed", "manual_seed_all", "max_memory_allocated", "max_memory_reserved", "mem_get_info",
    "memory_allocated", "memory_reserved", "memory_stats", "missing", "reset_peak_memory_stats", "synchronize",
]  # fmt: skip
