"""PyTorch's choice of a kernel for `scaled_dot_product_attention`: accepted, and of no effect."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum

__all__ = ["SDPBackend", "sdpa_kernel"]


class SDPBackend(Enum):
    """PyTorch's kernels of attention."""

    ERROR = -1
    MATH = 0
    FLASH_ATTENTION = 1
    EFFICIENT_ATTENTION = 2
    CUDNN_ATTENTION = 3
    OVERRIDEABLE = 4


@contextmanager
def sdpa_kernel(backends: SDPBackend | Sequence[SDPBackend], set_priority: bool = False) -> Iterator[None]:
    """Return a context manager that changes nothing: attention computes with one kernel, whatever is chosen."""
    yield
