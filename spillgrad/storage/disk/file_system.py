"""The type of the file system under a directory, and its free space."""

import os
from pathlib import Path

_RAM_FILE_SYSTEMS = ("tmpfs", "ramfs")
_MOUNTS = Path("/proc/self/mountinfo")


def file_system(path: str | os.PathLike[str]) -> str | None:
    """Return the type of the file system that `path` is in, such as "ext4"; None if the system does not tell."""
    if not _MOUNTS.exists():
        return None
    device = os.stat(path).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in _MOUNTS.read_text(errors="replace").splitlines():
        # "36 35 98:0 /root /mount/point options [optional fields] - type source super_options"
        mount, _, about = line.partition(" - ")
        if mount.split()[2] == wanted:
            return about.split()[0]
    return None


def is_ram_disk(path: str | os.PathLike[str]) -> bool:
    """Return whether files in a directory would occupy RAM.

    Parameters
    ----------
    path : str or path
        An existing file or folder.

    Returns
    -------
    bool
        False also if the system does not tell.
    """
    return file_system(path) in _RAM_FILE_SYSTEMS


def free_bytes(path: str | os.PathLike[str]) -> int:
    """Return how many bytes this user may still write to a file system.

    Parameters
    ----------
    path : str or path
        A file or folder in the file system.

    Returns
    -------
    int
        Number of bytes.
    """
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize
