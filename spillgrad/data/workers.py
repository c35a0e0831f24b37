"""The processes of a `DataLoader`, which fetch batches ahead."""

import collections
import ctypes
import itertools
import multiprocessing
import multiprocessing.connection
import os
import pickle
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from spillgrad.data.fetching import End, Source
from spillgrad.data.worker import CLOSED, Begin, Failure, Task, work
from spillgrad.errors import ArgumentError, WorkerError

# How long a worker may go on with the batch it is fetching when the pass is broken off.
_LAST_BATCH_S = 5.0


def check_context(workers: int, context: Any) -> None:
    """Raise ArgumentError for a context of `multiprocessing`, or a start method, that no worker can have."""
    if workers == 0:
        raise ArgumentError(
            "DataLoader: multiprocessing_context can only be used with multi-process loading (num_workers > 0), but "
            "got num_workers=0; leave it out"
        )
    methods = multiprocessing.get_all_start_methods()
    if isinstance(context, str) and context not in methods:
        raise ArgumentError(
            "DataLoader: multiprocessing_context option should specify a valid start method in "
            f"{methods}, but got multiprocessing_context={context!r}"
        )


class Workers:
    """So many processes, of which each has a connection of its own, so that it gets the same batches in every run."""

    def __init__(
        self, source: Source, count: int, init: Callable[[int], Any] | None, context: Any, timeout_s: float
    ) -> None:
        if context is None or isinstance(context, str):
            context = multiprocessing.get_context(context)
        self._present_pass = context.RawValue(ctypes.c_longlong, 0)
        self._timeout_s, self._parent = timeout_s or None, os.getpid()
        self._connections: list[Connection] = []
        self._processes: list[Any] = []
        is_forked = context.get_start_method() == "fork"
        for number in range(count):
            own, its = context.Pipe()
            self._connections.append(own)
            copies = self._connections if is_forked else []  # a fork has them, and would keep them open
            task = Task(source, number, count, init)
            process = context.Process(target=work, args=(its, copies, self._present_pass, task), daemon=True)
            try:
                process.start()
            except BaseException:
                self.close(kill=True)
                raise
            finally:
                its.close()
            self._processes.append(process)

    def close(self, kill: bool = False) -> None:
        """End the processes, and wait until they have ended: at once, or when they have fetched the present batch."""
        if os.getpid() != self._parent:  # a fork, which they do not work for
            return
        self._present_pass.value = CLOSED
        for connection in self._connections:
            connection.close()
        for process in self._processes if kill else ():
            process.kill()
        for process in self._processes:
            process.join(_LAST_BATCH_S)
            if process.is_alive():
                process.kill()
                process.join()

    def batches(self, requests: Iterable[Any], seed: int, ahead: int) -> Iterator[Any]:
        """Yield the batches of a pass in the order of their requests; each worker fetches `ahead` batches ahead.

        Raises WorkerError when a worker died or took too long. What a worker raised is raised as in PyTorch: of the
        same type if that takes a message, with the worker's traceback in it.
        """
        self._present_pass.value += 1
        try:
            yield from self._batches(requests, seed, ahead)
        finally:
            if self._present_pass.value != CLOSED:  # what was asked for ahead is of no use
                self._present_pass.value += 1

    def _batches(self, requests: Iterable[Any], seed: int, ahead: int) -> Iterator[Any]:
        count = len(self._processes)
        for number in range(count):
            self._ask(number, Begin(seed))
        ended: set[int] = set()
        numbers, left = itertools.cycle(range(count)), iter(requests)
        pending: collections.deque[int] = collections.deque()
        while True:
            while len(pending) < ahead * count and len(ended) < count:
                number = next(numbers)
                if number not in ended:
                    request = next(left, End)
                    if request is End:
                        break
                    self._ask(number, request)
                    pending.append(number)
            if not pending:
                return
            number = pending.popleft()
            batch = self._answer(number)
            if isinstance(batch, Failure):
                raise batch.error()
            if isinstance(batch, End):
                ended.add(number)
            else:
                yield batch

    def _ask(self, number: int, request: Any) -> None:
        try:
            self._connections[number].send((self._present_pass.value, request))
        except OSError:
            raise self._died(number) from None

    def _answer(self, number: int) -> Any:
        connection, process = self._connections[number], self._processes[number]
        while True:
            ready = multiprocessing.connection.wait([connection, process.sentinel], self._timeout_s)
            if not ready:
                raise WorkerError(
                    f"DataLoader: DataLoader timed out after {self._timeout_s} seconds, in worker {number}; give a "
                    "longer timeout, or more workers"
                )
            try:
                if connection not in ready:
                    raise EOFError
                answered = connection.recv_bytes()
            except (EOFError, OSError):
                raise self._died(number) from None
            its_pass, answer = pickle.loads(answered)
            if its_pass == self._present_pass.value:  # else that pass was broken off
                return answer

    def _died(self, number: int) -> WorkerError:
        process = self._processes[number]
        process.join(_LAST_BATCH_S)
        return WorkerError(
            f"DataLoader: DataLoader worker {number} (pid {process.pid}) exited unexpectedly, with code "
            f"{process.exitcode}: perhaps it was killed for want of memory; try num_workers=0"
        )
