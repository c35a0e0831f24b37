"""PyTorch's package `torch.nn.modules`: its modules `lazy`, and `module` with the base class of layers."""

from spillgrad.nn.modules import lazy, module

__all__ = ["lazy", "module"]
