"""Initial values of parameters, drawn in place from the default generator."""

import contextlib
import math
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from spillgrad.autograd.core.grad_mode import no_grad
from spillgrad.errors import ArgumentError, ShapeError
from spillgrad.generator import Generator
from spillgrad.ops import creation, decompositions, inplace, special
from spillgrad.ops.array_casts import refuse_complex
from spillgrad.ops.declaration import named
from spillgrad.tensor import Tensor

__all__ = [
    "calculate_gain",
    "constant",
    "constant_",
    "dirac",
    "dirac_",
    "eye",
    "eye_",
    "kaiming_normal",
    "kaiming_normal_",
    "kaiming_uniform",
    "kaiming_uniform_",
    "normal",
    "normal_",
    "ones_",
    "orthogonal",
    "orthogonal_",
    "sparse",
    "sparse_",
    "trunc_normal_",
    "uniform",
    "uniform_",
    "xavier_normal",
    "xavier_normal_",
    "xavier_uniform",
    "xavier_uniform_",
    "zeros_",
]  # fmt: skip

_LINEAR = ("linear", *(f"conv{kind}{dims}d" for kind in ("", "_transpose") for dims in (1, 2, 3)))
_GAINS = {**dict.fromkeys(_LINEAR, 1.0), "sigmoid": 1.0, "tanh": 5 / 3, "relu": math.sqrt(2), "selu": 0.75}


class _Skipping(threading.local):
    now = values_come = without_memory = False


_skipping = _Skipping()


@contextlib.contextmanager
def skipped(loads_all: bool = True, without_memory: bool = False) -> Iterator[None]:
    """Context manager: skip the initialisation of weights in this thread.

    With `loads_all`, all parameters that modules register are loaded afterwards: their values are not used. With
    `without_memory`, weights of linear layers and tables do not even get memory: see `uninitialised`.
    """
    former = _skipping.now, _skipping.values_come, _skipping.without_memory
    _skipping.now, _skipping.values_come, _skipping.without_memory = True, loads_all, without_memory
    try:
        yield
    finally:
        _skipping.now, _skipping.values_come, _skipping.without_memory = former


def values_come_later() -> bool:
    """Return whether the parameters that this thread's modules register are loaded afterwards."""
    return _skipping.values_come


def uninitialised(*shape: int, device: Any = None, dtype: Any = None) -> Tensor:
    """Return a new tensor for a weight; one element for all of them where weights get no memory."""
    if _skipping.without_memory and len(shape) == 2:
        return creation.empty(1, 1, device=device, dtype=dtype).expand(*shape)  # type: ignore[no-any-return]
    return creation.empty(*shape, device=device, dtype=dtype)


def lacks_memory(tensor: Tensor) -> bool:
    """Return whether `uninitialised` gave a tensor no memory of its own."""
    return not tensor._storage.offloaded and tensor._array.nbytes > tensor._storage.array.nbytes


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fill with draws from U(a, b).

    Parameters
    ----------
    tensor : Tensor
        Tensor to fill.
    a : float, default 0.0
        Lower bound.
    b : float, default 1.0
        Upper bound.
    generator : Generator, optional
        Where draws come from; by default, the generator of `manual_seed`.

    Returns
    -------
    Tensor
        The same tensor.
    """
    with no_grad():
        return tensor if _skipping.now else creation.uniform_(tensor, a, b, generator=generator)


def uniform_by_fan(parameters: Iterable[Tensor | None], fan: int) -> None:
    """Fill each parameter with draws from U(-1/sqrt(fan), 1/sqrt(fan)), or with zeros if `fan` is 0; skip None."""
    bound = 1 / math.sqrt(fan) if fan else 0.0
    for parameter in parameters:
        if parameter is not None:
            uniform_(parameter, -bound, bound)


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fill with draws from N(mean, std²).

    Parameters
    ----------
    tensor : Tensor
        Tensor to fill.
    mean : float, default 0.0
        Mean.
    std : float, default 1.0
        Standard deviation.
    generator : Generator, optional
        Where draws come from; by default, the generator of `manual_seed`.

    Returns
    -------
    Tensor
        The same tensor.
    """
    with no_grad():
        return tensor if _skipping.now else creation.normal_(tensor, mean, std, generator=generator)


