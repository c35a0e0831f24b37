"""Activation functions; most are rows of the kernels' table of operations. `inplace` overwrites the input."""

import functools
from collections.abc import Callable
from typing import Any, Protocol

from spillgrad import dtypes
from spillgrad.errors import ArgumentError, ShapeError
from spillgrad.ops import docstrings
from spillgrad.ops import inplace as in_place
from spillgrad.ops.arithmetic import add, div, log, mul, neg, sub
from spillgrad.ops.clamp_where import clamp
from spillgrad.ops.creation import draw, zeros_like
from spillgrad.ops.declaration import declare, named
from spillgrad.ops.elementwise import OPERATIONS, call, row_function
from spillgrad.ops.indexing import scatter
from spillgrad.ops.join_split import chunk
from spillgrad.ops.normalization import softmax
from spillgrad.ops.reduce import argmax
from spillgrad.ops.shape import normalize_dim, reshape, unsqueeze
from spillgrad.ops.trigonometry import tanh
from spillgrad.tensor import Tensor
from spillgrad_kernels.cpu import random as kernels

__all__ = [
    "celu", "celu_", "elu", "elu_", "gelu", "glu", "gumbel_softmax", "hardshrink", "hardsigmoid", "hardswish",
    "hardtanh", "hardtanh_", "leaky_relu", "leaky_relu_", "log_sigmoid", "logsigmoid", "mish", "prelu", "relu",
    "relu6", "relu_", "rrelu", "rrelu_", "selu", "selu_", "sigmoid", "silu", "softmin", "softplus", "softshrink",
    "softsign", "swish", "tanhshrink", "threshold", "threshold_",
]  # fmt: skip

sigmoid = row_function("sigmoid", "Return ``1 / (1 + exp(-x))`` for each element x.", in_place=True)


@functools.cache
def _call(name: str) -> Callable[..., Tensor]:
    def row(*operands: Any, out: Tensor | None = None) -> Tensor:
        return call(name, *operands, out=out)

    return row


def _activated(name: str, input: Tensor, *numbers: float, inplace: bool, out: Tensor | None) -> Tensor:
    if inplace:
        return in_place.change(input, f"{name}_", _call(name), *numbers)
    return OPERATIONS[name].run(input, *numbers) if out is None else call(name, input, *numbers, out=out)


@declare(in_place=True)
def relu(input: Tensor, inplace: bool = False, *, out: Tensor | None = None) -> Tensor:
    """Return each element, with negative elements replaced by 0.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    inplace : bool, default False
        Whether to overwrite the input.
    out : Tensor, optional
        Tensor that takes the result.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.relu(sg.tensor([-1.0, 0.0, 2.0])).tolist()
    [0.0, 0.0, 2.0]
    """
    if out is None and not inplace:  # the shortest path for the activation that is called most
        return OPERATIONS["relu"].run(input)  # type: ignore[no-any-return]
    return _activated("relu", input, inplace=inplace, out=out)


class _Activation(Protocol):
    """The signature of activation functions whose only operand is the input."""

    def __call__(self, input: Tensor, inplace: bool = False, *, out: Tensor | None = None) -> Tensor: ...


def _activation(name: str, summary: str, source: str) -> _Activation:
    """Return the activation function of the table's row `name`, whose only operand is the input."""

    def function(input: Tensor, inplace: bool = False, *, out: Tensor | None = None) -> Tensor:
        return _activated(name, input, inplace=inplace, out=out)

    doc = docstrings.composed(
        summary, docstrings.INPUT, docstrings.INPLACE, docstrings.OUT,
        returns="Tensor\n    Of the shape of `input`.", notes=f"Source: {source}",
    )  # fmt: skip
    return named(function, name, doc)


