"""PyTorch's module `torch.autograd.profiler`, with the names of `spillgrad.profiler`."""

from spillgrad.profiler import profile, record_function

__all__ = ["profile", "record_function"]
