"""PyTorch's package `torch._dynamo`, for programs that set its options: nothing is compiled, so they do nothing."""

from spillgrad._dynamo import config
from spillgrad.compiler import disable, is_compiling, reset

__all__ = ["config", "disable", "is_compiling", "reset"]
