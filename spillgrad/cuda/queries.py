"""Queries and controls of the CUDA device, under PyTorch's names; only the first device is used.

CUDA's modules are imported and started only when a device is first used.
"""

import sys
from typing import Any, NamedTuple

from spillgrad.errors import DeviceError
from spillgrad_kernels.cuda.driver.availability import device_count, missing
from spillgrad_kernels.cuda.driver.failures import CudaError
from spillgrad_kernels.cuda.driver.memory import MemoryStats
from spillgrad_kernels.cuda.driver.memory import OutOfMemory as OutOfMemoryError


def is_available() -> bool:
    """Return whether there is a CUDA device to compute on.

    Returns
    -------
    bool
        If False, `missing` says why.
    """
    return missing() is None


def is_initialized() -> bool:
    """Return whether CUDA has been started; the first use of a device starts it.

    Returns
    -------
    bool
        True after the first use of a device, or `init`.
    """
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
    """Return the number of the only device used.

    Returns
    -------
    int
        Always 0.

    Raises
    ------
    DeviceError
        If there is no CUDA device.
    """
    _driver()
    return 0


def set_device(device: Any) -> None:
    """Accept the first device, the only one used.

    Parameters
    ----------
    device : device or int
        The first device.

    Raises
    ------
    DeviceError
        For another device, and if there is no CUDA device.
    """
    _driver(device)


class device:
    """Context manager of PyTorch that chooses a device; it changes nothing.

    Parameters
    ----------
    device : device or int
        The first device, None, a negative number or "cpu".

    Raises
    ------
    DeviceError
        For another device; for the first, if there is no CUDA device.
    """

    def __init__(self, device: Any) -> None:
        if not (device is None or str(device) == "cpu" or (isinstance(device, int) and device < 0)):
            _driver(device)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exception: object) -> None:
        pass


def get_device_name(device: Any = None) -> str:
    """Return the name of a device.

    Parameters
    ----------
    device : device or int, optional
        The device; the first, which is the only one used, by default.

    Returns
    -------
    str
        As the driver gives it.

    Raises
    ------
    DeviceError
        If there is no such device.
    """
    return str(_driver(device).calls.name())


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """Return a device's compute capability.

    Parameters
    ----------
    device : device or int, optional
        The device; the first, which is the only one used, by default.

    Returns
    -------
    tuple of two int
        Major and minor number, such as (9, 0).

    Raises
    ------
    DeviceError
        If there is no such device.
    """
    major, minor = _driver(device).calls.capability()
    return major, minor


class DeviceProperties(NamedTuple):
    """What is known of a device.

    Parameters
    ----------
    name : str
        Name of the device.
    major, minor : int
        Compute capability.
    total_memory : int
        Memory of the device, in bytes.
    """

    name: str
    major: int
    minor: int
    total_memory: int


def get_device_properties(device: Any = None) -> DeviceProperties:
    """Return a device's name, compute capability and memory.

    Parameters
    ----------
    device : device or int, optional
        The device; the first, which is the only one used, by default.

    Returns
    -------
    DeviceProperties
        Named tuple of what the driver tells.

    Raises
    ------
    DeviceError
        If there is no such device.
    """
    major, minor = get_device_capability(device)
    return DeviceProperties(get_device_name(device), major, minor, mem_get_info(device)[1])


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Return whether the CUDA device computes in bfloat16.

    Parameters
    ----------
    including_emulation : bool, default True
        Whether emulation counts, which every device can do.

    Returns
    -------
    bool
        False if there is no CUDA device.
    """
    return is_available() and (including_emulation or get_device_capability() >= (8, 0))


def init() -> None:
    """Start CUDA, which the first use of a device does, too.

    Raises
    ------
    DeviceError
        If there is no CUDA device.
    """
    _driver().calls.name()


def ipc_collect() -> None:
    """Do nothing: no memory is shared with other processes."""


def synchronize(device: Any = None) -> None:
    """Wait until a device has finished all its work.

    Parameters
    ----------
    device : device or int, optional
        The device; the first, which is the only one used, by default.

    Raises
    ------
    CudaError
        If the work failed.
    """
    if is_initialized():
        _driver(device).synchronize()


def empty_cache() -> None:
    """Return the allocator's unused memory to the device; `sg.empty_cache` frees the host's."""
    if is_initialized():
        _driver().empty_cache()


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Return the free and the total memory of a device.

    Parameters
    ----------
    device : device or int, optional
        The device; the first, which is the only one used, by default.

    Returns
    -------
    tuple of two int
        Free and total bytes.

    Raises
    ------
    DeviceError
        If there is no such device.
    """
    free, total = _driver(device).calls.memory_bytes()
    return free, total


