"""Whether operations are recorded: per thread, switched by context managers that are decorators too."""

import contextlib
import threading
from types import TracebackType


class _GradMode(threading.local):
    enabled = True


_mode = _GradMode()


def is_grad_enabled() -> bool:
    """Return whether this thread records operations."""
    return _mode.enabled


class set_grad_enabled(contextlib.ContextDecorator):
    """Record operations, or not, from now on; as a context manager, until its end."""

    def __init__(self, mode: bool) -> None:
        self._before = _mode.enabled
        self._mode = bool(mode)
        _mode.enabled = self._mode

    def __enter__(self) -> None:
        _mode.enabled = self._mode

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _mode.enabled = self._before


class _GradModeContext(contextlib.ContextDecorator):
    """A re-enterable context manager that sets the mode."""

    _enabled: bool

    def __init__(self) -> None:
        self._before: list[bool] = []

    def __enter__(self) -> None:
        self._before.append(_mode.enabled)
        _mode.enabled = self._enabled

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _mode.enabled = self._before.pop()


class no_grad(_GradModeContext):
    """Do not record operations inside."""

    _enabled = False


class enable_grad(_GradModeContext):
    """Record operations inside, also within `no_grad`."""

    _enabled = True
