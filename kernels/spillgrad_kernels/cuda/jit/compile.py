"""Compile CUDA kernels: functions are written with `cuda` and `device`, and `Kernel` compiles and launches them.

A kernel's arguments are integers and floats only. A kernel accesses memory by address (see `cuda/pointers.py`), so one
machine code serves every layout, and a launch packs only words. Kernels compile to PTX on machines without a GPU. With
`NUMBA_ENABLE_CUDASIM=1` they run on the CPU, in one Python thread for each thread of the device.
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
from spillgrad_kernels.cuda.driver.availability import SIMULATED as SIMULATED  # the modules of kernels import it here

Capability = tuple[int, int]  # a device's compute capability: major, minor

_target = threading.local()

if SIMULATED:
    from numba.cuda.simulator import kernel as _simulator

    class _Shared:
        """A block's shared memory in the simulator. Numba's own class gives concurrent threads different arrays."""

        def array(self, shape: Any, dtype: Any) -> np.ndarray:
            """Return the array of the caller's source line: all threads of the block get the same array.

            If `shape` is 0, return the array whose size the launch gives.
            """
            caller, shared = sys._getframe(1), _simulator._get_kernel_context().shared
            if shape == 0:
                return shared.array(0, dtype)  # type: ignore[no-any-return]
            arrays = shared._allocations
            place = caller.f_code, caller.f_lineno
            found: np.ndarray | None = arrays.get(place)
            return arrays.setdefault(place, np.empty(shape, dtype.name)) if found is None else found

    class _RunningKernel:
        """The simulator's `cuda` module, as kernels and the functions that they call in any module use it."""

        shared = _Shared()

        def __getattr__(self, name: str) -> Any:
            return getattr(_simulator._get_kernel_context(), name)

    cuda: Any = _RunningKernel()

    def device(function: Callable[..., Any]) -> Callable[..., Any]:
        """Let kernels call `function`, and return it. Python code can still call the function."""
        return function

else:
    cuda = numba_cuda

    from numba.cuda import dispatcher
    from numba.cuda.compiler import compile_cuda, kernel_fixup
    from numba.cuda.extending import register_jitable

    from spillgrad_kernels.cuda.jit import machine_code
    from spillgrad_kernels.cuda.jit.launch import launcher

    def device(function: Callable[..., Any]) -> Callable[..., Any]:
        """Let kernels call `function`, and return it. Python code can still call the function."""
        return register_jitable(function)  # type: ignore[no-any-return]

    _device_at_hand = dispatcher.get_current_device

    def _device_to_compile_for() -> Any:
        """Return a stand-in for a GPU of the compute capability to compile for; by default, return the GPU."""
        capability = getattr(_target, "capability", None)
        return _device_at_hand() if capability is None else python_types.SimpleNamespace(compute_capability=capability)

    dispatcher.get_current_device = _device_to_compile_for


def device_form(function: Callable[..., Any], **names: Callable[..., Any]) -> Any:
    """Return a copy, for device kernels, of a CPU kernel's function. `names` holds copies of functions that it calls.

    The reason: numba-cuda also finds functions that are registered for the CPU. If Numba inlines such a function, and
    this process compiled the function for the CPU before, numba-cuda would use the CPU's code.
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


def _for_each(first: str, step: str, body: Callable[..., None]) -> Callable[..., None]:
    """Return the function of a kernel that calls `body(turn, ...)` for each turn from 0 to `turns` - 1.

    A thread takes the turns `first`, `first` + `step`, `first` + 2 * `step` and so on; `first` and `step` are code. The
    kernel's first parameter is `turns`, in place of `turn`.
    """
    given = ", ".join(body.__code__.co_varnames[1 : body.__code__.co_argcount])
    source = f"""
def kernel(turns, {given}):
    turn = {first}
    while turn < turns:
        body(turn, {given})
        turn += {step}
