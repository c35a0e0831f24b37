"""`spillgrad launch`: call MPI's mpiexec with what training needs, whichever MPI is installed."""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping

import typer

from spillgrad.errors import ArgumentError
from spillgrad_tools.launch.mpiexec import Ending, Mpiexec
from spillgrad_tools.launch.options import LaunchOptions
from spillgrad_tools.launch.placement import Placement
from spillgrad_tools.launch.program import Program, program_of
from spillgrad_tools.options import INTERRUPTED

# Which start this is: 0 at first. The second name is that of PyTorch's torchrun.
_RESTARTS = ("SPILLGRAD_RESTART", "TORCHELASTIC_RESTART_COUNT")


def run(options: LaunchOptions) -> bool:
    """Start the processes, and wait for them; return whether all have succeeded.

    While processes are lost, start again without them, as often as the options say.
    """
    program_of(options.words)  # a mistake is said before anything starts
    program = Program(options.words, starts_again=options.max_restarts > 0)
    path = _mpiexec()
    version = _version(path)
    placement = Placement.of(options.processes, options.hosts)
    with Mpiexec() as mpiexec:
        for restart in range(options.max_restarts + 1):
            environment = {**os.environ, **dict.fromkeys(_RESTARTS, str(restart))}
            words = [*mpiexec_words(path, version, placement, environment), *program_of(program.words)]
            ending = mpiexec.run(words, environment, captures_output=_is_hydra(version))
            if ending.status == 0:
                return True
            if ending.was_interrupted:
                raise typer.Exit(INTERRUPTED)
            if restart == options.max_restarts or not ending.may_go_on:
                return _say_why_not(options, ending)
            if program.has_ended:
                _say("the last step is saved, so nothing is left to do")
                return True
            placement = placement.without(ending.lost)
            if placement.processes < 1:
                _say("no process is left to start again; start anew with --hosts or -n for what is there")
                return False
            _say(f"restart {restart + 1} of {options.max_restarts}: {placement}, {program.progress}")
    return False


def _say_why_not(options: LaunchOptions, ending: Ending) -> bool:
    if options.max_restarts and ending.may_go_on:
        _say(f"no restart is left of --max-restarts {options.max_restarts}")
    return False


def _say(told: str) -> None:
    print(f"spillgrad: launch: {told}", file=sys.stderr, flush=True)


def _mpiexec() -> str:
    """Return the path of mpiexec: that of this Python's packages, or else the system's."""
    own = shutil.which("mpiexec", path=sysconfig.get_path("scripts"))
    found = own or shutil.which("mpiexec")
    if found is None:
        raise ArgumentError("launch: there is no mpiexec here; install MPI with pip install 'spillgrad[mpi]'")
    return found


def _version(mpiexec: str) -> str:
    return subprocess.run([mpiexec, "--version"], capture_output=True, text=True, check=False).stdout


def _is_hydra(version: str) -> bool:
    """Return whether an mpiexec is that of MPICH and what comes of it."""
    return "HYDRA" in version.upper()


def mpiexec_words(mpiexec: str, version: str, placement: Placement, environment: Mapping[str, str]) -> list[str]:
    """Return the command that starts processes by an mpiexec, without the program."""
    words = [mpiexec, "-n", str(placement.processes)]
    if _is_hydra(version):  # it hands on the whole environment, also to other machines
        return words if placement.slots is None else [*words, "-hosts", placement.slots]
    # Open MPI binds processes to cores, refuses more of them than there are cores, and refuses root.
    words += ["--bind-to", "none", "--map-by", "slot:OVERSUBSCRIBE"]
    if os.geteuid() == 0:
        words += ["--allow-run-as-root"]
    for name in sorted(environment):
        if name.startswith("SPILLGRAD_") or name in _RESTARTS:
            words += ["-x", name]
    return words if placement.slots is None else [*words, "--host", placement.slots]
