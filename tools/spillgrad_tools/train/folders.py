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

    A missing folder is made; it is removed if it is empty at the end. If the folder is in runs/, the spill files
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


def require_writable(folder: Path, option: str) -> None:
    """Raise ArgumentError if a folder, which need not exist yet, cannot be written; leave no trace of the trial."""
    with _told(f"{option} {folder}"):
        made = _make(folder)
        try:
            _write(folder)
        finally:
            _remove_empty(made)


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

    The lock ends with the process, however that ends. A folder that was made, and is empty at the end, is removed.
    """
    with _told(what):
        made = _make(folder)
        fd = _lock(folder)
    if fd is None:
        raise _Busy(f"train: another training is writing to {busy}")
    try:
        with _told(what):
            _write(folder)
        yield
    finally:
        _remove_empty(made)  # while nobody else can lock it
        os.close(fd)


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """Context manager: say in words of the command line that a folder cannot be written."""
    try:
        yield
    except OSError as error:
        reason = "it is no folder" if isinstance(error, FileExistsError) else error.strerror or str(error)
        raise ArgumentError(f"train: {what} cannot be written ({reason}); name another") from error


def _make(folder: Path) -> list[Path]:
    """Make a folder, and return the folders that were made, the innermost first."""
    made = [directory for directory in (folder, *folder.parents) if not directory.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        _remove_empty(made)
        raise
    return made


def _write(folder: Path) -> None:
    with tempfile.TemporaryFile(dir=folder):
        pass


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):  # it is not empty, or not there
            folder.rmdir()


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
