"""Start the command of this process anew, in the same process: what the process took of memory is given back."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

from spillgrad.errors import BudgetError
from spillgrad_kernels.jit.compile import counts

T = TypeVar("T")

# What the former program hands over to the next one of the same process: its number, and values by name.
_VARIABLE = "SPILLGRAD_HANDED_OVER"
# Whether the command line is that of the process; it is not where a Python program calls the command as a function.
is_own_process = False


def is_possible() -> bool:
    """Return whether this process runs nothing but the command."""
    return is_own_process and bool(sys.executable and sys.orig_argv)


def start_anew(**values: Any) -> NoReturn:
    """Run the command line of this process again in its place; `handed_over` then returns `values`.

    The process keeps its number, its streams and its folder; threads, handlers of signals and memory are gone. Values
    are what JSON can represent. Raises OSError if Python cannot be started.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    environment = {**os.environ, _VARIABLE: json.dumps([os.getpid(), values])}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def without_compiler(make: Callable[[], T], handed: Mapping[str, Any], leave: Callable[[], None]) -> T:
    """Return what `make` plans; if that compiled kernels, call `leave` and start anew first, unless that was done.

    A plan counts the memory of its process, and a compiler has a part in that. The next program has the kernels on
    disk. `handed` is what was handed over to this program.
    """
    error = None
    try:
        found = make()
    except BudgetError as raised:
        error = raised
    if counts.compiled and not handed:
        leave()
        start_anew(compiled=counts.compiled)
    if error is not None:
        raise error
    return found


def handed_over() -> dict[str, Any]:
    """Return, once, the values with which this process started anew; none if it did not."""
    number, values = json.loads(os.environ.pop(_VARIABLE, "[0, {}]"))
    return values if number == os.getpid() else {}
