"""The folders that a training writes to: each is checked before anything is read, and locked while the run lasts."""

import contextlib
import errno
import fcntl
import itertools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from spillgrad.errors import ArgumentError
from spillgrad.storage.runs.sweep import sweep
from spillgrad_tools.train.options import TrainOptions

RUNS = Path("runs")


class _Busy(ArgumentError):
    """Another training writes to a folder."""


@contextlib.contextmanager
def output_folder(options: TrainOptions) -> Iterator[Path]:
    """Context manager: lock the checkpoint's folder, which --out or --resume names, or else a new folder in runs/.

    A missing folder is made; a folder that is empty at the end is removed. If the folder is in runs/, the spill files
    of killed runs in runs/ are removed. Raises ArgumentError if the folder cannot be written, if another training
    writes to it, or if it holds the checkpoint of another run.
    """
    named = options.out or options.resume
    if (named is None or named.parent == RUNS) and RUNS.exists():
        sweep(RUNS, below=True)
    with contextlib.ExitStack() as stack:
        if named is not None:
            option = "--resume" if options.out is None else "--out"
            stack.enter_context(
                _locked(named, f"{option} {named}", f"{named}; wait until it ends, or name another folder with --out")
            )
            out = named
        else:
            out = _new_run(stack)
        if out != options.resume and (out / "checkpoint.json").exists():
            raise ArgumentError(
                f"train: --out {out} holds a checkpoint; continue it with --resume {out}, or name another folder"
            )
        yield out


@contextlib.contextmanager
def metrics_folder(folder: Path | None, out: Path) -> Iterator[None]:
    """Context manager: lock the folder of the metrics, if there is one, beside that of the checkpoint.

    Raises ArgumentError as `output_folder` does.
    """
    if folder is None or (folder.exists() and folder.samefile(out)):
        yield
        return
    with _locked(folder, f"--log-dir {folder}", f"--log-dir {folder}; wait until it ends, or name another"):
        yield


def _new_run(stack: contextlib.ExitStack) -> Path:
    """Lock a new folder in runs/, and return it."""
    for number in itertools.count(1):
        out = RUNS / str(number)
        if not out.exists():
            with contextlib.suppress(_Busy):  # another training begins at the same time
                stack.enter_context(_locked(out, str(out), str(out)))
                return out
    raise AssertionError("numbers do not end")


@contextlib.contextmanager
def _locked(folder: Path, what: str, busy: str) -> Iterator[None]:
    """Context manager: make a folder, and hold it for this process alone; `what` and `busy` are words for errors.

    The lock ends with the process, however that ends. What is empty at the end is removed.
    """
    made: list[Path] = []
    fd: int | None = None
    try:
        try:
            made = [directory for directory in (folder, *folder.parents) if not directory.exists()]
            folder.mkdir(parents=True, exist_ok=True)
            fd = _lock(folder)
            if fd is not None:
                with tempfile.TemporaryFile(dir=folder):
                    pass
        except OSError as error:
            reason = "it is no folder" if isinstance(error, FileExistsError) else error.strerror or str(error)
            raise ArgumentError(f"train: {what} cannot be written ({reason}); name another") from error
        if fd is None:
            raise _Busy(f"train: another training is writing to {busy}")
        yield
    finally:
        for directory in made or [folder]:
            if fd is not None:
                with contextlib.suppress(OSError):  # it is not empty
                    directory.rmdir()
        if fd is not None:
            os.close(fd)


def _lock(folder: Path) -> int | None:
    """Lock a folder until the returned file descriptor is closed; no file is made in the folder.

    Return None if another process has locked the folder, or has removed it meanwhile.
    """
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(fd), os.stat(folder)):
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EBADF, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        return fd  # a network file system without locks for folders
    os.close(fd)
    return None
