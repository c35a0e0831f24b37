"""Start programs in several processes, as a user does."""

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

PROGRAMS = Path(__file__).parent / "programs"
_REPOSITORY = Path(__file__).parents[2]
PYTHONPATH = os.pathsep.join(str(_REPOSITORY / folder) for folder in (".", "kernels", "tools"))
_MOMENT_S = 0.01


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
    began_s = time.monotonic()
    with started(launched(processes, *words), **environment) as running:
        output, errors = running.communicate(timeout=timeout_s)
    return Ran(running.returncode, output, errors, time.monotonic() - began_s)


def launched(processes: int, *words: object, options: Sequence[object] = ()) -> list[str]:
    """Return the command of `spillgrad launch`."""
    program = [PROGRAMS / str(words[0]), *words[1:]] if (PROGRAMS / str(words[0])).is_file() else words
    command = [sys.executable, "-m", "spillgrad", "launch", "-n", processes, *options, *program]
    return list(map(str, command))


@contextlib.contextmanager
def started(command: Sequence[str], **environment: str) -> Iterator["subprocess.Popen[str]"]:
    """Context manager: start a command in a session of its own, as a terminal does; none of its processes survives."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "PYTHONPATH": PYTHONPATH, **environment},
    ) as running:  # fmt: skip
        try:
            yield running
        finally:
            for process in [*family(running), running]:
                with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                    process.send_signal(signal.SIGKILL)


def family(running: "subprocess.Popen[str]") -> list[psutil.Process]:
    """Return all processes below one."""
    try:
        return psutil.Process(running.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def ranks(running: "subprocess.Popen[str]") -> list[psutil.Process]:
    """Return the processes that a launcher has started."""
    found = []
    for process in family(running):
        with contextlib.suppress(psutil.NoSuchProcess, IndexError):
            if process.cmdline()[:3] == [sys.executable, "-m", "spillgrad_tools.launch.process"]:
                found.append(process)
    return found


def wait_until(happened: Callable[[], object], running: "subprocess.Popen[str]", timeout_s: float = 120) -> None:
    """Wait until something has happened while a command runs."""
    deadline_s = time.monotonic() + timeout_s
    while not happened():
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < deadline_s
        time.sleep(_MOMENT_S)