def constant_(tensor: Tensor, val: float) -> Tensor:
    """Fill with one value.

    Parameters
    ----------
    tensor : Tensor
        Tensor to fill.
    val : float
        The value.

    Returns
    -------
    Tensor
        The same tensor.
    """
    with no_grad():
        return tensor if _skipping.now else inplace.fill_(tensor, val)


def zeros_(tensor: Tensor) -> Tensor:
    """Fill with zeros.

    Parameters
    ----------
    tensor : Tensor
        Tensor to fill.

    Returns
    -------
    Tensor
        The same tensor.
    """
    return constant_(tensor, 0.0)


def ones_(tensor: Tensor) -> Tensor:
    """Fill with ones.

    Parameters
    ----------
    tensor : Tensor
        Tensor to fill.

    Returns
    -------
    Tensor
        The same tensor.
    """
    return constant_(tensor, 1.0)


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Return the factor that keeps the variance of signals through a nonlinearity.

    Parameters
    ----------
    nonlinearity : str
        "linear", "conv1d" and the like, "sigmoid", "tanh", "relu", "leaky_relu" or "selu".
    param : float, optional
        Slope of leaky_relu for negative elements; by default, 0.01.

    Returns
    -------
    float
        The factor.

    Raises
    ------
    ArgumentError
        If the nonlinearity is unknown.
    """
    if nonlinearity == "leaky_relu":
        return math.sqrt(2 / (1 + (0.01 if param is None else param) ** 2))
    if nonlinearity not in _GAINS:
        raise ArgumentError(f"calculate_gain: got {nonlinearity!r}; known are leaky_relu, {', '.join(_GAINS)}")
    return _GAINS[nonlinearity]


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fill from U(-a, a) with a = gain · sqrt(6 / (fan_in + fan_out)).

    Parameters
    ----------
    tensor : Tensor
        Tensor to fill, of shape (out, in, ...): two or more dimensions.
    gain : float, default 1.0
        Factor of the draws; `calculate_gain` gives one for a nonlinearity.
    generator : Generator, optional
        Where draws come from; by default, the generator of `manual_seed`.

    Returns
    -------
    Tensor
        The same tensor.

    Raises
    ------
    ShapeError
        If the tensor has fewer than two dimensions, or no elements.

    Notes
    -----
    Source: Glorot, Bengio 2010, "Understanding the difficulty of training deep feedforward neural networks", eq. 16.
    """
    bound = gain * math.sqrt(6 / sum(_fans(tensor)))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fill from N(0, gain² · 2 / (fan_in + fan_out)).

    Parameters
    ----------
    tensor : Tensor
        Tensor to fill, of shape (out, in, ...): two or more dimensions.
    gain : float, default 1.0
        Factor of the draws; `calculate_gain` gives one for a nonlinearity.
    generator : Generator, optional
        Where draws come from; by default, the generator of `manual_seed`.

    Returns
    -------
    Tensor
        The same tensor.

    Raises
    ------
    ShapeError
        If the tensor has fewer than two dimensions, or no elements.

    Notes
    -----
    Source: Glorot, Bengio 2010, eq. 12.
    """
    return normal_(tensor, 0.0, gain * math.sqrt(2 / sum(_fans(tensor))), generator)


def kaiming_uniform_(
    tensor: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """Fill from U(-b, b) with b = gain · sqrt(3 / fan).

    Parameters
    ----------
    tensor : Tensor
        Tensor to fill, of shape (out, in, ...): two or more dimensions.
    a : float, default 0.0
        Slope of leaky_relu for negative elements; used for that nonlinearity alone.
    mode : {"fan_in", "fan_out"}, default "fan_in"
        Whether to keep the variance of signals in forward or of gradients in backward.
    nonlinearity : str, default "leaky_relu"
        Function after the layer; it sets the gain.
    generator : Generator, optional
        Where draws come from; by default, the generator of `manual_seed`.

    Returns
    -------
    Tensor
        The same tensor.

    Raises
    ------
    ShapeError
        If the tensor has fewer than two dimensions, or no elements.
    ArgumentError
        If `mode` or `nonlinearity` is unknown.

    Notes
    -----
    Source: He et al. 2015, "Delving deep into rectifiers", eq. 14 and 15.

    Examples
    --------
    >>> import spillgrad as sg
    >>> weight = sg.nn.init.kaiming_uniform_(sg.empty(3, 6), nonlinearity="relu")
    >>> bool((weight.abs() <= 1).all())
    True
    """
    bound = math.sqrt(3) * _kaiming_std(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """Fill from N(0, gain² / fan).

    Parameters
    ----------
    tensor : Tensor
        Tensor to fill, of shape (out, in, ...): two or more dimensions.
    a : float, default 0.0
        Slope of leaky_relu for negative elements; used for that nonlinearity alone.
    mode : {"fan_in", "fan_out"}, default "fan_in"
        Whether to keep the variance of signals in forward or of gradients in backward.
    nonlinearity : str, default "leaky_relu"
        Function after the layer; it sets the gain.
    generator : Generator, optional
        Where draws come from; by default, the generator of `manual_seed`.

    Returns
    -------
    Tensor
        The same tensor.

    Raises
    ------
    ShapeError
        If the tensor has fewer than two dimensions, or no elements.
    ArgumentError
        If `mode` or `nonlinearity` is unknown.

    Notes
    -----
    Source: He et al. 2015, eq. 14 and 15.
    """
    return normal_(tensor, 0.0, _kaiming_std(tensor, a, mode, nonlinearity), generator)


def trunc_normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0,
    generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """Fill with draws from N(mean, std²) truncated to [a, b], by inverting the cumulative distribution function.

    Parameters
    ----------
    tensor : Tensor
        Tensor to fill.
    mean : float, default 0.0
        Mean before the truncation.
    std : float, default 1.0
        Standard deviation before the truncation.
    a : float, default -2.0
        Lower bound.
    b : float, default 2.0
        Upper bound.
    generator : Generator, optional
        Where draws come from; by default, the generator of `manual_seed`.

    Returns
    -------
    Tensor
        The same tensor.

    Raises
    ------
    DtypeError
        For a complex tensor.
    """
    refuse_complex("trunc_normal_", tensor.dtype)
    below, above = ((1 + math.erf((bound - mean) / std / math.sqrt(2))) / 2 for bound in (a, b))
    with no_grad():
        uniform = creation.empty(tensor.shape, dtype="float64")
        creation.uniform_(uniform, 2 * below - 1, 2 * above - 1, generator=generator)
        draws = special.erfinv(uniform) * (std * math.sqrt(2)) + mean
        return inplace.copy_(tensor, draws.clamp(a, b))


def orthogonal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fill with `gain` times a matrix of orthonormal rows or columns, whichever are fewer.

    Parameters
    ----------
    tensor : Tensor
        Tensor to fill, of two or more dimensions; those from the second on are joined.
    gain : float, default 1.0
        Factor of the matrix.
    generator : Generator, optional
        Where draws come from; by default, the generator of `manual_seed`.

    Returns
    -------
    Tensor
        The same tensor.

    Raises
    ------
    DtypeError
        For a complex tensor.
    ShapeError
        If the tensor has fewer than two dimensions.

    Notes
    -----
    Source: Saxe et al. 2013, "Exact solutions to the nonlinear dynamics of learning in deep linear neural networks".
    """
    refuse_complex("orthogonal_", tensor.dtype)
    if tensor.ndim < 2:
        raise ShapeError(f"init: got shape {tensor.shape}; Only tensors with 2 or more dimensions are supported")
    if not tensor.numel():
        return tensor
    rows, columns = tensor.shape[0], tensor.numel() // tensor.shape[0]
    with no_grad():
        draws = creation.randn(max(rows, columns), min(rows, columns), dtype="float64", generator=generator)
        factors = decompositions.qr(draws)
        basis = factors.Q.array * np.sign(np.diagonal(factors.R.array))  # uniform among all such matrices
        matrix = (basis.T if rows < columns else basis) * gain
        return inplace.copy_(tensor, np.ascontiguousarray(matrix).reshape(tensor.shape))


