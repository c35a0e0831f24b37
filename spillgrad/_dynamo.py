"""PyTorch's module `torch._dynamo`, for programs that set its options: nothing is compiled, so that they do nothing."""

from types import SimpleNamespace

from spillgrad.compiler import disable, is_compiling, reset

__all__ = ["config", "disable", "is_compiling", "reset"]

config = SimpleNamespace(suppress_errors=False, verbose=False, cache_size_limit=8)
