"""Compile kernels with Numba on first use, and keep their machine code on disk.

Numba's own cache watches the file a function stands in, so that editing a function it calls elsewhere leaves stale
code, and never hits where a kernel closes over another function. Here a file is found by the kernel's name, its
bytecode and the argument types, in a directory that any edit of any kernel replaces (`cache.py`).

Machine code of several processes meets in one: the symbols in it must differ. Numba tells functions of one name apart
by a number counted from 1, alike in every process; here each process counts from a number of its own.
"""

import functools
import hashlib
import itertools
import os
import pickle
import secrets
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numba
from numba.core.bytecode import FunctionIdentity
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.runtime import rtsys
from numba.core.serialize import dumps
from numba.core.sigutils import normalize_signature

from spillgrad_kernels import cache

# What a compiled kernel may do to floating point. Fused multiply-add only: NaN and infinity propagate as in NumPy.
CONTRACT = {"contract"}
# For reductions, whose sums must be reordered to be vectorised. Still no assumption about NaN, infinity or signed zero.
REASSOCIATE = {"contract", "reassoc"}


def _number_functions_apart() -> None:
    """Let no two processes give two functions one symbol: the linker would take either for both."""
    FunctionIdentity._unique_ids = itertools.count(secrets.randbits(60))


_number_functions_apart()
os.register_at_fork(after_in_child=_number_functions_apart)


@dataclass
class Counts:
    """How many kernels this process compiled, and how many it found compiled on disk."""

    compiled: int = 0
    loaded: int = 0


counts = Counts()


class _DiskCache(NullCache):  # type: ignore[misc]
    """Where Numba asks for a kernel's machine code before it compiles, and leaves it afterwards."""

    def __init__(self, function: Any) -> None:
        self._name = function.kernel_name
        code = function.__code__
        # What tells kernels apart whose source is generated; that of the others stands in the directory's name.
        constants = [value for value in code.co_consts if not isinstance(value, types.CodeType)]
        self._code = repr((code.co_code, code.co_names, constants))

    def _file(self, signature: Any) -> str:
        arguments, _ = normalize_signature(signature)
        digest = hashlib.blake2b(f"{arguments} {self._code}".encode(), digest_size=8)
        return f"{self._name}.{digest.hexdigest()}"

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        payload = cache.read(self._file(signature))
        if payload is None:
            return None
        # Kernels call nothing of Numba's but its memory manager: `target_context.refresh()`, which its own cache calls
        # here, would import what types and lowers Python's and NumPy's functions (0.2 s).
        rtsys.initialize(target_context)
        result = CompileResult._rebuild(target_context, *pickle.loads(payload))
        counts.loaded += 1
        return result

    def save_overload(self, signature: Any, result: Any) -> None:
        counts.compiled += 1
        if result.library.has_dynamic_globals:
            warnings.warn(
                f"kernel {self._name} is compiled in every process: it holds an address of this one; pass it instead",
                stacklevel=2,
            )
        else:
            cache.write(self._file(signature), dumps(result._reduce()))


def jit(
    function: Callable[..., Any] | None = None, *, fastmath: set[str] | None = None, name: str | None = None
) -> Any:
    """Compile `function` on first use, without the GIL; the machine code is cached on disk.

    `name` identifies the kernel in the cache: needed where one source line makes several (a closure over a scalar), and
    must then tell them apart. Default: module and qualified name. With `NUMBA_DISABLE_JIT=1` the function is returned
    as it is.
    """
    if function is None:
        return functools.partial(jit, fastmath=fastmath, name=name)
    function.kernel_name = name or f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}"  # type: ignore[attr-defined]
    compiled = numba.njit(nogil=True, error_model="numpy", fastmath=CONTRACT if fastmath is None else fastmath)(
        function
    )
    if compiled is not function:
        compiled._cache = _DiskCache(function)
    return compiled