"""
    namespace: dict[str, Any] = {"cuda": cuda, "body": device(body)}
    exec(source, namespace)
    kernel: Callable[..., None] = namespace["kernel"]
    kernel.__name__ = body.__name__
    return kernel


# `for_each_turn`: the threads of all blocks share the turns. `for_each_group`: a block's threads take the same turn.
for_each_turn = functools.partial(_for_each, "cuda.grid(1)", "cuda.gridsize(1)")
for_each_group = functools.partial(_for_each, "cuda.blockIdx.x", "cuda.gridDim.x")


# The default number of threads in a block. The simulator starts a Python thread for each of them.
THREADS = 8 if SIMULATED else 256


class Kernel:
    """A function of numbers that many threads of a device run, in blocks of `threads` threads.

    `parameters` are the types of the function's arguments; by default, all are int64. If `resident` is given, the
    compiler takes so few registers that this many blocks fit a multiprocessor at once. `cuda.shared.array(0, ...)`
    is an array of `shared_bytes` bytes, which may be more than the 48 KiB that arrays of a fixed size may have.
    """

    def __init__(
        self, function: Callable[..., None], name: str | None = None, parameters: Sequence[Any] | None = None,
        threads: int = THREADS, resident: int | None = None, shared_bytes: int = 0,
    ) -> None:  # fmt: skip
        self.function = function
        function.__name__ = name or function.__name__
        self.parameters = tuple([types.int64] * function.__code__.co_argcount if parameters is None else parameters)
        self.threads = threads
        self.resident = resident
        self.shared_bytes = shared_bytes

    def __repr__(self) -> str:
        return f"<kernel {self.function.__name__}>"

    @functools.cached_property
    def _library(self) -> Any:
        """The function, compiled by Numba to LLVM code, which is not specific to a compute capability."""
        options = {"fastmath": False, "opt": 3}
        with _compiling_for((7, 5)):
            made = compile_cuda(self.function, types.void, self.parameters, nvvm_options=options, cc=(7, 5))
        library, name = made.library, made.fndesc.llvm_func_name
        kernel_fixup(library.get_function(name), False)
        library._entry_name = name
        return library

    def ptx(self, capability: Capability) -> str:
        """Return the kernel's PTX for devices of at least this compute capability. No GPU is needed."""
        (text,) = self._library.get_asm_strs(cc=capability)
        text = _with_wrapping_int16(re.sub(rf"\b{re.escape(self._library._entry_name)}\b", "kernel", text))
        if self.resident is not None:
            bounds = f".maxntid {self.threads}\n.minnctapersm {self.resident}\n"
            text = re.sub(r"(\.entry kernel\([^)]*\)\s*)\{", rf"\1{bounds}{{", text, count=1)
        return text

    def code(self, capability: Capability) -> bytes:
        """Return the kernel's machine code for devices of this compute capability. No GPU is needed."""
        bounds = self.parameters if self.resident is None else (*self.parameters, self.threads, self.resident)
        return machine_code.find(self.function, bounds, capability, lambda: self.ptx(capability))

    @functools.cached_property
    def launch(self) -> Callable[..., None]:
        """The function `launch(blocks, *arguments)`, which starts `blocks` blocks without waiting for them."""
        if not SIMULATED:
            code, name = self.code(driver.calls.capability()), self.function.__name__
            return launcher(code, name, self.parameters, self.threads, self.shared_bytes)
        dispatcher = numba_cuda.jit(_without_warnings(self.function))

        def simulate(blocks: int, *arguments: Any) -> None:
            with _simulating:
                dispatcher[blocks, self.threads, 0, self.shared_bytes](*arguments)

        return simulate

    def run(self, turns: int, *arguments: Any) -> None:
        """Start threads that share `turns` turns (see `for_each_turn`), without waiting for the threads."""
        self.launch(blocks_for(-(-turns // self.threads)), turns, *arguments)

    def run_blocks(self, work: int, *arguments: Any) -> None:
        """Start blocks that share `work` groups of work (see `for_each_group`), without waiting for the blocks."""
        self.launch(blocks_for(work), work, *arguments)


def _with_wrapping_int16(ptx: str) -> str:
    """Return PTX code in which -(-32768) and |-32768| of 16-bit integers are -32768.

    CUDA 13.0 computes both in 32 bits. If a comparison follows, it compares 32768.
    """
    negative = r"not.b16 \1, \2;\n\tadd.s16 \1, \1, 1;"
    ptx = re.sub(r"\bneg\.s16\s+(%\w+), (%\w+);", negative, ptx)
    return re.sub(r"\babs\.s16\s+(%\w+), (%\w+);", negative + r"\n\tmax.s16 \1, \1, \2;", ptx)


# Numba's simulator keeps the running kernel's state in a module, for all threads of the process.
_simulating = threading.Lock()


def _without_warnings(function: Callable[..., None]) -> Callable[..., None]:
    """Return `function` with NumPy's floating-point warnings disabled, because a device gives no warnings."""

    def quiet(*arguments: Any) -> None:
        with errstate(all="ignore"):
            function(*arguments)

    errstate = np.errstate
    return python_types.FunctionType(quiet.__code__, function.__globals__, function.__name__, None, quiet.__closure__)


def blocks_for(work: int) -> int:
    """Return how many blocks to start for `work` items, one item per block, but at most as many as fill the device."""
    return min(work, _most_blocks()) or 1


@functools.cache
def _most_blocks() -> int:
    # A multiprocessor holds 2,048 threads, eight blocks of 256. Twice as many blocks keep it busy until the end.
    return 2 if SIMULATED else 16 * int(driver.calls.multiprocessors())
