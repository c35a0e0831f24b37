"""Invertible functions of tensors that know the logarithm of their Jacobian determinant.

A transform with `cache_size=1` keeps its last input and output, so that the inverse of an output is exactly its input.
"""

import math
from typing import Any

import numpy as np

from spillgrad import dtypes
from spillgrad.distributions import constraints
from spillgrad.distributions.transform import (
    ComposeTransform,
    IndependentTransform,
    Shape,
    Transform,
    identity_transform,
    within,
)
from spillgrad.distributions.utils import broadcast_all, sum_rightmost
from spillgrad.ops.activations import sigmoid, softplus
from spillgrad.ops.arithmetic import exp
from spillgrad.ops.clamp_where import clamp
from spillgrad.ops.creation import arange, full_like, ones_like
from spillgrad.ops.normalization import softmax
from spillgrad.ops.padding import pad
from spillgrad.ops.scan import cumprod, cumsum
from spillgrad.ops.trigonometry import tanh
from spillgrad.tensor import Tensor

__all__ = [
    "AbsTransform", "AffineTransform", "ComposeTransform", "ExpTransform", "IndependentTransform", "PowerTransform",
    "SigmoidTransform", "SoftmaxTransform", "SoftplusTransform", "StickBreakingTransform", "TanhTransform", "Transform",
    "identity_transform",
]  # fmt: skip