silu = swish = _activation("silu", "Return ``x * sigmoid(x)`` for each element x.", "Elfwing et al. 2017, section 2.")
mish = _activation("mish", "Return ``x * tanh(softplus(x))`` for each element x.", "Misra 2019.")
selu = _activation(
    "selu", "Return `elu`, scaled so that mean 0 and variance 1 stay.", "Klambauer et al. 2017, equation 2."
)
hardsigmoid = _activation(
    "hardsigmoid", "Return ``x / 6 + 1 / 2``, moved into [0, 1], for each element x.",
    "Howard et al. 2019, section 5.2.",
)  # fmt: skip
hardswish = _activation(
    "hardswish", "Return ``x * hardsigmoid(x)`` for each element x.", "Howard et al. 2019, section 5.2."
)
softsign = row_function("softsign", "Return ``x / (1 + |x|)`` for each element x.")
logsigmoid = log_sigmoid = row_function(
    "log_sigmoid", "Return the logarithm of ``sigmoid(x)``, accurate where sigmoid itself underflows."
)


def gelu(input: Tensor, approximate: str = "none", *, out: Tensor | None = None) -> Tensor:
    """Return x Φ(x) for each element x, where Φ is the cumulative distribution function of the normal distribution.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    approximate : {"none", "tanh"}, default "none"
        Whether Φ is exact, or approximated by a hyperbolic tangent.
    out : Tensor, optional
        Tensor that takes the result.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ArgumentError
        If `approximate` is another word.

    Notes
    -----
    Source: Hendrycks & Gimpel 2016.
    """
    if approximate not in ("none", "tanh"):
        raise ArgumentError(f'gelu: got approximate={approximate!r}; accepted are "none" and "tanh"')
    return call("gelu" if approximate == "none" else "gelu_tanh", input, out=out)


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0, *, out: Tensor | None = None) -> Tensor:
    """Return ``log(1 + exp(beta * x)) / beta`` for each element x.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    beta : float, default 1.0
        Factor of the elements.
    threshold : float, default 20.0
        Above this ``beta * x``, the result is x itself.
    out : Tensor, optional
        Tensor that takes the result.

    Returns
    -------
    Tensor
        Of the shape of `input`.
    """
    return call("softplus", input, float(beta), float(threshold), out=out)


def tanhshrink(input: Tensor) -> Tensor:
    """Return ``x - tanh(x)`` for each element x.

    Parameters
    ----------
    input : Tensor
        Of any shape.

    Returns
    -------
    Tensor
        Of the shape of `input`.
    """
    return sub(input, tanh(input))


def leaky_relu(
    input: Tensor, negative_slope: float = 0.01, inplace: bool = False, *, out: Tensor | None = None
) -> Tensor:
    """Return each element, with negative elements multiplied by a small slope.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    negative_slope : float, default 0.01
        Factor of negative elements.
    inplace : bool, default False
        Whether to overwrite the input.
    out : Tensor, optional
        Tensor that takes the result.

    Returns
    -------
    Tensor
        Of the shape of `input`.
    """
    return _activated("leaky_relu", input, float(negative_slope), inplace=inplace, out=out)


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False, *, out: Tensor | None = None) -> Tensor:
    """Return each element, with negative x replaced by ``alpha * (exp(x) - 1)``.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    alpha : float, default 1.0
        The limit of the result for very negative x is -alpha.
    inplace : bool, default False
        Whether to overwrite the input.
    out : Tensor, optional
        Tensor that takes the result.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Notes
    -----
    Source: Clevert et al. 2015, equation 16.
    """
    return _activated("elu", input, float(alpha), inplace=inplace, out=out)


def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False, *, out: Tensor | None = None) -> Tensor:
    """Return each element, with negative x replaced by ``alpha * (exp(x / alpha) - 1)``.

    The slope is continuous at 0 for every alpha.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    alpha : float, default 1.0
        The limit of the result for very negative x is -alpha; not 0.
    inplace : bool, default False
        Whether to overwrite the input.
    out : Tensor, optional
        Tensor that takes the result.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ArgumentError
        If `alpha` is 0.

    Notes
    -----
    Source: Barron 2017.
    """
    if alpha == 0:
        raise ArgumentError("celu: got alpha=0; it divides the input: give another number")
    return _activated("celu", input, float(alpha), inplace=inplace, out=out)


def hardtanh(
    input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False, *, out: Tensor | None = None
) -> Tensor:
    """Return each element clamped to [min_val, max_val]; elements at or beyond a bound have gradient 0.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    min_val : float, default -1.0
        Lower bound.
    max_val : float, default 1.0
        Upper bound.
    inplace : bool, default False
        Whether to overwrite the input.
    out : Tensor, optional
        Tensor that takes the result.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ArgumentError
        If `min_val` exceeds `max_val`.
    """
    if min_val > max_val:
        raise ArgumentError(f"hardtanh: got min_val={min_val} and max_val={max_val}; the lower bound comes first")
    return _activated("hardtanh", input, min_val, max_val, inplace=inplace, out=out)


