"""PyTorch's package `torch.nn.modules`: its module `module`, with the base class of layers."""

from spillgrad.nn.modules import module

__all__ = ["module"]
