"""Call a function in a process that compiles no kernel: a process that compiled one keeps 200 MiB until it ends."""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from spillgrad_kernels.jit.compile import counts
from spillgrad_tools.plain_warnings import warnings_for_users

P = ParamSpec("P")
T = TypeVar("T")


def call(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function of a module in a process of its own, and return its result.

    If that process had to compile kernels, a second process repeats the call with the kernels from the disk. Where the
    kernel cache cannot be written, the second process compiles the kernels, too. Raises the exceptions of `function`;
    ChildProcessError when the process ends without an answer.
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


def _ask(request: bytes, name: str) -> tuple[bytes, str]:
    """Return the answer of a new process to `request`, and what it printed; `name` is for the error."""
    process = subprocess.Popen(
        [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        start_new_session=True,  # Ctrl-C reaches it from here alone, and not from the terminal, too
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
    """Make the call that standard input holds, and write its outcome and the number of compiled kernels to stdout."""
    function, args, kwargs = pickle.load(sys.stdin.buffer)
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # what the function prints goes to stderr, apart from the answer
        outcome: Any
        try:
            with warnings_for_users():
                outcome = function(*args, **kwargs)
        except Exception as error:
            outcome = error
        pickle.dump((outcome, counts.compiled), answers)


if __name__ == "__main__":
    _answer()