def eye_(tensor: Tensor) -> Tensor:
    """Fill a matrix with ones on its diagonal and zeros elsewhere.

    Parameters
    ----------
    tensor : Tensor
        Matrix to fill.

    Returns
    -------
    Tensor
        The same tensor.

    Raises
    ------
    ShapeError
        For a tensor that is no matrix.
    """
    if tensor.ndim != 2:
        raise ShapeError(f"init: got shape {tensor.shape}; Only tensors with 2 dimensions are supported")
    with no_grad():
        return inplace.copy_(tensor, np.eye(tensor.shape[0], tensor.shape[1]))


def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """Fill a convolution's weight so that each group copies input channels to output channels, as many as fit.

    Parameters
    ----------
    tensor : Tensor
        Weight to fill, of 3 to 5 dimensions.
    groups : int, default 1
        Number of groups.

    Returns
    -------
    Tensor
        The same tensor.

    Raises
    ------
    ShapeError
        If the weight has another number of dimensions.
    ArgumentError
        If `groups` does not divide the number of output channels.
    """
    if tensor.ndim not in (3, 4, 5):
        raise ShapeError(f"init: got shape {tensor.shape}; Only tensors with 3, 4, or 5 dimensions are supported")
    if tensor.shape[0] % groups:
        raise ArgumentError(f"init: got shape {tensor.shape} and {groups} groups; dim 0 must be divisible by groups")
    outputs = tensor.shape[0] // groups
    values = np.zeros(tensor.shape)
    centre = tuple(size // 2 for size in tensor.shape[2:])
    for group in range(groups):
        for channel in range(min(outputs, tensor.shape[1])):
            values[(group * outputs + channel, channel, *centre)] = 1
    with no_grad():
        return inplace.copy_(tensor, values)


def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01, generator: Generator | None = None) -> Tensor:
    """Fill a matrix with draws from N(0, std²), and set a part of each column to 0.

    Parameters
    ----------
    tensor : Tensor
        Matrix to fill.
    sparsity : float
        Share of each column that is 0.
    std : float, default 0.01
        Standard deviation of the draws.
    generator : Generator, optional
        Where draws come from; by default, the generator of `manual_seed`.

    Returns
    -------
    Tensor
        The same tensor.

    Raises
    ------
    ShapeError
        For a tensor that is no matrix.

    Notes
    -----
    Source: Martens 2010.
    """
    if tensor.ndim != 2:
        raise ShapeError(f"init: got shape {tensor.shape}; Only tensors with 2 dimensions are supported")
    rows, columns = tensor.shape
    zeros = math.ceil(sparsity * rows)
    normal_(tensor, 0.0, std, generator)
    with no_grad():
        for column in range(columns):
            tensor[creation.randperm(rows, generator)[:zeros], column] = 0
    return tensor


