"""The exponential distribution."""

from typing import Any

from spillgrad.distributions import constraints
from spillgrad.distributions.distribution import Distribution, Shape
from spillgrad.distributions.utils import broadcast_all
from spillgrad.ops.creation import empty, zeros_like
from spillgrad.ops.sampling import exponential_
from spillgrad.tensor import Tensor

__all__ = ["Exponential"]


class Exponential(Distribution):
    """The exponential distribution of `rate` events per unit.

    Parameters
    ----------
    rate : Tensor or float
        Events per unit, more than 0.
    validate_args : bool, optional
        Whether to check parameters and values; by default, what `Distribution.set_default_validate_args` set.

    Raises
    ------
    ArgumentError
        If a parameter is outside its constraint, and arguments are checked.
    """

    arg_constraints = {"rate": constraints.positive}
    support = constraints.nonnegative
    has_rsample = True

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        (self.rate,) = broadcast_all(rate)
        super().__init__(self.rate.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.rate.reciprocal()

    @property
    def mode(self) -> Tensor:
        return zeros_like(self.rate)

    @property
    def stddev(self) -> Tensor:
        return self.rate.reciprocal()

    @property
    def variance(self) -> Tensor:
        return self.rate**-2

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        draws = empty(self._extended_shape(sample_shape), dtype=self.rate.dtype, device=self.rate.device)
        return exponential_(draws) / self.rate

    def log_prob(self, value: Tensor) -> Tensor:
        self._check(value)
        return self.rate.log() - self.rate * value

    def cdf(self, value: Tensor) -> Tensor:
        self._check(value)
        return 1 - (-self.rate * value).exp()

    def icdf(self, value: Tensor) -> Tensor:
        return -(-value).log1p() / self.rate

    def entropy(self) -> Tensor:
        return 1 - self.rate.log()
