"""The geometric distribution."""

from typing import Any

from spillgrad import dtypes
from spillgrad.autograd.core.grad_mode import no_grad
from spillgrad.distributions import constraints
from spillgrad.distributions.binary import Binary
from spillgrad.distributions.distribution import Shape
from spillgrad.errors import ArgumentError
from spillgrad.ops.clamp_where import where
from spillgrad.ops.creation import rand, zeros_like
from spillgrad.ops.elementwise_losses import binary_cross_entropy_with_logits
from spillgrad.ops.shape import broadcast_tensors
from spillgrad.tensor import Tensor

__all__ = ["Geometric"]


class Geometric(Binary):
    """The number of failures before the first success.

    Parameters
    ----------
    probs : Tensor or float, optional
        Probability of a success in each trial.
    logits : Tensor or float, optional
        Log-odds of a success in each trial. Give either `probs` or `logits`.
    validate_args : bool, optional
        Whether to check parameters and values; by default, what `Distribution.set_default_validate_args` set.

    Raises
    ------
    ArgumentError
        Unless exactly one of `probs` and `logits` is given; if the probability is not more than 0 and at most 1, and
        arguments are checked.
    """

    support = constraints.nonnegative_integer

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        self._take(probs, logits)
        super().__init__(self._param.shape, validate_args=validate_args)
        if self._validate_args and probs is not None and not bool((self.probs > 0).all()):
            raise ArgumentError(
                f"Expected parameter probs (Tensor of shape {self.probs.shape}) of distribution {self!r} to be "
                f"positive but found invalid values:\n{self.probs}"
            )

    @property
    def mean(self) -> Tensor:
        return 1 / self.probs - 1

    @property
    def mode(self) -> Tensor:
        return zeros_like(self.probs)

    @property
    def variance(self) -> Tensor:
        return (1 / self.probs - 1) / self.probs

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with no_grad():
            shape = self._extended_shape(sample_shape)
            draws = rand(shape, dtype=self.probs.dtype, device=self.probs.device)
            draws = draws.clamp(min=dtypes.finfo(draws.dtype).tiny)
            return (draws.log() / (-self.probs).log1p()).floor()

    def log_prob(self, value: Tensor) -> Tensor:
        self._check(value)
        value, probs = broadcast_tensors(value, self.probs)
        exponent = where((probs == 1) & (value == 0), 0.0, probs)  # 0 * log(0) is 0 here
        return value * (-exponent).log1p() + self.probs.log()

    def entropy(self) -> Tensor:
        return binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none") / self.probs
