"""Helpers around training, under PyTorch's name: `checkpoint`, which recomputes instead of keeping."""

from spillgrad.utils import checkpoint

__all__ = ["checkpoint"]
