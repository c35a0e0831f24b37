"""What the file system under a directory is, and how much room it has."""

import os
from pathlib import Path

_RAM_FILE_SYSTEMS = ("tmpfs", "ramfs")
_MOUNTS = Path("/proc/self/mountinfo")


def is_ram_disk(path: str | os.PathLike[str]) -> bool:
    """Return whether files in `path` would occupy RAM; False where the system does not tell."""
    if not _MOUNTS.exists():
        return False
    device = os.stat(path).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in _MOUNTS.read_text(errors="replace").splitlines():
        # "36 35 98:0 /root /mount/point options [optional fields] - type source super_options"
        mount, _, file_system = line.partition(" - ")
        if mount.split()[2] == wanted:
            return file_system.split()[0] in _RAM_FILE_SYSTEMS
    return False


def free_bytes(path: str | os.PathLike[str]) -> int:
    """Return how many bytes this user may still write there."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize
