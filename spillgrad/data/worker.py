"""What a worker of a `DataLoader` does: a process that fetches the batches it is asked for."""

import multiprocessing
import multiprocessing.connection
import os
import pickle
import queue
import random
import signal
import threading
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from spillgrad.data.fetching import Fetcher, Source, WorkerInfo, set_worker_info
from spillgrad.errors import WorkerError
from spillgrad.generator import manual_seed

# How often an idle worker looks whether it is needed: what it waits at most where a fork holds its connection open.
_LOOK_S = 0.5
CLOSED = -1  # the present pass, when there will be no more


class Begin(NamedTuple):
    """Asks a worker to begin a pass with this seed."""

    seed: int


class Failure(NamedTuple):
    """Sent in place of a batch: what was raised in a worker, without what may not be pickled."""

    pickled_type: bytes
    text: str

    def error(self) -> Exception:
        """Return an exception of the same type; a WorkerError where the type takes no message alone."""
        try:
            kind = pickle.loads(self.pickled_type)
            if getattr(kind, "message", None):  # as in PyTorch
                return _checked(kind(message=self.text))
            return _checked(kind(_Shown(self.text) if kind is KeyError else self.text))
        except Exception:
            return WorkerError(self.text)


def _checked(error: Any) -> Exception:
    if not isinstance(error, Exception):
        raise TypeError
    return error


class _Shown(str):
    """A text that KeyError shows as it is, not quoted on one line."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def failure(error: Exception, number: int) -> Failure:
    """Return a description of what was raised in worker `number`."""
    text = "".join(traceback.format_exception(error))
    for kind in type(error).__mro__:
        try:
            pickled = pickle.dumps(kind)
        except Exception:  # such as a class of a function: its base is the next best
            continue
        return Failure(
            pickled, f"Caught {type(error).__name__} in DataLoader worker process {number}.\nOriginal {text}"
        )
    raise AssertionError("object can be pickled")


class Task(NamedTuple):
    """Which worker of how many this is, and what all of them are given."""

    source: Source
    number: int
    workers: int
    init: Callable[[int], Any] | None


def work(connection: Connection, copies: Sequence[Connection], present_pass: Any, task: Task) -> None:
    """Fetch batches until the connection is closed: each message is a pass, and a request or `Begin`.

    `copies` are the parent's ends of connections, which this process has, too, if it was forked.
    """
    for copy in copies:
        copy.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Sending blocks while the parent is busy; meanwhile the next batch is fetched.
    outgoing: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_send, args=(connection, outgoing), daemon=True).start()
    worker = _Worker(task)
    while True:
        try:
            while not connection.poll(_LOOK_S):
                if present_pass.value == CLOSED:
                    return
            number, request = connection.recv()
        except (EOFError, OSError):  # the parent has closed it
            return
        if number == present_pass.value:  # else the pass was broken off
            answer = worker.answer(request)
            if answer is not None:
                outgoing.put(_pickled(number, answer, task.number))


def _pickled(number: int, answer: Any, worker: int) -> bytes:
    try:
        return pickle.dumps((number, answer), pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        return pickle.dumps((number, failure(error, worker)))


def _send(connection: Connection, outgoing: "queue.SimpleQueue[bytes]") -> None:
    try:
        while True:
            connection.send_bytes(outgoing.get())
    except OSError:  # the parent has closed it
        pass


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


class _Worker:
    """The state of a worker: what fetches the batches of the present pass, or why nothing can."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._is_fresh = True  # whether it has begun no pass
        self._fetcher: Fetcher | None = None
        self._failure: Failure | None = None

    def answer(self, request: Any) -> Any:
        """Return a batch, or a `Failure`; begin a pass where that is asked, and return None."""
        try:
            if isinstance(request, Begin):
                self._begin(request.seed)
                return None
            if self._fetcher is None:
                return self._failure
            return self._fetcher.fetch(request)
        except Exception as error:
            found = failure(error, self._task.number)
            if not isinstance(request, Begin):
                return found
            self._failure = found  # it is told when the first batch is asked for
            return None

    def _begin(self, seed: int) -> None:
        task = self._task
        self._fetcher = None
        own = (seed + task.number) % 2**63
        set_worker_info(WorkerInfo(task.number, task.workers, own, task.source.dataset))
        # Random numbers depend on the pass's seed and the worker's number alone.
        random.seed(own)
        manual_seed(own)
        np.random.seed(np.random.SeedSequence(own).generate_state(4))  # datasets may draw from it
        if self._is_fresh and task.init is not None:
            task.init(task.number)  # it may seed otherwise
        self._is_fresh = False
        self._fetcher = Fetcher(task.source)
