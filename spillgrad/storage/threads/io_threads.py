"""The threads that move payloads, shared by all stores of the process."""

import os
import queue
import threading
from collections.abc import Callable

from spillgrad.errors import SpillError
from spillgrad.fork_safe_lock import ForkSafeLock
from spillgrad.storage.threads.store_lock import own_threads

# While one thread waits for a system call, the other computes a checksum.
_THREADS = 2

Job = tuple[Callable[[], None], Callable[[SpillError | None], None]]
_jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
_starting = ForkSafeLock()
_started = False


def submit(work: Callable[[], None], ended: Callable[[SpillError | None], None]) -> None:
    """Have an I/O thread call `work`, after earlier submissions, then call `ended` with the error of `work` or None."""
    global _started
    if not _started:
        with _starting:
            if not _started:
                _started = True  # first: a finalizer may submit something meanwhile
                try:
                    for i in range(_THREADS):
                        threading.Thread(target=_work, args=(_jobs,), name=f"spillgrad-io-{i}", daemon=True).start()
                except BaseException:  # the system gives no thread: the next call tries again
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
    """Do a job, in a frame of its own, so that a thread that waits for the next job keeps nothing alive."""
    try:
        work()
    except BaseException as error:
        thread = threading.current_thread()
        ended(SpillError(f"the {thread.name} thread met {error!r}; make a new store"))
        threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, thread)))
    else:
        ended(None)


def _forget() -> None:
    """Reset everything in a forked child, which has no I/O threads; the jobs belong to its parent."""
    global _jobs, _started
    own_threads.clear()
    _jobs, _started = queue.SimpleQueue(), False


os.register_at_fork(after_in_child=_forget)
