"""The Dirichlet distribution."""

from spillgrad.distributions import constraints
from spillgrad.distributions.distribution import Distribution, Shape
from spillgrad.distributions.gamma_draws import log_standard_gamma
from spillgrad.errors import ArgumentError
from spillgrad.ops.clamp_where import where
from spillgrad.ops.embedding import one_hot
from spillgrad.ops.normalization import softmax
from spillgrad.ops.special import xlogy
from spillgrad.tensor import Tensor

__all__ = ["Dirichlet"]


class Dirichlet(Distribution):
    """The Dirichlet distribution over the simplex.

    `rsample` normalizes draws of gamma distributions, and has their gradients.

    Parameters
    ----------
    concentration : Tensor
        Of shape (…, n), more than 0; a draw is of shape (n,).
    validate_args : bool, optional
        Whether to check parameters and values; by default, what `Distribution.set_default_validate_args` set.

    Raises
    ------
    ArgumentError
        If `concentration` has no dimension; if it is not more than 0, and arguments are checked.
    """

    arg_constraints = {"concentration": constraints.independent(constraints.positive, 1)}
    support = constraints.simplex
    has_rsample = True

    def __init__(self, concentration: Tensor, validate_args: bool | None = None) -> None:
        if concentration.dim() < 1:
            raise ArgumentError("`concentration` parameter must be at least one-dimensional.")
        self.concentration = concentration
        super().__init__(concentration.shape[:-1], concentration.shape[-1:], validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.concentration / self.concentration.sum(-1, True)

    @property
    def mode(self) -> Tensor:
        above = (self.concentration - 1).clamp(min=0)
        found = above / above.sum(-1, True)
        corner = one_hot(found.argmax(-1), found.shape[-1]).to(found.dtype)
        return where((self.concentration < 1).all(-1, keepdim=True), corner, found)

    @property
    def variance(self) -> Tensor:
        total = self.concentration.sum(-1, True)
        return self.concentration * (total - self.concentration) / (total**2 * (total + 1))

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return softmax(log_standard_gamma(self.concentration.expand(self._extended_shape(sample_shape))), -1)

    def log_prob(self, value: Tensor) -> Tensor:
        self._check(value)
        a = self.concentration
        return xlogy(a - 1, value).sum(-1) + a.sum(-1).lgamma() - a.lgamma().sum(-1)

    def entropy(self) -> Tensor:
        a, total = self.concentration, self.concentration.sum(-1)
        beta = a.lgamma().sum(-1) - total.lgamma()
        return beta - (a.shape[-1] - total) * total.digamma() - ((a - 1) * a.digamma()).sum(-1)
