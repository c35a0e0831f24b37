"""What programs ask of CUDA devices, under PyTorch's names: there are none, this version computes on the host.

Scripts that look for a device first, `"cuda" if torch.cuda.is_available() else "cpu"`, so find the host.
"""

from typing import Any


def is_available() -> bool:
    """Return whether there is a CUDA device to compute on."""
    return False


def device_count() -> int:
    """Return the number of CUDA devices to compute on."""
    return 0


def is_initialized() -> bool:
    """Return whether CUDA is in use."""
    return False


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Return whether a CUDA device computes in bfloat16."""
    return False


def manual_seed(seed: int) -> None:
    """Do nothing, as there is no device whose generator could be seeded; `sg.manual_seed` seeds the host's."""


manual_seed_all = manual_seed


def synchronize(device: Any = None) -> None:
    """Do nothing, as there is no device to wait for."""


def empty_cache() -> None:
    """Do nothing, as there is no device memory; `sg.empty_cache` is that for the host's."""


__all__ = [
    "device_count", "empty_cache", "is_available", "is_bf16_supported", "is_initialized", "manual_seed",
    "manual_seed_all", "synchronize",
]  # fmt: skip
