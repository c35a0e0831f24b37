"""Dropout."""

from spillgrad.errors import ArgumentError
from spillgrad.nn.module import Module
from spillgrad.ops import random
from spillgrad.tensor import Tensor


class Dropout(Module):
    """In training, set elements to zero with probability `p` and scale the others by 1 / (1 - p); else do nothing.

    Source: Srivastava et al. 2014, "Dropout: a simple way to prevent neural networks from overfitting".
    """

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ArgumentError(f"Dropout: got p {p}; a probability lies between 0 and 1")
        self.p = p
        self.inplace = inplace

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Return `x` after dropout, added to `residual` in the same pass where one is given."""
        if residual is not None:
            return random.dropout_add(x, residual, self.p, self.training)
        return random.dropout(x, self.p, self.training, self.inplace)

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"
