"""A lock that a forked child can acquire, even if another thread of the parent held it."""

import functools
import os
import weakref
from _thread import RLock
from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")


class ForkSafeLock(RLock):  # type: ignore[misc]  # final to type checkers, not to Python
    """A reentrant lock. In a forked child the lock is free, unless the thread that forked held it.

    Another thread that held the lock does not exist in the child, so it could never release the lock there. The data
    that the lock guards may be half changed in the child: guard only data that is usable at every moment of a change.
    """

    def __init__(self) -> None:
        super().__init__()
        _all.add(weakref.ref(self, _all.discard))

    def is_mine(self) -> bool:
        """Return whether this thread holds the lock."""
        return self._is_owned()  # type: ignore[attr-defined,no-any-return]  # what `threading.Condition` asks too


class lazy_property(functools.cached_property[_T]):
    """A property that is computed on first use and then stored, like `functools.cached_property`.

    Up to Python 3.11 a `cached_property` has a lock that all objects of the class share; here it is a ForkSafeLock.
    """

    def __init__(self, func: Callable[[Any], _T]) -> None:
        super().__init__(func)
        self.lock = ForkSafeLock()


# All live locks. References to dead locks are removed in C, which no signal handler or finalizer can interrupt.
_all: set["weakref.ref[ForkSafeLock]"] = set()


def _free_all() -> None:
    for reference in list(_all):
        lock = reference()
        if lock is not None and not lock.is_mine():
            lock._at_fork_reinit()  # type: ignore[attr-defined]  # as the standard library's own locks


# This module imports no other module of spillgrad, so its handler is called before the handlers of its users.
os.register_at_fork(after_in_child=_free_all)
