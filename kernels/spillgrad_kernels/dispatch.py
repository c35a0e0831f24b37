"""Run one kernel over a range, on as many threads as the work deserves.

A kernel is a compiled function `kernel(start, stop, *operands)` that works through its share of a range and never holds
the GIL. A small team of Python threads takes shares in turn (a core lent to I/O does not stall the others), so that
kernels need no parallel compilation, no threading layer and no care after a fork: where the team is busy, kernels run
in the caller.
"""

import os
import queue
import threading
from collections.abc import Callable
from typing import Any

Kernel = Callable[..., Any]

# Shares handed out per thread: enough that an uneven one does not leave the other cores idle.
_SHARES_PER_THREAD = 4

_num_threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_num_threads(count: int) -> None:
    """Use `count` threads, the caller's included, for large kernels.

    Raises ValueError unless `count` is at least 1.
    """
    global _num_threads
    if count < 1:
        raise ValueError(f"set_num_threads: got {count}; at least 1 thread is needed")
    _num_threads = int(count)


def get_num_threads() -> int:
    """Return how many threads large kernels use, the caller's included."""
    return _num_threads


class _Shares:
    """Iterate over (start, stop) pairs; safe to advance from several threads, as a generator is not."""

    def __init__(self, count: int, length: int) -> None:
        self._count = count
        self._length = length
        self._starts = iter(range(0, count, length))

    def __iter__(self) -> "_Shares":
        return self

    def __next__(self) -> tuple[int, int]:
        start = next(self._starts)
        return start, min(start + self._length, self._count)


class _Job:
    """One kernel launch: shares of a range that any thread may take; the iterator is shared."""

    def __init__(self, kernel: Kernel, shares: _Shares, operands: tuple[Any, ...]) -> None:
        self.kernel = kernel
        self.shares = shares
        self.operands = operands
        self.error: BaseException | None = None
        self.helper_done: queue.SimpleQueue[None] = queue.SimpleQueue()

    def work(self) -> None:
        try:
            for start, stop in self.shares:
                self.kernel(start, stop, *self.operands)
        except BaseException as error:  # raised again in the launching thread
            self.error = error

    def help(self) -> None:
        self.work()
        self.helper_done.put(None)


class _Team:
    """Daemon threads that help with one job at a time; `busy` is held while a job runs."""

    def __init__(self) -> None:
        self.busy = threading.Lock()
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._size = 0

    def run(self, job: _Job, helpers: int) -> None:
        while self._size < helpers:
            threading.Thread(target=self._serve, name=f"spillgrad-kernel-{self._size}", daemon=True).start()
            self._size += 1
        for _ in range(helpers):
            self._jobs.put(job)
        job.work()
        for _ in range(helpers):
            job.helper_done.get()

    def _serve(self) -> None:
        while True:
            self._jobs.get().help()


_team = _Team()


def _forget_team() -> None:
    """A forked child has none of its parent's threads."""
    global _team
    _team = _Team()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_team)


def parallel_for(kernel: Kernel, count: int, grain: int, *operands: Any) -> None:
    """Call `kernel(start, stop, *operands)` until [0, count) is done; a share is at least `grain` long.

    `grain` is the length below which a thread of its own does not pay (handing work over costs about 50 microseconds).
    Every element is computed by the same code whatever the number of threads, so results do not depend on it.
    """
    if count <= 0:
        return
    threads = min(_num_threads, -(-count // max(grain, 1)))
    if threads > 1 and _team.busy.acquire(blocking=False):
        try:
            length = max(grain, -(-count // (threads * _SHARES_PER_THREAD)))
            job = _Job(kernel, _Shares(count, length), operands)
            _team.run(job, threads - 1)
        finally:
            _team.busy.release()
        if job.error is not None:
            raise job.error
    else:
        kernel(0, count, *operands)
