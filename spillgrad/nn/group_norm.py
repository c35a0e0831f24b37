"""Group normalisation, and local response normalisation."""

from typing import Any

from spillgrad.errors import ArgumentError
from spillgrad.nn.affine import Affine
from spillgrad.nn.function_layer import FunctionLayer
from spillgrad.ops import channel_norm
from spillgrad.tensor import Tensor

__all__ = ["GroupNorm", "LocalResponseNorm"]


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
    """Divide each element by a power of the mean square in neighbouring channels.

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
