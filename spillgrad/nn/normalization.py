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

    Shapes: x (..., *normalized_shape), result the same, weight and bias normalized_shape.
    Source: Ba, Kiros, Hinton 2016, "Layer normalization".
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
        return normalization.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}, "
            f"bias={self.bias is not None}"
        )


class RMSNorm(Affine):
    """Divide by the root mean square of the last dimensions, then scale.

    `eps` None means the machine epsilon of the input's dtype.
    Shapes: x (..., *normalized_shape), result the same, weight normalized_shape.
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
        return normalization.rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class GroupNorm(Affine):
    """Normalise groups of channels of each sample to mean 0 and variance 1, then scale and shift each channel.

    Shapes: x (N, num_channels, ...), result the same, weight and bias (num_channels,).
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
        return channel_norm.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, "
            f"bias={self.bias is not None}"
        )


class LocalResponseNorm(FunctionLayer):
    """Divide each element by (k + alpha · mean square in `size` neighbouring channels) ** beta.

    Shapes: x (N, C, ...), result the same.
    Source: Krizhevsky, Sutskever, Hinton 2012, "ImageNet classification with deep convolutional neural networks".
    """

    _function = channel_norm.local_response_norm
    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 1.0

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"