def _kaiming_std(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise ArgumentError(f"kaiming: got mode {mode!r}; accepted are fan_in and fan_out")
    fan_in, fan_out = _fans(tensor)
    return calculate_gain(nonlinearity, a) / math.sqrt(fan_in if mode == "fan_in" else fan_out)


def _fans(tensor: Tensor) -> tuple[int, int]:
    """Return fan_in, the inputs per output, and fan_out, the outputs per input. Shapes: tensor (out, in, *kernel)."""
    shape = tuple(tensor.shape)
    if len(shape) < 2 or 0 in shape:
        raise ShapeError(f"init: got shape {shape}; fans need two or more dimensions and at least one element")
    kernel = math.prod(shape[2:])
    return shape[1] * kernel, shape[0] * kernel


def _older(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    name = function.__name__.rstrip("_")

    def call(*args: Any, **kwargs: Any) -> Tensor:
        warnings.warn(f"`nn.init.{name}` is now deprecated in favor of `nn.init.{name}_`.", FutureWarning, stacklevel=2)
        return function(*args, **kwargs)

    text = (
        f"Do `{name}_`, under PyTorch's older name.\n\n"
        f"Parameters\n----------\n*args : object\n    Arguments of `{name}_`.\n"
        f"**kwargs : object\n    Keyword arguments of `{name}_`.\n\n"
        "Returns\n-------\nTensor\n    The same tensor.\n\n"
        "Warns\n-----\nFutureWarning\n    At each call, as in PyTorch."
    )
    return named(call, name, text)


constant = _older(constant_)
dirac = _older(dirac_)
eye = _older(eye_)
kaiming_normal = _older(kaiming_normal_)
kaiming_uniform = _older(kaiming_uniform_)
normal = _older(normal_)
orthogonal = _older(orthogonal_)
sparse = _older(sparse_)
uniform = _older(uniform_)
xavier_normal = _older(xavier_normal_)
xavier_uniform = _older(xavier_uniform_)
