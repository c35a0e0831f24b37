"""Call a function in a process without the 200 MiB of memory that a process keeps after it compiled a kernel."""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from spillgrad.errors import BudgetError
from spillgrad_kernels.jit.compile import counts
from spillgrad_tools import start_anew
from spillgrad_tools.plain_warnings import warnings_for_users
from spillgrad_tools.termination import unwinding

P = ParamSpec("P")
T = TypeVar("T")


def call(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function of a module in a process of its own, and return the function's result.

    If that process had to compile kernels, a second process repeats the call with the kernels from the disk. If the
    kernel cache cannot be written, the second process compiles the kernels again. Raises the exceptions of `function`.
    Raises ChildProcessError if the process ends without an answer.
    """
    request = pickle.dumps((function, args, kwargs))
    for _ in range(2):
        answer, complaints = _ask(request, function.__name__)
        outcome, compiled = pickle.loads(answer)
        if not compiled:
            break
    sys.stderr.write(complaints)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome  # type: ignore[no-any-return]


def without_compiler(make: Callable[[], T], handed: Mapping[str, Any], leave: Callable[[], Mapping[str, Any]]) -> T:
    """Return what `make` plans; if that compiled kernels, call `leave` and start anew first, unless that was done.

    A plan counts the memory of its process, and a compiler has a part in that. The next program has the kernels on
    disk. `handed` is what was handed over to this program, and what `leave` returns is handed over to the next.
    """
    error = None
    try:
        found = make()
    except BudgetError as raised:
        error = raised
    if counts.compiled and not handed:
        start_anew.start_anew(compiled=counts.compiled, **leave())
    if error is not None:
        raise error
    return found


def _ask(request: bytes, name: str) -> tuple[bytes, str]:
    """Send `request` to a new process; return its answer and what it printed. `name` appears in the error."""
    process = subprocess.Popen(
        [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        start_new_session=True,  # Ctrl-C on the terminal must not reach it; this process passes the signal on
    )  # fmt: skip
    try:
        answer, complaints = process.communicate(request)
    except BaseException:
        process.send_signal(signal.SIGINT)  # the process then removes its files
        process.communicate()
        raise
    if process.returncode:
        sys.stderr.write(complaints.decode())
        raise ChildProcessError(f"{name}: its process ended with status {process.returncode}")
    return answer, complaints.decode()


def _answer() -> None:
    """Read a call from stdin and make it; write its outcome and the number of compiled kernels to stdout."""
    function, args, kwargs = pickle.load(sys.stdin.buffer)
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # what the function prints goes to stderr, apart from the answer
        outcome: Any
        try:
            with unwinding(), warnings_for_users():
                outcome = function(*args, **kwargs)
        except Exception as error:
            outcome = error
        pickle.dump((outcome, counts.compiled), answers)


if __name__ == "__main__":
    _answer()
