"""PyTorch's package `torch._inductor`, for programs that set its options: nothing is compiled, so they do nothing."""

from spillgrad._inductor import config

__all__ = ["config"]
