"""The base of distributions whose parameters are those of a `Categorical`."""

from typing import Any

from spillgrad.distributions.categorical import Categorical
from spillgrad.distributions.distribution import Distribution


class OfCategorical(Distribution):
    """A distribution with the parameters of `_categorical`, which a subclass sets."""

    _categorical: Categorical

    @property
    def probs(self) -> Any:
        """The probabilities."""
        return self._categorical.probs

    @property
    def logits(self) -> Any:
        """The logarithms of the probabilities."""
        return self._categorical.logits

    @property
    def param_shape(self) -> tuple[int, ...]:
        """The shape of the parameter."""
        return self._categorical.param_shape
