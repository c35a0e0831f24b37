"""PyTorch's module `torch.xpu`, for programs that ask whether Intel's accelerators are there: they are not used."""


def is_available() -> bool:
    """Return False: there are kernels for processors and for NVIDIA's GPUs, none for Intel's."""
    return False


def device_count() -> int:
    """Return 0."""
    return 0


def manual_seed(seed: int) -> None:
    """Do nothing: there is no such device."""


def empty_cache() -> None:
    """Do nothing: there is no such device."""


def synchronize() -> None:
    """Do nothing: there is no such device."""
