"""PyTorch's package of the base class of layers and of registration hooks."""

from spillgrad.nn.modules import module

__all__ = ["module"]
