"""A lock that a forked child can take, whichever thread of its parent had it."""

import functools
import os
import weakref
from _thread import RLock
from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")


class ForkSafeLock(RLock):  # type: ignore[misc]  # final to type checkers, not to Python
    """A reentrant lock. In a forked child it is free, unless the thread that forked had it.

    Any other thread that had it does not exist in the child, where nobody would release the lock. What it guards may be
    half changed there, so guard only what each change leaves usable at every moment.
    """

    def __init__(self) -> None:
        super().__init__()
        _all.add(weakref.ref(self, _all.discard))

    def is_mine(self) -> bool:
        """Return whether this thread has the lock."""
        return self._is_owned()  # type: ignore[attr-defined,no-any-return]  # what `threading.Condition` asks too


class lazy_property(functools.cached_property[_T]):
    """A property that is computed when it is first used.

    Up to Python 3.11 a `cached_property` has a lock, which all objects of the class share.
    """

    def __init__(self, func: Callable[[Any], _T]) -> None:
        super().__init__(func)
        self.lock = ForkSafeLock()


# All that are alive. It forgets the dead in C, where neither a signal handler nor a finalizer can interrupt it.
_all: set["weakref.ref[ForkSafeLock]"] = set()


def _free_all() -> None:
    for reference in list(_all):
        lock = reference()
        if lock is not None and not lock.is_mine():
            lock._at_fork_reinit()  # type: ignore[attr-defined]  # as the standard library's own locks


# This module imports nothing of ours. So its handler is called before those of the modules that use its locks.
os.register_at_fork(after_in_child=_free_all)
