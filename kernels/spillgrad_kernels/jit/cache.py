"""The machine code of kernels on disk: never stale, bounded, and never in the way.

A file holds what one kernel was compiled to for one signature; it lies in a directory named after everything its code
depends on, so that an edited kernel, another compiler or another processor finds nothing of the old. Files appear whole
(by rename) and carry a checksum: several processes, a kill, a full or a broken disk leave nothing that could be run by
mistake. Where nothing can be written, kernels are compiled anew in each process.

What lies here is run. So it is written for this user alone, and used only if nobody else can have written it. Each
file, and each directory from the cache's own on, is opened by its name in the one before, never through a link; what is
open then must belong to this user and be writable by nobody else.
"""

import contextlib
import errno
import functools
import hashlib
import os
import secrets
import stat
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

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
_KERNELS = Path(__file__).parents[1]
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


@dataclass(frozen=True)
class Place:
    """Where machine code may lie: below `base`, which is the user's choice, directories that are the cache's own.

    Raises OSError where there is nothing or nothing can be made, and, after a warning, where somebody else may write.
    """

    base: Path
    names: tuple[str, ...]

    @property
    def path(self) -> Path:
        """The directory that holds one sub-directory for each version of the kernels."""
        return self.base.joinpath(*self.names)

    @contextlib.contextmanager
    def opened(self, *names: str, create: bool = False) -> Iterator[int]:
        """Yield a descriptor of the directory, or of one below it."""
        if create:
            self.base.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            path, directory = self.base, os.open(self.base, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, directory)
            for name in (*self.names, *names):
                if create:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(name, 0o700, dir_fd=directory)
                path /= name
                directory = self._open(path, directory, os.O_DIRECTORY)
                stack.callback(os.close, directory)
            yield directory

    def read(self, version: str, name: str) -> bytes:
        """Return what a file holds, and note that it was used."""
        with self.opened(version) as directory:
            descriptor = self._open(self.path / version / name, directory)
            with open(descriptor, "rb") as file:
                if time.time() - os.fstat(descriptor).st_mtime > _USED_PRECISION_S:
                    with contextlib.suppress(OSError):  # a file system that may only be read
                        os.utime(descriptor)
                return file.read()

    def write(self, version: str, name: str, content: bytes) -> None:
        """Write a file, which appears whole."""
        partial = f"{name}.{secrets.token_hex(8)}.partial"
        with self.opened(version, create=True) as directory:
            _prune_once(self)
            try:
                with open(partial, "xb", opener=functools.partial(os.open, mode=0o600, dir_fd=directory)) as file:
                    file.write(content)
                os.replace(partial, name, src_dir_fd=directory, dst_dir_fd=directory)
            except OSError:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(partial, dir_fd=directory)
                raise

    def _open(self, path: Path, directory: int, flags: int = 0) -> int:
        """Open what must be this user's own. A pipe that stands in its place blocks nobody."""
        try:
            descriptor = os.open(path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | flags, dir_fd=directory)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                self._refuse(path, "a symbolic link, or no directory")
            raise
        try:
            found = os.fstat(descriptor)
            if found.st_uid != os.geteuid():
                self._refuse(path, f"which belongs to user {found.st_uid}")
            if found.st_mode & 0o022:
                self._refuse(path, f"of mode {stat.S_IMODE(found.st_mode):o}, to which others may write")
            if not flags and not stat.S_ISREG(found.st_mode):
                self._refuse(path, "which is not a file")
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _refuse(self, path: Path, why: str) -> NoReturn:
        if self.path not in _refused:
            _refused.add(self.path)
            warnings.warn(
                f"kernel cache: got {path}, {why}; wanted what only user {os.geteuid()} can have written, as it would "
                f"be run; it is not used: remove it, or set XDG_CACHE_HOME to a directory of your own",
                stacklevel=2,
            )
        raise PermissionError(errno.EACCES, why, str(path))


_refused: set[Path] = set()  # the places of which this process has said why it does not use them


def places() -> tuple[Place, ...]:
    """Return where machine code may lie: the user's cache, and what stands in for it where it cannot be written."""
    temporary = Place(Path(tempfile.gettempdir()), (f"spillgrad-kernels-{os.geteuid()}",))
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():  # such values must be ignored (XDG Base Directory Specification)
        base = Path(os.path.expanduser("~")) / ".cache"
    if not base.is_absolute():  # a user without a home
        return (temporary,)
    return Place(base, ("spillgrad", "kernels")), temporary