def _in_place(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the in-place form of an activation function, which overwrites its input and returns the input."""

    def changed(input: Tensor, *numbers: Any, **options: Any) -> Tensor:
        return function(input, *numbers, **options, inplace=True)

    doc = docstrings.composed(
        f"Do `{function.__name__}` in place; return the tensor.",
        "input : Tensor\n    Tensor that takes the result.",
        f"*numbers : float\n    Further arguments of `{function.__name__}`, by position.",
        f"**options : Any\n    Further arguments of `{function.__name__}`, by name.",
        returns="Tensor\n    `input` itself, changed.",
    )
    return named(changed, f"{function.__name__}_", doc)


def relu6(input: Tensor, inplace: bool = False, *, out: Tensor | None = None) -> Tensor:
    """Return each element clamped to [0, 6].

    Parameters
    ----------
    input : Tensor
        Of any shape.
    inplace : bool, default False
        Whether to overwrite the input.
    out : Tensor, optional
        Tensor that takes the result.

    Returns
    -------
    Tensor
        Of the shape of `input`.
    """
    return hardtanh(input, 0, 6, inplace, out=out)


@declare(method=True)
def hardshrink(input: Tensor, lambd: float = 0.5, *, out: Tensor | None = None) -> Tensor:
    """Return each element, with elements within [-lambd, lambd] replaced by 0.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    lambd : float, default 0.5
        Bound of what becomes 0.
    out : Tensor, optional
        Tensor that takes the result.

    Returns
    -------
    Tensor
        Of the shape of `input`.
    """
    return call("hardshrink", input, float(lambd), out=out)


def softshrink(input: Tensor, lambd: float = 0.5, *, out: Tensor | None = None) -> Tensor:
    """Return each element moved towards 0, but not past 0.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    lambd : float, default 0.5
        How far elements move; 0 or more.
    out : Tensor, optional
        Tensor that takes the result.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ArgumentError
        If `lambd` is negative.
    """
    if lambd < 0:
        raise ArgumentError(f"softshrink: got lambd={lambd}; wanted a number from 0 on")
    return call("softshrink", input, float(lambd), out=out)


def threshold(
    input: Tensor, threshold: float, value: float, inplace: bool = False, *, out: Tensor | None = None
) -> Tensor:
    """Return each element, with elements not above a threshold replaced by a value.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    threshold : float
        Bound above which elements stay.
    value : float
        What replaces the others.
    inplace : bool, default False
        Whether to overwrite the input.
    out : Tensor, optional
        Tensor that takes the result.

    Returns
    -------
    Tensor
        Of the shape of `input`.
    """
    return _activated("threshold", input, threshold, value, inplace=inplace, out=out)


@declare(method=True)
def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """Return each element, with negative elements multiplied by a learned slope.

    Parameters
    ----------
    input : Tensor
        Of shape (N, C, ...) or (C,).
    weight : Tensor
        Slopes: of shape (1,) or () for a common one, or (C,) for one for each channel.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ShapeError
        If `weight` has more than one dimension, or another number of slopes.

    Notes
    -----
    Source: He et al. 2015, equation 1.
    """
    if weight.ndim > 1:
        raise ShapeError(f"prelu: got weight {weight.shape}; wanted a vector with one slope, or one for each channel")
    if weight.numel() != 1:
        channels = input.shape[min(1, input.ndim - 1)] if input.ndim else 1
        if weight.numel() != channels:
            raise ShapeError(
                f"prelu: got input {input.shape} and weight {weight.shape}; wanted one slope, or {channels}, one for "
                "each channel"
            )
    return call("prelu_kernel", input, reshape(weight, (-1,) + (1,) * (input.ndim - 2) if input.ndim else ()))


def rrelu(
    input: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False
) -> Tensor:
    """Return each element, with negative elements multiplied by a random slope.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    lower : float, default 1 / 8
        Least slope.
    upper : float, default 1 / 3
        Largest slope.
    training : bool, default False
        Whether each slope is drawn from U(lower, upper); otherwise it is ``(lower + upper) / 2``.
    inplace : bool, default False
        Whether to overwrite the input.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    ArgumentError
        If `lower` exceeds `upper`.

    Notes
    -----
    Source: Xu et al. 2015, section 2.4.
    """
    if lower > upper:
        raise ArgumentError(f"rrelu: got lower={lower} and upper={upper}; the lower bound comes first")
    if not training:
        return leaky_relu(input, (lower + upper) / 2, inplace)
    slopes = add(mul(_uniform_like(input), upper - lower), lower)
    return in_place.change(input, "rrelu_", _call("prelu_kernel"), slopes) if inplace else call(
        "prelu_kernel", input, slopes
    )  # fmt: skip


def _uniform_like(input: Tensor) -> Tensor:
    return Tensor.wrap(draw("uniform", kernels.uniform, input.shape, input.numpy_dtype, None, input.device))


def glu(input: Tensor, dim: int = -1, *, axis: int | None = None) -> Tensor:
    """Return the first half of a dimension times the sigmoid of its second half.

    Parameters
    ----------
    input : Tensor
        Of even size in the dimension.
    dim : int, default -1
        Dimension to halve.
    axis : int, optional
        Another name of `dim`.

    Returns
    -------
    Tensor
        Of the shape of `input`, with half the size in the dimension.

    Raises
    ------
    ShapeError
        If the size of the dimension is odd.

    Notes
    -----
    Source: Dauphin et al. 2016, equation 1.
    """
    dim = normalize_dim("glu", dim if axis is None else axis, input.ndim)
    if not input.ndim or input.shape[dim] % 2:
        raise ShapeError(f"glu: got a tensor of shape {input.shape}; wanted an even size in dimension {dim} to halve")
    value, gate = chunk(input, 2, dim)
    return mul(value, sigmoid(gate))


def softmin(input: Tensor, dim: int = -1, dtype: Any = None, *, axis: int | None = None) -> Tensor:
    """Return the softmax of ``-x`` along one dimension.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    dim : int, default -1
        Dimension along which the result sums to 1.
    dtype : dtype, optional
        Data type of the result; by default, that of the input.
    axis : int, optional
        Another name of `dim`.

    Returns
    -------
    Tensor
        Of the shape of `input`.
    """
    return softmax(neg(input), dim, dtype, axis=axis)


def gumbel_softmax(
    logits: Tensor, tau: float = 1.0, hard: bool = False, eps: float = 1e-10, dim: int = -1, *, axis: int | None = None
) -> Tensor:
    """Return a sample of the Gumbel-softmax distribution along one dimension.

    Parameters
    ----------
    logits : Tensor
        Unnormalized log probabilities, of any shape.
    tau : float, default 1.0
        Temperature: the lower, the closer a sample is to one-hot.
    hard : bool, default False
        Whether the result is one-hot; it has the gradient of the soft sample.
    eps : float, default 1e-10
        Has no effect.
    dim : int, default -1
        Dimension along which the result sums to 1.
    axis : int, optional
        Another name of `dim`.

    Returns
    -------
    Tensor
        Of the shape of `logits`.

    Notes
    -----
    Source: Jang et al. 2016.
    """
    dim = normalize_dim("gumbel_softmax", dim if axis is None else axis, logits.ndim)
    uniform = clamp(_uniform_like(logits), dtypes.finfo(logits.dtype).tiny)
    noise = neg(log(clamp(neg(log(uniform)), dtypes.finfo(logits.dtype).tiny)))
    soft = softmax(div(add(logits, noise), float(tau)), dim)
    if not hard:
        return soft
    place = argmax(soft.detach(), dim)
    one_hot = scatter(zeros_like(soft), dim, unsqueeze(place, dim), 1.0)
    return add(sub(one_hot, soft.detach()), soft)


_WITH_VARIANTS: tuple[Callable[..., Tensor], ...] = (relu, elu, celu, selu, hardtanh, leaky_relu, threshold, rrelu)
relu_, elu_, celu_, selu_, hardtanh_, leaky_relu_, threshold_, rrelu_ = map(_in_place, _WITH_VARIANTS)
