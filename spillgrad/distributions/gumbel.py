"""The Gumbel distribution."""

import math

from spillgrad.distributions.location_scale import LocationScale
from spillgrad.distributions.utils import euler_constant
from spillgrad.tensor import Tensor

__all__ = ["Gumbel"]


class Gumbel(LocationScale):
    """The Gumbel distribution of mode `loc`: that of the largest of many numbers, scaled by `scale`.

    Parameters
    ----------
    loc : Tensor or float
        Mode, broadcast with `scale`.
    scale : Tensor or float
        More than 0.
    validate_args : bool, optional
        Whether to check parameters and values; by default, what `Distribution.set_default_validate_args` set.

    Raises
    ------
    ArgumentError
        If a parameter is outside its constraint, and arguments are checked.
    """

    @property
    def mean(self) -> Tensor:
        return self.loc + self.scale * euler_constant

    @property
    def stddev(self) -> Tensor:
        return math.pi / math.sqrt(6) * self.scale

    @property
    def variance(self) -> Tensor:
        return self.stddev.square()

    def log_prob(self, value: Tensor) -> Tensor:
        self._check(value)
        y = (self.loc - value) / self.scale
        return y - y.exp() - self.scale.log()

    def cdf(self, value: Tensor) -> Tensor:
        self._check(value)
        return (-((self.loc - value) / self.scale).exp()).exp()

    def icdf(self, value: Tensor) -> Tensor:
        return self.loc - self.scale * (-value.log()).log()

    def entropy(self) -> Tensor:
        return self.scale.log() + (1 + euler_constant)
