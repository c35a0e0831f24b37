"""Normalisation of each sample: of its last dimensions, groups of channels, or neighbouring channels."""

from collections.abc import Sequence
from typing import Any

from spillgrad.errors import ArgumentError
from spillgrad.nn import init
from spillgrad.nn.function_layer import FunctionLayer
from spillgrad.nn.module import Module
from spillgrad.nn.parameter import Parameter
from spillgrad.ops import channel_norm, normalization
from spillgrad.ops.shape import shape_arguments
from spillgrad.tensor import Tensor

__all__ = ["GroupNorm", "LayerNorm", "LocalResponseNorm", "RMSNorm"]


class Affine(Module):
    """The base of normalisation layers with a scale `weight` and a shift `bias`; each may be None."""

    weight: Parameter | None
    bias: Parameter | None

    def reset_parameters(self) -> None:
        """Set weight to one and bias to zero."""
        for name, fill in (("weight", init.ones_), ("bias", init.zeros_)):
            parameter = self._parameters.get(name)
            if parameter is not None:
                fill(parameter)


class LayerNorm(Affine):
    """Normalise the last dimensions to mean 0 and variance 1, then scale and shift.

    The parameters `weight` and `bias` have the shape `normalized_shape`; they begin as ones and zeros.

    Parameters
    ----------
    normalized_shape : int or sequence of int
        Sizes of the last dimensions, over which statistics are taken.
    eps : float, default 1e-5
        Added to the variance.
    elementwise_affine : bool, default True
        Whether to scale and shift by parameters.
    bias : bool, default True
        Whether to shift, if `elementwise_affine`.
    device : device, optional
        Where the parameters are; by default, the default device.
    dtype : dtype, optional
        Data type of the parameters; by default, the default data type.

    Notes
    -----
    Source: Ba, Kiros, Hinton 2016, "Layer normalization".

    Examples
    --------
    >>> import spillgrad as sg
    >>> layer = sg.nn.LayerNorm(2)
    >>> layer(sg.tensor([[1.0, 3.0]])).tolist()
    [[-0.9999949932098389, 0.9999949932098389]]
    """

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float = 1e-5, elementwise_affine: bool = True,
        bias: bool = True, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.normalized_shape = shape_arguments((normalized_shape,))
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        shape = self.normalized_shape if elementwise_affine else None
        self._new_parameters(device, dtype, weight=shape, bias=shape if bias else None)
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised input.

        Parameters
        ----------
        x : Tensor
            Of shape ``(..., *normalized_shape)``.

        Returns
        -------
        Tensor
            Of the shape of `x`.
        """
        return normalization.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Return the options to show in the layer's representation.

        Returns
        -------
        str
            Names and values.
        """
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}, "
            f"bias={self.bias is not None}"
        )


class RMSNorm(Affine):
    """Divide by the root mean square of the last dimensions, then scale.

    The parameter `weight` has the shape `normalized_shape`; it begins as ones.

    Parameters
    ----------
    normalized_shape : int or sequence of int
        Sizes of the last dimensions, over which statistics are taken.
    eps : float, optional
        Added to the mean square; by default, the machine epsilon of the input's dtype.
    elementwise_affine : bool, default True
        Whether to scale by a parameter.
    device : device, optional
        Where the parameters are; by default, the default device.
    dtype : dtype, optional
        Data type of the parameters; by default, the default data type.

    Notes
    -----
    Source: Zhang, Sennrich 2019, "Root mean square layer normalization".
    """

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float | None = None, elementwise_affine: bool = True,
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.normalized_shape = shape_arguments((normalized_shape,))
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self._new_parameters(device, dtype, weight=self.normalized_shape if elementwise_affine else None)
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        """Return the input divided by its root mean square.

        Parameters
        ----------
        x : Tensor
            Of shape ``(..., *normalized_shape)``.

        Returns
        -------
        Tensor
            Of the shape of `x`.
        """
        return normalization.rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        """Return the options to show in the layer's representation.

        Returns
        -------
        str
            Names and values.
        """
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class GroupNorm(Affine):
    """Normalise groups of channels of each sample to mean 0 and variance 1, then scale and shift each channel.

    The parameters `weight` and `bias` have the shape (num_channels,); they begin as ones and zeros.

    Parameters
    ----------
    num_groups : int
        Number of groups; it divides the number of channels.
    num_channels : int
        Number of channels.
    eps : float, default 1e-5
        Added to the variance.
    affine : bool, default True
        Whether to scale and shift by parameters.
    device : device, optional
        Where the parameters are; by default, the default device.
    dtype : dtype, optional
        Data type of the parameters; by default, the default data type.
    bias : bool, default True
        Whether to shift, if `affine`.

    Raises
    ------
    ArgumentError
        If `num_groups` does not divide `num_channels`.

    Notes
    -----
    Source: Wu, He 2018, "Group normalization".
    """

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, device: Any = None,
        dtype: Any = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        if num_channels % num_groups:
            raise ArgumentError(
                f"GroupNorm: num_channels ({num_channels}) must be divisible by num_groups ({num_groups})"
            )
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.affine = affine
        shape = (num_channels,) if affine else None
        self._new_parameters(device, dtype, weight=shape, bias=shape if bias else None)
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised input.

        Parameters
        ----------
        x : Tensor
            Of shape (N, num_channels, ...).

        Returns
        -------
        Tensor
            Of the shape of `x`.
        """
        return channel_norm.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Return the options to show in the layer's representation.

        Returns
        -------
        str
            Names and values.
        """
        return (
            f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, "
            f"bias={self.bias is not None}"
        )


class LocalResponseNorm(FunctionLayer):
    """Divide each element by ``(k + alpha * mean_square) ** beta``, with the mean square of neighbouring channels.

    The input has shape (N, C, ...), the result the same.

    Parameters
    ----------
    size : int
        Number of neighbouring channels.
    alpha : float, default 1e-4
        Factor of the mean square.
    beta : float, default 0.75
        Exponent.
    k : float, default 1.0
        Added before the power is taken.

    Notes
    -----
    Source: Krizhevsky, Sutskever, Hinton 2012, "ImageNet classification with deep convolutional neural networks".
    """

    _function = channel_norm.local_response_norm
    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 1.0

    def extra_repr(self) -> str:
        """Return the options to show in the layer's representation.

        Returns
        -------
        str
            Names and values.
        """
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"
