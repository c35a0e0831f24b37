"""PyTorch's place of layers' base class and of hooks on all of them."""

from spillgrad.nn.modules import module

__all__ = ["module"]
