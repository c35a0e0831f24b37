"""The decorators and types that kernels are written with: `jit`, and those of Numba by their own names.

`import spillgrad` calls no kernel, and to import Numba would take longer than all the rest. So everything that modules
ask of Numba is `Deferred`, and is done in order once the first kernel is used.
"""

import functools
import logging  # noqa: F401 (see `fork_locks`)
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

# What a compiled kernel may do to floating point. Fused multiply-add only: NaN and infinity propagate as in NumPy.
CONTRACT = {"contract"}
# For reductions, whose sums must be reordered to be vectorised. Still no assumption about NaN, infinity or signed zero.
REASSOCIATE = {"contract", "reassoc"}

# Nothing calls kernels as C functions. Without the wrapper for that, compiling takes a tenth less time and a fifth less
# memory.
NO_WRAPPER = {"no_cfunc_wrapper": True}

DISABLE_JIT = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")


@dataclass
class Counts:
    """How many kernels this process compiled, and how many it found compiled on disk."""

    compiled: int = 0
    loaded: int = 0


counts = Counts()

# The dtypes that kernels compute in; bfloat16 and float16 are converted.
FLOATS = frozenset({np.dtype(np.float32), np.dtype(np.float64)})


class Deferred:
    """A stand-in for the result of `make(compiler)`, in Python and inside kernels; `compiler` is the module."""

    made: Any
    launcher: Callable[..., None] | None = None  # a kernel's, from its first launch on: it goes with the kernel

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self._make = make
        _waiting.append(self)

    def __getattr__(self, name: str) -> Any:
        load()
        return self.__dict__["made"] if name == "made" else getattr(self.made, name)

    def __call__(self, *arguments: Any) -> Any:
        return self.made(*arguments)

    def __deepcopy__(self, memo: Any) -> "Deferred":  # of functions that Numba inlines, with what stands in their code
        return self

    @property
    def _numba_type_(self) -> Any:
        return load().type_of(self.made)


_waiting: deque[Deferred] = deque()
_lock = threading.RLock()  # making one may use others
# The locks that a thread may hold while it imports Numba or compiles, in the order in which a thread may wait for the
# next. A fork takes all of them: in the child, nobody would release a lock that another thread of the parent holds.
# Numba calls `logging`, whose lock a fork takes too. It must take that one after these. Handlers that were registered
# last are called first, so `logging` is imported above.
fork_locks: list[Any] = [_lock]


def _before_fork() -> None:
    held = [*fork_locks]
    for lock in held:
        lock.__enter__()
    if held != fork_locks:  # another thread imported Numba, which has locks of its own, while this one waited
        _after_fork(held)
        _before_fork()


def _after_fork(held: list[Any] = fork_locks) -> None:
    for lock in reversed(held):
        lock.__exit__(None, None, None)


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


def load() -> Any:
    """Make everything that was deferred so far; return the module `compiler`, which imports Numba."""
    with _lock:
        from spillgrad_kernels.jit import compiler

        if fork_locks == [_lock]:
            fork_locks[:] = [compiler.first_fork_lock, _lock, compiler.last_fork_lock]
        while _waiting:
            deferred = _waiting.popleft()
            try:
                deferred.made = deferred._make(compiler)
            except BaseException:  # an interrupt too: it must still wait for the next caller
                _waiting.appendleft(deferred)
                raise
    return compiler


types: Any = Deferred(lambda compiler: compiler.types)
cgutils: Any = Deferred(lambda compiler: compiler.cgutils)
carray: Any = Deferred(lambda compiler: compiler.carray)


def c_function(name: str, parameters: int) -> Any:
    """Return a function of the C library, for kernels: it takes so many int64 and returns an int."""
    return Deferred(lambda _: types.ExternalFunction(name, types.int32(*[types.int64] * parameters)))


def intrinsic(function: Callable[..., Any]) -> Any:
    """Return a function for kernels that stands for the LLVM code that `function` writes."""
    return Deferred(lambda compiler: compiler.intrinsic(function))


def overload(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Inside kernels, replace `function` by the function that the decorated one returns for the arguments' types."""

    def decorate(choose: Callable[..., Any]) -> Callable[..., Any]:
        Deferred(lambda compiler: compiler.overload(function, **options)(choose))
        return choose

    return decorate


def register_jitable(function: Callable[..., Any] | None = None, *, inline: str = "never", **options: Any) -> Any:
    """Let kernels call `function`, which stays a Python function."""
    if function is None:
        return functools.partial(register_jitable, inline=inline, **options)
    overload(function, jit_options=NO_WRAPPER | options, inline=inline, strict=False)(lambda *_, **__: function)
    return function


def jit(
    function: Callable[..., Any] | None = None,
    *,
    fastmath: set[str] | None = None,
    name: str | None = None,
    by_address: bool = False,
) -> Any:
    """Compile `function` on first use, without the GIL; the machine code is cached on disk.

    `name` identifies the kernel in the cache: needed where one source line makes several (a closure over a scalar), and
    must then tell them apart. Default: module and qualified name. A kernel that is only called `by_address` (see that
    module) cannot be called from Python. With `NUMBA_DISABLE_JIT=1` the function is returned as it is.
    """
    if function is None:
        return functools.partial(jit, fastmath=fastmath, name=name, by_address=by_address)
    function.kernel_name = name or f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}"  # type: ignore[attr-defined]
    if DISABLE_JIT:
        return function
    options = {"fastmath": CONTRACT if fastmath is None else fastmath, "no_cpython_wrapper": by_address, **NO_WRAPPER}
    return Deferred(lambda compiler: compiler.dispatcher(function, options, counts))
