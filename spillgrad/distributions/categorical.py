"""The categorical distribution."""

import math
from typing import Any

from spillgrad import dtypes
from spillgrad.autograd.core.grad_mode import no_grad
from spillgrad.distributions import constraints
from spillgrad.distributions.binary import require_one
from spillgrad.distributions.distribution import Distribution, Shape
from spillgrad.distributions.utils import lazy_property, logits_to_probs, probs_to_logits
from spillgrad.errors import ArgumentError
from spillgrad.ops.creation import arange, full
from spillgrad.ops.sampling import multinomial
from spillgrad.ops.shape import broadcast_tensors
from spillgrad.tensor import Tensor

__all__ = ["Categorical"]


class Categorical(Distribution):
    """The distribution of an index 0 … n - 1, by probabilities or their logarithms, which are normalized.

    A draw is an int64 number.

    Parameters
    ----------
    probs : Tensor, optional
        Probabilities, of shape (…, n).
    logits : Tensor, optional
        Logarithms of probabilities, of shape (…, n). Give either `probs` or `logits`.
    validate_args : bool, optional
        Whether to check parameters and values; by default, what `Distribution.set_default_validate_args` set.

    Raises
    ------
    ArgumentError
        Unless exactly one of `probs` and `logits` is given, of at least one dimension; if it is outside its constraint,
        and arguments are checked.

    Examples
    --------
    >>> import spillgrad as sg
    >>> categorical = sg.distributions.Categorical(sg.tensor([0.25, 0.75]))
    >>> categorical.log_prob(sg.tensor(1)).exp()
    tensor(0.7500)
    """

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}
    has_enumerate_support = True

    def __init__(
        self, probs: Tensor | None = None, logits: Tensor | None = None, validate_args: bool | None = None
    ) -> None:  # fmt: skip
        require_one(probs, logits)
        for name, given in (("probs", probs), ("logits", logits)):
            if given is not None and given.dim() < 1:
                raise ArgumentError(f"`{name}` parameter must be at least one-dimensional.")
        if probs is not None:
            self._param = self.probs = probs / probs.sum(-1, keepdim=True)
        elif logits is not None:
            self._param = self.logits = logits - logits.logsumexp(-1, keepdim=True)
        self._num_events = self._param.shape[-1]
        super().__init__(self._param.shape[:-1], validate_args=validate_args)

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self) -> Any:
        return constraints.integer_interval(0, self._num_events - 1)

    @lazy_property
    def logits(self) -> Any:
        """The logarithms of the probabilities."""
        return probs_to_logits(self.probs)

    @lazy_property
    def probs(self) -> Any:
        """The probabilities."""
        return logits_to_probs(self.logits)

    @property
    def param_shape(self) -> tuple[int, ...]:
        """The shape of the parameter."""
        return self._param.shape

    @property
    def mean(self) -> Tensor:
        return full(self._batch_shape, math.nan, dtype=self.probs.dtype, device=self.probs.device)

    @property
    def mode(self) -> Tensor:
        return self.probs.argmax(-1)

    @property
    def variance(self) -> Tensor:
        return self.mean

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        sample_shape = tuple(sample_shape)
        shape = self._extended_shape(sample_shape)
        with no_grad():
            rows = self.probs.reshape((-1, self._num_events))
            if not math.prod(shape):
                return full(shape, 0, dtype=dtypes.int64, device=rows.device)
            return multinomial(rows, math.prod(sample_shape), True).T.reshape(shape)

    def log_prob(self, value: Tensor) -> Tensor:
        self._check(value)
        indices, logits = broadcast_tensors(value.long().unsqueeze(-1), self.logits)
        return logits.gather(-1, indices[..., :1]).squeeze(-1)

    def entropy(self) -> Tensor:
        logits = self.logits.clamp(min=dtypes.finfo(self.logits.dtype).min)
        return -(logits * self.probs).sum(-1)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        values = arange(self._num_events, dtype=dtypes.int64, device=self._param.device)
        values = values.reshape((-1,) + (1,) * len(self._batch_shape))
        return values.expand((-1, *self._batch_shape)) if expand else values
