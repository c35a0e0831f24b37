"""Find the path of the module of another framework that runs now: the label of what it saves."""

import sys
import weakref
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Any


class RunningModule:
    """Knows how a framework calls its modules.

    Parameters
    ----------
    call : code object
        The code of the method that calls a module's forward; its local variable `self` is the module.
    named_modules : callable
        Returns pairs of a path and a module for a module and all that it contains.
    """

    def __init__(self, call: CodeType, named_modules: Callable[[Any], Iterable[tuple[str, Any]]]) -> None:
        self._call, self._named_modules = call, named_modules
        # Hooks on modules would do as well, but compilers of modules would see them.
        self._paths: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()

    def path(self) -> str | None:
        """Return the path of the innermost running module in the outermost one; None if this thread runs none."""
        running: list[Any] = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code is self._call:
                module = frame.f_locals["self"]
                known = self._paths.get(module)
                if known is not None and not running:
                    return known
                running.append(module)
            frame = frame.f_back
        if not running:
            return None
        for path, module in self._named_modules(running[-1]):
            self._paths.setdefault(module, path)
        return self._paths.setdefault(running[0], "")
