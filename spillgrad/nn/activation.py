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
    """Multiply each element x by the standard normal distribution function at x.

    Parameters
    ----------
    approximate : {"none", "tanh"}, default "none"
        Whether to compute the distribution function exactly, or by GPT-2's approximation with tanh.

    Notes
    -----
    Source: Hendrycks, Gimpel 2016, "Gaussian error linear units".
    """

    _function = activations.gelu
    approximate: str = "none"


class ReLU(FunctionLayer):
    """Replace negative elements by zero.

    Parameters
    ----------
    inplace : bool, default False
        Whether to overwrite the input.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.nn.ReLU()(sg.tensor([-1.0, 0.0, 2.0]))
    tensor([0., 0., 2.])
    """

    _function = activations.relu
    inplace: bool = False


class ReLU6(FunctionLayer):
    """Clamp elements to [0, 6].

    Parameters
    ----------
    inplace : bool, default False
        Whether to overwrite the input.
    """

    _function = activations.relu6
    inplace: bool = False


class LeakyReLU(FunctionLayer):
    """Multiply negative elements by `negative_slope`.

    Parameters
    ----------
    negative_slope : float, default 0.01
        Factor of negative elements.
    inplace : bool, default False
        Whether to overwrite the input.
    """

    _function = activations.leaky_relu
    negative_slope: float = 0.01
    inplace: bool = False


class RReLU(FunctionLayer):
    """Multiply negative elements by slopes: draws from U(lower, upper) in training, their mean in evaluation.

    Parameters
    ----------
    lower : float, default 1/8
        Least slope.
    upper : float, default 1/3
        Largest slope.
    inplace : bool, default False
        Whether to overwrite the input.
    """

    _function = activations.rrelu
    lower: float = 1 / 8
    upper: float = 1 / 3
    inplace: bool = False

    def forward(self, x: Tensor) -> Tensor:
        """Return the elements, with negative ones multiplied by their slopes.

        Parameters
        ----------
        x : Tensor
            Of any shape.

        Returns
        -------
        Tensor
            Of the shape of `x`.
        """
        return activations.rrelu(x, self.lower, self.upper, self.training, self.inplace)


class ELU(FunctionLayer):
    """Replace negative elements x by ``alpha * (exp(x) - 1)``.

    Parameters
    ----------
    alpha : float, default 1.0
        Factor of negative results, which are above ``-alpha``.
    inplace : bool, default False
        Whether to overwrite the input.
    """

    _function = activations.elu
    alpha: float = 1.0
    inplace: bool = False


class CELU(FunctionLayer):
    """Replace negative elements x by ``alpha * (exp(x / alpha) - 1)``.

    Parameters
    ----------
    alpha : float, default 1.0
        Scale of inputs and results; any but 0.
    inplace : bool, default False
        Whether to overwrite the input.
    """

    _function = activations.celu
    alpha: float = 1.0
    inplace: bool = False


class SELU(FunctionLayer):
    """Apply the scaled ELU that keeps mean 0 and variance 1 from layer to layer.

    Parameters
    ----------
    inplace : bool, default False
        Whether to overwrite the input.
    """

    _function = activations.selu
    inplace: bool = False


class SiLU(FunctionLayer):
    """Multiply each element by its logistic sigmoid.

    Parameters
    ----------
    inplace : bool, default False
        Whether to overwrite the input.
    """

    _function = activations.silu
    inplace: bool = False


class Mish(FunctionLayer):
    """Multiply each element x by tanh(softplus(x)).

    Parameters
    ----------
    inplace : bool, default False
        Whether to overwrite the input.
    """

    _function = activations.mish
    inplace: bool = False


class Hardtanh(FunctionLayer):
    """Clamp elements to [min_val, max_val].

    Parameters
    ----------
    min_val : float, default -1.0
        Least result.
    max_val : float, default 1.0
        Largest result.
    inplace : bool, default False
        Whether to overwrite the input.

    Raises
    ------
    ArgumentError
        If `min_val` is not below `max_val`.
    """

    _function = activations.hardtanh
    min_val: float = -1.0
    max_val: float = 1.0
    inplace: bool = False

    def _set_up(self) -> None:
        low, high = self.min_val, self.max_val
        if not low < high:
            raise ArgumentError(f"Hardtanh: got min_val={low} and max_val={high}; the lower bound comes first")


class Hardsigmoid(FunctionLayer):
    """Apply x / 6 + 1/2, clamped to [0, 1].

    Parameters
    ----------
    inplace : bool, default False
        Whether to overwrite the input.
    """

    _function = activations.hardsigmoid
    inplace: bool = False


