"""PyTorch's module `torch.profiler`: labels are accepted, recording is refused, with what to do instead."""

from collections.abc import Callable
from contextlib import ContextDecorator
from enum import Enum
from typing import Any, NoReturn

from spillgrad.errors import UnsupportedError

__all__ = ["ProfilerActivity", "profile", "record_function", "schedule", "tensorboard_trace_handler"]


class ProfilerActivity(Enum):
    """The kinds of work that PyTorch's profiler records."""

    CPU = 0
    CUDA = 1
    XPU = 2


class record_function(ContextDecorator):
    """A label for PyTorch's profiler: accepted, and not recorded, as `profile` is refused."""

    def __init__(self, name: str, args: str | None = None) -> None:
        self.name = name

    def __enter__(self) -> "record_function":
        return self

    def __exit__(self, *exception: object) -> None:
        pass


def _refused(name: str) -> NoReturn:
    raise UnsupportedError(
        f"profiler.{name}: spillgrad records no profile of operations; `python -m cProfile` shows their times, and "
        "save_on_disk(...).stats() and `spillgrad inspect` what a store did"
    )


def profile(*args: Any, **kwargs: Any) -> Any:
    """Raise UnsupportedError: a profile that records nothing would be taken for one."""
    _refused("profile")


def schedule(*args: Any, **kwargs: Any) -> Callable[[int], Any]:
    """Raise UnsupportedError, as `profile` does."""
    _refused("schedule")


def tensorboard_trace_handler(*args: Any, **kwargs: Any) -> Callable[[Any], None]:
    """Raise UnsupportedError, as `profile` does."""
    _refused("tensorboard_trace_handler")
