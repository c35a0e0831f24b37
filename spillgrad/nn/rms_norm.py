"""Root-mean-square normalisation."""

from collections.abc import Sequence
from typing import Any

from spillgrad.nn.affine import Affine
from spillgrad.ops import normalization
from spillgrad.ops.shape import shape_arguments
from spillgrad.tensor import Tensor

__all__ = ["RMSNorm"]


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
        self._register_affine(self.normalized_shape, device, dtype, weight=elementwise_affine)
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        return normalization.rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
