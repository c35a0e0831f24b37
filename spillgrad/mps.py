"""PyTorch's module `torch.mps`, for programs that ask whether Apple's accelerators are there: they are not used."""


def is_available() -> bool:
    """Return False: there are kernels for processors and for NVIDIA's GPUs, none for Apple's."""
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
