"""PyTorch's module `torch.backends.mps`."""


def is_available() -> bool:
    """Return False: there are kernels for processors and for NVIDIA's GPUs, none for Apple's."""
    return False


def is_built() -> bool:
    """Return False: there are kernels for processors and for NVIDIA's GPUs, none for Apple's."""
    return False


def is_macos_or_newer(major: int, minor: int) -> bool:
    """Return False: Apple's GPUs are not used on any system."""
    return False
