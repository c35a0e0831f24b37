"""PyTorch's module `torch.cuda.nvtx`: marks for NVIDIA's profiler, which are accepted and not written."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def mark(msg: str) -> None:
    """Do nothing: no mark is written."""


def range_push(msg: str) -> int:
    """Do nothing; return 0, the depth of the range."""
    return 0


def range_pop() -> int:
    """Do nothing; return 0, the depth of the range."""
    return 0


@contextmanager
def range(msg: str, *args: Any, **kwargs: Any) -> Iterator[None]:
    """Return a context manager that does nothing."""
    yield
