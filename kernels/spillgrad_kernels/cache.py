"""The machine code of kernels on disk: never stale, bounded, and never in the way.

A file holds what one kernel was compiled to for one signature; it lies in a directory named after everything its code
depends on, so that an edited kernel, another compiler or another processor finds nothing of the old. Files appear whole
(by rename) and carry a checksum: several processes, a kill, a full or a broken disk leave nothing that could be run by
mistake. Where nothing can be written, kernels are compiled anew in each process.
"""

import contextlib
import functools
import hashlib
import os
import secrets
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import llvmlite
import llvmlite.binding
import numba
import numpy as np
from numba.core.codegen import get_host_cpu_features

SUFFIX = ".code"
# What no process has used for this long is removed, and beyond the limit what was used longest ago.
UNUSED_S = 30 * 86400.0
LIMIT_BYTES = 256 << 20
# A file's modification time says when it was last used, to this precision: a write for every use would cost more.
_USED_PRECISION_S = 86400.0
_DIGEST_BYTES = 16
# Settings of Numba that change the machine code.
_SETTINGS = ("OPT", "BOUNDSCHECK", "LOOP_VECTORIZE", "SLP_VECTORIZE", "DEBUGINFO_DEFAULT", "LLVM_REFPRUNE_FLAGS")


@dataclass(frozen=True)
class CacheInfo:
    """What is on disk: files and bytes of the current version of the kernels, and of all others."""

    directory: Path
    writable: bool
    files: int
    size_bytes: int
    other_versions: int
    other_bytes: int


def root() -> Path:
    """Return the directory that holds one sub-directory of machine code per version of the kernels."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():  # such values must be ignored (XDG Base Directory Specification)
        base = Path(os.path.expanduser("~")) / ".cache"
    if not base.is_absolute():  # a user without a home
        return _temporary_root()
    return base / "spillgrad" / "kernels"


def _temporary_root() -> Path:
    return Path(tempfile.gettempdir()) / f"spillgrad-kernels-{os.getuid()}"


@functools.cache
def version() -> str:
    """Return a hash of all that machine code depends on: sources, compiler and its settings, Python, processor."""
    digest = hashlib.sha256()
    for module in (numba, llvmlite, np):
        digest.update(f"{module.__name__} {module.__version__}\n".encode())
    processor = numba.config.CPU_NAME or llvmlite.binding.get_host_cpu_name()
    features = numba.config.CPU_FEATURES
    digest.update(f"{sys.implementation.cache_tag} {llvmlite.binding.get_process_triple()} {processor}\n".encode())
    digest.update((get_host_cpu_features() if features is None else features).encode())
    digest.update(repr([getattr(numba.config, name, None) for name in _SETTINGS]).encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _places() -> Iterator[Path]:
    """Yield where machine code may lie: the user's cache, and a private directory for when that cannot be written."""
    yield root() / version()
    temporary = _temporary_root()
    # Whoever may write here could have code run: only what belongs to this user, and to nobody else, is trusted.
    try:
        found = temporary.lstat()
    except OSError:
        return
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
        yield temporary / version()


def read(name: str) -> bytes | None:
    """Return what was written as `name`, or None if there is nothing, or nothing whole."""
    for place in _places():
        path = place / (name + SUFFIX)
        try:
            content = path.read_bytes()
            used_s = path.stat().st_mtime
        except OSError:
            continue
        if time.time() - used_s > _USED_PRECISION_S:
            with contextlib.suppress(OSError):  # a directory this user may only read, or another process removed it
                os.utime(path)
        payload = content[_DIGEST_BYTES:]
        if hashlib.blake2b(payload, digest_size=_DIGEST_BYTES).digest() == content[:_DIGEST_BYTES]:
            return payload
    return None


def write(name: str, payload: bytes) -> bool:
    """Keep `payload` as `name`; return whether some place took it."""
    content = hashlib.blake2b(payload, digest_size=_DIGEST_BYTES).digest() + payload
    if _write(root() / version(), name, content):
        return True
    try:
        _temporary_root().mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return False
    return any(_write(place, name, content) for place in list(_places())[1:])


def _write(place: Path, name: str, content: bytes) -> bool:
    partial = place / f"{name}.{secrets.token_hex(8)}.partial"
    try:
        place.mkdir(parents=True, exist_ok=True)
        _prune_once(place.parent)
        try:
            partial.write_bytes(content)
            partial.replace(place / (name + SUFFIX))
        except OSError:
            partial.unlink(missing_ok=True)
            raise
    except OSError:  # read-only, full, or not a directory: the kernel was compiled all the same
        return False
    return True


@functools.cache
def _prune_once(directory: Path) -> None:
    """Before the cache grows: once in a process bounds it, as one adds little to what there is."""
    prune(directory)


def prune(directory: Path, unused_s: float = UNUSED_S, limit_bytes: int = LIMIT_BYTES) -> int:
    """Remove files unused for `unused_s`, then the longest unused beyond `limit_bytes`; return how many bytes.

    A process that still wanted a file compiles the kernel again.
    """
    files = sorted(_files(directory), key=lambda found: -found[1].st_mtime)
    oldest_s = time.time() - unused_s
    kept_bytes = removed_bytes = 0
    for path, status in files:
        kept_bytes += status.st_size
        if status.st_mtime < oldest_s or kept_bytes > limit_bytes:
            kept_bytes -= status.st_size
            removed_bytes += _remove(path, status.st_size)
    return removed_bytes


def clear() -> int:
    """Remove the machine code of every version, in every place; return how many bytes that were."""
    return sum(_remove(path, status.st_size) for place in _places() for path, status in _files(place.parent))


def info() -> CacheInfo:
    """Return what the cache holds now, and whether it can take more."""
    current = root() / version()
    sizes: dict[Path, list[int]] = {current: []}
    for path, status in _files(current.parent):
        sizes.setdefault(path.parent, []).append(status.st_size)
    here = sizes.pop(current)
    existing = next(path for path in (current, *current.parents) if path.exists())
    return CacheInfo(
        directory=current,
        writable=existing.is_dir() and os.access(existing, os.W_OK),
        files=len(here),
        size_bytes=sum(here),
        other_versions=len(sizes),
        other_bytes=sum(map(sum, sizes.values())),
    )


def _files(directory: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for path in directory.glob("*/*"):
        try:
            yield path, path.stat()
        except FileNotFoundError:  # removed by another process
            continue


def _remove(path: Path, size_bytes: int) -> int:
    try:
        path.unlink(missing_ok=True)
        path.parent.rmdir()  # the last file takes its directory along
    except OSError:  # not the last, or not ours to remove
        pass
    return 0 if path.exists() else size_bytes
