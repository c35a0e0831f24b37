"""PyTorch's former name of a tensor, which old scripts still use: `Variable(data, requires_grad=True)`."""

from spillgrad.autograd.legacy_variable import Variable

__all__ = ["Variable"]
