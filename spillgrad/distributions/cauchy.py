"""The Cauchy distribution."""

import math

from spillgrad.distributions.distribution import Shape
from spillgrad.distributions.location_scale import LocationScale
from spillgrad.ops.creation import empty, full_like
from spillgrad.ops.sampling import cauchy_
from spillgrad.tensor import Tensor

__all__ = ["Cauchy"]


class Cauchy(LocationScale):
    """The Cauchy distribution, which has no mean.

    Parameters
    ----------
    loc : Tensor or float
        Median, broadcast with `scale`.
    scale : Tensor or float
        Half width at half maximum, more than 0.
    validate_args : bool, optional
        Whether to check parameters and values; by default, what `Distribution.set_default_validate_args` set.

    Raises
    ------
    ArgumentError
        If a parameter is outside its constraint, and arguments are checked.
    """

    @property
    def mean(self) -> Tensor:
        return full_like(self.loc, math.nan)

    @property
    def variance(self) -> Tensor:
        return full_like(self.loc, math.inf)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        draws = empty(self._extended_shape(sample_shape), dtype=self.loc.dtype, device=self.loc.device)
        return self.loc + cauchy_(draws) * self.scale

    def log_prob(self, value: Tensor) -> Tensor:
        self._check(value)
        return -math.log(math.pi) - self.scale.log() - (((value - self.loc) / self.scale) ** 2).log1p()

    def cdf(self, value: Tensor) -> Tensor:
        self._check(value)
        return ((value - self.loc) / self.scale).atan() / math.pi + 0.5

    def icdf(self, value: Tensor) -> Tensor:
        return (math.pi * (value - 0.5)).tan() * self.scale + self.loc

    def entropy(self) -> Tensor:
        return math.log(4 * math.pi) + self.scale.log()
