"""Mixtures of distributions of one family."""

from typing import Any

from spillgrad.autograd.core.grad_mode import no_grad
from spillgrad.distributions import constraints
from spillgrad.distributions.categorical import Categorical
from spillgrad.distributions.distribution import Distribution, Shape
from spillgrad.errors import ArgumentError
from spillgrad.ops.normalization import log_softmax
from spillgrad.tensor import Tensor

__all__ = ["MixtureSameFamily"]


class _OfComponents(constraints.Constraint):
    """The support of a mixture: values that lie in the support of every component."""

    def __init__(self, base_constraint: constraints.Constraint) -> None:
        self.base_constraint = base_constraint
        self.is_discrete, self.event_dim = base_constraint.is_discrete, base_constraint.event_dim

    def check(self, value: Tensor) -> Tensor:
        return self.base_constraint.check(value.unsqueeze(-1 - self.event_dim)).all(-1)


class MixtureSameFamily(Distribution):
    """A mixture of the components along the last batch dimension of a distribution.

    Parameters
    ----------
    mixture_distribution : Categorical
        Weights of the components, with a batch of b.
    component_distribution : Distribution
        The components, with a batch of b + (n,).
    validate_args : bool, optional
        Whether to check parameters and values; by default, what `Distribution.set_default_validate_args` set.

    Raises
    ------
    ArgumentError
        For other distributions, and for batches that do not fit.
    """

    arg_constraints: Any = {}

    def __init__(
        self, mixture_distribution: Categorical, component_distribution: Distribution,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(mixture_distribution, Categorical):
            raise ArgumentError("The Mixture distribution needs to be an instance of distributions.Categorical")
        if not isinstance(component_distribution, Distribution):
            raise ArgumentError("The Component distribution needs to be an instance of distributions.Distribution")
        self._mixture_distribution, self._component_distribution = mixture_distribution, component_distribution
        mixed, batch = mixture_distribution.batch_shape, component_distribution.batch_shape[:-1]
        if any(1 not in (i, j) and i != j for i, j in zip(reversed(mixed), reversed(batch), strict=False)):
            raise ArgumentError(
                f"`mixture_distribution.batch_shape` ({mixed}) is not compatible with "
                f"`component_distribution.batch_shape`({batch})"
            )
        count, components = mixture_distribution.param_shape[-1], component_distribution.batch_shape[-1]
        if count != components:
            raise ArgumentError(
                f"`mixture_distribution component` ({count}) does not equal "
                f"`component_distribution.batch_shape[-1]` ({components})"
            )
        super().__init__(batch, component_distribution.event_shape, validate_args=validate_args)

    def _expanded(self, value: Any, batch: tuple[int, ...]) -> Any:
        if value is self._component_distribution:
            return value.expand((*batch, value.batch_shape[-1]))
        return super()._expanded(value, batch)

    @constraints.dependent_property
    def support(self) -> Any:
        return _OfComponents(self._component_distribution.support)

    @property
    def mixture_distribution(self) -> Categorical:
        """The distribution of the component's index."""
        return self._mixture_distribution

    @property
    def component_distribution(self) -> Distribution:
        """The components, along the last batch dimension."""
        return self._component_distribution

    def _over_components(self, value: Tensor) -> Tensor:
        """Return the value with a dimension of size 1 where the components lie."""
        return value.unsqueeze(-1 - len(self._event_shape))

    def _average(self, value: Tensor) -> Tensor:
        probs = self._mixture_distribution.probs
        probs = probs.reshape(probs.shape + (1,) * len(self._event_shape))
        return (probs * value).sum(-1 - len(self._event_shape))

    @property
    def mean(self) -> Tensor:
        return self._average(self._component_distribution.mean)

    @property
    def variance(self) -> Tensor:
        off = self._component_distribution.mean - self._over_components(self.mean)
        return self._average(self._component_distribution.variance) + self._average(off.square())

    def cdf(self, value: Tensor) -> Tensor:
        found = self._component_distribution.cdf(self._over_components(value))
        return (found * self._mixture_distribution.probs).sum(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        self._check(value)
        found = self._component_distribution.log_prob(self._over_components(value))
        return (found + log_softmax(self._mixture_distribution.logits, -1)).logsumexp(-1)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        sample_shape, dims = tuple(sample_shape), len(self._event_shape)
        with no_grad():
            chosen = self._mixture_distribution.expand(self._batch_shape).sample(sample_shape)
            draws = self._component_distribution.sample(sample_shape)
            index = chosen.reshape(chosen.shape + (1,) * (dims + 1))
            index = index.expand((*chosen.shape, 1, *self._event_shape))
            return draws.gather(chosen.ndim, index).squeeze(chosen.ndim)

    def __repr__(self) -> str:
        return f"MixtureSameFamily(\n  {self._mixture_distribution},\n  {self._component_distribution})"
