"""The calls to NVIDIA's driver. Only `driver` uses this module; `simulated` has the same functions without a GPU.

All calls are for device 0, in its primary context, which other libraries share. Each call first makes the primary
context current, which takes a quarter of a microsecond: the thread may be new, or another library may have set its own
context.
"""

import functools
from collections.abc import Callable
from typing import Any

from cuda.bindings import driver as _cuda

from spillgrad_kernels.cuda.driver.failures import LAUNCH_BLOCKING, CudaError, launches

_SUCCESS = _cuda.CUresult.CUDA_SUCCESS
_NOT_READY = _cuda.CUresult.CUDA_ERROR_NOT_READY
_OUT_OF_MEMORY = _cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY
_PORTABLE = 1  # CU_MEMHOSTALLOC_PORTABLE
_SHARED_BYTES = 48 << 10  # what a kernel may use of shared memory without permission
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_TIMED, _UNTIMED = 0, 2  # CU_EVENT_DEFAULT, CU_EVENT_DISABLE_TIMING
_ATTRIBUTES = _cuda.CUdevice_attribute


def _failure(doing: str, status: Any) -> CudaError:
    found, text = _cuda.cuGetErrorString(status)
    said = text.decode() if found == _SUCCESS else "an unknown error"
    return CudaError(doing, _cuda.CUresult(status).name, said, launches.unfinished())


def _checked(doing: str, outcome: tuple[Any, ...]) -> Any:
    """Check `outcome`, the status and result of a call, and return the result. Raises CudaError if the call failed."""
    status, *results = outcome
    if status != _SUCCESS:
        raise _failure(doing, status)
    return results[0] if results else None


@functools.cache
def _context() -> tuple[Any, Any]:
    """Start CUDA; return device 0 and its primary context."""
    _checked("start CUDA", _cuda.cuInit(0))
    device = _checked("find the device", _cuda.cuDeviceGet(0))
    return device, _checked("make the device's context", _cuda.cuDevicePrimaryCtxRetain(device))


def enter() -> Any:
    """Make the primary context current in this thread; return the device."""
    device, context = _context()
    (status,) = _cuda.cuCtxSetCurrent(context)
    if status is not _SUCCESS:
        _checked("enter the device's context", (status,))
    return device


def _call(doing: str, function: Callable[..., tuple[Any, ...]], *arguments: Any) -> Any:
    """Call a function of the driver in the primary context; return its result. Raises CudaError if the call failed."""
    enter()
    return _checked(doing, function(*arguments))


def _memory_of(doing: str, function: Callable[..., tuple[Any, ...]], *arguments: Any) -> int | None:
    """Call a function of the driver that allocates memory; return the address, or None if there is no room.

    Raises CudaError for any other failure.
    """
    enter()
    outcome = function(*arguments)
    return None if outcome[0] == _OUT_OF_MEMORY else int(_checked(doing, outcome))


def reserve(nbytes: int) -> int | None:
    """Allocate `nbytes` bytes of device memory; return their address, or None if there is no room."""
    return _memory_of("reserve device memory", _cuda.cuMemAlloc, nbytes)


def give_back(address: int) -> None:
    """Wait until all running work is done, then free device memory that `reserve` allocated."""
    _call("give device memory back", _cuda.cuMemFree, address)


def memory_bytes() -> tuple[int, int]:
    """Return (free, total): the free bytes and all bytes of device memory."""
    enter()
    status, free, total = _cuda.cuMemGetInfo()
    _checked("look at the device's memory", (status,))
    return int(free), int(total)


def pin(nbytes: int) -> int | None:
    """Allocate page-locked host memory, for copies without staging; return the address, or None if there is no room."""
    return _memory_of("pin host memory", _cuda.cuMemHostAlloc, nbytes, _PORTABLE)


def unpin(address: int) -> None:
    """Free host memory that `pin` allocated."""
    _call("give pinned memory back", _cuda.cuMemFreeHost, address)


def new_stream() -> Any:
    """Return a new stream that does not wait for the legacy default stream."""
    return _call("make a stream", _cuda.cuStreamCreate, _NON_BLOCKING)


def new_event(timed: bool) -> Any:
    """Return a new event. If `timed`, the event records its time."""
    return _call("make an event", _cuda.cuEventCreate, _TIMED if timed else _UNTIMED)


