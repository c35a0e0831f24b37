"""PyTorch's module of custom functions."""

from spillgrad.autograd.pylayer import Function, FunctionCtx, once_differentiable

__all__ = ["Function", "FunctionCtx", "once_differentiable"]
