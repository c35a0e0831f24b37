"""PyTorch's former name of a tensor, which old scripts still use: `Variable(data, requires_grad=True)`."""

from spillgrad.tensor import Tensor as Variable

__all__ = ["Variable"]
