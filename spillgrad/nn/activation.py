"""Activations as modules; only `PReLU` has parameters."""

from typing import Any

from spillgrad.errors import ArgumentError, ShapeError
from spillgrad.nn.function_layer import FunctionLayer
from spillgrad.nn.module import Module
from spillgrad.nn.parameter import Parameter
from spillgrad.ops import activations, creation, normalization, trigonometry
from spillgrad.tensor import Tensor

__all__ = [
    "CELU", "ELU", "GELU", "GLU", "SELU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU",
    "LogSigmoid", "LogSoftmax", "Mish", "PReLU", "RReLU", "ReLU", "ReLU6", "SiLU", "Sigmoid", "Softmax", "Softmax2d",
    "Softmin", "Softplus", "Softshrink", "Softsign", "Tanh", "Tanhshrink", "Threshold",
]  # fmt: skip


class GELU(FunctionLayer):
    """Multiply each element x by the standard normal distribution function at x; "tanh" is GPT-2's approximation.

    Source: Hendrycks, Gimpel 2016, "Gaussian error linear units".
    """

    _function = activations.gelu
    approximate: str = "none"


class ReLU(FunctionLayer):
    """Replace negative elements by zero."""

    _function = activations.relu
    inplace: bool = False


class ReLU6(FunctionLayer):
    """Clamp elements to [0, 6]."""

    _function = activations.relu6
    inplace: bool = False


class LeakyReLU(FunctionLayer):
    """Multiply negative elements by `negative_slope`."""

    _function = activations.leaky_relu
    negative_slope: float = 0.01
    inplace: bool = False


class RReLU(FunctionLayer):
    """Multiply negative elements by slopes: draws from U(lower, upper) in training, their mean in evaluation."""

    _function = activations.rrelu
    lower: float = 1 / 8
    upper: float = 1 / 3
    inplace: bool = False

    def forward(self, x: Tensor) -> Tensor:
        return activations.rrelu(x, self.lower, self.upper, self.training, self.inplace)


class ELU(FunctionLayer):
    """Replace negative elements by alpha (exp(x) - 1)."""

    _function = activations.elu
    alpha: float = 1.0
    inplace: bool = False


class CELU(FunctionLayer):
    """Replace negative elements by alpha (exp(x / alpha) - 1)."""

    _function = activations.celu
    alpha: float = 1.0
    inplace: bool = False


class SELU(FunctionLayer):
    """Apply the scaled ELU that keeps mean 0 and variance 1 from layer to layer."""

    _function = activations.selu
    inplace: bool = False


class SiLU(FunctionLayer):
    """Multiply each element by its logistic sigmoid."""

    _function = activations.silu
    inplace: bool = False


class Mish(FunctionLayer):
    """Multiply each element x by tanh(softplus(x))."""

    _function = activations.mish
    inplace: bool = False


class Hardtanh(FunctionLayer):
    """Clamp elements to [min_val, max_val]."""

    _function = activations.hardtanh
    min_val: float = -1.0
    max_val: float = 1.0
    inplace: bool = False

    def _set_up(self) -> None:
        low, high = self.min_val, self.max_val
        if not low < high:
            raise ArgumentError(f"Hardtanh: got min_val={low} and max_val={high}; the lower bound comes first")


class Hardsigmoid(FunctionLayer):
    """Apply x / 6 + 1/2, clamped to [0, 1]."""

    _function = activations.hardsigmoid
    inplace: bool = False


class Hardswish(FunctionLayer):
    """Multiply each element by its hardsigmoid."""

    _function = activations.hardswish
    inplace: bool = False


class Threshold(FunctionLayer):
    """Replace elements that are not greater than `threshold` by `value`."""

    _function = activations.threshold
    threshold: float
    value: float
    inplace: bool = False


class Hardshrink(FunctionLayer):
    """Replace elements within [-lambd, lambd] by zero."""

    _function = activations.hardshrink
    lambd: float = 0.5


class Softshrink(FunctionLayer):
    """Move elements towards zero by `lambd`, but not past it."""

    _function = activations.softshrink
    lambd: float = 0.5


class Softplus(FunctionLayer):
    """Apply log(1 + exp(beta x)) / beta; if beta x exceeds `threshold`, return x."""

    _function = activations.softplus
    beta: float = 1.0
    threshold: float = 20.0


class Softsign(FunctionLayer):
    """Divide each element x by 1 + |x|."""

    _function = activations.softsign


class Tanhshrink(FunctionLayer):
    """Subtract from each element its hyperbolic tangent."""

    _function = activations.tanhshrink


class Tanh(FunctionLayer):
    """Apply the hyperbolic tangent."""

    _function = trigonometry.tanh


class Sigmoid(FunctionLayer):
    """Apply the logistic sigmoid."""

    _function = activations.sigmoid


class LogSigmoid(FunctionLayer):
    """Apply the logarithm of the logistic sigmoid."""

    _function = activations.logsigmoid


class GLU(FunctionLayer):
    """Multiply the first half of a dimension by the sigmoid of the second half."""

    _function = activations.glu
    dim: int = -1


class Softmax(FunctionLayer):
    """Turn scores along a dimension into probabilities."""

    _function = normalization.softmax
    dim: int = -1


class LogSoftmax(FunctionLayer):
    """Turn scores along a dimension into logarithms of probabilities."""

    _function = normalization.log_softmax
    dim: int = -1


class Softmin(FunctionLayer):
    """Turn costs along a dimension into probabilities."""

    _function = activations.softmin
    dim: int = -1


class Softmax2d(Module):
    """Turn the scores of the channels at each pixel into probabilities. Shapes: (N, C, H, W) or (C, H, W)."""

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim not in (3, 4):
            raise ShapeError(f"Softmax2d: got a tensor of shape {x.shape}; wanted (N, C, H, W) or (C, H, W)")
        return normalization.softmax(x, -3)


class PReLU(Module):
    """Multiply negative elements by a learned slope: one slope for all elements, or one for each channel.

    Source: He et al. 2015, "Delving deep into rectifiers".
    """

    def __init__(self, num_parameters: int = 1, init: float = 0.25, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.num_parameters = num_parameters
        self.weight = Parameter(creation.full((num_parameters,), float(init), dtype, device))

    def forward(self, x: Tensor) -> Tensor:
        return activations.prelu(x, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"
