"""Activations as modules; only `PReLU` has parameters."""

from collections.abc import Callable
from typing import Any

from spillgrad.errors import ArgumentError, ShapeError
from spillgrad.nn.module import Module
from spillgrad.nn.parameter import Parameter
from spillgrad.ops import activations, creation, normalization, trigonometry
from spillgrad.tensor import Tensor

__all__ = [
    "CELU",
    "ELU",
    "GELU",
    "GLU",
    "SELU",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "LeakyReLU",
    "LogSigmoid",
    "LogSoftmax",
    "Mish",
    "PReLU",
    "RReLU",
    "ReLU",
    "ReLU6",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softmax2d",
    "Softmin",
    "Softplus",
    "Softshrink",
    "Softsign",
    "Tanh",
    "Tanhshrink",
    "Threshold",
]  # fmt: skip


class _Activation(Module):
    """A module that calls one function with fixed options, which are its attributes and part of its representation."""

    _function: Callable[..., Tensor]
    _hidden = ("inplace",)  # shown only when set

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._options = tuple(options)
        for name, value in options.items():
            setattr(self, name, value)

    def forward(self, x: Tensor) -> Tensor:
        return type(self)._function(x, **{name: getattr(self, name) for name in self._options})

    def extra_repr(self) -> str:
        shown = [name for name in self._options if name not in self._hidden or getattr(self, name)]
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)


class GELU(_Activation):
    """Multiply by the normal distribution function; `approximate="tanh"` is GPT-2's form.

    Source: Hendrycks, Gimpel 2016, "Gaussian error linear units".
    """

    _function = activations.gelu

    def __init__(self, approximate: str = "none") -> None:
        super().__init__(approximate=approximate)


class ReLU(_Activation):
    """Replace negative elements by zero."""

    _function = activations.relu

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(inplace=inplace)


class ReLU6(_Activation):
    """Move elements into [0, 6]."""

    _function = activations.relu6

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(inplace=inplace)


class LeakyReLU(_Activation):
    """Multiply negative elements by `negative_slope`."""

    _function = activations.leaky_relu

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__(negative_slope=negative_slope, inplace=inplace)


class RReLU(_Activation):
    """Multiply negative elements by slopes: in training from U(lower, upper), in evaluation the mean of these."""

    _function = activations.rrelu

    def __init__(self, lower: float = 1 / 8, upper: float = 1 / 3, inplace: bool = False) -> None:
        super().__init__(lower=lower, upper=upper, inplace=inplace)

    def forward(self, x: Tensor) -> Tensor:
        return activations.rrelu(x, self.lower, self.upper, self.training, self.inplace)


class ELU(_Activation):
    """Replace negative elements by alpha (exp(x) - 1)."""

    _function = activations.elu

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__(alpha=alpha, inplace=inplace)


class CELU(_Activation):
    """Replace negative elements by alpha (exp(x / alpha) - 1)."""

    _function = activations.celu

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__(alpha=alpha, inplace=inplace)


class SELU(_Activation):
    """Apply the scaled elu that keeps mean 0 and variance 1."""

    _function = activations.selu

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(inplace=inplace)


class SiLU(_Activation):
    """Multiply by the logistic sigmoid."""

    _function = activations.silu

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(inplace=inplace)


class Mish(_Activation):
    """Multiply by tanh of softplus."""

    _function = activations.mish

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(inplace=inplace)


class Hardtanh(_Activation):
    """Move elements into [min_val, max_val]."""

    _function = activations.hardtanh

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None:
        if not min_val < max_val:
            raise ArgumentError(f"Hardtanh: got min_val={min_val} and max_val={max_val}; the lower bound comes first")
        super().__init__(min_val=min_val, max_val=max_val, inplace=inplace)


class Hardsigmoid(_Activation):
    """Apply x / 6 + 1/2, moved into [0, 1]."""

    _function = activations.hardsigmoid

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(inplace=inplace)


class Hardswish(_Activation):
    """Multiply by hardsigmoid."""

    _function = activations.hardswish

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(inplace=inplace)


class Threshold(_Activation):
    """Replace elements that are not greater than `threshold` by `value`."""

    _function = activations.threshold

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
        super().__init__(threshold=threshold, value=value, inplace=inplace)


class Hardshrink(_Activation):
    """Replace elements within [-lambd, lambd] by zero."""

    _function = activations.hardshrink

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__(lambd=lambd)


class Softshrink(_Activation):
    """Move elements towards zero by `lambd`, but not past it."""

    _function = activations.softshrink

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__(lambd=lambd)


class Softplus(_Activation):
    """Apply log(1 + exp(beta x)) / beta."""

    _function = activations.softplus

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__(beta=beta, threshold=threshold)


class Softsign(_Activation):
    """Divide by 1 + |x|."""

    _function = activations.softsign


class Tanhshrink(_Activation):
    """Subtract the hyperbolic tangent."""

    _function = activations.tanhshrink


class Tanh(_Activation):
    """Apply the hyperbolic tangent."""

    _function = trigonometry.tanh


class Sigmoid(_Activation):
    """Apply the logistic sigmoid."""

    _function = activations.sigmoid


class LogSigmoid(_Activation):
    """Apply the logarithm of the logistic sigmoid."""

    _function = activations.logsigmoid


class GLU(_Activation):
    """Multiply the first half of a dimension by the sigmoid of the second."""

    _function = activations.glu

    def __init__(self, dim: int = -1) -> None:
        super().__init__(dim=dim)


class Softmax(_Activation):
    """Turn scores along a dimension into probabilities."""

    _function = normalization.softmax

    def __init__(self, dim: int = -1) -> None:
        super().__init__(dim=dim)


class LogSoftmax(_Activation):
    """Turn scores along a dimension into logarithms of probabilities."""

    _function = normalization.log_softmax

    def __init__(self, dim: int = -1) -> None:
        super().__init__(dim=dim)


class Softmin(_Activation):
    """Turn costs along a dimension into probabilities."""

    _function = activations.softmin

    def __init__(self, dim: int = -1) -> None:
        super().__init__(dim=dim)


class Softmax2d(Module):
    """Turn scores of channels into probabilities. Shapes: (N, C, H, W) or (C, H, W)."""

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim not in (3, 4):
            raise ShapeError(f"Softmax2d: got a tensor of shape {x.shape}; wanted (N, C, H, W) or (C, H, W)")
        return normalization.softmax(x, -3)


class PReLU(Module):
    """Multiply negative elements by a learned slope: one, or one for each channel.

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
