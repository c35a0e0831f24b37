"""Normalisation of the last dimensions: by mean and variance, or by the root mean square."""

from collections.abc import Sequence
from typing import Any

from spillgrad.nn.affine import Affine
from spillgrad.ops import normalization
from spillgrad.ops.shape import shape_arguments
from spillgrad.tensor import Tensor

__all__ = ["LayerNorm", "RMSNorm"]


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
