"""Which files of a folder this process has open."""

import os
from pathlib import Path


def open_files_below(directory: Path) -> dict[int, str]:
    """Return descriptors and paths of what is open at or below a path, whatever other threads open and close."""
    found = {}
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            path = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:  # that of this listing, or another thread closed it
            continue
        if path.startswith(str(directory)):
            found[fd] = path
    return found
