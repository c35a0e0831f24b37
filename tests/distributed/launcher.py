"""Start programs in several processes, as a user does."""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
_REPOSITORY = Path(__file__).parents[2]
PYTHONPATH = os.pathsep.join(str(_REPOSITORY / folder) for folder in (".", "kernels", "tools"))


@dataclass
class Ran:
    status: int
    output: str
    errors: str
    took_s: float


needs_mpi = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None or shutil.which("mpiexec", path=sysconfig.get_path("scripts")) is None,
    reason="pip install 'spillgrad[mpi]' brings MPI",
)


def launch(processes: int, *words: object, timeout_s: float = 240, **environment: str) -> Ran:
    """Start the same words, of which the first may name a program of this folder, by `spillgrad launch`."""
    program = [PROGRAMS / str(words[0]), *words[1:]] if (PROGRAMS / str(words[0])).is_file() else words
    command = [sys.executable, "-m", "spillgrad", "launch", "-n", str(processes), *map(str, program)]
    began_s = time.monotonic()
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, check=False,
        env={**os.environ, "PYTHONPATH": PYTHONPATH, **environment},
    )  # fmt: skip
    return Ran(ran.returncode, ran.stdout, ran.stderr, time.monotonic() - began_s)
