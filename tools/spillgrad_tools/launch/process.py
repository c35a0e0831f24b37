"""One process of `spillgrad launch`: sets what launchers of PyTorch's programs set, and runs the program."""

import ctypes
import os
import runpy
import signal
import sys
from collections.abc import Mapping

# By PyTorch's name: Open MPI's and MPICH's names of the same number.
NUMBERS = {
    "RANK": ("OMPI_COMM_WORLD_RANK", "PMI_RANK"),
    "WORLD_SIZE": ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"),
    "LOCAL_RANK": ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"),
    "LOCAL_WORLD_SIZE": ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"),
}

_LIBC = ctypes.CDLL(None)  # before a process forks
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def numbers(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the numbers of this process by PyTorch's names, as far as MPI's launcher tells them."""
    return {
        name: environment[known]
        for name, candidates in NUMBERS.items()
        for known in [next((each for each in candidates if each in environment), None)]
        if known is not None
    }


def end_with_parent() -> None:
    """Have Linux kill this process when its parent has ended."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """Run the program that the command line names, as Python itself would; SIGUSR1 interrupts it as Ctrl-C does."""
    os.environ.update(numbers(os.environ))
    end_with_parent()
    signal.signal(signal.SIGUSR1, signal.default_int_handler)
    try:
        _run(sys.argv[1:])
    except KeyboardInterrupt:  # one traceback for each process would say nothing more
        sys.exit(128 + signal.SIGINT)


def _run(words: list[str]) -> None:
    if words[0] == "-m":
        sys.argv = words[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path[0] = os.path.dirname(os.path.abspath(words[0]))
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
