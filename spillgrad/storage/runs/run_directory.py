"""The directory of one run, and the lock that tells a live run's files from a dead run's."""

import contextlib
import errno
import os
import re
import secrets
import stat
import tempfile
from pathlib import Path

from spillgrad.errors import SpillError
from spillgrad.fork_safe_lock import ForkSafeLock
from spillgrad.storage.journal.files import JOURNAL_NAME, NEW_JOURNAL_NAME, OLD_JOURNAL_NAME
from spillgrad.storage.runs import file_lock

LOCK_NAME = ".lock"
RUN_NAME = re.compile(r"run-[0-9a-f]{16}")
_SEGMENT_NAME = re.compile(r"segment-\d+\.h5")
# How often another name is tried for a directory when the first attempts are disturbed.
_TRIES = 100

# If the kernel has no locks of open files, a lock does not exclude its own process, and is lost when the process closes
# any descriptor of the file. So the runs of this process are remembered, by (device, inode), and never probed. While a
# thread holds `registry_lock` to make a run, no other thread probes a run.
own_runs: set[tuple[int, int]] = set()
registry_lock = ForkSafeLock()  # re-entered if a finalizer closes a store during a sweep


def segment_name(number: int) -> str:
    """Return the name of a run's `number`-th segment file."""
    return f"segment-{number:05d}.h5"


def is_run_file(name: str) -> bool:
    """Return whether a run makes files of this name. No other file is ever removed."""
    ours = (LOCK_NAME, JOURNAL_NAME, OLD_JOURNAL_NAME, NEW_JOURNAL_NAME)
    return name in ours or is_segment(name)


def is_segment(name: str) -> bool:
    """Return whether a file of this name is a run's segment."""
    return _SEGMENT_NAME.fullmatch(name) is not None


def is_locked(run: Path) -> bool:
    """Return whether the process of a run lives: whether the run is locked. This never takes the lock."""
    with registry_lock:
        try:
            found = os.stat(run)  # through any link: to close an own lock may give it up
            if (found.st_dev, found.st_ino) in own_runs:
                return True
            fd = os.open(run / LOCK_NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:  # no lock; or another user's, which cannot be asked for
            return False
        try:
            return file_lock.is_locked(fd)
        finally:
            os.close(fd)


def identity(path: Path) -> tuple[int, int]:
    """Return the device and inode of a directory, the same for every path to it."""
    found = os.stat(path, follow_symlinks=False)
    return found.st_dev, found.st_ino


def default_directory() -> Path:
    """Return the user's directory for runs in the system's temporary directory (see `TMPDIR`); make it if needed.

    Raises SpillError if another user owns it.
    """
    directory = Path(tempfile.gettempdir()) / f"spillgrad-{os.getuid()}"
    while True:
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, 0o700)
        try:
            found = os.lstat(directory)
        except FileNotFoundError:  # the last run in it removed it just now
            continue
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise SpillError(f"spill: {directory} belongs to another user; pass a directory of your own")
        return directory


