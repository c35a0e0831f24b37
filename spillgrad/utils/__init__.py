"""PyTorch's package `torch.utils`: the module `checkpoint`, which recomputes tensors instead of keeping them."""

from spillgrad.utils import checkpoint

__all__ = ["checkpoint"]
