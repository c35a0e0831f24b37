"""PyTorch's module `torch.autograd.profiler`: labels are accepted, recording is refused."""

from spillgrad.profiler import profile, record_function

__all__ = ["profile", "record_function"]
