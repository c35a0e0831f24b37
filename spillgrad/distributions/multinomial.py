"""The multinomial distribution."""

from typing import Any

from spillgrad.distributions import constraints
from spillgrad.distributions.binomial import Binomial
from spillgrad.distributions.categorical import Categorical
from spillgrad.distributions.distribution import Shape
from spillgrad.distributions.of_categorical import OfCategorical
from spillgrad.errors import UnsupportedError
from spillgrad.ops.clamp_where import where
from spillgrad.ops.creation import as_tensor, ones_like, zeros
from spillgrad.ops.shape import broadcast_tensors
from spillgrad.tensor import Tensor

__all__ = ["Multinomial"]


class Multinomial(OfCategorical):
    """How often each of n indices is drawn in `total_count` categorical draws.

    Parameters
    ----------
    total_count : int, default 1
        Number of draws.
    probs : Tensor, optional
        Probabilities, of shape (…, n); they are normalized.
    logits : Tensor, optional
        Logarithms of probabilities, of shape (…, n); they are normalized. Give either `probs` or `logits`.
    validate_args : bool, optional
        Whether to check parameters and values; by default, what `Distribution.set_default_validate_args` set.

    Raises
    ------
    ArgumentError
        Unless exactly one of `probs` and `logits` is given; if a parameter is outside its constraint, and arguments are
        checked.
    UnsupportedError
        For a `total_count` that is no int.
    """

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}

    def __init__(
        self, total_count: int = 1, probs: Tensor | None = None, logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(total_count, int):
            raise UnsupportedError("inhomogeneous total_count is not supported")
        self.total_count = total_count
        self._categorical = Categorical(probs=probs, logits=logits)
        self._binomial = Binomial(total_count=total_count, probs=self.probs)
        super().__init__(self._categorical.batch_shape, self.param_shape[-1:], validate_args=validate_args)

    @constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self) -> Any:
        return constraints.multinomial(self.total_count)

    @property
    def mean(self) -> Tensor:
        return self.probs * self.total_count

    @property
    def variance(self) -> Tensor:
        return self.total_count * self.probs * (1 - self.probs)

    def _expanded(self, value: Any, batch: tuple[int, ...]) -> Any:
        return (
            value.expand((*batch, *self._event_shape)) if value is self._binomial else super()._expanded(value, batch)
        )

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        indices = self._categorical.sample((self.total_count, *sample_shape)).movedim(0, -1)
        counts = zeros(self._extended_shape(sample_shape), dtype=indices.dtype, device=indices.device)
        return counts.scatter_add(-1, indices, ones_like(indices)).to(self.probs.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        self._check(value)
        logits, value = broadcast_tensors(self.logits, value)
        choices = (value.sum(-1) + 1).lgamma() - (value + 1).lgamma().sum(-1)
        logits = where((value == 0) & (logits == -float("inf")), 0.0, logits)
        return choices + (logits * value).sum(-1)

    def entropy(self) -> Tensor:
        n = as_tensor(self.total_count, dtype=self.probs.dtype, device=self.probs.device)
        support = self._binomial.enumerate_support(expand=False)[1:]
        weights = self._binomial.log_prob(support).exp()
        expected = (weights * (support + 1).lgamma()).sum(0).sum(-1)
        return n * self._categorical.entropy() - (n + 1).lgamma() + expected
