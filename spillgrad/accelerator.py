"""The device that computes fastest, under the names of `torch.accelerator`: CUDA's, where there is one."""

from typing import Any

from spillgrad.cuda import queries
from spillgrad.device.device import Device
from spillgrad.errors import DeviceError


def is_available() -> bool:
    """Return whether there is a CUDA device to compute on."""
    return queries.is_available()


def device_count() -> int:
    """Return the number of CUDA devices."""
    return queries.device_count()


def current_accelerator(check_available: bool = False) -> Device | None:
    """Return the device "cuda"; None if there is none."""
    return Device("cuda") if queries.is_available() else None


def current_device_index() -> int:
    """Return 0, the number of the only device used. Raises DeviceError if there is no CUDA device."""
    return queries.current_device()


current_device_idx = current_device_index


def set_device_index(device: Any, /) -> None:
    """Accept the first device, the only one used. Raises DeviceError for another, and if there is no CUDA device."""
    queries.set_device(device)


set_device_idx = set_device_index


def synchronize(device: Any = None, /) -> None:
    """Wait until the device has finished all its work. Raises DeviceError if there is no CUDA device."""
    if not is_available():
        raise DeviceError("accelerator.synchronize: Cannot access accelerator device when none is available.")
    queries.synchronize(device)


def empty_cache() -> None:
    """Return the allocator's unused memory to the device."""
    queries.empty_cache()


memory_allocated = queries.memory_allocated
memory_reserved = queries.memory_reserved
memory_stats = queries.memory_stats
max_memory_allocated = queries.max_memory_allocated
max_memory_reserved = queries.max_memory_reserved
reset_peak_memory_stats = queries.reset_peak_memory_stats
