"""PyTorch's module `torch.nn.modules.lazy`: the base of lazy modules."""

from spillgrad.nn.lazy import LazyModuleMixin

__all__ = ["LazyModuleMixin"]
