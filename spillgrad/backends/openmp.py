"""PyTorch's module `torch.backends.openmp`."""


def is_available() -> bool:
    """Return False: the kernels' threads are their own; `sg.set_num_threads` sets their number."""
    return False
