"""Bilinear layer."""

import math
from typing import Any

from spillgrad.errors import ArgumentError
from spillgrad.nn import init
from spillgrad.nn.module import Module
from spillgrad.nn.parameter import Parameter
from spillgrad.ops import creation
from spillgrad.ops.einsum import bilinear
from spillgrad.tensor import Tensor

__all__ = ["Bilinear"]


class Bilinear(Module):
    """Compute x1 A x2 + b, with one matrix A for each output.

    Shapes: x1 (..., in1_features), x2 (..., in2_features), result (..., out_features), weight (out_features,
    in1_features, in2_features), bias (out_features,).
    """

    weight: Parameter
    bias: Parameter | None

    def __init__(
        self, in1_features: int, in2_features: int, out_features: int, bias: bool = True, device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if in1_features < 1:
            raise ArgumentError(f"Bilinear: in1_features must be > 0, but got {in1_features}")
        self.in1_features = in1_features
        self.in2_features = in2_features
        self.out_features = out_features
        self.weight = Parameter(
            creation.empty(out_features, in1_features, in2_features, device=device, dtype=dtype)
        )  # fmt: skip
        self.register_parameter(
            "bias", Parameter(creation.empty(out_features, device=device, dtype=dtype)) if bias else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias from U(-1/sqrt(in1_features), 1/sqrt(in1_features))."""
        bound = 1 / math.sqrt(self.in1_features)
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return bilinear(x1, x2, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in1_features={self.in1_features}, in2_features={self.in2_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}"
        )
