"""Stand between callers and operations: what selective checkpoints need.

While no handler is active in any thread, operations are called as ever: their calls cost nothing more.
"""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from spillgrad.ops import define
from spillgrad.ops.define import Operation
from spillgrad.ops.symbol import Symbol

# What runs instead of an operation: takes it and its arguments, returns what it would.
Handler = Callable[[Operation, tuple[Any, ...]], Any]


class _Active(threading.local):
    handler: Handler | None = None


_active = _Active()
_lock = threading.Lock()
_entered = 0  # contexts, in all threads


def is_active() -> bool:
    """Return whether a handler stands before the operations of this thread."""
    return _active.handler is not None


class intercept:
    """Let `handler` run instead of each operation of this thread; within it, operations run as ever. Re-enterable.

    Views are not intercepted, nor operations that are made (for a number of operands) while a context is active.
    """

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._before: list[Handler | None] = []

    def __enter__(self) -> None:
        global _entered
        with _lock:
            _entered += 1
            if _entered == 1:
                for operation in list(define.operations):
                    if not operation.view:
                        vars(operation)["run"] = _Intercepted(operation)
        self._before.append(_active.handler)
        _active.handler = self._handler

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _entered
        _active.handler = self._before.pop()
        with _lock:
            _entered -= 1
            if _entered == 0:
                for operation in list(define.operations):
                    run = vars(operation).get("run")
                    if isinstance(run, _Intercepted):
                        run.restore()


class _Intercepted:
    """What an operation runs while a context is active: the thread's handler, or else its own code."""

    def __init__(self, operation: Operation) -> None:
        self._operation = operation
        self._run: Callable[..., Any] | None = vars(operation).get("run")  # None: never called yet, so not yet written

    def __call__(self, *arguments: Any) -> Any:
        handler = _active.handler
        if handler is None or any(isinstance(argument, Symbol) for argument in arguments):
            if self._run is None:
                self._run = Operation.run.func(self._operation)  # type: ignore[attr-defined]
            return self._run(*arguments)
        _active.handler = None
        try:
            return handler(self._operation, arguments)
        finally:
            _active.handler = handler

    def restore(self) -> None:
        """Give the operation back its own code."""
        if self._run is None:
            del vars(self._operation)["run"]
        else:
            vars(self._operation)["run"] = self._run