def root() -> Path:
    """Return the directory that holds one sub-directory of machine code per version of the kernels."""
    return places()[0].path


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
    digest.update(hash_of_sources(_KERNELS, without=_KERNELS / "cuda"))
    return digest.hexdigest()[:16]


def hash_of_sources(directory: Path, without: Path | None = None) -> bytes:
    """Return a hash of the sources in a directory, but for those in one below it, and of where they are."""
    digest = hashlib.sha256()
    for path in sorted(directory.rglob("*.py")):
        if without is None or without not in path.parents:
            digest.update(f"{path.relative_to(directory)} ".encode() + path.read_bytes())
    return digest.digest()


def read(name: str) -> bytes | None:
    """Return what was written as `name`, or None if there is nothing, nothing whole, or nothing to be trusted."""
    for place in places():
        try:
            content = place.read(version(), name + SUFFIX)
        except OSError:
            continue
        payload = content[_DIGEST_BYTES:]
        if hashlib.blake2b(payload, digest_size=_DIGEST_BYTES).digest() == content[:_DIGEST_BYTES]:
            return payload
    return None


def write(name: str, payload: bytes) -> bool:
    """Keep `payload` as `name`; return whether some place took it."""
    content = hashlib.blake2b(payload, digest_size=_DIGEST_BYTES).digest() + payload
    for place in places():
        # Read-only, full, not a directory, or not to be trusted: the kernel was compiled all the same.
        with contextlib.suppress(OSError):
            place.write(version(), name + SUFFIX, content)
            return True
    return False


@functools.cache
def _prune_once(place: Place) -> None:
    """Before the cache grows: once in a process bounds it, as one adds little to what there is."""
    prune(place)


def prune(place: Place, unused_s: float = UNUSED_S, limit_bytes: int = LIMIT_BYTES) -> int:
    """Remove files unused for `unused_s`, then the longest unused beyond `limit_bytes`; return how many bytes.

    A process that still wanted a file compiles the kernel again.
    """
    oldest_s = time.time() - unused_s
    kept_bytes = removed_bytes = 0
    with place.opened() as directory:
        for path, status in sorted(_files(directory), key=lambda found: -found[1].st_mtime):
            kept_bytes += status.st_size
            if status.st_mtime < oldest_s or kept_bytes > limit_bytes:
                kept_bytes -= status.st_size
                removed_bytes += _remove(directory, path, status.st_size)
    return removed_bytes


def clear() -> int:
    """Remove the machine code of every version, in every place that is this user's; return how many bytes that were."""
    removed_bytes = 0
    for place in places():
        with contextlib.suppress(OSError):
            removed_bytes += prune(place, limit_bytes=-1)
    return removed_bytes


def info() -> CacheInfo:
    """Return what the cache holds now, and whether it can take more."""
    place = places()[0]
    sizes: dict[str, list[int]] = {version(): []}
    is_usable = True
    try:
        with place.opened() as directory:
            for path, status in _files(directory):
                sizes.setdefault(path.parts[0], []).append(status.st_size)
        with place.opened(version()):
            pass
    except FileNotFoundError:  # made with the first file
        pass
    except OSError:
        is_usable = False
    here = sizes.pop(version())
    current = place.path / version()
    existing = next(path for path in (current, *current.parents) if path.exists())
    return CacheInfo(
        directory=current,
        writable=is_usable and existing.is_dir() and os.access(existing, os.W_OK),
        files=len(here),
        size_bytes=sum(here),
        other_versions=len(sizes),
        other_bytes=sum(map(sum, sizes.values())),
    )


def _files(directory: int) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the files in sub-directories, by their paths from a directory; what links lead to is none of them."""
    for inner, _, names, descriptor in os.fwalk(".", dir_fd=directory):
        for name in names if inner != "." else ():
            try:
                yield Path(inner, name), os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            except FileNotFoundError:  # removed by another process
                continue


def _remove(directory: int, path: Path, size_bytes: int) -> int:
    try:
        os.unlink(path, dir_fd=directory)
    except FileNotFoundError:  # removed by another process
        pass
    except OSError:  # not ours to remove
        return 0
    with contextlib.suppress(OSError):  # the last file takes its directory along
        os.rmdir(path.parent, dir_fd=directory)
    return size_bytes
