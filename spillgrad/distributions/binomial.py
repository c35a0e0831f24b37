"""The binomial distribution."""

from typing import Any

from spillgrad.autograd.core.grad_mode import no_grad
from spillgrad.distributions import constraints
from spillgrad.distributions.binary import Binary
from spillgrad.distributions.distribution import Shape
from spillgrad.errors import UnsupportedError
from spillgrad.ops import sampling
from spillgrad.ops.clamp_where import minimum
from spillgrad.ops.creation import arange
from spillgrad.tensor import Tensor

__all__ = ["Binomial"]


class Binomial(Binary):
    """The number of successes in `total_count` trials.

    Parameters
    ----------
    total_count : Tensor or int, default 1
        Number of trials, broadcast with the probability.
    probs : Tensor or float, optional
        Probability of a success in a trial.
    logits : Tensor or float, optional
        Log-odds of a success in a trial. Give either `probs` or `logits`.
    validate_args : bool, optional
        Whether to check parameters and values; by default, what `Distribution.set_default_validate_args` set.

    Raises
    ------
    ArgumentError
        Unless exactly one of `probs` and `logits` is given; if a parameter is outside its constraint, and arguments are
        checked.
    """

    arg_constraints = {"total_count": constraints.nonnegative_integer, **Binary.arg_constraints}
    has_enumerate_support = True

    def __init__(
        self, total_count: Any = 1, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:  # fmt: skip
        (counts,) = self._take(probs, logits, total_count)
        self.total_count = counts.to(self._param.dtype)
        super().__init__(self._param.shape, validate_args=validate_args)

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self) -> Any:
        return constraints.integer_interval(0, self.total_count)

    @property
    def mean(self) -> Tensor:
        return self.total_count * self.probs

    @property
    def mode(self) -> Tensor:
        return minimum(((self.total_count + 1) * self.probs).floor(), self.total_count)

    @property
    def variance(self) -> Tensor:
        return self.total_count * self.probs * (1 - self.probs)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        with no_grad():
            return sampling.binomial(self.total_count.expand(shape), self.probs.expand(shape))

    def log_prob(self, value: Tensor) -> Tensor:
        self._check(value)
        n, logits = self.total_count, self.logits
        choices = (n + 1).lgamma() - (value + 1).lgamma() - (n - value + 1).lgamma()
        # Both branches of the clamp count half at 0, so that its derivative there is 1/2.
        positive = (logits.clamp(min=0) + logits - logits.clamp(max=0)) / 2
        return choices + value * logits - n * (positive + (-logits.abs()).exp().log1p())

    def _common_count(self, who: str) -> int:
        most = int(self.total_count.max())
        if not bool(self.total_count.min() == most):
            raise UnsupportedError(f"Inhomogeneous total count not supported by `{who}`.")
        return most

    def entropy(self) -> Tensor:
        self._common_count("entropy")
        log_prob = self.log_prob(self.enumerate_support(False))
        return -(log_prob.exp() * log_prob).sum(0)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        count = self._common_count("enumerate_support")
        values = arange(count + 1, dtype=self._param.dtype, device=self._param.device)
        values = values.reshape((-1,) + (1,) * len(self._batch_shape))
        return values.expand((-1, *self._batch_shape)) if expand else values
