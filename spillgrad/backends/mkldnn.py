"""PyTorch's module `torch.backends.mkldnn`. oneDNN is not used: the settings are kept, and change nothing."""

from collections.abc import Iterator
from contextlib import contextmanager

enabled = True
deterministic = False
allow_tf32 = True


def is_available() -> bool:
    """Return False: oneDNN is not used; convolutions and products are kernels of this library."""
    return False


@contextmanager
def flags(enabled: bool = False, deterministic: bool = False, allow_tf32: bool = True) -> Iterator[None]:
    """Set the settings within the block; they change nothing but what reads back."""
    settings = globals()
    new = {"enabled": enabled, "deterministic": deterministic, "allow_tf32": allow_tf32}
    before = {name: settings[name] for name in new}
    settings.update(new)
    try:
        yield
    finally:
        settings.update(before)
