"""PyTorch's module `torch.backends.cpu`."""


def get_cpu_capability() -> str:
    """Return "DEFAULT": there is one variant of each kernel, which Numba compiles for the processor at hand."""
    return "DEFAULT"