class Hardswish(FunctionLayer):
    """Multiply each element by its hardsigmoid.

    Parameters
    ----------
    inplace : bool, default False
        Whether to overwrite the input.
    """

    _function = activations.hardswish
    inplace: bool = False


class Threshold(FunctionLayer):
    """Replace elements that are not greater than `threshold` by `value`.

    Parameters
    ----------
    threshold : float
        Bound above which elements stay.
    value : float
        Result for the other elements.
    inplace : bool, default False
        Whether to overwrite the input.
    """

    _function = activations.threshold
    threshold: float
    value: float
    inplace: bool = False


class Hardshrink(FunctionLayer):
    """Replace elements within [-lambd, lambd] by zero.

    Parameters
    ----------
    lambd : float, default 0.5
        Bound of the interval.
    """

    _function = activations.hardshrink
    lambd: float = 0.5


class Softshrink(FunctionLayer):
    """Move elements towards zero by `lambd`, but not past it.

    Parameters
    ----------
    lambd : float, default 0.5
        Distance; not negative.
    """

    _function = activations.softshrink
    lambd: float = 0.5


class Softplus(FunctionLayer):
    """Apply ``log(1 + exp(beta * x)) / beta``, a smooth form of relu.

    Parameters
    ----------
    beta : float, default 1.0
        Scale of the elements: a larger one brings the result nearer to that of relu.
    threshold : float, default 20.0
        Where ``beta * x`` exceeds it, the result is x.
    """

    _function = activations.softplus
    beta: float = 1.0
    threshold: float = 20.0


class Softsign(FunctionLayer):
    """Divide each element x by ``1 + |x|``."""

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
    """Multiply the first half of a dimension by the sigmoid of the second half.

    Parameters
    ----------
    dim : int, default -1
        Dimension to halve; its size is even.
    """

    _function = activations.glu
    dim: int = -1


class Softmax(FunctionLayer):
    """Turn scores along a dimension into probabilities.

    Parameters
    ----------
    dim : int, default -1
        Dimension along which the results sum to 1.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.nn.Softmax(dim=-1)(sg.tensor([[0.0, 0.0], [100.0, 0.0]]))
    tensor([[0.5000, 0.5000],
            [1.0000, 0.0000]])
    """

    _function = normalization.softmax
    dim: int = -1


class LogSoftmax(FunctionLayer):
    """Turn scores along a dimension into logarithms of probabilities.

    Parameters
    ----------
    dim : int, default -1
        Dimension along which the probabilities sum to 1.
    """

    _function = normalization.log_softmax
    dim: int = -1


class Softmin(FunctionLayer):
    """Turn costs along a dimension into probabilities.

    Parameters
    ----------
    dim : int, default -1
        Dimension along which the results sum to 1.
    """

    _function = activations.softmin
    dim: int = -1


class Softmax2d(Module):
    """Turn the scores of the channels at each pixel into probabilities."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the softmax over the channels.

        Parameters
        ----------
        x : Tensor
            Of shape (N, C, H, W) or (C, H, W).

        Returns
        -------
        Tensor
            Of the shape of `x`.

        Raises
        ------
        ShapeError
            If `x` has another number of dimensions.
        """
        if x.ndim not in (3, 4):
            raise ShapeError(f"Softmax2d: got a tensor of shape {x.shape}; wanted (N, C, H, W) or (C, H, W)")
        return normalization.softmax(x, -3)


class PReLU(Module):
    """Multiply negative elements by a learned slope: one slope for all elements, or one for each channel.

    Parameters
    ----------
    num_parameters : int, default 1
        1, or the number of channels.
    init : float, default 0.25
        First value of the slopes.
    device : device, optional
        Where the parameters are; by default, the default device.
    dtype : dtype, optional
        Data type of the parameters; by default, the default data type.

    Notes
    -----
    Source: He et al. 2015, "Delving deep into rectifiers".
    """

    def __init__(self, num_parameters: int = 1, init: float = 0.25, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.num_parameters = num_parameters
        self.weight = Parameter(creation.full((num_parameters,), float(init), dtype, device))

    def forward(self, x: Tensor) -> Tensor:
        """Return the elements, with negative ones multiplied by the slopes.

        Parameters
        ----------
        x : Tensor
            Of shape (N, C, ...) or (C,); of any shape if there is one slope.

        Returns
        -------
        Tensor
            Of the shape of `x`.
        """
        return activations.prelu(x, self.weight)

    def extra_repr(self) -> str:
        """Return the options to show in the layer's representation.

        Returns
        -------
        str
            Names and values.
        """
        return f"num_parameters={self.num_parameters}"
