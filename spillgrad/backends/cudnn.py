"""PyTorch's module `torch.backends.cudnn`. cuDNN is not used: the settings are kept, and change nothing.

Convolutions on a CUDA device are products, whose precision `torch.backends.cuda.matmul.allow_tf32` sets. Their sums
have a fixed order, so that they are deterministic whatever is set.
"""

from collections.abc import Iterator
from contextlib import contextmanager

enabled = True
benchmark = False
benchmark_limit: int | None = 10
deterministic = False
allow_tf32 = True
fp32_precision = "tf32"

CUDNN_TENSOR_DTYPES: frozenset[object] = frozenset()


def is_available() -> bool:
    """Return False: cuDNN is not used."""
    return False


def version() -> int | None:
    """Return None: cuDNN is not used."""
    return None


def is_acceptable(tensor: object) -> bool:
    """Return False: cuDNN computes with no tensor."""
    return False


@contextmanager
def flags(
    enabled: bool = False, benchmark: bool = False, benchmark_limit: int | None = 10, deterministic: bool = False,
    allow_tf32: bool = True,
) -> Iterator[None]:  # fmt: skip
    """Set the settings within the block; they change nothing but what reads back."""
    settings = globals()
    new = {
        "enabled": enabled, "benchmark": benchmark, "benchmark_limit": benchmark_limit, "deterministic": deterministic,
        "allow_tf32": allow_tf32,
    }  # fmt: skip
    before = {name: settings[name] for name in new}
    settings.update(new)
    try:
        yield
    finally:
        settings.update(before)
