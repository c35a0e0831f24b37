"""An error of a command that runs in several processes is printed once, and ends them all."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator

from spillgrad_tools.launch.process import numbers

# How long the other processes wait for the first one, which most errors meet too. Its end is theirs.
_FIRST_SPEAKS_S = 1.0


@contextlib.contextmanager
def one_of_several() -> Iterator[None]:
    """Context manager: print an error, after the first process if this is another one, and then end all processes."""
    if int(numbers(os.environ).get("RANK", 0)) > 0:
        time.sleep(_FIRST_SPEAKS_S)
    yield
    mpi = sys.modules.get("spillgrad.distributed.mpi")
    if mpi is not None and mpi.has_started():
        mpi.world().abort()