def _stats(device: Any) -> MemoryStats:
    if is_initialized():
        found: MemoryStats = _driver(device).allocator().stats()
        return found
    return MemoryStats()


def memory_stats(device: Any = None) -> dict[str, int]:
    """Return the allocator's counters under PyTorch's names.

    Parameters
    ----------
    device : device or int, optional
        The device; the first, which is the only one used, by default.

    Returns
    -------
    dict of str to int
        In bytes for names that contain ``_bytes``, else counts. "allocated" is the memory of tensors; "reserved" is all
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
    """Return the bytes of device memory that tensors use.

    Parameters
    ----------
    device : device or int, optional
        The device; the first, which is the only one used, by default.

    Returns
    -------
    int
        0 if CUDA has not been started.
    """
    return _stats(device).live_bytes


def max_memory_allocated(device: Any = None) -> int:
    """Return the peak of `memory_allocated` since the start, or since `reset_peak_memory_stats`.

    Parameters
    ----------
    device : device or int, optional
        The device; the first, which is the only one used, by default.

    Returns
    -------
    int
        In bytes.
    """
    return _stats(device).peak_live_bytes


def memory_reserved(device: Any = None) -> int:
    """Return the bytes taken from the device, for present and later tensors.

    Parameters
    ----------
    device : device or int, optional
        The device; the first, which is the only one used, by default.

    Returns
    -------
    int
        0 if CUDA has not been started.
    """
    return _stats(device).reserved_bytes


def max_memory_reserved(device: Any = None) -> int:
    """Return the peak of `memory_reserved` since the start, or since `reset_peak_memory_stats`.

    Parameters
    ----------
    device : device or int, optional
        The device; the first, which is the only one used, by default.

    Returns
    -------
    int
        In bytes.
    """
    return _stats(device).peak_reserved_bytes


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """Return the counters of `memory_stats` as text.

    Parameters
    ----------
    device : device or int, optional
        The device; the first, which is the only one used, by default.
    abbreviated : bool, default False
        Accepted, as in PyTorch; it changes nothing.

    Returns
    -------
    str
        One counter a line.
    """
    return "\n".join(f"{name:32} {value}" for name, value in memory_stats(device).items())


def reset_peak_memory_stats(device: Any = None) -> None:
    """Set the peaks of allocated and reserved memory to the present values.

    Parameters
    ----------
    device : device or int, optional
        The device; the first, which is the only one used, by default.
    """
    if is_initialized():
        _driver(device).allocator().reset_peaks()


reset_max_memory_allocated = reset_peak_memory_stats

__all__ = [
    "CudaError", "DeviceProperties", "OutOfMemoryError", "current_device", "device", "device_count", "empty_cache",
    "get_device_capability", "get_device_name", "get_device_properties", "init", "ipc_collect", "is_available",
    "is_bf16_supported", "is_initialized", "max_memory_allocated", "max_memory_reserved", "mem_get_info",
    "memory_allocated", "memory_reserved", "memory_stats", "memory_summary", "missing", "reset_max_memory_allocated",
    "reset_peak_memory_stats", "set_device", "synchronize",
]  # fmt: skip
