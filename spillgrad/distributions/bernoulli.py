"""The Bernoulli distribution."""

from typing import Any

from spillgrad.autograd.core.grad_mode import no_grad
from spillgrad.distributions import constraints
from spillgrad.distributions.binary import Binary
from spillgrad.distributions.distribution import Shape
from spillgrad.ops import sampling
from spillgrad.ops.clamp_where import where
from spillgrad.ops.creation import arange
from spillgrad.ops.elementwise_losses import binary_cross_entropy_with_logits
from spillgrad.ops.shape import broadcast_tensors
from spillgrad.tensor import Tensor

__all__ = ["Bernoulli"]


class Bernoulli(Binary):
    """The distribution of 1, with the probability `probs`, and 0.

    Parameters
    ----------
    probs : Tensor or float, optional
        Probability of 1.
    logits : Tensor or float, optional
        Log-odds of 1. Give either `probs` or `logits`.
    validate_args : bool, optional
        Whether to check parameters and values; by default, what `Distribution.set_default_validate_args` set.

    Raises
    ------
    ArgumentError
        Unless exactly one of `probs` and `logits` is given; if a parameter is outside its constraint, and arguments are
        checked.
    """

    support = constraints.boolean
    has_enumerate_support = True

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        self._take(probs, logits)
        super().__init__(self._param.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def mode(self) -> Tensor:
        found = (self.probs >= 0.5).to(self.probs.dtype)
        return where(self.probs == 0.5, float("nan"), found)

    @property
    def variance(self) -> Tensor:
        return self.probs * (1 - self.probs)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with no_grad():
            return sampling.bernoulli(self.probs.expand(self._extended_shape(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        self._check(value)
        logits, value = broadcast_tensors(self.logits, value)
        return -binary_cross_entropy_with_logits(logits, value, reduction="none")

    def entropy(self) -> Tensor:
        return binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none")

    def enumerate_support(self, expand: bool = True) -> Tensor:
        values = arange(2, dtype=self._param.dtype, device=self._param.device)
        values = values.reshape((-1,) + (1,) * len(self._batch_shape))
        return values.expand((-1, *self._batch_shape)) if expand else values
