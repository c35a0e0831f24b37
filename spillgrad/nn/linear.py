"""Linear layer."""

from typing import Any

from spillgrad.nn import init
from spillgrad.nn.module import Module
from spillgrad.nn.parameter import Parameter
from spillgrad.ops import matrix_products
from spillgrad.tensor import Tensor

__all__ = ["Linear"]


class Linear(Module):
    """Compute `x @ weight.T + bias`.

    Shapes: x (..., in_features), result (..., out_features), weight (out_features, in_features), bias (out_features,).
    """

    weight: Parameter
    bias: Parameter | None

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        shapes = {"weight": (out_features, in_features), "bias": (out_features,) if bias else None}
        self._new_parameters(device, dtype, **shapes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias from U(-1/sqrt(in_features), 1/sqrt(in_features))."""
        init.uniform_by_fan((self.weight, self.bias), self.in_features)

    def forward(self, x: Tensor) -> Tensor:
        return matrix_products.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
