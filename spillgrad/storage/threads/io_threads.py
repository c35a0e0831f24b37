"""The threads that move payloads, shared by all stores of the process."""

import os
import queue
import threading
from collections.abc import Callable

from spillgrad.errors import SpillError
from spillgrad.storage.threads.store_lock import own_threads

# One thread's checksums hide under another's system calls.
_THREADS = 2

Job = tuple[Callable[[], None], Callable[[SpillError | None], None]]
_jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
_starting = threading.RLock()
_started = False


def submit(work: Callable[[], None], ended: Callable[[SpillError | None], None]) -> None:
    """Have a thread call `work` after what was submitted before, and then `ended`, with the error if it raised."""
    global _started
    if not _started:
        with _starting:
            if not _started:
                _started = True  # first: a finalizer may come and submit something too
                try:
                    for i in range(_THREADS):
                        threading.Thread(target=_work, args=(_jobs,), name=f"spillgrad-io-{i}", daemon=True).start()
                except BaseException:  # the system gives no thread: who comes next tries again
                    _started = False
                    raise
    _jobs.put((work, ended))


def _work(jobs: queue.SimpleQueue[Job]) -> None:
    own_threads.add(threading.get_ident())
    try:
        while True:
            _do(*jobs.get())
    finally:
        own_threads.discard(threading.get_ident())


def _do(work: Callable[[], None], ended: Callable[[SpillError | None], None]) -> None:
    """Do a job; a thread that waits for the next one keeps nothing of it alive."""
    try:
        work()
    except BaseException as error:
        thread = threading.current_thread()
        ended(SpillError(f"the {thread.name} thread met {error!r}; make a new store"))
        threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, thread)))
    else:
        ended(None)


def _forget() -> None:
    """In a forked child: there are no such threads here, and the jobs are the parent's."""
    global _jobs, _starting, _started
    own_threads.clear()
    _jobs, _starting, _started = queue.SimpleQueue(), threading.RLock(), False


os.register_at_fork(after_in_child=_forget)
