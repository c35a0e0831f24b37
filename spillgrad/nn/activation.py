"""Activations without parameters."""

from spillgrad.nn.module import Module
from spillgrad.ops import elementwise, normalization
from spillgrad.tensor import Tensor


class GELU(Module):
    """Multiply by the normal distribution function; `approximate="tanh"` is GPT-2's form.

    Source: Hendrycks, Gimpel 2016, "Gaussian error linear units".
    """

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        return elementwise.gelu(x, approximate=self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class ReLU(Module):
    """Replace negative elements by zero."""

    def forward(self, x: Tensor) -> Tensor:
        return elementwise.relu(x)


class SiLU(Module):
    """Multiply by the logistic sigmoid."""

    def forward(self, x: Tensor) -> Tensor:
        return elementwise.silu(x)


class Tanh(Module):
    """Apply the hyperbolic tangent."""

    def forward(self, x: Tensor) -> Tensor:
        return elementwise.tanh(x)


class Sigmoid(Module):
    """Apply the logistic sigmoid."""

    def forward(self, x: Tensor) -> Tensor:
        return elementwise.sigmoid(x)


class Softmax(Module):
    """Turn scores along a dimension into probabilities."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return normalization.softmax(x, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"
