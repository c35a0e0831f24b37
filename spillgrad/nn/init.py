"""Initial values of parameters, drawn in place from the default generator."""

import contextlib
import math
import threading
from collections.abc import Iterator

from spillgrad.autograd.grad_mode import no_grad
from spillgrad.errors import ArgumentError, ShapeError
from spillgrad.ops import creation, inplace
from spillgrad.tensor import Tensor

_GAINS = {"linear": 1.0, "sigmoid": 1.0, "tanh": 5 / 3, "relu": math.sqrt(2), "selu": 0.75}


class _Skipping(threading.local):
    now = False


_skipping = _Skipping()


@contextlib.contextmanager
def skipped() -> Iterator[None]:
    """Leave tensors as they are, in this thread: modules built within get their weights from elsewhere."""
    former, _skipping.now = _skipping.now, True
    try:
        yield
    finally:
        _skipping.now = former


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0) -> Tensor:
    """Fill with draws from U(a, b)."""
    with no_grad():
        return tensor if _skipping.now else creation.uniform_(tensor, a, b)


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Fill with draws from N(mean, std²)."""
    with no_grad():
        return tensor if _skipping.now else creation.normal_(tensor, mean, std)


def constant_(tensor: Tensor, val: float) -> Tensor:
    """Fill with one value."""
    with no_grad():
        return tensor if _skipping.now else inplace.fill_(tensor, val)


def zeros_(tensor: Tensor) -> Tensor:
    """Fill with zeros."""
    return constant_(tensor, 0.0)


def ones_(tensor: Tensor) -> Tensor:
    """Fill with ones."""
    return constant_(tensor, 1.0)


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Return the factor that keeps the variance of signals through a nonlinearity; `param` is leaky_relu's slope."""
    if nonlinearity == "leaky_relu":
        return math.sqrt(2 / (1 + (0.01 if param is None else param) ** 2))
    if nonlinearity not in _GAINS:
        raise ArgumentError(f"calculate_gain: got {nonlinearity!r}; known are leaky_relu, {', '.join(_GAINS)}")
    return _GAINS[nonlinearity]


def xavier_uniform_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Fill from U(-a, a) with a = gain · sqrt(6 / (fan_in + fan_out)).

    Source: Glorot, Bengio 2010, "Understanding the difficulty of training deep feedforward neural networks", eq. 16.
    """
    bound = gain * math.sqrt(6 / sum(_fans(tensor)))
    return uniform_(tensor, -bound, bound)


def xavier_normal_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Fill from N(0, gain² · 2 / (fan_in + fan_out)).

    Source: Glorot, Bengio 2010, eq. 12.
    """
    return normal_(tensor, 0.0, gain * math.sqrt(2 / sum(_fans(tensor))))


def kaiming_uniform_(tensor: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu") -> Tensor:
    """Fill from U(-b, b) with b = gain · sqrt(3 / fan); `a` is leaky_relu's slope.

    Source: He et al. 2015, "Delving deep into rectifiers", eq. 14 and 15.
    """
    bound = math.sqrt(3) * _kaiming_std(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound)


def kaiming_normal_(tensor: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu") -> Tensor:
    """Fill from N(0, gain² / fan); `a` is leaky_relu's slope.

    Source: He et al. 2015, eq. 14 and 15.
    """
    return normal_(tensor, 0.0, _kaiming_std(tensor, a, mode, nonlinearity))


def _kaiming_std(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise ArgumentError(f"kaiming: got mode {mode!r}; accepted are fan_in and fan_out")
    fan_in, fan_out = _fans(tensor)
    return calculate_gain(nonlinearity, a) / math.sqrt(fan_in if mode == "fan_in" else fan_out)


def _fans(tensor: Tensor) -> tuple[int, int]:
    """Return how many inputs feed an output and the other way round, for weights of shape (out, in, *kernel)."""
    shape = tuple(tensor.shape)
    if len(shape) < 2 or 0 in shape:
        raise ShapeError(f"init: got shape {shape}; fans need two or more dimensions and at least one element")
    kernel = math.prod(shape[2:])
    return shape[1] * kernel, shape[0] * kernel
