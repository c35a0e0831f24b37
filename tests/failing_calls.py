"""Have calls to the system fail, whichever they are."""

import errno
import fcntl
import os
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

_WRITES = ("pwritev", "pwrite", "write")
_MAKES = ("open", "mkdir", "replace", "ftruncate")
_OTHERS = ("preadv", "lseek", "fsync", "listdir", "scandir", "unlink", "rmdir", "lockf")


def refuse(number: int) -> Callable[..., Any]:
    """Return what has a call fail with this number of an error."""

    def refused(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return refused


def _move_a_part(call: Callable[..., int], descriptor: int, data: Any, *place: int) -> int:
    whole = data[0] if isinstance(data, list) else data
    part = whole[: max(1, len(whole) // 3)]
    return call(descriptor, [part] if isinstance(data, list) else part, *place)


def _end_early(call: Callable[..., int], *arguments: Any) -> int:
    return 0


class Fault(NamedTuple):
    """What happens to one call of these, and if it `lasts` to those after it."""

    befall: Callable[..., Any]
    calls: tuple[str, ...]
    lasts: bool = False


FAULTS = {
    "I/O error": Fault(refuse(errno.EIO), _WRITES + _MAKES + _OTHERS),
    "disk gone": Fault(refuse(errno.EIO), (*_WRITES, *_MAKES, "preadv"), lasts=True),
    "disk full": Fault(refuse(errno.ENOSPC), _WRITES + _MAKES, lasts=True),
    "part of the bytes": Fault(_move_a_part, (*_WRITES, "preadv")),
    "file cut off": Fault(_end_early, ("preadv",)),
}


class FailingCall:
    """Within a `with` block, has the `number`-th call that a fault may befall fail; `happened` says whether it did.

    The calls of all threads count, those that Python's own modules make for the library too.
    """

    def __init__(self, fault: Fault, number: int) -> None:
        self._fault = fault
        self._lasts = fault.lasts
        self._left = number
        self._lock = threading.RLock()  # a finalizer may come, and call too
        self._real: list[tuple[ModuleType, str, Callable[..., Any]]] = []
        for name in fault.calls:
            module = fcntl if name == "lockf" else os
            self._real.append((module, name, getattr(module, name)))

    @property
    def happened(self) -> bool:
        """Whether a call failed."""
        return self._left <= 0

    def relent(self) -> None:
        """Have one call fail at most from now on, if none did."""
        self._lasts = False

    def __enter__(self) -> "FailingCall":
        for module, name, call in self._real:
            setattr(module, name, self._counted(call))
        return self

    def __exit__(self, *error: object) -> None:
        for module, name, call in self._real:
            setattr(module, name, call)

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            with self._lock:
                self._left -= 1
                fails = self._left == 0 or (self._left < 0 and self._lasts)
            return self._fault.befall(call, *arguments, **options) if fails else call(*arguments, **options)

        return counted
