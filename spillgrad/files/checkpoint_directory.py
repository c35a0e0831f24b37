"""The directory of a run's checkpoints: which version is current, who may save, and which versions are removed.

The pointer, `checkpoint.json`, names the sub-directory of the current version and the checksum of its `state.json`. A
new version is written beside the current one, with its pointer inside. When all files are on the disk, one rename moves
the new pointer over the old one. A kill or a full disk at any moment therefore leaves the former version valid, and no
pointer is ever half written.

`checkpoint.lock` exists and is locked while a process saves; its content tells other processes which process saves.
The lock ends with the process.

Versions that are not current are removed: former versions, and remains of killed saves. They are recognised by a name
that only a save gives and by the format in their pointer or `state.json`; or, after a kill in `begin`, by a pointer
that is cut short. Only files that a save writes are removed; all other files in the directory or in a version belong to
the user and stay.
"""

import contextlib
import json
import os
import re
import secrets
import socket
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from spillgrad.errors import CheckpointError
from spillgrad.files import safetensors_io
from spillgrad.files.safetensors_io import damaged, reason
from spillgrad.storage.runs import file_lock

T = TypeVar("T")

FORMAT = "spillgrad checkpoint"
POINTER = "checkpoint.json"
STATE = "state.json"
CONFIG = "config.json"
MODEL = "model"
OPTIMIZER = "optimizer"
# In version 1, all checksums are hashes of a file's bytes.
_VERSION = 2
_READ = (1, _VERSION)
_LOCK = "checkpoint.lock"
_VERSION_NAME = re.compile(r"step-(\d{8,}|-\d{7,})-[0-9a-f]{8}")
_FILE_NAME = re.compile(
    rf"({MODEL}|{OPTIMIZER})(-\d{{5,}}-of-\d{{5,}})?\.safetensors(\.index\.json)?|{CONFIG}|{STATE}|{POINTER}"
)
# How long a process waits for another that saves, and how often it tries.
_PATIENCE_S, _MOMENT_S = 5.0, 0.005


@contextlib.contextmanager
def only_writer(root: Path) -> Iterator[None]:
    """Context manager: make the directory and lock it for saving; wait a few seconds if another process holds the lock.

    On a file system without locks, nothing is locked. Raises OSError if the directory or the lock file cannot be made.
    Raises CheckpointError, which names the other process, if the lock is still held after the wait.
    """
    _make(root)
    fd = _claim(root)
    try:
        yield
    finally:
        try:
            (root / _LOCK).unlink(missing_ok=True)  # while locked, for processes that have opened it
        finally:  # a disk that is gone may come back, and must find nothing locked
            file_lock.close(fd)


