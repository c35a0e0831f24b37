"""PyTorch's module `torch.backends.mkl`."""


def is_available() -> bool:
    """Return False: MKL is not used; products are kernels of this library."""
    return False
