"""The base class of distributions that take a probability or log-odds: Bernoulli, binomial and geometric."""

from typing import Any

from spillgrad.distributions import constraints
from spillgrad.distributions.distribution import Distribution
from spillgrad.distributions.utils import broadcast_all, lazy_property, logits_to_probs, probs_to_logits
from spillgrad.errors import ArgumentError
from spillgrad.tensor import Tensor


def require_one(probs: Any, logits: Any) -> None:
    """Raise ArgumentError unless exactly one of the two is given."""
    if (probs is None) == (logits is None):
        raise ArgumentError("Either `probs` or `logits` must be specified, but not both.")


class Binary(Distribution):
    """A distribution with either `probs` or `logits` given; the other is computed on first use."""

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}

    def _take(self, probs: Any, logits: Any, *others: Any) -> tuple[Tensor, ...]:
        """Set the parameter that is given, broadcast with `others`; return these."""
        require_one(probs, logits)
        given, *rest = broadcast_all(logits if probs is None else probs, *others)
        self._param = given
        if probs is None:
            self.logits = given
        else:
            self.probs = given
        return tuple(rest)

    @lazy_property
    def logits(self) -> Any:
        """The log-odds."""
        return probs_to_logits(self.probs, is_binary=True)

    @lazy_property
    def probs(self) -> Any:
        """The probabilities."""
        return logits_to_probs(self.logits, is_binary=True)

    @property
    def param_shape(self) -> tuple[int, ...]:
        """The shape of the parameter."""
        return self._param.shape
