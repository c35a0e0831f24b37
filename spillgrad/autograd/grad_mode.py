"""Whether operations are recorded: per thread, switched by context managers that are decorators too."""

import contextlib
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])


class _GradMode(threading.local):
    enabled = True


state = _GradMode()


def is_grad_enabled() -> bool:
    """Return whether this thread records operations."""
    return state.enabled


class set_grad_enabled(contextlib.ContextDecorator):
    """Record operations, or not, from now on; as a context manager, until its end; as a decorator, in its function."""

    def __init__(self, mode: bool) -> None:
        self._before = state.enabled
        self._mode = bool(mode)
        state.enabled = self._mode

    def __call__(self, function: _Function) -> _Function:
        state.enabled = self._before
        return super().__call__(function)

    def _recreate_cm(self) -> "set_grad_enabled":
        return set_grad_enabled(self._mode)

    def __enter__(self) -> None:
        state.enabled = self._mode

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        state.enabled = self._before


class _GradModeContext(contextlib.ContextDecorator):
    """A re-enterable context manager that sets the mode; decorates a function with or without parentheses."""

    _enabled: bool

    def __new__(cls, function: Callable[..., Any] | None = None) -> Any:
        return super().__new__(cls) if function is None else cls()(function)

    def __init__(self) -> None:
        self._before: list[bool] = []

    def _recreate_cm(self) -> "_GradModeContext":
        return type(self)()  # a decorated function may run in several threads at once

    def __enter__(self) -> None:
        self._before.append(state.enabled)
        state.enabled = self._enabled

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        state.enabled = self._before.pop()


class no_grad(_GradModeContext):
    """Do not record operations inside."""

    _enabled = False


class enable_grad(_GradModeContext):
    """Record operations inside, also within `no_grad`."""

    _enabled = True
