"""Flattening layer."""

from spillgrad.nn.module import Module
from spillgrad.ops import shape
from spillgrad.tensor import Tensor

__all__ = ["Flatten"]


class Flatten(Module):
    """Join the dimensions from `start_dim` to `end_dim` into one."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim = start_dim
        self.end_dim = end_dim

    def forward(self, x: Tensor) -> Tensor:
        return shape.flatten(x, self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"
