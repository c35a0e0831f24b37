"""What CUDA kernels are written with: `cuda`, `device` functions, and `Kernel`, a function of numbers alone.

A kernel's parameters are integers and floats. Memory is passed by its address (see `cuda/pointers.py`), so that one
machine code serves every layout and a launch packs nothing but words. Kernels compile to PTX on machines without a GPU.
With `NUMBA_ENABLE_CUDASIM=1` they run on the CPU, where one Python thread stands for each thread of the device.
"""

import functools
import re
import sys
import threading
import types as python_types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numba import cuda as numba_cuda
from numba.cuda import types

from spillgrad_kernels.cuda.driver import driver
from spillgrad_kernels.cuda.driver.availability import SIMULATED as SIMULATED  # which kernels' modules import from here

Capability = tuple[int, int]  # of a device to compute: major, minor

_target = threading.local()

if SIMULATED:
    from numba.cuda.simulator import kernel as _simulator

    class _Shared:
        """Memory that a block's threads share: Numba gives threads that ask for an array at once one each."""

        def array(self, shape: Any, dtype: Any) -> np.ndarray:
            """Return the array of the line that asks."""
            caller = sys._getframe(1)
            arrays = _simulator._get_kernel_context().shared._allocations
            place = caller.f_code, caller.f_lineno
            found: np.ndarray | None = arrays.get(place)
            return arrays.setdefault(place, np.empty(shape, dtype.name)) if found is None else found

    class _RunningKernel:
        """What `cuda.` means in kernels, and in functions of whatever module that they call."""

        shared = _Shared()

        def __getattr__(self, name: str) -> Any:
            return getattr(_simulator._get_kernel_context(), name)

    cuda: Any = _RunningKernel()

    def device(function: Callable[..., Any]) -> Callable[..., Any]:
        """Let kernels call `function`, which stays a Python function."""
        return function

else:
    cuda = numba_cuda

    from numba.cuda import dispatcher
    from numba.cuda.compiler import compile_cuda, kernel_fixup
    from numba.cuda.extending import register_jitable

    from spillgrad_kernels.cuda.jit import machine_code
    from spillgrad_kernels.cuda.jit.launch import launcher

    def device(function: Callable[..., Any]) -> Callable[..., Any]:
        """Let kernels call `function`, which stays a Python function."""
        return register_jitable(function)  # type: ignore[no-any-return]

    _device_at_hand = dispatcher.get_current_device

    def _device_to_compile_for() -> Any:
        """Return what has the capability to compile for: numba-cuda asks the GPU at hand, and there may be none."""
        capability = getattr(_target, "capability", None)
        return _device_at_hand() if capability is None else python_types.SimpleNamespace(compute_capability=capability)

    dispatcher.get_current_device = _device_to_compile_for


def device_form(function: Callable[..., Any], **names: Callable[..., Any]) -> Any:
    """Return the form of a CPU kernel's function for kernels of a device. `names` holds such forms of what it calls.

    Numba-cuda also finds functions that are registered for the CPU. If Numba inlines such a function, and this process
    compiled it for the CPU before, numba-cuda would take the CPU's code.
    """
    if SIMULATED:
        return function
    namespace = {**function.__globals__, **names}
    return device(python_types.FunctionType(function.__code__, namespace, function.__name__, function.__defaults__))


@contextmanager
def _compiling_for(capability: Capability) -> Iterator[None]:
    _target.capability = capability
    try:
        yield
    finally:
        _target.capability = None


# Threads of a block where nothing speaks for another number. The simulator makes a thread of Python for each.
THREADS = 8 if SIMULATED else 256


class Kernel:
    """A function of numbers that many threads of a device run; `parameters` are the types of its arguments.

    `threads` is how many a block has.
    """

    def __init__(self, function: Callable[..., None], parameters: Sequence[Any], threads: int = THREADS) -> None:
        self.function = function
        self.parameters = tuple(parameters)
        self.threads = threads

    def __repr__(self) -> str:
        return f"<kernel {self.function.__name__}>"

    @functools.cached_property
    def _library(self) -> Any:
        """What Numba makes of the function, which no capability to compute is in yet."""
        options = {"fastmath": False, "opt": 3}
        with _compiling_for((7, 5)):
            made = compile_cuda(self.function, types.void, self.parameters, nvvm_options=options, cc=(7, 5))
        library, name = made.library, made.fndesc.llvm_func_name
        kernel_fixup(library.get_function(name), False)
        library._entry_name = name
        return library

    def ptx(self, capability: Capability) -> str:
        """Return the kernel's code for devices of a capability to compute, or a higher one; needs no GPU."""
        (text,) = self._library.get_asm_strs(cc=capability)
        return re.sub(rf"\b{re.escape(self._library._entry_name)}\b", "kernel", text)

    def code(self, capability: Capability) -> bytes:
        """Return the kernel's machine code for devices of a capability to compute; needs no GPU."""
        return machine_code.find(self.function, self.parameters, capability, lambda: self.ptx(capability))

    @functools.cached_property
    def launch(self) -> Callable[..., None]:
        """Run so many blocks of threads: `launch(blocks, *arguments)`; does not wait for them."""
        if not SIMULATED:
            return launcher(self.code(driver.calls.capability()), self.function.__name__, self.parameters, self.threads)
        dispatcher = numba_cuda.jit(_without_warnings(self.function))

        def simulate(blocks: int, *arguments: Any) -> None:
            with _simulating:
                dispatcher[blocks, self.threads](*arguments)

        return simulate


# Numba's simulator puts what a kernel sees of the device into a module for all threads.
_simulating = threading.Lock()


def _without_warnings(function: Callable[..., None]) -> Callable[..., None]:
    """Return `function` with NumPy's numbers as quiet as a device's; the simulator looks at its globals."""

    def quiet(*arguments: Any) -> None:
        with errstate(all="ignore"):
            function(*arguments)

    errstate = np.errstate
    return python_types.FunctionType(quiet.__code__, function.__globals__, function.__name__, None, quiet.__closure__)


def blocks_for(turns: int, threads: int) -> int:
    """Return how many blocks do so many turns: enough to fill the device, where there are as many."""
    wanted = -(-turns // threads)
    return min(wanted, _most_blocks()) or 1


@functools.cache
def _most_blocks() -> int:
    # Each multiprocessor holds 2,048 threads: eight blocks of 256; twice as many even out their ends.
    return 2 if SIMULATED else 16 * int(driver.calls.multiprocessors())
