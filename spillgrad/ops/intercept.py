"""Handlers that run in place of operations, for selective checkpoints and mixed precision.

While no interception is active in any thread, calls of operations cost nothing extra.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Collection, Iterator
from types import TracebackType
from typing import Any

from spillgrad.autograd.core.grad_mode import state
from spillgrad.ops.fuse_symbols import Symbol
from spillgrad.ops.operation import Operation, all_operations

# Runs in place of an operation: takes the operation and its arguments, and returns its result.
Handler = Callable[[Operation, tuple[Any, ...]], Any]


class _Active(threading.local):
    handler: Handler | None = None


_active = _Active()
_lock = threading.RLock()  # reentrant: a finalizer or a signal handler may intercept operations or fork
_entered = 0  # the number of active contexts in all threads
_intercepted: "list[_Intercepted]" = []
# A forked child must not copy operations in the middle of a change, or a lock that is held.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def is_active() -> bool:
    """Return whether a handler or mixed precision is active for the operations of this thread."""
    return _active.handler is not None or state.autocast is not None


@contextlib.contextmanager
def without_handler() -> Iterator[None]:
    """Context manager: operations of this thread run without the thread's handler."""
    handler, _active.handler = _active.handler, None
    try:
        yield
    finally:
        _active.handler = handler


class Interception:
    """Intercepts the operations with these names (None: all operations) until `end` is called."""

    def __init__(self, names: Collection[str] | None) -> None:
        global _entered
        with _lock:
            _entered += 1
            for operation in list(all_operations):
                if not operation.view and (names is None or operation.name in names):
                    _Intercepted.put_before(operation)

    def end(self) -> None:
        """Give all operations back their own code, unless another interception is active."""
        global _entered
        with _lock:
            _entered -= 1
            if _entered == 0:
                for intercepted in _intercepted:
                    intercepted.restore()
                _intercepted.clear()


class intercept:
    """Context manager: `handler` runs in place of this thread's operations; inside `handler`, operations run normally.

    The context manager is reentrant. `names` are the operations to intercept, None for all; while another `intercept`
    is active, `handler` may get operations outside `names`, too. Views are not intercepted. Nor are operations that are
    created within the context, as for a new number of operands.
    """

    def __init__(self, handler: Handler, names: Collection[str] | None = None) -> None:
        self._handler = handler
        self._names = names
        self._before: list[tuple[Handler | None, Interception]] = []

    def __enter__(self) -> None:
        self._before.append((_active.handler, Interception(self._names)))
        _active.handler = self._handler

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _active.handler, interception = self._before.pop()
        interception.end()


class _Intercepted:
    """The code of an operation while a context is active: it runs the thread's handler, if any, else the operation.

    Mixed precision converts first: handlers see operands in the dtype that the operation computes in.
    """

    def __init__(self, operation: Operation, run: Callable[..., Any] | None) -> None:
        self._operation = operation
        self._run = run  # None: never called, so its code is not generated yet

    @staticmethod
    def put_before(operation: Operation) -> None:
        """Replace the code of an operation by an `_Intercepted`, unless it is replaced already."""
        run = vars(operation).get("run")
        if not isinstance(run, _Intercepted):
            vars(operation)["run"] = intercepted = _Intercepted(operation, run)
            _intercepted.append(intercepted)

    def __call__(self, *arguments: Any) -> Any:
        handler, casting = _active.handler, state.autocast
        if (handler is None and casting is None) or any(isinstance(argument, Symbol) for argument in arguments):
            return self._run_own(arguments)
        if casting is not None:
            arguments = casting.operands(self._operation, arguments)
        if handler is None:
            return self._run_own(arguments)
        with without_handler():
            return handler(self._operation, arguments)

    def _run_own(self, arguments: tuple[Any, ...]) -> Any:
        if self._run is None:
            self._run = Operation.run.func(self._operation)
        return self._run(*arguments)

    def restore(self) -> None:
        """Give the operation back its own code."""
        if self._run is None:
            vars(self._operation).pop("run", None)
        else:
            vars(self._operation)["run"] = self._run
