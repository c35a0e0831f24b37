"""Compile kernels with Numba and keep the machine code in an on-disk cache that is never stale.

Numba's own cache watches the file a function stands in, so that editing a function it calls elsewhere leaves stale
code. Here the cache directory is named after a hash of every kernel source (and of Numba's version): any edit starts a
fresh one.
"""

import functools
import hashlib
import importlib.metadata
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache

# What a compiled kernel may do to floating point. Fused multiply-add only: NaN and infinity propagate as in NumPy.
CONTRACT = {"contract"}
# For reductions, whose sums must be reordered to be vectorised. Still no assumption about NaN, infinity or signed zero.
REASSOCIATE = {"contract", "reassoc"}


def cache_root() -> Path:
    """Return the directory that holds one sub-directory of machine code per version of the kernel sources."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "spillgrad" / "kernels"


@functools.cache
def source_hash() -> str:
    """Return a hash of all kernel sources and of the compiler's version; it names the current cache directory."""
    digest = hashlib.sha256()
    for package in ("numba", "llvmlite"):
        digest.update(f"{package} {importlib.metadata.version(package)}\n".encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


class _Locator:
    """Tells Numba where a kernel's machine code lies; the directory's name already says which sources it came from."""

    def __init__(self, name: str, source_file: str) -> None:
        self._name = name
        self._py_file = source_file

    def ensure_cache_path(self) -> None:
        os.makedirs(self.get_cache_path(), exist_ok=True)

    def get_cache_path(self) -> str:
        return str(cache_root() / source_hash())

    def get_source_stamp(self) -> str:
        return source_hash()

    def get_disambiguator(self) -> str:
        return self._name


class _CacheImpl(CompileResultCacheImpl):  # type: ignore[misc]
    def __init__(self, function: Any) -> None:
        self._lineno = function.__code__.co_firstlineno
        self._locator = _Locator(function.kernel_name, function.__code__.co_filename)
        self._filename_base = f"{function.kernel_name}.py{sys.version_info[0]}{sys.version_info[1]}"


class _Cache(FunctionCache):  # type: ignore[misc]
    """A function's cache, keyed by its kernel name instead of a pickle of what its closure holds."""

    _impl_class = _CacheImpl

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        return (sig, codegen.magic_tuple(), self._py_func.kernel_name)


@functools.cache
def _cache_is_writable() -> bool:
    try:
        directory = cache_root() / source_hash()
        directory.mkdir(parents=True, exist_ok=True)
        return os.access(directory, os.W_OK)
    except OSError:
        return False


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
    if compiled is not function and _cache_is_writable():
        compiled._cache = _Cache(function)
    return compiled
