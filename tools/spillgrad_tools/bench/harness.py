"""Processes that each know one library, asked and answering one JSON line at a time."""

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from spillgrad_tools.memory_cap import MemoryCap


class WorkerEnded(RuntimeError):
    """A process ended before it answered, with `status`: minus the number of the signal that killed it."""

    def __init__(self, library: str, status: int) -> None:
        super().__init__(f"bench: the {library} process ended with status {status}")
        self.library, self.status = library, status


class RequestFailed(RuntimeError):
    """A process could not do what it was asked, and said why."""

    def __init__(self, library: str, why: str) -> None:
        super().__init__(why)
        self.library = library


class Worker:
    """A process that knows one library on a device. It runs `module`, whose `answer_requests` answers `ask`.

    It has the memory that `cap` leaves it, if one is given. Raises WorkerEnded when it does not even start.
    """

    def __init__(
        self, module: str, library: str, threads: int, cap: MemoryCap | None = None, device: str = "cpu"
    ) -> None:
        limits = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
        # OpenBLAS's idle threads spin for 2^26 cycles, into the turn of the next library; 2^20 bridge the gap between
        # two calls just as well.
        limits["OPENBLAS_THREAD_TIMEOUT"] = "20"
        self.library = library
        command = [sys.executable, "-m", module, library, str(threads), device]
        self._process = subprocess.Popen(
            command if cap is None else cap.command(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **limits, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        try:
            self.version: str | None = self.ask(do="version")["version"]
        except WorkerEnded:
            self._process.communicate()
            raise

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

        Raises WorkerEnded when the process has died; what it died of is on its stderr. Raises RequestFailed when it
        answers that it could not.
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
            raise WorkerEnded(self.library, self._process.wait())
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            raise RequestFailed(self.library, answer["failed"])
        return answer


def answer_requests(handlers: Mapping[str, Callable[..., dict[str, Any]]], survives: bool = False) -> None:
    """Answer requests on standard input by the handler that each names under "do", until the input ends.

    An error ends the process or, if it survives them, is printed and the answer.
    """
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = handlers[request.pop("do")](**request)
        except Exception as error:
            if not survives:
                raise
            traceback.print_exc()
            answer = {"failed": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
