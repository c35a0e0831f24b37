"""Layer normalisation."""

from collections.abc import Sequence
from typing import Any

from spillgrad.nn import init
from spillgrad.nn.module import Module
from spillgrad.nn.parameter import Parameter
from spillgrad.ops import creation, normalization
from spillgrad.ops.shape import shape_arguments
from spillgrad.tensor import Tensor


class LayerNorm(Module):
    """Normalise the last dimensions to mean 0 and variance 1, then scale and shift.

    Shapes: x (..., *normalized_shape), result the same, weight and bias normalized_shape.
    Source: Ba, Kiros, Hinton 2016, "Layer normalization".
    """

    weight: Parameter | None
    bias: Parameter | None

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = shape_arguments((normalized_shape,))
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        for name, present in (("weight", elementwise_affine), ("bias", elementwise_affine and bias)):
            self.register_parameter(
                name, Parameter(creation.empty(self.normalized_shape, device=device, dtype=dtype)) if present else None
            )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set weight to one and bias to zero."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return normalization.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}, "
            f"bias={self.bias is not None}"
        )