class RunDirectory:
    """`<directory>/run-<random>`, readable by its owner only, locked while the process that made it lives.

    The lock ends with that process: a forked child closes its descriptor of the lock file. A process number could not
    replace the lock: another process may get the same number later.
    """

    def __init__(self, directory: Path, remove_parent: bool = False) -> None:
        self._process = os.getpid()
        self._remove_parent = remove_parent
        self._lock_fd = -1
        for tries_left in reversed(range(_TRIES)):
            self.path = directory / f"run-{secrets.token_hex(8)}"
            try:
                with registry_lock:
                    self._make()
                break
            except (FileNotFoundError, FileExistsError, BlockingIOError):
                # Another run removed the parent meanwhile, or the sweep of a neighbour took this run for a dead one; or
                # no directory can be made there, as in /proc.
                if not tries_left:
                    raise

    @property
    def device(self) -> int:
        """The number of the device that the directory is on."""
        return self._identity[0]

    def _make(self) -> None:
        """Make the directory and its lock. Raises OSError if another run or a sweep interferes."""
        lock_fd = -1
        os.makedirs(self.path.parent, mode=0o700, exist_ok=True)
        try:
            os.mkdir(self.path, 0o700)
            self._identity = identity(self.path)
            lock_fd = file_lock.open_file(self.path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            if not file_lock.lock(lock_fd, required=True):
                raise BlockingIOError(errno.EAGAIN, "somebody else has locked it")
            if not os.fstat(lock_fd).st_nlink:
                raise FileNotFoundError(errno.ENOENT, "somebody else removed it")
            own_runs.add(self._identity)
            self._lock_fd = lock_fd
        finally:
            if self._lock_fd < 0 <= lock_fd:
                file_lock.close(lock_fd)

    def remove(self) -> None:
        """Remove the directory and give up the lock; do nothing the second time, or in a forked child.

        Raises SpillError if something cannot be removed.
        """
        with registry_lock:
            if self._lock_fd < 0 or os.getpid() != self._process:
                return
            try:
                self._remove_files()
            finally:  # a sweep may remove what is left, as that of a dead run
                file_lock.close(self._lock_fd)
                self._lock_fd = -1
                own_runs.discard(self._identity)
            if self._remove_parent:
                with contextlib.suppress(OSError):  # other runs are in it
                    os.rmdir(self.path.parent)

    def _remove_files(self) -> None:
        try:
            folder = open_run(self.path)
        except FileNotFoundError:  # somebody removed it before us
            return
        except OSError as error:
            raise _not_removed(self.path, error.strerror) from error
        try:
            found = os.fstat(folder)
            if (found.st_dev, found.st_ino) != self._identity:
                raise _not_removed(self.path, "another directory is in its place")
            remove_run_files(self.path, folder)
        finally:
            os.close(folder)


def open_run(run: Path) -> int:
    """Return a descriptor of a run's directory, valid even after a move. Raises OSError, also for a symbolic link."""
    return os.open(run, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def remove_run_files(run: Path, folder: int) -> None:
    """Remove the directory of a run and its files, the lock last, so that a directory without a lock is empty.

    `folder` is the descriptor of the directory. If the directory has other files, they stay, and the directory too. So
    does anything that others put in place of the directory.
    """
    try:
        names = os.listdir(folder)
        ours = [name for name in names if is_run_file(name)]
        for name in sorted(ours, key=lambda name: name == LOCK_NAME):
            os.unlink(name, dir_fd=folder)
        if len(ours) == len(names):
            os.rmdir(run)
    except FileNotFoundError:  # somebody removed it before us
        return
    except OSError as error:
        raise _not_removed(run, error.strerror) from error


def _not_removed(run: Path, why: str | None) -> SpillError:
    return SpillError(f"spill: could not remove {run}: {why}; remove it by hand")


def who_may_replace_runs(directory: Path) -> str | None:
    """Return who besides this user and root may remove or rename runs in a directory; None if nobody else is known to.

    Such a directory is not refused: it may belong to a team or a container, and some file systems know users by other
    numbers, or let everybody write. Others can only hinder a run. The run's own directory and files are made anew, and
    open to nobody else. Arrays are read through the descriptors that wrote them, and have checksums. What others put in
    the run's place is neither overwritten nor removed. Write permission of a group is ignored, because the group may be
    the user's own.
    """
    try:
        found = os.stat(directory)
    except FileNotFoundError:  # it will be made, for this user alone
        return None
    if not stat.S_ISDIR(found.st_mode):
        return None
    if found.st_uid not in (os.geteuid(), 0):
        return f"{directory} belongs to another user, who may"
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        return f"all users may write to {directory}, and so"
    return None


os.register_at_fork(after_in_child=own_runs.clear)  # the runs are its parent's