class _Equal(Transform):
    """A transform without settings, equal to all others of its class."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    __hash__ = Transform.__hash__


class _Increasing(_Equal):
    bijective, sign = True, 1


class ExpTransform(_Increasing):
    """``y = exp(x)``.

    Parameters
    ----------
    cache_size : {0, 1}, default 0
        1 keeps the last input and output, so that the inverse of an output is exactly its input; 0 keeps nothing.
    """

    codomain = constraints.positive

    def _call(self, x: Tensor) -> Tensor:
        return exp(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return y.log()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x


class PowerTransform(Transform):
    """``y = x ** exponent``, of positive numbers.

    Parameters
    ----------
    exponent : Tensor or float
        Broadcast with x.
    cache_size : {0, 1}, default 0
        1 keeps the last input and output, so that the inverse of an output is exactly its input; 0 keeps nothing.
    """

    domain, codomain = constraints.positive, constraints.positive
    bijective = True

    def __init__(self, exponent: Any, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        (self.exponent,) = broadcast_all(exponent)

    @property
    def sign(self) -> Any:
        return self.exponent.sign()

    def with_cache(self, cache_size: int = 1) -> Transform:
        return self if self._cache_size == cache_size else PowerTransform(self.exponent, cache_size)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PowerTransform) and bool((self.exponent == other.exponent).all())

    __hash__ = Transform.__hash__

    def _call(self, x: Tensor) -> Tensor:
        return x**self.exponent

    def _inverse(self, y: Tensor) -> Tensor:
        return y ** (1 / self.exponent)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.exponent * y / x).abs().log()


class SigmoidTransform(_Increasing):
    """``y = 1 / (1 + exp(-x))``, kept away from 0 and 1.

    Parameters
    ----------
    cache_size : {0, 1}, default 0
        1 keeps the last input and output, so that the inverse of an output is exactly its input; 0 keeps nothing.
    """

    codomain = constraints.unit_interval

    def _call(self, x: Tensor) -> Tensor:
        limits = dtypes.finfo(x.dtype)
        return clamp(sigmoid(x), limits.tiny, 1 - limits.eps)

    def _inverse(self, y: Tensor) -> Tensor:
        limits = dtypes.finfo(y.dtype)
        y = clamp(y, limits.tiny, 1 - limits.eps)
        return y.log() - (-y).log1p()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -softplus(-x) - softplus(x)


class SoftplusTransform(_Increasing):
    """``y = log(1 + exp(x))``.

    Parameters
    ----------
    cache_size : {0, 1}, default 0
        1 keeps the last input and output, so that the inverse of an output is exactly its input; 0 keeps nothing.
    """

    codomain = constraints.positive

    def _call(self, x: Tensor) -> Tensor:
        return softplus(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return (-y).expm1().neg().log() + y

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -softplus(-x)


class TanhTransform(_Increasing):
    """``y = tanh(x)``.

    Use ``cache_size=1``: the inverse of an output near -1 or 1 is not exact.

    Parameters
    ----------
    cache_size : {0, 1}, default 0
        1 keeps the last input and output, so that the inverse of an output is exactly its input; 0 keeps nothing.
    """

    codomain = constraints.interval(-1.0, 1.0)

    def _call(self, x: Tensor) -> Tensor:
        return tanh(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return y.atanh()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return 2 * (math.log(2) - x - softplus(-2 * x))


class AbsTransform(_Equal):
    """``y = abs(x)``, whose inverse is taken to be y.

    Parameters
    ----------
    cache_size : {0, 1}, default 0
        1 keeps the last input and output, so that the inverse of an output is exactly its input; 0 keeps nothing.
    """

    codomain = constraints.positive

    def _call(self, x: Tensor) -> Tensor:
        return x.abs()

    def _inverse(self, y: Tensor) -> Tensor:
        return y


class AffineTransform(Transform):
    """``y = loc + scale * x``.

    Parameters
    ----------
    loc : Tensor or float
        What is added.
    scale : Tensor or float
        What x is multiplied by.
    event_dim : int, default 0
        How many last dimensions hold one value.
    cache_size : {0, 1}, default 0
        1 keeps the last input and output, so that the inverse of an output is exactly its input; 0 keeps nothing.
    """

    bijective = True

    def __init__(self, loc: Any, scale: Any, event_dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.loc, self.scale, self._event_dim = loc, scale, event_dim

    @property
    def event_dim(self) -> int:
        return self._event_dim

    domain = codomain = property(lambda self: within(constraints.real, self._event_dim))

    @property
    def sign(self) -> Any:
        return self.scale.sign() if isinstance(self.scale, Tensor) else (self.scale > 0) - (self.scale < 0)

    def with_cache(self, cache_size: int = 1) -> Transform:
        if self._cache_size == cache_size:
            return self
        return AffineTransform(self.loc, self.scale, self._event_dim, cache_size)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AffineTransform):
            return False
        pairs = ((self.loc, other.loc), (self.scale, other.scale))
        return all(bool((a == b).all()) if isinstance(a == b, Tensor) else a == b for a, b in pairs)

    __hash__ = Transform.__hash__

    def _call(self, x: Tensor) -> Tensor:
        return self.loc + self.scale * x

    def _inverse(self, y: Tensor) -> Tensor:
        return (y - self.loc) / self.scale

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        scale = self.scale
        size = scale.abs().log() if isinstance(scale, Tensor) else full_like(x, math.log(abs(scale)))
        shape = x.shape
        if self._event_dim:
            size = size.expand((*size.shape[: max(size.ndim - self._event_dim, 0)], *shape[-self._event_dim :]))
            size, shape = sum_rightmost(size, self._event_dim), shape[: -self._event_dim]
        return size.expand(shape)

    def forward_shape(self, shape: Shape) -> Shape:
        settings = (value.shape for value in (self.loc, self.scale) if isinstance(value, Tensor))
        return np.broadcast_shapes(shape, *settings)

    inverse_shape = forward_shape


class SoftmaxTransform(_Equal):
    """``y = softmax(x)`` over the last dimension; ``log(y)`` is taken for the inverse.

    Parameters
    ----------
    cache_size : {0, 1}, default 0
        1 keeps the last input and output, so that the inverse of an output is exactly its input; 0 keeps nothing.
    """

    domain, codomain = constraints.real_vector, constraints.simplex

    def _call(self, x: Tensor) -> Tensor:
        return softmax(x, -1)

    def _inverse(self, y: Tensor) -> Tensor:
        return y.log()


class StickBreakingTransform(_Equal):
    """From n - 1 numbers to the simplex of n: each is the share, by the sigmoid, of what the former have left.

    Parameters
    ----------
    cache_size : {0, 1}, default 0
        1 keeps the last input and output, so that the inverse of an output is exactly its input; 0 keeps nothing.
    """

    domain, codomain = constraints.real_vector, constraints.simplex
    bijective = True

    def _call(self, x: Tensor) -> Tensor:
        z = sigmoid(x - self._offset(x))
        return pad(z, (0, 1), value=1) * pad(cumprod(1 - z, -1), (1, 0), value=1)

    @staticmethod
    def _offset(x: Tensor) -> Tensor:
        n = x.shape[-1]
        return (n + 1 - cumsum(ones_like(x[..., :1]).expand(x.shape), -1)).log()

    def _inverse(self, y: Tensor) -> Tensor:
        share = y[..., :-1]
        left = clamp(1 - cumsum(share, -1), min=dtypes.finfo(y.dtype).tiny)
        places = arange(share.shape[-1], 0, -1, dtype=y.dtype, device=y.device)
        return share.log() - left.log() + places.log()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        x = x - self._offset(x)
        return (-x + (x - softplus(x)) + y[..., :-1].log()).sum(-1)

    def forward_shape(self, shape: Shape) -> Shape:
        return (*shape[:-1], shape[-1] + 1)

    def inverse_shape(self, shape: Shape) -> Shape:
        return (*shape[:-1], shape[-1] - 1)
