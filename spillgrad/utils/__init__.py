"""PyTorch's package `torch.utils`: `checkpoint`, which recomputes tensors instead of keeping them, and `data`."""

from spillgrad.utils import checkpoint, data

__all__ = ["checkpoint", "data"]
