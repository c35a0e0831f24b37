"""The categorical distribution with one-hot vectors as values."""

from spillgrad.distributions import constraints
from spillgrad.distributions.categorical import Categorical
from spillgrad.distributions.distribution import Shape
from spillgrad.distributions.of_categorical import OfCategorical
from spillgrad.ops.creation import eye
from spillgrad.ops.embedding import one_hot
from spillgrad.tensor import Tensor

__all__ = ["OneHotCategorical", "OneHotCategoricalStraightThrough"]


class OneHotCategorical(OfCategorical):
    """The distribution of one-hot vectors whose 1 is at a categorical index.

    Parameters
    ----------
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
    support = constraints.one_hot
    has_enumerate_support = True

    def __init__(
        self, probs: Tensor | None = None, logits: Tensor | None = None, validate_args: bool | None = None
    ) -> None:  # fmt: skip
        self._categorical = Categorical(probs, logits)
        super().__init__(self._categorical.batch_shape, self.param_shape[-1:], validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def mode(self) -> Tensor:
        return one_hot(self.probs.argmax(-1), self._event_shape[0]).to(self.probs.dtype)

    @property
    def variance(self) -> Tensor:
        return self.probs * (1 - self.probs)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        indices = self._categorical.sample(sample_shape)
        return one_hot(indices, self._event_shape[0]).to(self.probs.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        self._check(value)
        return self._categorical.log_prob(value.argmax(-1))

    def entropy(self) -> Tensor:
        return self._categorical.entropy()

    def enumerate_support(self, expand: bool = True) -> Tensor:
        n = self._event_shape[0]
        values = eye(n, dtype=self.probs.dtype, device=self.probs.device)
        values = values.reshape((n,) + (1,) * len(self._batch_shape) + (n,))
        return values.expand((n, *self._batch_shape, n)) if expand else values


class OneHotCategoricalStraightThrough(OneHotCategorical):
    """A `OneHotCategorical` whose `rsample` has the gradient of the probabilities.

    Parameters
    ----------
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

    Notes
    -----
    Source: Bengio, Léonard & Courville 2013, the straight-through estimator.
    """

    has_rsample = True

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return self.sample(sample_shape) + (self.probs - self.probs.detach())
