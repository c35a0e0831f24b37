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

    Parameters
    ----------
    p : float, default 0.5
        Probability of each element to become zero, between 0 and 1.
    inplace : bool, default False
        Whether to overwrite the input.

    Raises
    ------
    ArgumentError
        If `p` is not between 0 and 1.

    Notes
    -----
    Source: Srivastava et al. 2014, "Dropout: a simple way to prevent neural networks from overfitting".

    Examples
    --------
    >>> import spillgrad as sg
    >>> layer = sg.nn.Dropout(0.1).eval()
    >>> layer(sg.tensor([1.0, 2.0]))
    tensor([1., 2.])
    """

    _function = dropout_masks.dropout

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Return `x` after dropout, plus `residual` if that is given.

        Parameters
        ----------
        x : Tensor
            Of any shape.
        residual : Tensor, optional
            Of the shape of `x`; it is added in the same pass over memory.

        Returns
        -------
        Tensor
            Of the shape of `x`.
        """
        if residual is not None:
            return dropout_masks.dropout_add(x, residual, self.p, self.training)
        return super().forward(x)


class Dropout1d(_Dropout):
    """In training, drop whole channels of signals (N, C, L) or (C, L) (see `Dropout`).

    Parameters
    ----------
    p : float, default 0.5
        Probability of each channel to become zero, between 0 and 1.
    inplace : bool, default False
        Whether to overwrite the input.

    Raises
    ------
    ArgumentError
        If `p` is not between 0 and 1.
    """

    _function = dropout_masks.dropout1d


class Dropout2d(_Dropout):
    """In training, drop whole channels of images (N, C, H, W) or (C, H, W) (see `Dropout`).

    Parameters
    ----------
    p : float, default 0.5
        Probability of each channel to become zero, between 0 and 1.
    inplace : bool, default False
        Whether to overwrite the input.

    Raises
    ------
    ArgumentError
        If `p` is not between 0 and 1.
    """

    _function = dropout_masks.dropout2d


class Dropout3d(_Dropout):
    """In training, drop whole channels of volumes (N, C, D, H, W) or (C, D, H, W) (see `Dropout`).

    Parameters
    ----------
    p : float, default 0.5
        Probability of each channel to become zero, between 0 and 1.
    inplace : bool, default False
        Whether to overwrite the input.

    Raises
    ------
    ArgumentError
        If `p` is not between 0 and 1.
    """

    _function = dropout_masks.dropout3d


class AlphaDropout(_Dropout):
    """In training, drop elements but keep mean and variance, for use with SELU.

    Parameters
    ----------
    p : float, default 0.5
        Probability of each element to be dropped, between 0 and 1.
    inplace : bool, default False
        Whether to overwrite the input.

    Raises
    ------
    ArgumentError
        If `p` is not between 0 and 1.

    Notes
    -----
    Source: Klambauer et al. 2017.
    """

    _function = dropout_masks.alpha_dropout


class FeatureAlphaDropout(_Dropout):
    """In training, drop whole channels but keep mean and variance, for use with SELU (see `AlphaDropout`).

    Parameters
    ----------
    p : float, default 0.5
        Probability of each channel to be dropped, between 0 and 1.
    inplace : bool, default False
        Whether to overwrite the input.

    Raises
    ------
    ArgumentError
        If `p` is not between 0 and 1.
    """

    _function = dropout_masks.feature_alpha_dropout
