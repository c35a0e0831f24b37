"""The device's memory and copies, through NVIDIA's driver; in the simulator, the host's memory."""

import ctypes
import functools
from typing import Any

import numpy as np
from numba import cuda

from spillgrad_kernels.cuda.compile import SIMULATED
from spillgrad_kernels.cuda.memory import CachingAllocator

if SIMULATED:
    # What the pretended device has, and gave away: by address.
    SIMULATED_BYTES = 1 << 30
    _given: dict[int, np.ndarray] = {}

    def _reserve(nbytes: int) -> int | None:
        if nbytes > _free_bytes():
            return None
        memory = np.empty(nbytes + 512, np.uint8)
        address = -(-int(memory.ctypes.data) // 512) * 512
        _given[address] = memory
        return address

    def _give_back(address: int) -> None:
        del _given[address]

    def _free_bytes() -> int:
        return SIMULATED_BYTES - sum(memory.nbytes - 512 for memory in _given.values())

    def copy_to_host(target: np.ndarray, address: int) -> None:
        """Fill a dense host array of bytes from device memory, once all work before is done."""
        ctypes.memmove(target.ctypes.data, address, target.nbytes)

    def copy_to_device(address: int, source: np.ndarray) -> None:
        """Fill device memory from a dense host array of bytes."""
        ctypes.memmove(address, source.ctypes.data, source.nbytes)

    def fill_with_zeros(address: int, nbytes: int) -> None:
        """Set bytes of device memory to 0, in order with kernels."""
        ctypes.memset(address, 0, nbytes)

else:
    from cuda.bindings import driver as _cuda

    def _checked(outcome: tuple[Any, ...]) -> Any:
        """Return what a call of the driver returned beside its status. Raises RuntimeError for a bad one."""
        status, *results = outcome
        if status != _cuda.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"CUDA: {_cuda.cuGetErrorString(status)[1].decode()} ({status.name})")
        return results[0] if results else None

    def _reserve(nbytes: int) -> int | None:
        status, address = _cuda.cuMemAlloc(nbytes)
        if status == _cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            return None
        return int(_checked((status, address)))

    def _give_back(address: int) -> None:
        _checked(_cuda.cuMemFree(address))

    def _free_bytes() -> int:
        status, free, _ = _cuda.cuMemGetInfo()
        return int(_checked((status, free)))

    def copy_to_host(target: np.ndarray, address: int) -> None:
        """Fill a dense host array of bytes from device memory, once all work before is done."""
        _checked(_cuda.cuMemcpyDtoH(target.ctypes.data, address, target.nbytes))

    def copy_to_device(address: int, source: np.ndarray) -> None:
        """Fill device memory from a dense host array of bytes."""
        _checked(_cuda.cuMemcpyHtoD(address, source.ctypes.data, source.nbytes))

    def fill_with_zeros(address: int, nbytes: int) -> None:
        """Set bytes of device memory to 0, in order with kernels."""
        _checked(_cuda.cuMemsetD8(address, 0, nbytes))


@functools.cache
def allocator() -> CachingAllocator:
    """Return the allocator of the current device, whose context it makes."""
    if not SIMULATED:
        cuda.current_context()
    return CachingAllocator(_reserve, _give_back, _free_bytes)
