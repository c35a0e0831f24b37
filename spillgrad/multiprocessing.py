"""Python's package `multiprocessing`, and the further names of `torch.multiprocessing`.

Tensors are pickled from one process to another, in which each has its own copy; PyTorch shares their memory.
"""

import multiprocessing as _standard
import multiprocessing.connection
import traceback
from collections.abc import Callable, Iterable
from multiprocessing import *  # noqa: F403
from typing import Any

from spillgrad.errors import ArgumentError, WorkerError

__all__ = [
    *_standard.__all__,
    "ProcessContext", "ProcessException", "get_all_sharing_strategies", "get_sharing_strategy", "set_sharing_strategy",
    "spawn", "start_processes",
]  # fmt: skip


class ProcessException(WorkerError):
    """Raised for a process of `spawn` that failed; the message holds its traceback."""


def get_all_sharing_strategies() -> set[str]:
    """Return {"file_system"}, which PyTorch has everywhere."""
    return {"file_system"}


def get_sharing_strategy() -> str:
    """Return "file_system"."""
    return "file_system"


def set_sharing_strategy(new_strategy: str) -> None:
    """Accept PyTorch's strategies, which change nothing: tensors are copied. Raises ArgumentError for another."""
    if new_strategy not in ("file_descriptor", "file_system"):
        raise ArgumentError(f"set_sharing_strategy: got {new_strategy!r}; wanted 'file_system' or 'file_descriptor'")


def _run(fn: Callable[..., Any], number: int, args: tuple[Any, ...], failures: Any) -> None:
    try:
        fn(number, *args)
    except KeyboardInterrupt:
        pass  # the parent got it, too
    except Exception:
        failures.put((number, traceback.format_exc()))
        raise SystemExit(1) from None


class ProcessContext:
    """The processes that `spawn` started."""

    def __init__(self, processes: list[Any], failures: Any) -> None:
        self.processes = processes
        self._failures = failures

    def pids(self) -> list[int]:
        """Return the numbers of the processes."""
        return [process.pid for process in self.processes]

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Wait for one process to end, or `timeout` seconds; return whether all have ended.

        If one failed, ends the others and raises ProcessException with its traceback.
        """
        running = {process.sentinel: process for process in self.processes if process.exitcode is None}
        ready = _standard.connection.wait(list(running), timeout) if running else []
        for sentinel in ready:
            running[sentinel].join()
        failed = [number for number, process in enumerate(self.processes) if process.exitcode]
        if failed:
            for process in self.processes:
                if process.is_alive():
                    process.terminate()
            for process in self.processes:
                process.join(grace_period)
            self._raise(failed[0])
        return all(process.exitcode is not None for process in self.processes)

    def _raise(self, number: int) -> None:
        code = self.processes[number].exitcode
        if code == 1 and not self._failures.empty():
            number, trace = self._failures.get()
            raise ProcessException(f"spawn: process {number} terminated with the following error:\n{trace}")
        raise ProcessException(f"spawn: process {number} terminated with exit code {code}; see what it printed")


def start_processes(
    fn: Callable[..., Any], args: Iterable[Any] = (), nprocs: int = 1, join: bool = True, daemon: bool = False,
    start_method: str = "spawn",
) -> ProcessContext | None:  # fmt: skip
    """Start `nprocs` processes, each of which calls `fn(number, *args)`; with `join`, wait for all.

    Returns the processes; with `join`, None. Raises ProcessException, with its traceback, if one failed.
    """
    context = _standard.get_context(start_method)
    failures = context.SimpleQueue()
    processes: list[Any] = []
    for number in range(nprocs):
        process = context.Process(target=_run, args=(fn, number, tuple(args), failures), daemon=daemon)  # type: ignore[attr-defined]
        process.start()
        processes.append(process)
    started = ProcessContext(processes, failures)
    if not join:
        return started
    while not started.join():
        pass
    return None


def spawn(
    fn: Callable[..., Any], args: Iterable[Any] = (), nprocs: int = 1, join: bool = True, daemon: bool = False,
    start_method: str = "spawn",
) -> ProcessContext | None:  # fmt: skip
    """Start `nprocs` processes, each of which calls `fn(number, *args)`; with `join`, wait for all.

    Returns the processes; with `join`, None. Raises ProcessException, with its traceback, if one failed.
    """
    return start_processes(fn, args, nprocs, join, daemon, start_method)
