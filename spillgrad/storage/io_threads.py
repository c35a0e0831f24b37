"""The threads that move payloads, shared by all stores of the process."""

import os
import queue
import threading
from collections.abc import Callable

from spillgrad.errors import SpillError

# One thread's checksums hide under another's system calls.
_THREADS = 2

Job = tuple[Callable[[], None], Callable[[SpillError | None], None]]
_jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
_starting = threading.Lock()
_started = False


def submit(work: Callable[[], None], ended: Callable[[SpillError | None], None]) -> None:
    """Have a thread call `work` after what was submitted before, and then `ended`, with the error if it raised."""
    global _started
    if not _started:
        with _starting:
            if not _started:
                for i in range(_THREADS):
                    threading.Thread(target=_work, args=(_jobs,), name=f"spillgrad-io-{i}", daemon=True).start()
                _started = True
    _jobs.put((work, ended))


def _work(jobs: queue.SimpleQueue[Job]) -> None:
    while True:
        work, ended = jobs.get()
        try:
            work()
        except BaseException as error:
            thread = threading.current_thread()
            ended(SpillError(f"the {thread.name} thread met {error!r}; make a new store"))
            threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, thread)))
        else:
            ended(None)
        del work, ended  # while it waits it keeps no store alive


def _forget() -> None:
    """In a forked child: there are no such threads here, and the jobs are the parent's."""
    global _jobs, _starting, _started
    _jobs, _starting, _started = queue.SimpleQueue(), threading.Lock(), False


os.register_at_fork(after_in_child=_forget)
