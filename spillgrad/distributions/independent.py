"""A distribution whose last batch dimensions count as part of one draw."""

from typing import Any

from spillgrad.distributions import constraints
from spillgrad.distributions.distribution import Distribution, Shape
from spillgrad.distributions.utils import sum_rightmost
from spillgrad.errors import ArgumentError
from spillgrad.tensor import Tensor

__all__ = ["Independent"]


class Independent(Distribution):
    """The joint distribution of the last batch dimensions, whose log-probabilities add.

    Parameters
    ----------
    base_distribution : Distribution
        Distribution with these batch dimensions.
    reinterpreted_batch_ndims : int
        How many batch dimensions become dimensions of one draw.
    validate_args : bool, optional
        Whether to check parameters and values; by default, what `Distribution.set_default_validate_args` set.

    Raises
    ------
    ArgumentError
        If the base distribution has fewer batch dimensions.

    Examples
    --------
    >>> import spillgrad as sg
    >>> rows = sg.distributions.Independent(sg.distributions.Normal(sg.zeros(3, 2), 1.0), 1)
    >>> rows.batch_shape, rows.event_shape
    ((3,), (2,))
    """

    arg_constraints: Any = {}

    def __init__(
        self, base_distribution: Distribution, reinterpreted_batch_ndims: int, validate_args: bool | None = None
    ) -> None:  # fmt: skip
        present = len(base_distribution.batch_shape)
        if reinterpreted_batch_ndims > present:
            raise ArgumentError(
                "Expected reinterpreted_batch_ndims <= len(base_distribution.batch_shape), actual "
                f"{reinterpreted_batch_ndims} vs {present}"
            )
        self.base_dist, self.reinterpreted_batch_ndims = base_distribution, reinterpreted_batch_ndims
        kept = present - reinterpreted_batch_ndims
        shape = base_distribution.batch_shape + base_distribution.event_shape
        super().__init__(shape[:kept], shape[kept:], validate_args=validate_args)

    def _expanded(self, value: Any, batch: tuple[int, ...]) -> Any:
        joint = self._event_shape[: self.reinterpreted_batch_ndims]
        return value.expand(batch + joint) if value is self.base_dist else value

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """Whether the base distribution has `rsample`."""
        return self.base_dist.has_rsample

    @property
    def has_enumerate_support(self) -> bool:  # type: ignore[override]
        """Whether all values can be listed, which they cannot be for joint dimensions."""
        return not self.reinterpreted_batch_ndims and self.base_dist.has_enumerate_support

    @constraints.dependent_property
    def support(self) -> Any:
        found, dims = self.base_dist.support, self.reinterpreted_batch_ndims
        return constraints.independent(found, dims) if dims else found

    @property
    def mean(self) -> Tensor:
        return self.base_dist.mean

    @property
    def mode(self) -> Tensor:
        return self.base_dist.mode

    @property
    def variance(self) -> Tensor:
        return self.base_dist.variance

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        return self.base_dist.sample(sample_shape)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return self.base_dist.rsample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        return sum_rightmost(self.base_dist.log_prob(value), self.reinterpreted_batch_ndims)

    def entropy(self) -> Tensor:
        return sum_rightmost(self.base_dist.entropy(), self.reinterpreted_batch_ndims)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        if self.reinterpreted_batch_ndims:
            self._missing("enumerate_support of joint dimensions: Enumeration over cartesian product")
        return self.base_dist.enumerate_support(expand)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_dist!r}, {self.reinterpreted_batch_ndims})"
