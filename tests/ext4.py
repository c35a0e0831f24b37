"""A real ext4 file system in a file, whose power can be cut. Only root can mount it; tests skip where nobody may."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

# Prepended to each program. `cut_power()` stops the file system at once: what was written but is not on the disk is
# lost, and from then on each call fails with EIO, as if the disk were unplugged. `restart()` mounts it again.
_HEAD = """
import fcntl, os, struct, subprocess, sys
image, place = sys.argv[1:3]

def cut_power():
    EXT4_IOC_SHUTDOWN, NOLOGFLUSH = 0x8004587D, 2
    descriptor = os.open(place, os.O_RDONLY)
    try:
        fcntl.ioctl(descriptor, EXT4_IOC_SHUTDOWN, struct.pack("I", NOLOGFLUSH))
    finally:
        os.close(descriptor)

def restart():
    subprocess.run(["umount", place], check=True)
    subprocess.run(["mount", "-o", "loop,noatime", image, place], check=True)
"""


class Ext4:
    """A file system in a file beside `place`; each `run` mounts it at `place`, for its own process alone."""

    def __init__(self, place: Path, mebibytes: int = 64) -> None:
        self._image = place.with_name(f"{place.name}.ext4")
        self._place = place
        place.mkdir(exist_ok=True)
        if os.geteuid() or not (shutil.which("mkfs.ext4") and shutil.which("unshare")):
            pytest.skip("only root can mount a file system")
        with self._image.open("wb") as image:
            image.truncate(mebibytes << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", self._image], check=True)
        if subprocess.run([*self._mounted(), "true"], capture_output=True).returncode:
            pytest.skip("this system mounts no file systems in files")

    def _mounted(self) -> tuple[str, ...]:
        mount = f"mount -o loop,noatime {self._image} {self._place} && chmod 700 {self._place}"
        return ("unshare", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh")

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a Python program, which finds the file system at `place`, and the arguments in `sys.argv[3:]`."""
        command = [*self._mounted(), sys.executable, "-c", _HEAD + textwrap.dedent(program)]
        return subprocess.run(
            [*command, str(self._image), str(self._place), *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=60,
        )
