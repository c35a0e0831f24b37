"""The normal distribution."""

import math

from spillgrad.distributions.distribution import Shape
from spillgrad.distributions.location_scale import LocationScale
from spillgrad.distributions.utils import standard_normal
from spillgrad.tensor import Tensor

__all__ = ["Normal"]


class Normal(LocationScale):
    """The normal distribution of mean `loc` and standard deviation `scale`.

    Parameters
    ----------
    loc : Tensor or float
        Mean, broadcast with `scale`.
    scale : Tensor or float
        Standard deviation, more than 0.
    validate_args : bool, optional
        Whether to check parameters and values; by default, what `Distribution.set_default_validate_args` set.

    Raises
    ------
    ArgumentError
        If a parameter is outside its constraint, and arguments are checked.

    Examples
    --------
    >>> import spillgrad as sg
    >>> normal = sg.distributions.Normal(sg.zeros(2), sg.ones(2))
    >>> normal.log_prob(sg.zeros(2))
    tensor([-0.9189, -0.9189])
    >>> normal.rsample((3,)).shape
    (3, 2)
    """

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def stddev(self) -> Tensor:
        return self.scale

    @property
    def variance(self) -> Tensor:
        return self.scale.square()

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return self.loc + standard_normal(self._extended_shape(sample_shape), self.loc) * self.scale

    def log_prob(self, value: Tensor) -> Tensor:
        self._check(value)
        distance = (value - self.loc) ** 2 / (2 * self.scale**2)
        return -distance - self.scale.log() - math.log(math.sqrt(2 * math.pi))

    def cdf(self, value: Tensor) -> Tensor:
        self._check(value)
        return 0.5 * (1 + ((value - self.loc) / (self.scale * math.sqrt(2))).erf())

    def icdf(self, value: Tensor) -> Tensor:
        return self.loc + self.scale * (2 * value - 1).erfinv() * math.sqrt(2)

    def entropy(self) -> Tensor:
        return 0.5 + 0.5 * math.log(2 * math.pi) + self.scale.log()
