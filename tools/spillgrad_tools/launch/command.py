"""`spillgrad launch`: call MPI's mpiexec with what training needs, whichever MPI is installed."""

import io
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from spillgrad.errors import ArgumentError
from spillgrad_tools.launch.banners import without_banners
from spillgrad_tools.launch.options import LaunchOptions


def run(options: LaunchOptions) -> bool:
    """Start the processes, and wait for them; return whether all have succeeded."""
    program = program_of(options.words)
    mpiexec = _mpiexec()
    command = [*mpiexec_words(mpiexec, _version(mpiexec), options.processes, options.hosts), *program]
    has_told = False
    with subprocess.Popen(command, stderr=subprocess.PIPE) as started:
        assert started.stderr is not None
        # Lines end as they do: a progress bar returns to its beginning.
        for line in without_banners(io.TextIOWrapper(started.stderr, errors="replace", newline="")):
            sys.stderr.write(line)
            sys.stderr.flush()
            has_told = True
    if started.returncode and not has_told:
        told = "and said nothing; probably one was killed, for want of memory or from outside"
        print(f"spillgrad: launch: the processes ended with status {started.returncode}, {told}", file=sys.stderr)
    return started.returncode == 0


def program_of(words: Sequence[str]) -> list[str]:
    """Return the words that start one process. Raises ArgumentError if a named file is missing."""
    first = words[0]
    if first.endswith(".py"):
        if not Path(first).is_file():
            raise ArgumentError(f"launch: got {first}, which is no file; name a Python file or a command of spillgrad")
        program = list(words)
    elif first == "-m":
        if len(words) == 1:
            raise ArgumentError("launch: got -m without a module; name one, such as launch -n 2 -- -m package.module")
        program = list(words)
    else:
        program = ["-m", "spillgrad", *words]
    return [sys.executable, "-m", "spillgrad_tools.launch.process", *program]


def _mpiexec() -> str:
    """Return the path of mpiexec: that of this Python's packages, or else the system's."""
    own = shutil.which("mpiexec", path=sysconfig.get_path("scripts"))
    found = own or shutil.which("mpiexec")
    if found is None:
        raise ArgumentError("launch: there is no mpiexec here; install MPI with pip install 'spillgrad[mpi]'")
    return found


def _version(mpiexec: str) -> str:
    return subprocess.run([mpiexec, "--version"], capture_output=True, text=True, check=False).stdout


def mpiexec_words(mpiexec: str, version: str, processes: int, hosts: str | None) -> list[str]:
    """Return the command that starts processes by an mpiexec, without the program."""
    words = [mpiexec, "-n", str(processes)]
    if "HYDRA" in version.upper():  # MPICH and what comes of it
        return words if hosts is None else [*words, "-hosts", hosts]
    # Open MPI binds processes to cores, refuses more of them than there are cores, and refuses root.
    words += ["--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"]
    if os.geteuid() == 0:
        words += ["--allow-run-as-root"]
    return words if hosts is None else [*words, "--host", _with_slots(hosts, processes)]


def _with_slots(hosts: str, processes: int) -> str:
    """Return hosts with equally many processes on each, as Open MPI wants it."""
    named = hosts.split(",")
    each = -(-processes // len(named))
    return ",".join(host if ":" in host else f"{host}:{each}" for host in named)
