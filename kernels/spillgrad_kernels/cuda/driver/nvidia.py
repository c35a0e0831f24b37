"""The calls of NVIDIA's driver that the project makes; `simulated` has the same without a GPU. Only `driver` uses it.

All is on device 0, in its primary context, which other libraries share. That context is made current before each call:
a thread may be new, or another library may have left its own there, and it takes a quarter of a microsecond.
"""

import functools
from typing import Any

from cuda.bindings import driver as _cuda

from spillgrad_kernels.cuda.driver.failures import LAUNCH_BLOCKING, CudaError, launches

_SUCCESS = _cuda.CUresult.CUDA_SUCCESS
_NOT_READY = _cuda.CUresult.CUDA_ERROR_NOT_READY
_OUT_OF_MEMORY = _cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY
_PORTABLE = 1  # CU_MEMHOSTALLOC_PORTABLE
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_TIMED, _UNTIMED = 0, 2  # CU_EVENT_DEFAULT, CU_EVENT_DISABLE_TIMING
_ATTRIBUTES = _cuda.CUdevice_attribute


def _failure(doing: str, status: Any) -> CudaError:
    found, text = _cuda.cuGetErrorString(status)
    said = text.decode() if found == _SUCCESS else "an unknown error"
    return CudaError(doing, _cuda.CUresult(status).name, said, launches.unfinished())


def _checked(doing: str, outcome: tuple[Any, ...]) -> Any:
    """Return what a call of the driver returned beside its status. Raises CudaError for a bad one."""
    status, *results = outcome
    if status != _SUCCESS:
        raise _failure(doing, status)
    return results[0] if results else None


@functools.cache
def _context() -> tuple[Any, Any]:
    """Return the device and its primary context."""
    _checked("start CUDA", _cuda.cuInit(0))
    device = _checked("find the device", _cuda.cuDeviceGet(0))
    return device, _checked("make the device's context", _cuda.cuDevicePrimaryCtxRetain(device))


def enter() -> Any:
    """Make the context current in this thread; return the device."""
    device, context = _context()
    (status,) = _cuda.cuCtxSetCurrent(context)
    if status is not _SUCCESS:
        _checked("enter the device's context", (status,))
    return device


def reserve(nbytes: int) -> int | None:
    """Return the address of device memory, or None where there is no room."""
    enter()
    status, address = _cuda.cuMemAlloc(nbytes)
    return None if status == _OUT_OF_MEMORY else int(_checked("reserve device memory", (status, address)))


def give_back(address: int) -> None:
    """Return device memory that `reserve` gave, once all that runs is done."""
    enter()
    _checked("give device memory back", _cuda.cuMemFree(address))


def memory_bytes() -> tuple[int, int]:
    """Return the free and all bytes of the device."""
    enter()
    status, free, total = _cuda.cuMemGetInfo()
    _checked("look at the device's memory", (status,))
    return int(free), int(total)


def pin(nbytes: int) -> int | None:
    """Return the address of host memory that copies need not stage, or None where there is no room."""
    enter()
    status, address = _cuda.cuMemHostAlloc(nbytes, _PORTABLE)
    return None if status == _OUT_OF_MEMORY else int(_checked("pin host memory", (status, address)))


def unpin(address: int) -> None:
    """Return host memory that `pin` gave."""
    enter()
    _checked("give pinned memory back", _cuda.cuMemFreeHost(address))


def new_stream() -> Any:
    """Return a stream that does not wait for the legacy default one."""
    enter()
    return _checked("make a stream", _cuda.cuStreamCreate(_NON_BLOCKING))


def new_event(timed: bool) -> Any:
    """Return an event, which remembers when it happened if it is timed."""
    enter()
    return _checked("make an event", _cuda.cuEventCreate(_TIMED if timed else _UNTIMED))


def record(event: Any, stream: Any) -> None:
    """Let the event be when all that was put into the stream so far is done."""
    enter()
    _checked("record an event", _cuda.cuEventRecord(event, stream))


def hold(stream: Any, event: Any) -> None:
    """Let what is put into the stream from now on wait for the event."""
    enter()
    _checked("let a stream wait", _cuda.cuStreamWaitEvent(stream, event, 0))


def is_done(event: Any) -> bool:
    """Return whether an event has been."""
    enter()
    (status,) = _cuda.cuEventQuery(event)
    if status == _NOT_READY:
        return False
    _checked("look at an event", (status,))
    return True


def wait_for(event: Any) -> None:
    """Wait until an event has been."""
    enter()
    _checked("wait for an event", _cuda.cuEventSynchronize(event))


def synchronize(stream: Any) -> None:
    """Wait until all that was put into a stream is done."""
    enter()
    _checked("wait for the device", _cuda.cuStreamSynchronize(stream))


def elapsed_ms(begin: Any, end: Any) -> float:
    """Return the time between two timed events."""
    enter()
    return float(_checked("time events", _cuda.cuEventElapsedTime(begin, end)))


def to_host(target: int, address: int, nbytes: int, stream: Any) -> None:
    """Copy device memory to pinned memory, in a stream."""
    enter()
    _checked("copy to the host", _cuda.cuMemcpyDtoHAsync(target, address, nbytes, stream))


def to_device(address: int, source: int, nbytes: int, stream: Any) -> None:
    """Copy pinned memory to device memory, in a stream."""
    enter()
    _checked("copy to the device", _cuda.cuMemcpyHtoDAsync(address, source, nbytes, stream))


def clear(address: int, nbytes: int, stream: Any) -> None:
    """Set bytes of device memory to 0, in a stream."""
    enter()
    _checked("clear device memory", _cuda.cuMemsetD8Async(address, 0, nbytes, stream))


@functools.cache
def name() -> str:
    """Return what the device is called."""
    said: bytes = _checked("ask for the device's name", _cuda.cuDeviceGetName(256, enter()))
    return said.partition(b"\0")[0].decode()


def _attribute(attribute: Any) -> int:
    return int(_checked("ask what the device is", _cuda.cuDeviceGetAttribute(attribute, enter())))


@functools.cache
def capability() -> tuple[int, int]:
    """Return the device's capability to compute: major and minor."""
    return (
        _attribute(_ATTRIBUTES.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
        _attribute(_ATTRIBUTES.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
    )


@functools.cache
def multiprocessors() -> int:
    """Return how many multiprocessors the device has."""
    return _attribute(_ATTRIBUTES.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)


def function(code: bytes, name: str) -> Any:
    """Return the function of this name in a device's machine code, which stays loaded."""
    enter()
    module = _checked("load a kernel", _cuda.cuModuleLoadData(code))
    return _checked("find a kernel", _cuda.cuModuleGetFunction(module, name.encode()))


def launch(function: Any, name: str, blocks: int, threads: int, stream: Any, arguments: int) -> None:
    """Put a kernel into a stream; `arguments` is the address of those of its arguments, which may change after."""
    enter()
    (status,) = _cuda.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, 0)
    if status is not _SUCCESS and status != _SUCCESS:
        raise _failure(f"launch the kernel {name} in {blocks} blocks of {threads} threads", status)
    launches.add(name)
    if LAUNCH_BLOCKING:
        synchronize(stream)
