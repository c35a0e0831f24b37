"""Dropout."""

from spillgrad.errors import ArgumentError
from spillgrad.nn.module import Module
from spillgrad.ops import dropout_masks
from spillgrad.tensor import Tensor

__all__ = ["AlphaDropout", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "FeatureAlphaDropout"]


class _Dropout(Module):
    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ArgumentError(f"{type(self).__name__}: got p {p}; a probability lies between 0 and 1")
        self.p = p
        self.inplace = inplace

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"


class Dropout(_Dropout):
    """In training, set elements to zero with probability `p` and scale the others by 1 / (1 - p).

    Source: Srivastava et al. 2014, "Dropout: a simple way to prevent neural networks from overfitting".
    """

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Return `x` after dropout, added to `residual` in the same pass where one is given."""
        if residual is not None:
            return dropout_masks.dropout_add(x, residual, self.p, self.training)
        return dropout_masks.dropout(x, self.p, self.training, self.inplace)


class Dropout1d(_Dropout):
    """In training, drop whole channels of signals (N, C, L) or (C, L) (see `Dropout`)."""

    def forward(self, x: Tensor) -> Tensor:
        return dropout_masks.dropout1d(x, self.p, self.training, self.inplace)


class Dropout2d(_Dropout):
    """In training, drop whole channels of images (N, C, H, W) or (C, H, W) (see `Dropout`)."""

    def forward(self, x: Tensor) -> Tensor:
        return dropout_masks.dropout2d(x, self.p, self.training, self.inplace)


class Dropout3d(_Dropout):
    """In training, drop whole channels of volumes (N, C, D, H, W) or (C, D, H, W) (see `Dropout`)."""

    def forward(self, x: Tensor) -> Tensor:
        return dropout_masks.dropout3d(x, self.p, self.training, self.inplace)


class AlphaDropout(_Dropout):
    """In training, drop elements so that mean and variance pass through SELU. Source: Klambauer et al. 2017."""

    def forward(self, x: Tensor) -> Tensor:
        return dropout_masks.alpha_dropout(x, self.p, self.training, self.inplace)


class FeatureAlphaDropout(_Dropout):
    """In training, drop whole channels so that mean and variance pass through SELU (see `AlphaDropout`)."""

    def forward(self, x: Tensor) -> Tensor:
        return dropout_masks.feature_alpha_dropout(x, self.p, self.training, self.inplace)
