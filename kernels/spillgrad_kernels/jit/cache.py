"""The cache of machine code on disk: never stale, of bounded size, and safe to run.

A file holds the machine code of one kernel for one signature. The name of its directory is a hash of all that the code
depends on, so old files are not found after an edit of a kernel, or with another compiler or processor. A file is
renamed into place when it is complete, and carries a checksum: neither concurrent processes, nor a kill, nor a full or
broken disk can leave broken code that would be run. If no directory can be written, each process compiles its kernels.

A process runs the code that the cache holds. So only this user may write to the cache, and a file is used only if
nobody else can have written it. Starting with the cache's own directory, each directory and file is opened by its name
within its parent directory, never through a link. Once open, a directory or file must belong to this user and be
writable by nobody else.
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
# Files that no process used for UNUSED_S are removed. Beyond LIMIT_BYTES, the least recently used files are removed
# too.
UNUSED_S = 30 * 86400.0
LIMIT_BYTES = 256 << 20
# A file's modification time says when it was last used, to this precision. Setting the time at every use would cost
# more.
_USED_PRECISION_S = 86400.0
_DIGEST_BYTES = 16
_KERNELS = Path(__file__).parents[1]
# Settings of Numba that change the machine code.
_SETTINGS = ("OPT", "BOUNDSCHECK", "LOOP_VECTORIZE", "SLP_VECTORIZE", "DEBUGINFO_DEFAULT", "LLVM_REFPRUNE_FLAGS")


@dataclass(frozen=True)
class CacheInfo:
    """The state of the cache: files and bytes of the current version; the number of other versions, and their bytes."""

    directory: Path
    writable: bool
    files: int
    size_bytes: int
    other_versions: int
    other_bytes: int


@dataclass(frozen=True)
class Place:
    """A place for machine code: the user chooses the directory `base`; the cache owns the path `names` below it.

    Methods raise OSError if a directory is missing and cannot be made. If another user may write to a directory or
    file, they warn and raise OSError.
    """

    base: Path
    names: tuple[str, ...]

    @property
    def path(self) -> Path:
        """The cache's directory at this place, which has a sub-directory for each version of the kernels."""
        return self.base.joinpath(*self.names)

    @contextlib.contextmanager
    def opened(self, *names: str, create: bool = False) -> Iterator[int]:
        """Context manager: open the cache's directory, or its sub-directory at the path `names`; yield the descriptor.

        With `create`, make the directories that are missing.
        """
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
        """Return the contents of a file, and record that it was used now."""
        with self.opened(version) as directory:
            descriptor = self._open(self.path / version / name, directory)
            with open(descriptor, "rb") as file:
                if time.time() - os.fstat(descriptor).st_mtime > _USED_PRECISION_S:
                    with contextlib.suppress(OSError):  # a read-only file system
                        os.utime(descriptor)
                return file.read()

    def write(self, version: str, name: str, content: bytes) -> None:
        """Write a file to a temporary name, then rename it into place."""
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
        """Open the file or directory `path` in the open `directory`; return its descriptor. Does not block on a pipe.

        Warns and raises PermissionError if `path` is a link, does not belong to this user, or can be written by others.
        """
        try:
            descriptor = os.open(path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | flags, dir_fd=directory)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                self._refuse(path, "which is a symbolic link or not a directory")
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
                f"kernel cache: got {path}, {why}; its code would be run, so only user {os.geteuid()} may write there; "
                "the cache is not used; remove it, or set XDG_CACHE_HOME to a directory of your own",
                stacklevel=2,
            )
        raise PermissionError(errno.EACCES, why, str(path))


_refused: set[Path] = set()  # places that this process has warned about


def places() -> tuple[Place, ...]:
    """Return the places for machine code, best first: in the user's cache directory, and in the temporary directory."""
    temporary = Place(Path(tempfile.gettempdir()), (f"spillgrad-kernels-{os.geteuid()}",))
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():  # the XDG Base Directory Specification says to ignore relative paths
        base = Path(os.path.expanduser("~")) / ".cache"
    if not base.is_absolute():  # a user without a home directory
        return (temporary,)
    return Place(base, ("spillgrad", "kernels")), temporary


def features() -> str:
    """Return the features of the processor that Numba compiles for, by LLVM's names, as in "+avx2,-avx512f"."""
    asked_for = numba.config.CPU_FEATURES
    return str(get_host_cpu_features() if asked_for is None else asked_for)


@functools.cache
def version() -> str:
    """Return a hash of all that machine code depends on: sources, compiler, its settings, Python and processor."""
    digest = hashlib.sha256()
    for module in (numba, llvmlite, np):
        digest.update(f"{module.__name__} {module.__version__}\n".encode())
    processor = numba.config.CPU_NAME or llvmlite.binding.get_host_cpu_name()
    digest.update(f"{sys.implementation.cache_tag} {llvmlite.binding.get_process_triple()} {processor}\n".encode())
    digest.update(features().encode())
    digest.update(repr([getattr(numba.config, name, None) for name in _SETTINGS]).encode())
    digest.update(hash_of_sources(_KERNELS, without=_KERNELS / "cuda"))
    return digest.hexdigest()[:16]


def hash_of_sources(directory: Path, without: Path | None = None) -> bytes:
    """Return a hash of the names and contents of the sources in `directory`, except for the sources below `without`."""
    digest = hashlib.sha256()
    for path in sorted(directory.rglob("*.py")):
        if without is None or without not in path.parents:
            digest.update(f"{path.relative_to(directory)} ".encode() + path.read_bytes())
    return digest.digest()


def read(name: str) -> bytes | None:
    """Return the payload that was written as `name`, or None if no place has a complete file that is safe to run."""
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
    """Write `payload` as `name` to the first place that can be written; return False if none can be written."""
    content = hashlib.blake2b(payload, digest_size=_DIGEST_BYTES).digest() + payload
    for place in places():
        # On an error, the place is read-only, full, unsafe or no directory. The kernel works without the file.
        with contextlib.suppress(OSError):
            place.write(version(), name + SUFFIX, content)
            return True
    return False


@functools.cache
def _prune_once(place: Place) -> None:
    """Prune the cache before this process first writes to it. Once is enough, because one process adds little."""
    prune(place)


def prune(place: Place, unused_s: float = UNUSED_S, limit_bytes: int = LIMIT_BYTES) -> int:
    """Remove files unused for `unused_s`, then the least recently used beyond `limit_bytes`; return the bytes removed.

    A process that still needs a removed file compiles the kernel again.
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
    """Remove the machine code of every version from all of this user's places; return the bytes removed."""
    removed_bytes = 0
    for place in places():
        with contextlib.suppress(OSError):
            removed_bytes += prune(place, limit_bytes=-1)
    return removed_bytes


def info() -> CacheInfo:
    """Return the cache's directory, the numbers of its files and bytes, and whether it can be written."""
    place = places()[0]
    sizes: dict[str, list[int]] = {version(): []}
    is_usable = True
    try:
        with place.opened() as directory:
            for path, status in _files(directory):
                sizes.setdefault(path.parts[0], []).append(status.st_size)
        with place.opened(version()):
            pass
    except FileNotFoundError:  # the directory is made with the first file
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
    """Yield (path, status) for each file in the sub-directories of an open directory. Links are not followed."""
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
    except OSError:  # another user's file, which this process cannot remove
        return 0
    with contextlib.suppress(OSError):  # succeeds if the removed file was the directory's last
        os.rmdir(path.parent, dir_fd=directory)
    return size_bytes
