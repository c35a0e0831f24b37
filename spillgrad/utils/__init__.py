"""Helpers around training, under PyTorch's names: `checkpoint`, which recomputes instead of keeping, and `data`."""

from spillgrad.utils import checkpoint, data

__all__ = ["checkpoint", "data"]
