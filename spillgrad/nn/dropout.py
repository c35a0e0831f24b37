"""Dropout."""

from spillgrad.errors import ArgumentError
from spillgrad.nn.function_layer import FunctionLayer
from spillgrad.ops import dropout_masks
from spillgrad.tensor import Tensor

__all__ = ["AlphaDropout", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "FeatureAlphaDropout"]


class _Dropout(FunctionLayer):
    p: float = 0.5
    inplace: bool = False
    _shown = ("p", "inplace")

    def _set_up(self) -> None:
        if not 0 <= self.p <= 1:
            raise ArgumentError(f"{type(self).__name__}: got p {self.p}; a probability lies between 0 and 1")

    def forward(self, x: Tensor) -> Tensor:
        dropped: Tensor = type(self)._function(x, self.p, self.training, self.inplace)
        return dropped


class Dropout(_Dropout):
    """In training, set elements to zero with probability `p` and scale the others by 1 / (1 - p).

    Source: Srivastava et al. 2014, "Dropout: a simple way to prevent neural networks from overfitting".
    """

    _function = dropout_masks.dropout

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Return `x` after dropout; if `residual` is given, add it in the same pass over memory."""
        if residual is not None:
            return dropout_masks.dropout_add(x, residual, self.p, self.training)
        return super().forward(x)


class Dropout1d(_Dropout):
    """In training, drop whole channels of signals (N, C, L) or (C, L) (see `Dropout`)."""

    _function = dropout_masks.dropout1d


class Dropout2d(_Dropout):
    """In training, drop whole channels of images (N, C, H, W) or (C, H, W) (see `Dropout`)."""

    _function = dropout_masks.dropout2d


class Dropout3d(_Dropout):
    """In training, drop whole channels of volumes (N, C, D, H, W) or (C, D, H, W) (see `Dropout`)."""

    _function = dropout_masks.dropout3d


class AlphaDropout(_Dropout):
    """In training, drop elements but keep mean and variance, for use with SELU. Source: Klambauer et al. 2017."""

    _function = dropout_masks.alpha_dropout


class FeatureAlphaDropout(_Dropout):
    """In training, drop whole channels but keep mean and variance, for use with SELU (see `AlphaDropout`)."""

    _function = dropout_masks.feature_alpha_dropout
