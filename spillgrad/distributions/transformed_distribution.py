"""A distribution of transformed draws of another distribution."""

from typing import Any

from spillgrad.autograd.core.grad_mode import no_grad
from spillgrad.distributions import constraints
from spillgrad.distributions.distribution import Distribution, Shape
from spillgrad.distributions.independent import Independent
from spillgrad.distributions.transform import ComposeTransform, Transform
from spillgrad.distributions.utils import sum_rightmost
from spillgrad.errors import ArgumentError
from spillgrad.tensor import Tensor

__all__ = ["TransformedDistribution"]


class TransformedDistribution(Distribution):
    """The distribution of draws of `base_distribution` after one transform, or a list of them, in order.

    Parameters
    ----------
    base_distribution : Distribution
        Distribution of the draws.
    transforms : Transform or list of Transform
        What is done with each draw.
    validate_args : bool, optional
        Whether to check parameters and values; by default, what `Distribution.set_default_validate_args` set.

    Raises
    ------
    ArgumentError
        For other transforms, and if draws have too few dimensions for them.
    """

    arg_constraints: Any = {}

    def __init__(
        self, base_distribution: Distribution, transforms: Transform | list[Transform],
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        self.transforms = [transforms] if isinstance(transforms, Transform) else transforms
        if not isinstance(self.transforms, list):
            raise ArgumentError(f"transforms must be a Transform or list, but was {transforms}")
        if not all(isinstance(transform, Transform) for transform in self.transforms):
            raise ArgumentError("transforms must be a Transform or a list of Transforms")
        shape = base_distribution.batch_shape + base_distribution.event_shape
        base_dims = len(base_distribution.event_shape)
        whole = ComposeTransform(self.transforms)
        domain, codomain = whole.domain.event_dim, whole.codomain.event_dim
        if len(shape) < domain:
            raise ArgumentError(f"base_distribution needs to have shape with size at least {domain}, but got {shape}.")
        forward_shape = whole.forward_shape(shape)
        inverse_shape = whole.inverse_shape(forward_shape)
        if shape != inverse_shape:
            base_distribution = base_distribution.expand(inverse_shape[: len(inverse_shape) - base_dims])
        joint = domain - base_dims
        self.base_dist = Independent(base_distribution, joint) if joint > 0 else base_distribution
        cut = len(forward_shape) - max(codomain, base_dims + codomain - domain)
        super().__init__(forward_shape[:cut], forward_shape[cut:], validate_args=validate_args)

    def _expanded(self, value: Any, batch: tuple[int, ...]) -> Any:
        if value is not self.base_dist:
            return super()._expanded(value, batch)
        shape = ComposeTransform(self.transforms).inverse_shape(batch + self._event_shape)
        return value.expand(shape[: len(shape) - len(value.event_shape)])

    @constraints.dependent_property(is_discrete=False)
    def support(self) -> Any:
        if not self.transforms:
            return self.base_dist.support
        found = self.transforms[-1].codomain
        missing = len(self._event_shape) - found.event_dim
        return constraints.independent(found, missing) if missing > 0 else found

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """Whether the base distribution has `rsample`."""
        return self.base_dist.has_rsample

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with no_grad():
            return self._transformed(self.base_dist.sample(sample_shape))

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return self._transformed(self.base_dist.rsample(sample_shape))

    def _transformed(self, value: Tensor) -> Tensor:
        for transform in self.transforms:
            value = transform(value)
        return value

    def log_prob(self, value: Tensor) -> Tensor:
        self._check(value)
        event_dim, found = len(self._event_shape), 0.0
        for transform in reversed(self.transforms):
            before = transform.inv(value)
            event_dim += transform.domain.event_dim - transform.codomain.event_dim
            term = transform.log_abs_det_jacobian(before, value)
            found = found - sum_rightmost(term, event_dim - transform.domain.event_dim)  # type: ignore[assignment]
            value = before
        return found + sum_rightmost(self.base_dist.log_prob(value), event_dim - len(self.base_dist.event_shape))

    def _by_sign(self, probability: Tensor) -> Tensor:
        """Return 1 - p for a decreasing function, and p for an increasing one."""
        sign = ComposeTransform(self.transforms).sign
        return probability if isinstance(sign, int) and sign == 1 else sign * (probability - 0.5) + 0.5

    def cdf(self, value: Tensor) -> Tensor:
        for transform in reversed(self.transforms):
            value = transform.inv(value)
        if self._validate_args:
            self.base_dist._validate_sample(value)
        return self._by_sign(self.base_dist.cdf(value))

    def icdf(self, value: Tensor) -> Tensor:
        return self._transformed(self.base_dist.icdf(self._by_sign(value)))
