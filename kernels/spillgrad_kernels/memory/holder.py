"""Finalizers that run no Python code."""

import collections
import operator
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any


def later(append: Callable[[Any], None], held: Any) -> types.MethodType:
    """Return a function that calls `append(held)` without running Python code. `append` must be a deque's method."""
    return types.MethodType(append, held)


# As `__del__` of a class, this calls the object's `_drop` when the object dies. `_drop` is a result of `later`.
finalizer = property(operator.attrgetter("_drop"))


class Holder:
    """A holder of an object. When the holder dies, the object is appended to a deque, whose owner handles it later.

    The finalizer runs no Python code. Signal handlers run between lines of Python: if a handler raised within a
    finalizer, Python would print the exception and ignore it, and the finalizer's work would be left undone.
    """

    __slots__ = ("_drop",)
    __del__ = finalizer

    def __init__(self, append: Callable[[Any], None], held: Any) -> None:
        self._drop = later(append, held)

    @property
    def held(self) -> Any:
        """The held object."""
        return self._drop.__self__


class _Death(weakref.ref):  # type: ignore[type-arg]
    __slots__ = ("held",)
    held: Any


class Deaths:
    """A queue that receives a value when an object dies. Like `Holder`, it runs no Python code when the object dies."""

    def __init__(self) -> None:
        self._expected: dict[int, _Death] = {}
        self._came: collections.deque[_Death] = collections.deque()

    def expect(self, mortal: object, held: Any) -> None:
        """Put `held` into the queue when `mortal` dies."""
        death = _Death(mortal, self._came.append)
        death.held = held
        self._expected[id(death)] = death

    def __iter__(self) -> Iterator[Any]:
        """Take each value off the queue and yield it."""
        while self._came:
            death = self._came.popleft()
            del self._expected[id(death)]
            yield death.held
