"""The decorators and types for writing kernels: `jit`, and Numba's decorators and types under their own names.

`import spillgrad` calls no kernel, and importing Numba takes longer than all other imports. So a `Deferred` stands for
each kernel and each of Numba's types and functions. When the first kernel is used, Numba is imported and all of these
objects are made, in the order of their definition.
"""

import functools
import inspect
import logging  # noqa: F401 (see `fork_locks`)
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from spillgrad_kernels.jit.collections import collections_paused

# LLVM may fuse a kernel's multiplications and additions, and assumes nothing more: NaN and inf propagate as in NumPy.
CONTRACT = {"contract"}
# LLVM vectorises sums only if it may reorder them. It still assumes nothing about NaN, infinities and signed zeros.
REASSOCIATE = {"contract", "reassoc"}

# No caller needs kernels as C functions. Without the C wrapper, compiling takes a tenth less time and a fifth less
# memory.
NO_WRAPPER = {"no_cfunc_wrapper": True}

DISABLE_JIT = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")


@dataclass
class Counts:
    """How many kernels this process compiled, and how many it loaded from disk."""

    compiled: int = 0
    loaded: int = 0


counts = Counts()

# The dtypes that kernels compute in. Numbers in bfloat16 and float16 are converted to float32.
FLOATS = frozenset({np.dtype(np.float32), np.dtype(np.float64)})


class Deferred:
    """A stand-in, in Python and inside kernels, for the object that `make(compiler)` returns.

    `compiler` is the module `spillgrad_kernels.jit.compiler`.
    """

    made: Any
    launcher: Callable[..., None] | None = None  # set at a kernel's first launch, so that it dies with the kernel

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self._make = make
        _waiting.append(self)

    def __getattr__(self, name: str) -> Any:
        load()
        return self.__dict__["made"] if name == "made" else getattr(self.made, name)

    def __call__(self, *arguments: Any) -> Any:
        return self.made(*arguments)

    def __deepcopy__(self, memo: Any) -> "Deferred":  # Numba copies the functions that it inlines
        return self

    @property
    def _numba_type_(self) -> Any:
        return load().type_of(self.made)


_waiting: deque[Deferred] = deque()
_lock = threading.RLock()  # reentrant: making a deferred object may use others
# The locks that a thread may hold while it imports Numba or compiles, in the order in which threads take them. A fork
# takes all of them first: if another thread of the parent held a lock, nothing would release it in the child. Numba
# calls `logging`, whose own fork handler takes a lock too, and must take it after these locks. The handlers registered
# last run first, so `logging` is imported above.
fork_locks: list[Any] = [_lock]


def _before_fork() -> None:
    held = [*fork_locks]
    for lock in held:
        lock.__enter__()
    if held != fork_locks:  # meanwhile another thread imported Numba, which added locks
        _after_fork(held)
        _before_fork()


def _after_fork(held: list[Any] = fork_locks) -> None:
    for lock in reversed(held):
        lock.__exit__(None, None, None)


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


def load() -> Any:
    """Make every deferred object, unless it is made already; return the module `compiler`, which imports Numba."""
    with _lock, collections_paused():
        from spillgrad_kernels.jit import compiler

        if fork_locks == [_lock]:
            fork_locks[:] = [compiler.first_fork_lock, _lock, compiler.last_fork_lock]
        while _waiting:
            deferred = _waiting.popleft()
            try:
                deferred.made = deferred._make(compiler)
            except BaseException:  # even on an interrupt: the next caller must make the object
                _waiting.appendleft(deferred)
                raise
    return compiler


types: Any = Deferred(lambda compiler: compiler.types)
cgutils: Any = Deferred(lambda compiler: compiler.cgutils)
has_feature: Any = Deferred(lambda compiler: compiler.has_feature)
carray: Any = Deferred(lambda compiler: compiler.carray)


def c_function(name: str, parameters: int) -> Any:
    """Return the C library's function `name` for kernels: it takes `parameters` int64 arguments and returns an int."""
    return Deferred(lambda _: types.ExternalFunction(name, types.int32(*[types.int64] * parameters)))


def intrinsic(function: Callable[..., Any]) -> Any:
    """Return a function that kernels can call. `function` emits the LLVM code of a call, as for Numba's `intrinsic`."""
    return Deferred(lambda compiler: compiler.intrinsic(function))


def emitted(signature: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Turn the decorated function, which emits LLVM code, into a function that kernels call.

    The decorated function takes an LLVM builder and the LLVM values of the arguments, and returns the LLVM value of the
    result, or None. `signature`, called with the arguments' types, returns Numba's signature.
    """

    def decorate(write: Callable[..., Any]) -> Any:
        def implementation(_: Any, *kinds: Any) -> Any:
            def codegen(context: Any, builder: Any, _: Any, values: Any) -> Any:
                result = write(builder, *values)
                return context.get_dummy_value() if result is None else result

            return signature(*kinds), codegen

        implementation.__name__ = write.__name__
        implementation.__signature__ = inspect.signature(write)  # type: ignore[attr-defined]  # as Numba wants it
        return intrinsic(implementation)

    return decorate


def overload(
    function: Callable[..., Any], *, jit_options: dict[str, Any] | None = None, **options: Any
) -> Callable[..., Any]:
    """Make the decorated function choose, by the arguments' types, how `function` is implemented in kernels."""
    jit_options = NO_WRAPPER | (jit_options or {})

    def decorate(choose: Callable[..., Any]) -> Callable[..., Any]:
        Deferred(lambda compiler: compiler.overload(function, jit_options=jit_options, **options)(choose))
        return choose

    return decorate


def register_jitable(function: Callable[..., Any] | None = None, *, inline: str = "never", **options: Any) -> Any:
    """Let kernels call `function`, and return `function` unchanged; a decorator."""
    if function is None:
        return functools.partial(register_jitable, inline=inline, **options)
    overload(function, jit_options=options, inline=inline, strict=False)(lambda *_, **__: function)
    return function


def jit(
    function: Callable[..., Any] | None = None,
    *,
    fastmath: set[str] | None = None,
    name: str | None = None,
    by_address: bool = False,
) -> Any:
    """Compile `function` on first use, to run without the GIL; cache its machine code on disk; a decorator.

    `name` identifies the kernel in the cache; the default is its module and qualified name. If one source line makes
    several kernels (closures over a scalar), their names must differ. With `by_address`, the kernel can only be called
    by the address of its machine code (see `by_address.py`). With `NUMBA_DISABLE_JIT=1`, `function` is returned
    unchanged.
    """
    if function is None:
        return functools.partial(jit, fastmath=fastmath, name=name, by_address=by_address)
    function.kernel_name = name or f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}"  # type: ignore[attr-defined]
    if DISABLE_JIT:
        return function
    options = {"fastmath": CONTRACT if fastmath is None else fastmath, "no_cpython_wrapper": by_address, **NO_WRAPPER}
    return Deferred(lambda compiler: compiler.dispatcher(function, options, counts))
