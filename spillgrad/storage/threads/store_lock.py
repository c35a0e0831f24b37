"""The lock of a store, for which no thread waits for ever."""

import threading
import weakref

from spillgrad.errors import SpillError
from spillgrad.fork_safe_lock import ForkSafeLock

# All locks that are alive, and perhaps some that are dead. The tuple is replaced, never changed. Up to Python 3.11 the
# garbage collector may run in the middle of `tuple(a_list)`: if that removes an element of the list, the copy refers to
# freed memory.
_locks: tuple["weakref.ref[StoreLock]", ...] = ()
# The numbers of the threads on whose work stores wait.
own_threads: set[int] = set()


class StoreLock(ForkSafeLock):  # type: ignore[misc]  # as there
    """A lock that raises SpillError if the thread already holds this lock, or the lock of another store.

    A finalizer that the garbage collector runs, or a signal handler, may run between any two lines, while its thread is
    in the middle of a change of a store. If it waited for a lock there, its thread would wait for itself, or for a
    thread that waits for its thread.
    """

    def __init__(self) -> None:
        global _locks
        super().__init__()
        while True:
            before = _locks
            following = (*[each for each in before if each() is not None], weakref.ref(self))
            if _locks is before:  # neither a finalizer nor another thread made a lock meanwhile
                _locks = following
                return

    def __enter__(self) -> bool:  # type: ignore[override]
        if _is_any_mine():
            raise interrupted_error()
        return self.acquire()


def is_interrupted() -> bool:
    """Return whether this thread is in the middle of a store's work, and so must not wait for a store."""
    return threading.get_ident() in own_threads or _is_any_mine()


def _is_any_mine() -> bool:
    """Return whether this thread has the lock of any store."""
    for reference in _locks:
        lock = reference()
        if lock is not None and lock._is_owned():  # type: ignore[attr-defined]  # as `is_mine`, and every call asks this
            return True
    return False


def interrupted_error() -> SpillError:
    """Return the error for the use of a store in a thread that is interrupted, and so must not wait for a store."""
    return SpillError(
        "spill: a finalizer or a signal handler used a store in the middle of what its thread did with one; "
        "have it set a flag, and use the store where the flag is read"
    )
