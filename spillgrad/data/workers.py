"""The processes of a `DataLoader`, which fetch batches ahead; and the functions that they run."""

import collections
import itertools
import multiprocessing
import multiprocessing.connection
import os
import random
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import numpy as np

from spillgrad.data.fetching import End, Fetcher, Source, WorkerInfo, set_worker_info
from spillgrad.errors import WorkerError
from spillgrad.generator import manual_seed


class Workers:
    """So many processes, of which each has a queue of its own, so that it gets the same batches in every run."""

    def __init__(
        self, source: Source, count: int, seed: int, init: Callable[[int], Any] | None, context: Any, timeout_s: float
    ) -> None:  # fmt: skip
        if context is None or isinstance(context, str):
            context = multiprocessing.get_context(context)
        self._pools = [
            futures.ProcessPoolExecutor(1, context, _begin_worker, (source, number, count, seed, init))
            for number in range(count)
        ]
        self._pids: list[int | None] = [None] * count
        self._timeout_s = timeout_s or None

    def close(self, kill: bool = False) -> None:
        """End the processes, and wait until they have ended: when they have done their work, or at once."""
        for pool in self._pools if kill else ():
            for process in list((pool._processes or {}).values()):
                process.kill()
        for pool in self._pools:
            pool.shutdown(cancel_futures=True)

    def batches(self, requests: Iterable[Any], seed: int, ahead: int) -> Iterator[Any]:
        """Yield the batches of a pass in the order of their requests; each worker fetches `ahead` batches ahead.

        Raises WorkerError when a worker died or took too long. A worker's exceptions are raised as they are.
        """
        count = len(self._pools)
        begun = [pool.submit(_begin_pass, number, count, seed) for number, pool in enumerate(self._pools)]
        self._pids = [self._result(number, future) for number, future in enumerate(begun)]
        ended: set[int] = set()
        numbers, left = itertools.cycle(range(count)), iter(requests)
        pending: collections.deque[tuple[int, futures.Future[Any]]] = collections.deque()
        while True:
            while len(pending) < ahead * count and len(ended) < count:
                number = next(numbers)
                if number not in ended:
                    request = next(left, End)
                    if request is End:
                        break
                    pending.append((number, self._submit(number, request)))
            if not pending:
                return
            number, future = pending.popleft()
            batch = self._result(number, future)
            if isinstance(batch, End):
                ended.add(number)
            else:
                yield batch

    def _submit(self, number: int, request: Any) -> "futures.Future[Any]":
        try:
            return self._pools[number].submit(_fetch, request)
        except BrokenProcessPool:
            raise self._died(number) from None

    def _result(self, number: int, future: "futures.Future[Any]") -> Any:
        try:
            return future.result(self._timeout_s)
        except BrokenProcessPool:
            raise self._died(number) from None
        except futures.TimeoutError:
            if future.done():  # the worker raised it
                raise
            raise WorkerError(
                f"DataLoader: DataLoader timed out after {self._timeout_s} seconds, in worker {number}; give a longer "
                "timeout, or more workers"
            ) from None

    def _died(self, number: int) -> WorkerError:
        return WorkerError(
            f"DataLoader: DataLoader worker {number} (pid {self._pids[number]}) exited unexpectedly: perhaps it was "
            "killed for want of memory, or raised as it began; try num_workers=0"
        )


# In a worker: where it gets samples from, and what fetches the batches of its present pass.
_source: Source
_fetcher: Fetcher
_is_fresh: bool  # whether it has begun no pass


def _begin_worker(source: Source, number: int, workers: int, seed: int, init: Callable[[int], Any] | None) -> None:
    """Prepare this process to be a worker."""
    global _source, _is_fresh
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _source = source
    _seed(number, workers, seed)
    _is_fresh = True
    if init is not None:
        init(number)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _seed(number: int, workers: int, seed: int) -> None:
    """Let this worker's random numbers depend on the pass's seed and the worker's number alone."""
    own = (seed + number) % 2**63
    set_worker_info(WorkerInfo(number, workers, own, _source.dataset))
    random.seed(own)
    manual_seed(own)
    np.random.seed(np.random.SeedSequence(own).generate_state(4))  # datasets may draw from it


def _begin_pass(number: int, workers: int, seed: int) -> int:
    """Begin a pass; return the number of this process."""
    global _fetcher, _is_fresh
    if not _is_fresh:  # else the worker was seeded as it began, and its `worker_init_fn` may have seeded it otherwise
        _seed(number, workers, seed)
    _is_fresh = False
    _fetcher = Fetcher(_source)
    return os.getpid()


def _fetch(request: Any) -> Any:
    return _fetcher.fetch(request)
