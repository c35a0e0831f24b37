"""The error for a failed call of NVIDIA's driver, and the names of the kernels that may have caused it.

A launch returns before its kernel has run, so a later call reports the kernel's failure. `launches` records the names
of the kernels that may still be running, and the error lists these names.
"""

import collections
import itertools
import os

# If this variable is 1, every launch waits for its kernel, and so reports the kernel's failure itself.
BLOCKING_VARIABLE = "SPILLGRAD_CUDA_LAUNCH_BLOCKING"
LAUNCH_BLOCKING = os.environ.get(BLOCKING_VARIABLE, "0") not in ("", "0")

# NVIDIA's driver lets fewer launches than this wait in a stream, so older launches are done.
_REMEMBERED = 4096
_NAMED = 6

# After these errors, the device is unusable in this process.
_STICKY = frozenset({
    "CUDA_ERROR_ECC_UNCORRECTABLE", "CUDA_ERROR_NVLINK_UNCORRECTABLE", "CUDA_ERROR_ILLEGAL_ADDRESS",
    "CUDA_ERROR_LAUNCH_TIMEOUT", "CUDA_ERROR_ASSERT", "CUDA_ERROR_HARDWARE_STACK_ERROR",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION", "CUDA_ERROR_MISALIGNED_ADDRESS", "CUDA_ERROR_INVALID_ADDRESS_SPACE",
    "CUDA_ERROR_INVALID_PC", "CUDA_ERROR_LAUNCH_FAILED", "CUDA_ERROR_CONTEXT_IS_DESTROYED",
    "CUDA_ERROR_TENSOR_MEMORY_LEAK",
})  # fmt: skip

_OLD_DRIVER = (
    "NVIDIA's driver may be older than the installed compiler, or the GPU newer: update the driver (nvidia-smi shows "
    "which CUDA it is for)"
)
_ADVICE = {
    "CUDA_ERROR_NOT_INITIALIZED": "CUDA does not outlive a fork: start processes by 'spawn'",
    **dict.fromkeys(
        ["CUDA_ERROR_NO_BINARY_FOR_GPU", "CUDA_ERROR_INVALID_IMAGE", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"], _OLD_DRIVER
    ),
}


class CudaError(RuntimeError):
    """Raised for a failure of a device or of NVIDIA's driver.

    If the attribute `is_sticky` is true, this process cannot use the device any more, but a new process can.

    Parameters
    ----------
    doing : str
        What failed.
    status : str
        CUDA's name of the error.
    text : str
        CUDA's description of the error.
    kernels : tuple of str, optional
        Kernels of which one may have caused the failure; the last launched kernel is listed first.
    """

    def __init__(self, doing: str, status: str, text: str, kernels: tuple[str, ...] = ()) -> None:
        self.status, self.kernels, self.is_sticky = status, kernels, status in _STICKY
        whose = _named(kernels) if self.is_sticky else ""
        advice = [_ADVICE[status]] if status in _ADVICE else []
        if self.is_sticky:
            advice.append("the device's memory is lost: restart the process")
            if not LAUNCH_BLOCKING:
                advice.append(f"with {BLOCKING_VARIABLE}=1, the failing kernel alone is named")
        super().__init__(f"cuda: {doing}: got {status} ({text}){whose}" + "".join(f"; {part}" for part in advice))


def _named(kernels: tuple[str, ...]) -> str:
    if not kernels:
        return ""
    if len(kernels) == 1:
        return f" from the kernel {kernels[0]}"
    listed = ", ".join(kernels[:_NAMED])
    more = f" and {len(kernels) - _NAMED} others" if len(kernels) > _NAMED else ""
    return f" from one of the kernels {listed}{more} (launched last first)"


class Launches:
    """The names of launched kernels that are not known to be done, in the order of their launches.

    Invariant: launches up to number `_done` are done. `last` is the number of the last launch. Two threads that launch
    at the same time may leave `last` too low by 1; a failure may then also name a kernel that is done.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._names: collections.deque[tuple[int, str]] = collections.deque(maxlen=_REMEMBERED)
        self.last = self._done = 0

    def add(self, name: str) -> None:
        """Add a launch of the kernel `name`."""
        number = next(self._numbers)
        self._names.append((number, name))
        self.last = number

    def are_done(self, last: int) -> None:
        """Mark the launches up to number `last` as done."""
        self._done = max(self._done, last)

    def unfinished(self) -> tuple[str, ...]:
        """Return the names of kernels that may be running, without repetitions, the last launched kernel first."""
        return tuple(dict.fromkeys(name for number, name in reversed(self._names.copy()) if number > self._done))


launches = Launches()
