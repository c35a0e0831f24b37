"""Processes that each know one library, asked and answering one JSON line at a time."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any


class Worker:
    """A process that knows one library. It runs `module`, whose `answer_requests` answers `ask`."""

    def __init__(self, module: str, library: str, threads: int) -> None:
        limits = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
        # OpenBLAS's idle threads spin for 2^26 cycles, into the turn of the next library; 2^20 bridge the gap between
        # two calls just as well.
        limits["OPENBLAS_THREAD_TIMEOUT"] = "20"
        self.library = library
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, library, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **limits, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self.version: str = self.ask(do="version")["version"]

    def __enter__(self) -> "Worker":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:  # it may be busy for minutes
            self._process.kill()
        self._process.communicate()

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request and return the answer.

        Raises RuntimeError when the process has died; what it died of is on its stderr.
        """
        assert self._process.stdin and self._process.stdout
        line = ""
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            pass  # no line either
        if not line:
            raise RuntimeError(f"bench: the {self.library} process ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def answer_requests(handlers: Mapping[str, Callable[..., dict[str, Any]]]) -> None:
    """Answer requests on standard input by the handler that each names under "do", until the input ends."""
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(handlers[request.pop("do")](**request)), flush=True)
