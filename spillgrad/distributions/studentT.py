"""Student's t-distribution."""

import math
from typing import Any

from spillgrad.distributions import constraints
from spillgrad.distributions.chi2 import Chi2
from spillgrad.distributions.distribution import Distribution, Shape
from spillgrad.distributions.utils import broadcast_all, standard_normal
from spillgrad.ops.clamp_where import where
from spillgrad.tensor import Tensor

__all__ = ["StudentT"]


class StudentT(Distribution):
    """Student's t-distribution.

    Parameters
    ----------
    df : Tensor or float
        Degrees of freedom, more than 0, broadcast with the others.
    loc : Tensor or float, default 0.0
        Centre.
    scale : Tensor or float, default 1.0
        Width, more than 0.
    validate_args : bool, optional
        Whether to check parameters and values; by default, what `Distribution.set_default_validate_args` set.

    Raises
    ------
    ArgumentError
        If a parameter is outside its constraint, and arguments are checked.
    """

    arg_constraints = {"df": constraints.positive, "loc": constraints.real, "scale": constraints.positive}
    support = constraints.real
    has_rsample = True

    def __init__(self, df: Any, loc: Any = 0.0, scale: Any = 1.0, validate_args: bool | None = None) -> None:
        self.df, self.loc, self.scale = broadcast_all(df, loc, scale)
        self._chi2 = Chi2(self.df)
        super().__init__(self.df.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return where(self.df <= 1, math.nan, self.loc)

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        is_finite = self.df > 2
        finite = self.scale**2 * self.df / (where(is_finite, self.df, 3.0) - 2)
        return where(is_finite, finite, where(self.df > 1, math.inf, math.nan))

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        sample_shape = tuple(sample_shape)
        draws = standard_normal(self._extended_shape(sample_shape), self.df)
        return self.loc + self.scale * draws * (self._chi2.rsample(sample_shape) / self.df).rsqrt()

    def log_prob(self, value: Tensor) -> Tensor:
        self._check(value)
        y = (value - self.loc) / self.scale
        norm = self.scale.log() + 0.5 * self.df.log() + 0.5 * math.log(math.pi)
        norm = norm + (0.5 * self.df).lgamma() - (0.5 * (self.df + 1)).lgamma()
        return -0.5 * (self.df + 1) * (y**2 / self.df).log1p() - norm

    def entropy(self) -> Tensor:
        half, above = 0.5 * self.df, 0.5 * (self.df + 1)
        beta = half.lgamma() + math.lgamma(0.5) - above.lgamma()
        slopes = above.digamma() - half.digamma()
        return self.scale.log() + above * slopes + 0.5 * self.df.log() + beta
