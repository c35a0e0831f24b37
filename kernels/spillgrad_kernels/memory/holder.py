"""Finalizers in which nothing of Python runs."""

import collections
import operator
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any


def later(append: Callable[[Any], None], held: Any) -> types.MethodType:
    """Return what appends `held` when it is called, as a method of C: `append` is that of a deque."""
    return types.MethodType(append, held)


# As `__del__` of a class, it has the object's attribute `_drop`, which `later` returned, called when the object dies.
finalizer = property(operator.attrgetter("_drop"))


class Holder:
    """What holds something, and when it dies appends that to a deque, whose owner sees to it at a better moment.

    Its finalizer is C code alone. Python's signal handlers run between the lines of Python code: what one raised within
    a finalizer would be printed and forgotten, and what the finalizer was to do would be left undone.
    """

    __slots__ = ("_drop",)
    __del__ = finalizer

    def __init__(self, append: Callable[[Any], None], held: Any) -> None:
        self._drop = later(append, held)

    @property
    def held(self) -> Any:
        """What is held."""
        return self._drop.__self__


class _Death(weakref.ref):  # type: ignore[type-arg]
    __slots__ = ("held",)
    held: Any


class Deaths:
    """What was to be noted of objects that died, each once, for who looks at a better moment; as with a `Holder`."""

    def __init__(self) -> None:
        self._expected: dict[int, _Death] = {}
        self._came: collections.deque[_Death] = collections.deque()

    def expect(self, mortal: object, held: Any) -> None:
        """Note what is held once an object is dead."""
        death = _Death(mortal, self._came.append)
        death.held = held
        self._expected[id(death)] = death

    def __iter__(self) -> Iterator[Any]:
        """Yield what was noted, and forget it."""
        while self._came:
            death = self._came.popleft()
            del self._expected[id(death)]
            yield death.held