def _claim(root: Path) -> int:
    """Open and lock the lock file; return its file descriptor."""
    path, deadline_s = root / _LOCK, time.monotonic() + _PATIENCE_S
    while True:
        fd = file_lock.open_file(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        try:
            if file_lock.lock(fd) and _is_at(fd, path):
                _sign(fd)
                claimed, fd = fd, -1
                return claimed
            if time.monotonic() > deadline_s:
                raise CheckpointError(
                    f"checkpoint: {_holder(fd)} is saving to {root}; wait until it has ended, or give another directory"
                )
        finally:
            if fd >= 0:
                file_lock.close(fd)
        time.sleep(_MOMENT_S)


def _is_at(fd: int, path: Path) -> bool:
    """Return whether the open file `fd` is still the file at `path`."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def _sign(fd: int) -> None:
    with contextlib.suppress(OSError):  # a full disk, which removing old versions may free
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps({"process": os.getpid(), "host": socket.gethostname()}).encode(), 0)


def _holder(fd: int) -> str:
    """Return a description of the process that locked the file `fd`, from the file's content."""
    try:
        told = json.loads(os.pread(fd, 4096, 0))
        process, host = int(told["process"]), str(told["host"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):  # it was locked just now
        return "another process"
    if (process, host) == (os.getpid(), socket.gethostname()):
        return "another thread of this process"
    return f"process {process} on {host}"


def new_version(root: Path, step: int) -> Path:
    """Return an unused path for a new version, saved after `step` steps."""
    return root / f"step-{step:08d}-{secrets.token_hex(4)}"


def begin(version: Path) -> None:
    """Make the sub-directory of a version, with a pointer inside that marks it as a version. Raises OSError."""
    version.mkdir()
    safetensors_io.write_json(version / POINTER, _pointer_to(version))


def is_begun(version: Path) -> bool:
    """Return whether this process sees the sub-directory that `begin` made, maybe in another process."""
    try:
        pointer = safetensors_io.read_json(version / POINTER)
    except CheckpointError:
        return False
    return pointer == _pointer_to(version)


def not_written(directory: str | os.PathLike[str], error: OSError) -> CheckpointError:
    """Return the error for a directory that cannot be written."""
    return CheckpointError(
        f"checkpoint: {directory} cannot be written ({reason(error)}); free space there or give another directory"
    )


def make_current(version: Path, state: Mapping[str, Any]) -> None:
    """Write `state.json` of a version whose other files are on the disk; make the version current. Raises OSError."""
    root = version.parent
    checksum = safetensors_io.write_json(version / STATE, {"format": FORMAT, **state})
    safetensors_io.sync_directory(version)
    safetensors_io.write_json(version / POINTER, _pointer_to(version) | {"checksum": checksum})
    os.replace(version / POINTER, root / POINTER)
    safetensors_io.sync_directory(root)


def _pointer_to(version: Path) -> dict[str, Any]:
    return {"format": FORMAT, "version": _VERSION, "current": version.name}


def is_file_name(name: str) -> bool:
    """Return whether a save writes files of this name; only such files of a version are ever removed."""
    return _FILE_NAME.fullmatch(name) is not None


def is_current(version: Path) -> bool:
    """Return whether a version is the one that the directory's pointer names."""
    return _named(version.parent) == version.name


def remove_others(root: Path) -> None:
    """Remove all versions except the current one: former versions, and remains of killed saves.

    Warns of each version that cannot be removed. Removes nothing if a pointer exists but names no existing version.
    Raises OSError if the directory cannot be read.
    """
    entries = [entry for entry in os.scandir(root) if _VERSION_NAME.fullmatch(entry.name)]
    versions = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    current = _named(root)
    if (root / POINTER).exists() and current not in [version.name for version in versions]:
        return  # a damaged pointer names no version; the user must choose
    for version in versions:
        if version.name != current and _is_ours(version):
            remove(version)


def remove(version: Path) -> None:
    """Remove the files that a save wrote to a version, then the version's directory if it is empty; warn on failure."""
    try:
        names = os.listdir(version)
        ours = [name for name in names if is_file_name(name)]
        # The files that mark the version go last, so that the next save recognises it if this one is killed.
        for name in sorted(ours, key=(POINTER, STATE).__contains__):
            os.unlink(version / name)
        if len(ours) == len(names):
            os.rmdir(version)
    except FileNotFoundError:  # it was not made, or another process removes it
        return
    except OSError as error:
        warnings.warn(
            f"checkpoint: {version} could not be removed ({reason(error)}), and takes room on the disk; remove it by "
            "hand",
            stacklevel=5,  # the caller of `save_checkpoint`
        )


def _is_ours(version: Path) -> bool:
    """Return whether a save made this directory: its pointer or `state.json` has our format, or `begin` was killed."""
    try:
        return any(_says_so(version / name) for name in (POINTER, STATE)) or _is_just_begun(version)
    except OSError:  # our own saves leave nothing unreadable
        return False


def _is_just_begun(version: Path) -> bool:
    """Return whether a directory holds nothing, or only the beginning of the pointer that `begin` writes."""
    names = os.listdir(version)
    if names != [POINTER]:
        return not names
    whole = safetensors_io.json_bytes(_pointer_to(version))
    with open(version / POINTER, "rb") as file:
        return whole.startswith(file.read(len(whole) + 1))


def _says_so(path: Path) -> bool:
    try:
        return safetensors_io.read_json(path).get("format") == FORMAT
    except CheckpointError:
        return False


def _named(root: Path) -> str | None:
    """Return the name of the version in the pointer of `root`; None if the pointer is missing or damaged."""
    try:
        return str(safetensors_io.read_json(root / POINTER).get("current"))
    except CheckpointError:
        return None


def open_current(root: Path) -> tuple[Path, dict[str, Any]]:
    """Return the sub-directory and the verified state of the current version.

    Raises CheckpointError if there is no current version, or if its state is damaged.
    """
    while True:
        current, checksum = _pointed(root)
        try:
            verify(current, STATE, {STATE: checksum})
            return current, safetensors_io.read_json(current / STATE)
        except CheckpointError:
            if is_current(current):
                raise
            # Another process has replaced the version: read the new version.


def _pointed(root: Path) -> tuple[Path, Any]:
    """Return the sub-directory and the checksum of `state.json` that the pointer names.

    Raises CheckpointError if the pointer is missing, damaged or of another format.
    """
    if not root.is_dir():
        raise CheckpointError(f"checkpoint: {root} is not a directory; give one that a run has saved to")
    if not (root / POINTER).is_file():
        raise CheckpointError(f"checkpoint: {root} holds no {POINTER}; give a directory that a run has saved to")
    pointer = safetensors_io.read_json(root / POINTER)
    if pointer.get("format") != FORMAT or not {"version", "current", "checksum"} <= pointer.keys():
        raise CheckpointError(f"checkpoint: {root / POINTER} is not one of a {FORMAT}; give a directory saved to")
    if pointer["version"] not in _READ:
        raise CheckpointError(
            f"checkpoint: {root} has format version {pointer['version']}, this library reads up to {_VERSION}; "
            "use the release that wrote it"
        )
    if not _VERSION_NAME.fullmatch(str(pointer["current"])):
        raise damaged(root / POINTER, f"no save makes a {pointer['current']!r:.80}")
    return root / pointer["current"], pointer["checksum"]


def verify(version: Path, name: str, checksums: Mapping[str, Any]) -> None:
    """Raise CheckpointError if a file of a version cannot be read, or differs from its checksum in `checksums`."""
    path = version / name
    try:
        got = safetensors_io.checksum_as(checksums.get(name), path)
    except OSError as error:
        raise damaged(path, reason(error)) from error
    wanted = checksums.get(name)
    if got != wanted:
        raise damaged(path, f"its checksum is {got}, {wanted} was written")


def of_current(root: Path, read: Callable[[Path, dict[str, Any]], T]) -> T:
    """Call `read` with the current version and its state; return the result of `read`.

    If a save replaces the version meanwhile, so that files of it are gone, calls `read` again with the new version.
    Raises CheckpointError if there is no current version, and what `read` raises for the current version.
    """
    while True:
        current, state = open_current(root)
        try:
            return read(current, state)
        except (CheckpointError, OSError):
            if is_current(current):
                raise


def _make(path: Path) -> None:
    """Make a directory and its missing parents, and synchronise them to disk, so that they survive a crash."""
    made = [directory for directory in (path, *path.parents) if not directory.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for directory in made:
        safetensors_io.sync_directory(directory.parent)
