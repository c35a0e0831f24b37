"""Remove the files that dead runs left behind."""

import contextlib
import dataclasses
import errno
import os
from pathlib import Path

from spillgrad.storage.runs import file_lock, run_directory
from spillgrad.storage.runs.run_directory import LOCK_NAME, RUN_NAME, identity, is_run_file, open_run, remove_run_files


@dataclasses.dataclass(frozen=True)
class DeadRun:
    """The directory of a run whose process is dead.

    Parameters
    ----------
    path : Path
        The directory.
    disk_bytes : int
        Bytes that its files occupied.
    """

    path: Path
    disk_bytes: int


def sweep(directory: str | os.PathLike[str], dry_run: bool = False, below: bool = False) -> list[DeadRun]:
    """Remove the files of dead runs.

    A run is dead if its lock can be taken. Live runs, runs of this process, runs of other users, and files with other
    names stay.

    Parameters
    ----------
    directory : str or path
        Folder that something spilled to.
    dry_run : bool, default False
        Whether to return the runs without removing them.
    below : bool, default False
        Whether to look into subfolders, too.

    Returns
    -------
    list of DeadRun
        The dead runs that were found.
    """
    found = []
    with run_directory.registry_lock:
        for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
            if not entry.is_dir(follow_symlinks=False):
                continue
            if RUN_NAME.fullmatch(entry.name):
                dead = _sweep_run(Path(entry.path), dry_run)
                found += [dead] if dead else []
            elif below:
                with contextlib.suppress(FileNotFoundError, PermissionError):  # removed meanwhile, or another user's
                    found += sweep(entry.path, dry_run, below)
    return found


def _sweep_run(run: Path, dry_run: bool) -> DeadRun | None:
    with contextlib.ExitStack() as stack:
        try:
            if os.lstat(run).st_uid != os.geteuid() or identity(run) in run_directory.own_runs:
                return None
            folder = open_run(run)
            stack.callback(os.close, folder)
            if os.fstat(folder).st_uid != os.geteuid():  # somebody put it there just now
                return None
            lock_fd = file_lock.open_file(LOCK_NAME, os.O_RDWR | os.O_NOFOLLOW, folder)
            stack.callback(file_lock.close, lock_fd)
        except FileNotFoundError:
            return _sweep_run_without_lock(run, dry_run)
        try:
            if not file_lock.lock(lock_fd, required=True):
                return None  # its process lives
            sizes = [os.lstat(name, dir_fd=folder).st_blocks for name in os.listdir(folder) if is_run_file(name)]
            if not dry_run:
                remove_run_files(run, folder)
        except FileNotFoundError:  # another sweep was faster
            return None
    return DeadRun(run, 512 * sum(sizes))


def _sweep_run_without_lock(run: Path, dry_run: bool) -> DeadRun | None:
    """Remove the empty directory of a run that died before it made its lock, or while it removed itself.

    If a live run makes its lock meanwhile, the directory stays. A live run that finds its directory gone takes another
    name.
    """
    try:
        if dry_run and os.listdir(run):
            return None
        if not dry_run:
            os.rmdir(run)  # refuses a directory that is not empty by now
    except FileNotFoundError:  # another sweep was faster
        return None
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        return None
    return DeadRun(run, 0)
