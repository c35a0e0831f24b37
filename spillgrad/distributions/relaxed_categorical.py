"""The concrete distribution: categorical draws relaxed to the inside of the simplex, with gradients.

Source: Maddison, Mnih & Teh 2017; Jang, Gu & Poole 2017 (Gumbel-softmax).
"""

import math
from typing import Any

from spillgrad.distributions import constraints
from spillgrad.distributions.categorical import Categorical
from spillgrad.distributions.distribution import Shape
from spillgrad.distributions.of_categorical import OfCategorical
from spillgrad.distributions.transformed_distribution import TransformedDistribution
from spillgrad.distributions.transforms import ExpTransform
from spillgrad.distributions.utils import broadcast_all, standard_uniform
from spillgrad.tensor import Tensor

__all__ = ["ExpRelaxedCategorical", "RelaxedOneHotCategorical"]


class ExpRelaxedCategorical(OfCategorical):
    """The distribution of the logarithm of a `RelaxedOneHotCategorical` draw."""

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}
    support = constraints.real_vector
    has_rsample = True
    _unexpanded = ("temperature",)

    def __init__(
        self, temperature: Any, probs: Tensor | None = None, logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        self._categorical, self.temperature = Categorical(probs, logits), temperature
        super().__init__(self._categorical.batch_shape, self.param_shape[-1:], validate_args=validate_args)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        gumbels = -(-standard_uniform(self._extended_shape(sample_shape), self.logits).log()).log()
        scores = (self.logits + gumbels) / self.temperature
        return scores - scores.logsumexp(-1, keepdim=True)

    def log_prob(self, value: Tensor) -> Tensor:
        self._check(value)
        n = self._event_shape[0]
        logits, value = broadcast_all(self.logits, value)
        (temperature,) = broadcast_all(self.temperature)
        score = logits - value * self.temperature
        score = (score - score.logsumexp(-1, keepdim=True)).sum(-1)
        return score + math.lgamma(n) + (n - 1) * temperature.log()


class RelaxedOneHotCategorical(TransformedDistribution):
    """Draws from the inside of the simplex, nearer to its corners the lower the `temperature` is.

    Parameters
    ----------
    temperature : Tensor or float
        More than 0.
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
    """

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}
    support = constraints.simplex
    has_rsample = True
    base_dist: ExpRelaxedCategorical

    def __init__(
        self, temperature: Any, probs: Tensor | None = None, logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        base = ExpRelaxedCategorical(temperature, probs, logits, validate_args=validate_args)
        super().__init__(base, ExpTransform(), validate_args=validate_args)

    @property
    def temperature(self) -> Any:
        """The temperature."""
        return self.base_dist.temperature

    @property
    def probs(self) -> Any:
        """The probabilities."""
        return self.base_dist.probs

    @property
    def logits(self) -> Any:
        """The logarithms of the probabilities."""
        return self.base_dist.logits
