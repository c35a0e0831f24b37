"""Numba, with a disk cache of its machine code. `compile.load` imports this module for the first kernel.

Numba's own cache only watches the file of a function: after an edit of a function that it calls in another file, the
cache returns stale code. Numba's cache never hits for a kernel that closes over another function. In this cache, a file
is named after the kernel and a hash of the kernel's bytecode and argument types. Any edit of any kernel changes the
directory (`cache.py`).

A process links machine code that several processes compiled, so the symbols in it must differ. Numba tells functions of
the same name apart by a number that starts at 1 in every process. Here each process starts at a different number.
"""

import functools
import gc
import hashlib
import itertools
import os
import pickle
import secrets
import types as python_types
import warnings
from collections.abc import Callable
from typing import Any

from llvmlite.binding import ffi
from numba import carray, njit, types
from numba.core import cgutils, event
from numba.core.bytecode import FunctionIdentity
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.core.runtime import rtsys
from numba.core.serialize import dumps
from numba.core.sigutils import normalize_signature
from numba.extending import intrinsic, overload

from spillgrad_kernels.jit import cache

__all__ = ["carray", "cgutils", "dispatcher", "has_feature", "intrinsic", "overload", "type_of", "types"]


def has_feature(name: str) -> bool:
    """Return whether the processor that Numba compiles for has a feature, given by LLVM's name for it."""
    return name in _features()


@functools.cache
def _features() -> frozenset[str]:
    signs = {flag[1:]: flag[0] for flag in cache.features().split(",") if flag}  # of equal flags, the last one counts
    return frozenset(name for name, sign in signs.items() if sign == "+")


def _number_functions_apart() -> None:
    """Let Numba number functions from a random number on: equal symbols of two processes would confuse the linker."""
    FunctionIdentity._unique_ids = itertools.count(secrets.randbits(60))


class _WithoutCollections(event.Listener):  # type: ignore[misc]
    """Pauses the garbage collector while Numba compiles, as `collections_paused` does; Numba holds its lock then."""

    def __init__(self) -> None:
        self._was_on: list[bool] = []

    def on_start(self, event: Any) -> None:
        self._was_on.append(gc.isenabled())
        gc.disable()

    def on_end(self, event: Any) -> None:
        if self._was_on.pop():
            gc.enable()


event.register("numba:compile", _WithoutCollections())

_number_functions_apart()
os.register_at_fork(after_in_child=_number_functions_apart)

# The context is made at import, since making it takes Numba's lock. `load` must not take that lock: it holds its own
# lock, for which a thread that compiles may wait.
_ = cpu_target.target_context
# The locks that a fork takes before and after the lock of `compile.load`. LLVM's lock comes last: any thread may take
# it, because the garbage collector does.
first_fork_lock, last_fork_lock = global_compiler_lock, ffi.lib._lock


class _DiskCache(NullCache):  # type: ignore[misc]
    """The disk cache of one kernel, with the interface of Numba's caches: Numba loads and saves machine code in it."""

    def __init__(self, function: Any, counts: Any) -> None:
        self._counts = counts
        self._name = function.kernel_name
        code = function.__code__
        # The bytecode tells kernels with generated source apart. The directory's name depends on all other source.
        constants = [value for value in code.co_consts if not isinstance(value, python_types.CodeType)]
        self._code = repr((code.co_code, code.co_names, constants))

    def _file(self, signature: Any) -> str:
        arguments, _ = normalize_signature(signature)
        digest = hashlib.blake2b(f"{arguments} {self._code}".encode(), digest_size=8)
        return f"{self._name}.{digest.hexdigest()}"

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        payload = cache.read(self._file(signature))
        if payload is None:
            return None
        # Kernels need only Numba's memory manager. Numba's own cache calls `target_context.refresh()` here, which would
        # import the typing and lowering of Python's and NumPy's functions (0.2 s).
        rtsys.initialize(target_context)
        result = CompileResult._rebuild(target_context, *pickle.loads(payload))
        self._counts.loaded += 1
        return result

    def save_overload(self, signature: Any, result: Any) -> None:
        self._counts.compiled += 1
        if result.library.has_dynamic_globals:
            warnings.warn(
                f"kernel {self._name} is compiled in every process: it holds an address of this one; pass it instead",
                stacklevel=2,
            )
        else:
            cache.write(self._file(signature), dumps(result._reduce()))


def dispatcher(function: Callable[..., Any], options: dict[str, Any], counts: Any) -> Any:
    """Return Numba's callable for `function`. For each new signature, it compiles machine code or loads it from disk.

    Each compiled signature adds 1 to `counts.compiled`; each loaded signature adds 1 to `counts.loaded`.
    """
    compiled = njit(nogil=True, error_model="numpy", **options)(function)
    compiled._cache = _DiskCache(function, counts)
    return compiled


def type_of(value: Any) -> Any:
    """Return Numba's type of a value that a kernel's code refers to."""
    return cpu_target.typing_context.resolve_value_type(value)
