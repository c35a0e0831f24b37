"""Writing a new file or folder beside its place, and moving it there when all of it is on the disk.

What is written lies in `.NAME.export` beside the place, a folder that is locked meanwhile and removed afterwards. An
error, a full disk or a kill leaves what was at the place before; the next export to the place removes the remains of a
killed one.
"""

import contextlib
import ctypes
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from spillgrad.errors import ArgumentError, CheckpointError
from spillgrad.files import checkpoint_directory, safetensors_io
from spillgrad.files.safetensors_io import reason
from spillgrad.storage.sizes import format_bytes

# What folders and small files take beyond the bytes of tensors.
_SLACK_BYTES = 1 << 20
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


@contextlib.contextmanager
def replacing(place: Path, needed_bytes: int) -> Iterator[Path]:
    """Context manager: give a path to write a file or folder to, which then takes the place of what is at `place`.

    The caller has checked that what is there may be removed, and synchronises the files that it writes to disk. Raises
    ArgumentError if `place` has no parent folder, CheckpointError if another process writes there, if the disk has less
    than `needed_bytes`, or if something cannot be written.
    """
    parent = place.parent
    if not parent.is_dir():
        raise ArgumentError(f"export: got {place}, and {parent} is no folder; make it, or name another place")
    staging = parent / f".{place.name}.export"
    try:
        with checkpoint_directory.only_writer(staging):
            new, old = staging / "new", staging / "old"
            try:
                if old.exists() and not place.exists():  # a kill came just between two moves
                    os.rename(old, place)
                for remains in (new, old):
                    _remove(remains)
                free_bytes = shutil.disk_usage(staging).free
                if free_bytes < needed_bytes + _SLACK_BYTES:
                    raise CheckpointError(
                        f"export: {place} takes {format_bytes(needed_bytes)}, and {format_bytes(free_bytes)} are free "
                        "there; free space, or name another place"
                    )
                yield new
                if new.is_dir():
                    safetensors_io.sync_directory(new)
                _move(new, place)
                safetensors_io.sync_directory(parent)
            finally:
                _remove(new)
    except OSError as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(
            f"export: {place} cannot be written ({reason(error)}); free space there, or name another place"
        ) from error
    finally:
        with contextlib.suppress(OSError):  # another process has begun to write there
            staging.rmdir()


def copy(source: Path, target: Path) -> None:
    """Copy a file's content to a new file, and wait until it is on the disk. Raises OSError."""
    shutil.copyfile(source, target)
    descriptor = os.open(target, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _move(new: Path, place: Path) -> None:
    """Move a file or folder to its place; what was there is at `new` then."""
    if new.is_file() or not place.exists():
        os.replace(new, place)
    elif not _exchanged(new, place):  # a file system that cannot: for a moment, nothing is there
        old = new.with_name("old")
        os.rename(place, old)
        try:
            os.rename(new, place)
        except OSError:
            os.rename(old, place)
            raise
        os.rename(old, new)


def _exchanged(new: Path, place: Path) -> bool:
    """Exchange two folders in one step; return False if the system or the file system cannot. Raises OSError."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    if not renameat2(_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(place), _RENAME_EXCHANGE):
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS):
        return False
    raise OSError(number, os.strerror(number))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
