"""What distributions share: parameters broadcast together, logits and probabilities, values computed on first use."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad import dtypes
from spillgrad.autograd.core.grad_mode import enable_grad
from spillgrad.errors import ArgumentError
from spillgrad.ops.activations import sigmoid
from spillgrad.ops.creation import rand, randn, tensor
from spillgrad.ops.normalization import softmax
from spillgrad.ops.shape import broadcast_tensors
from spillgrad.tensor import Tensor

__all__ = ["broadcast_all", "clamp_probs", "euler_constant", "lazy_property", "logits_to_probs", "probs_to_logits"]

euler_constant = float(np.euler_gamma)

NUMBERS = (bool, int, float, np.number)


def broadcast_all(*values: Any) -> tuple[Tensor, ...]:
    """Return tensors and numbers as tensors of one shape.

    A number takes the dtype and device of the first tensor, or, without tensors, the default float dtype.
    Raises ArgumentError for other values.
    """
    if not all(isinstance(value, (Tensor, *NUMBERS)) for value in values):
        raise ArgumentError(
            "broadcast_all: Input arguments must all be instances of Number or Tensor; got "
            f"{', '.join(type(value).__name__ for value in values)}"
        )
    like = next((value for value in values if isinstance(value, Tensor)), None)
    dtype, device = (dtypes.get_default_dtype(), None) if like is None else (like.dtype, like.device)
    return broadcast_tensors(*(v if isinstance(v, Tensor) else tensor(v, dtype, device) for v in values))


def logits_to_probs(logits: Tensor, is_binary: bool = False) -> Tensor:
    """Return probabilities: the sigmoid of log-odds if `is_binary`, else the softmax over the last dimension."""
    return sigmoid(logits) if is_binary else softmax(logits, -1)


def clamp_probs(probs: Tensor) -> Tensor:
    """Return probabilities clamped to [eps, 1 - eps], where eps is that of their dtype."""
    eps = dtypes.finfo(probs.dtype).eps
    return probs.clamp(min=eps, max=1 - eps)


def probs_to_logits(probs: Tensor, is_binary: bool = False) -> Tensor:
    """Return log-odds if `is_binary`, else logarithms, of probabilities that are clamped away from 0 and 1."""
    clamped = clamp_probs(probs)
    return clamped.log() - (-clamped).log1p() if is_binary else clamped.log()


class lazy_property:
    """A property that is computed on first use, with gradients recorded, and then kept as an attribute.

    It takes no lock, unlike `functools.cached_property`, so that a forked child never waits: threads that read it at
    the same time compute it twice.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        with enable_grad():
            value = self._function(instance)
        vars(instance)[self._function.__name__] = value
        return value


def standard_normal(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return draws from N(0, 1) in the dtype and on the device of `like`."""
    return randn(shape, dtype=like.dtype, device=like.device)


def standard_uniform(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return draws from U(0, 1) in the dtype and on the device of `like`, clamped away from 0 and 1."""
    return clamp_probs(rand(shape, dtype=like.dtype, device=like.device))


def sum_rightmost(value: Tensor, dims: int) -> Tensor:
    """Return the sum over the last `dims` dimensions."""
    if dims == 0:
        return value
    return value.reshape((*value.shape[: value.ndim - dims], math.prod(value.shape[value.ndim - dims :]))).sum(-1)
