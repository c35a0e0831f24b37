"""The binary concrete distribution: Bernoulli draws relaxed to (0, 1), with gradients.

Source: Maddison, Mnih & Teh 2017.
"""

from typing import Any

from spillgrad.distributions import constraints
from spillgrad.distributions.binary import Binary
from spillgrad.distributions.distribution import Shape
from spillgrad.distributions.transformed_distribution import TransformedDistribution
from spillgrad.distributions.transforms import SigmoidTransform
from spillgrad.distributions.utils import broadcast_all, clamp_probs, standard_uniform
from spillgrad.tensor import Tensor

__all__ = ["LogitRelaxedBernoulli", "RelaxedBernoulli"]


class LogitRelaxedBernoulli(Binary):
    """The distribution of the log-odds of a `RelaxedBernoulli` draw."""

    support = constraints.real
    has_rsample = True
    _unexpanded = ("temperature",)

    def __init__(
        self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:  # fmt: skip
        self.temperature = temperature
        self._take(probs, logits)
        super().__init__(self._param.shape, validate_args=validate_args)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        probs = clamp_probs(self.probs.expand(self._extended_shape(sample_shape)))
        draws = standard_uniform(probs.shape, probs)
        return (draws.log() - (-draws).log1p() + probs.log() - (-probs).log1p()) / self.temperature

    def log_prob(self, value: Tensor) -> Tensor:
        self._check(value)
        logits, value = broadcast_all(self.logits, value)
        (temperature,) = broadcast_all(self.temperature)
        difference = logits - value * self.temperature
        return temperature.log() + difference - 2 * difference.exp().log1p()


class RelaxedBernoulli(TransformedDistribution):
    """Draws from (0, 1), nearer to 0 and 1 the lower the `temperature` is.

    Parameters
    ----------
    temperature : Tensor or float
        More than 0.
    probs : Tensor or float, optional
        Probability of 1.
    logits : Tensor or float, optional
        Log-odds of 1. Give either `probs` or `logits`.
    validate_args : bool, optional
        Whether to check parameters and values; by default, what `Distribution.set_default_validate_args` set.

    Raises
    ------
    ArgumentError
        Unless exactly one of `probs` and `logits` is given; if a parameter is outside its constraint, and arguments are
        checked.
    """

    arg_constraints = Binary.arg_constraints
    support = constraints.unit_interval
    has_rsample = True
    base_dist: LogitRelaxedBernoulli

    def __init__(
        self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:  # fmt: skip
        base = LogitRelaxedBernoulli(temperature, probs, logits)
        super().__init__(base, SigmoidTransform(), validate_args=validate_args)

    @property
    def temperature(self) -> Any:
        """The temperature."""
        return self.base_dist.temperature

    @property
    def probs(self) -> Any:
        """The probabilities of 1."""
        return self.base_dist.probs

    @property
    def logits(self) -> Any:
        """The log-odds of 1."""
        return self.base_dist.logits
