"""GPT-2's linear layer, whose weight is the transpose of a `Linear` layer's."""

from spillgrad.nn import init
from spillgrad.nn.module import Module
from spillgrad.nn.parameter import Parameter
from spillgrad.ops import creation, matrix_products
from spillgrad.ops.autocast import as_operand
from spillgrad.tensor import Tensor


class Conv1D(Module):
    """Compute `activation(x @ weight + bias)`; as in GPT-2, the weight is the transpose of a `Linear` layer's.

    Shapes: x (..., in_features), result (..., out_features), weight (in_features, out_features), bias (out_features,).
    """

    weight: Parameter
    bias: Parameter

    def __init__(self, in_features: int, out_features: int, std: float = 0.02, activation: str | None = None) -> None:
        super().__init__()
        self.activation = activation
        self.weight = Parameter(init.uninitialised(in_features, out_features))
        self.bias = Parameter(creation.zeros(out_features))
        init.normal_(self.weight, std=std)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Return the layer's result, plus `residual` if that is given."""
        weight = as_operand(self.weight)  # before it is transposed: a view would be converted on its own
        return matrix_products.linear(x, weight.t(), self.bias, activation=self.activation, residual=residual)

    def extra_repr(self) -> str:
        extra = "" if self.activation is None else f", activation={self.activation!r}"
        return f"in_features={self.weight.shape[0]}, out_features={self.weight.shape[1]}{extra}"