def record(event: Any, stream: Any) -> None:
    """Make `event` mark the end of the work that is in `stream` now."""
    _call("record an event", _cuda.cuEventRecord, event, stream)


def hold(stream: Any, event: Any) -> None:
    """Make later work of `stream` wait for `event`. The host does not wait."""
    _call("let a stream wait", _cuda.cuStreamWaitEvent, stream, event, 0)


def is_done(event: Any) -> bool:
    """Return whether the work before an event is done."""
    enter()
    (status,) = _cuda.cuEventQuery(event)
    if status == _NOT_READY:
        return False
    _checked("look at an event", (status,))
    return True


def wait_for(event: Any) -> None:
    """Make the host wait until the work before an event is done."""
    _call("wait for an event", _cuda.cuEventSynchronize, event)


def synchronize(stream: Any) -> None:
    """Make the host wait until all work in a stream is done."""
    _call("wait for the device", _cuda.cuStreamSynchronize, stream)


def elapsed_ms(begin: Any, end: Any) -> float:
    """Return the milliseconds between two timed events."""
    return float(_call("time events", _cuda.cuEventElapsedTime, begin, end))


def to_host(target: int, address: int, nbytes: int, stream: Any) -> None:
    """Start, in `stream`, a copy of `nbytes` bytes of device memory at `address` to pinned memory at `target`."""
    _call("copy to the host", _cuda.cuMemcpyDtoHAsync, target, address, nbytes, stream)


def to_device(address: int, source: int, nbytes: int, stream: Any) -> None:
    """Start, in `stream`, a copy of `nbytes` bytes of pinned memory at `source` to device memory at `address`."""
    _call("copy to the device", _cuda.cuMemcpyHtoDAsync, address, source, nbytes, stream)


def clear(address: int, nbytes: int, stream: Any) -> None:
    """Start setting `nbytes` bytes of device memory at `address` to 0, in `stream`."""
    _call("clear device memory", _cuda.cuMemsetD8Async, address, 0, nbytes, stream)


@functools.cache
def name() -> str:
    """Return the device's name."""
    said: bytes = _checked("ask for the device's name", _cuda.cuDeviceGetName(256, enter()))
    return said.partition(b"\0")[0].decode()


def _attribute(attribute: Any) -> int:
    return int(_checked("ask what the device is", _cuda.cuDeviceGetAttribute(attribute, enter())))


@functools.cache
def capability() -> tuple[int, int]:
    """Return the device's compute capability as (major, minor)."""
    return (
        _attribute(_ATTRIBUTES.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
        _attribute(_ATTRIBUTES.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
    )


@functools.cache
def multiprocessors() -> int:
    """Return the number of multiprocessors of the device."""
    return _attribute(_ATTRIBUTES.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)


def function(code: bytes, name: str, shared_bytes: int) -> Any:
    """Load the machine code `code`, and return the function `name` in the code. The code stays loaded.

    Launches may give each block up to `shared_bytes` of shared memory, besides what the code declares.
    """
    enter()
    module = _checked("load a kernel", _cuda.cuModuleLoadData(code))
    found = _checked("find a kernel", _cuda.cuModuleGetFunction(module, name.encode()))
    if shared_bytes > _SHARED_BYTES:
        most = _cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _checked("let a kernel use more shared memory", _cuda.cuFuncSetAttribute(found, most, shared_bytes))
    return found


def launch(
    function: Any, name: str, blocks: int, threads: int, shared_bytes: int, stream: Any, arguments: int
) -> None:  # fmt: skip
    """Launch a kernel in a stream.

    `arguments` is the address of a table, which holds the address of each argument of the kernel. The table and the
    arguments may be changed after the call. Raises CudaError if the launch fails.
    """
    enter()
    (status,) = _cuda.cuLaunchKernel(
        function, blocks, 1, 1, threads, 1, 1, shared_bytes, stream, arguments, 0
    )  # fmt: skip
    if status is not _SUCCESS and status != _SUCCESS:
        raise _failure(f"launch the kernel {name} in {blocks} blocks of {threads} threads", status)
    launches.add(name)
    if LAUNCH_BLOCKING:
        synchronize(stream)
