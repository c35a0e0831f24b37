"""The cache on disk for machine code of device kernels, beside the cache of CPU kernels (`jit/cache.py`).

A file's name contains a hash of all that the code depends on: the sources of all kernels, the compilers, and the kernel
itself with the numbers and functions that it closes over. A kernel that is found in the cache is not compiled again. A
kernel that refers to an object whose value cannot be hashed is compiled in every process.
"""

import dis
import functools
import hashlib
import re
import types as python_types
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from cuda import pathfinder
from cuda.bindings import nvjitlink
from llvmlite import ir
from numba.cuda import config, types
from numba.cuda.extending import _Intrinsic

from spillgrad_kernels.jit import cache

# Settings of numba-cuda that change the code.
_SETTINGS = ("FORCE_CUDA_CC", "CUDA_DEBUGINFO_DEFAULT", "CUDA_NVRTC_EXTRA_SEARCH_PATHS", "OPT")


class UnknownIdentity(TypeError):
    """Raised for a kernel that refers to an object whose value cannot be hashed."""


@functools.cache
def _surroundings() -> bytes:
    """Return a hash of all that the code of every kernel depends on, except what `cache.version` covers."""
    digest = hashlib.sha256()
    for package in ("numba-cuda", "cuda-bindings"):
        digest.update(f"{package} {version(package)}\n".encode())
    for library in ("nvvm", "nvJitLink"):
        path = Path(pathfinder.load_nvidia_dynamic_lib(library).abs_path)
        digest.update(f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}\n".encode())
    digest.update(repr([getattr(config, name, None) for name in _SETTINGS]).encode())
    digest.update(cache.hash_of_sources(Path(__file__).parents[1]))
    return digest.digest()


class _Identity:
    """A hash of values: two kernels with different code get different hashes."""

    def __init__(self) -> None:
        self.digest = hashlib.blake2b(_surroundings(), digest_size=12)
        self._seen: dict[int, int] = {}
        self._held: list[Any] = []  # keeps functions alive, so that no other function gets an id that is in `_seen`

    def _write(self, kind: str, text: str | bytes = "") -> None:
        data = text.encode() if isinstance(text, str) else text
        self.digest.update(f"{kind} {len(data)}:".encode() + data)

    def add(self, value: Any) -> None:
        """Add `value` to the hash. Raises UnknownIdentity if it cannot be hashed by value."""
        if value is None or value is ... or isinstance(value, bool | int | float | complex | str | bytes):
            self._write(type(value).__name__, repr(value))
        elif isinstance(value, np.generic):
            self._write(value.dtype.str, value.tobytes())
        elif isinstance(value, np.dtype):
            self._write("dtype", f"{value.name} {value.str}")
        elif isinstance(value, tuple):
            self._write("tuple", str(len(value)))
            for item in value:
                self.add(item)
        elif isinstance(value, dict):
            self._write("dict", str(len(value)))
            for item in sorted(value.items(), key=repr):
                self.add(item)
        elif isinstance(value, frozenset):
            self._write("set", repr(sorted(map(repr, value))))
        elif isinstance(value, python_types.CodeType):
            self._code(value)
        elif isinstance(value, types.Type | ir.Type):
            self._write("type", str(value))
        elif isinstance(value, type | python_types.BuiltinFunctionType | np.ufunc):
            self._write("name", f"{getattr(value, '__module__', '')}.{value.__name__}")
        elif isinstance(value, python_types.ModuleType):
            self._write("module", value.__name__)
        elif isinstance(value, _Intrinsic):
            self.add(value._defn)
        elif isinstance(value, python_types.FunctionType):
            self._function(value)
        else:
            raise UnknownIdentity(f"a kernel's identity: got {value!r} of {type(value)}; wanted numbers and functions")

    def _function(self, function: python_types.FunctionType) -> None:
        if id(function) in self._seen:
            self._write("again", str(self._seen[id(function)]))
            return
        self._seen[id(function)] = len(self._seen)
        self._held.append(function)
        self._write("function")
        self._code(function.__code__)
        self.add(function.__defaults__)
        for cell in function.__closure__ or ():
            self.add(cell.cell_contents)
        for name in _globals(function.__code__):
            self._write("global", name)
            if name in function.__globals__:
                self.add(function.__globals__[name])

    def _code(self, code: python_types.CodeType) -> None:
        for part in (code.co_code, code.co_exceptiontable):
            self._write("bytes", part)
        for names in (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars):
            self.add(names)
        self.add((code.co_argcount, code.co_kwonlyargcount, code.co_flags))
        self.add(code.co_consts)


@functools.cache
def _globals(code: python_types.CodeType) -> tuple[str, ...]:
    """Return the names of globals that a function's code, or the code of its inner functions, looks up."""
    names = [i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")]
    inner = [name for value in code.co_consts if isinstance(value, python_types.CodeType) for name in _globals(value)]
    return tuple(sorted({*names, *inner}))


def identity(function: Callable[..., None], parameters: tuple[Any, ...], capability: tuple[int, int]) -> str:
    """Return a hash that identifies a kernel's machine code. Raises UnknownIdentity if a value cannot be hashed."""
    found = _Identity()
    found.add((capability, parameters, function))
    return found.digest.hexdigest()


def find(
    function: Callable[..., None], parameters: tuple[Any, ...], capability: tuple[int, int], ptx: Callable[[], str]
) -> bytes:
    """Return a kernel's machine code from the cache; if it is missing, link the PTX of `ptx()`, and store the code.

    The machine code of a kernel that cannot be identified is linked, and not stored.
    """
    try:
        place = identity(function, parameters, capability)
    except UnknownIdentity:
        return link(ptx(), capability)
    readable = re.sub(r"\W+", "_", function.__name__)[:40]
    name = f"cuda.{readable}.sm_{capability[0]}{capability[1]}.{place}"
    code = cache.read(name)
    if code is None:
        code = link(ptx(), capability)
        cache.write(name, code)
    return code


def link(ptx: str, capability: tuple[int, int]) -> bytes:
    """Link `ptx` for devices of a compute capability; return the machine code. Raises RuntimeError if linking fails.

    NVIDIA's driver could link the PTX too, but the driver may be older than the compiler that wrote the PTX.
    """
    doing = f"cuda: link a kernel for compute capability {capability[0]}.{capability[1]}"
    try:
        linker = nvjitlink.create(1, [f"-arch=sm_{capability[0]}{capability[1]}"])
    except nvjitlink.nvJitLinkError as error:
        raise RuntimeError(
            f"{doing}: got {error}; the GPU may be newer than the compiler: update numba-cuda"
        ) from error
    try:
        data = ptx.encode()
        nvjitlink.add_data(linker, nvjitlink.InputType.PTX, data, len(data), "kernel")
        nvjitlink.complete(linker)
        code = bytearray(nvjitlink.get_linked_cubin_size(linker))
        nvjitlink.get_linked_cubin(linker, code)
    except nvjitlink.nvJitLinkError as error:
        log = bytearray(nvjitlink.get_error_log_size(linker))
        nvjitlink.get_error_log(linker, log)
        raise RuntimeError(f"{doing}: got {log.decode().strip(chr(0)).strip()}") from error
    finally:
        nvjitlink.destroy(linker)
    return bytes(code)
