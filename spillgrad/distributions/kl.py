"""The Kullback-Leibler divergence between two distributions, by a function for each pair of classes."""

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad.distributions.bernoulli import Bernoulli
from spillgrad.distributions.beta import Beta
from spillgrad.distributions.binomial import Binomial
from spillgrad.distributions.categorical import Categorical
from spillgrad.distributions.cauchy import Cauchy
from spillgrad.distributions.dirichlet import Dirichlet
from spillgrad.distributions.distribution import Distribution
from spillgrad.distributions.exponential import Exponential
from spillgrad.distributions.gamma import Gamma
from spillgrad.distributions.geometric import Geometric
from spillgrad.distributions.gumbel import Gumbel
from spillgrad.distributions.half_normal import HalfNormal
from spillgrad.distributions.independent import Independent
from spillgrad.distributions.laplace import Laplace
from spillgrad.distributions.multivariate_normal import MultivariateNormal, half_log_determinant, mahalanobis
from spillgrad.distributions.normal import Normal
from spillgrad.distributions.one_hot_categorical import OneHotCategorical
from spillgrad.distributions.poisson import Poisson
from spillgrad.distributions.transformed_distribution import TransformedDistribution
from spillgrad.distributions.uniform import Uniform
from spillgrad.distributions.utils import euler_constant, sum_rightmost
from spillgrad.errors import ArgumentError, OperandError, UnsupportedError
from spillgrad.ops.activations import softplus
from spillgrad.ops.clamp_where import where
from spillgrad.ops.creation import full_like
from spillgrad.ops.solving import solve_triangular
from spillgrad.ops.special import erf, xlogy
from spillgrad.tensor import Tensor

__all__ = ["kl_divergence", "register_kl"]

Divergence = Callable[[Any, Any], Tensor]
Pair = tuple[type, type]

_functions: dict[Pair, Divergence] = {}


def register_kl(type_p: type, type_q: type) -> Callable[[Divergence], Divergence]:
    """Return a decorator that makes a function the divergence between two classes and their subclasses.

    Parameters
    ----------
    type_p, type_q : type
        Classes of distributions.

    Returns
    -------
    callable
        Decorator of a ``function(p, q)`` that returns the divergence.

    Raises
    ------
    OperandError
        For what is no class of distributions.
    """
    for name, given in (("type_p", type_p), ("type_q", type_q)):
        if not (isinstance(given, type) and issubclass(given, Distribution)):
            raise OperandError(f"Expected {name} to be a Distribution subclass but got {given}")

    def register(function: Divergence) -> Divergence:
        _functions[type_p, type_q] = function
        _function_for.cache_clear()
        return function

    return register


def _first(pairs: list[Pair], order: Callable[[Pair], Pair]) -> Pair:
    """Return the pair that is most specific in the first class of `order`, then in the second."""

    def more_specific(a: Pair, b: Pair) -> Pair:
        for x, y in zip(order(a), order(b), strict=True):
            if x is not y:
                return a if issubclass(x, y) else b
        return a

    return functools.reduce(more_specific, pairs)


@functools.cache
def _function_for(type_p: Any, type_q: Any) -> Divergence | None:
    pairs = [(p, q) for p, q in _functions if issubclass(type_p, p) and issubclass(type_q, q)]
    if not pairs:
        return None
    left, right = _first(pairs, lambda pair: pair), _first(pairs, lambda pair: (pair[1], pair[0]))
    if _functions[left] is not _functions[right]:
        warnings.warn(
            f"Ambiguous kl_divergence({type_p.__name__}, {type_q.__name__}). "
            f"Please register_kl({left[0].__name__}, {right[1].__name__})",
            RuntimeWarning,
            stacklevel=3,
        )
    return _functions[left]


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """Return the divergence KL(p ‖ q), the mean of log p(x) - log q(x) over draws x of p.

    Parameters
    ----------
    p, q : Distribution
        Distributions whose batches broadcast.

    Returns
    -------
    Tensor
        Of the shape of the batch.

    Raises
    ------
    UnsupportedError
        For classes without a function; `register_kl` adds one.

    Examples
    --------
    >>> import spillgrad as sg
    >>> from spillgrad.distributions import Normal, kl_divergence
    >>> kl_divergence(Normal(1.0, 1.0), Normal(0.0, 1.0))
    tensor(0.5000)
    """
    kinds: Any = type(p), type(q)
    function = _function_for(*kinds)
    if function is None:
        raise UnsupportedError(
            f"No KL(p || q) is implemented for p type {type(p).__name__} and q type {type(q).__name__}; "
            "register_kl adds a function"
        )
    return function(p, q)


@register_kl(Bernoulli, Bernoulli)
def _(p: Bernoulli, q: Bernoulli) -> Any:
    ones = p.probs * (softplus(-q.logits) - softplus(-p.logits))
    ones = where(p.probs == 0, 0.0, where(q.probs == 0, math.inf, ones))
    zeros = (1 - p.probs) * (softplus(q.logits) - softplus(p.logits))
    return ones + where(p.probs == 1, 0.0, where(q.probs == 1, math.inf, zeros))


@register_kl(Beta, Beta)
def _(p: Beta, q: Beta) -> Any:
    return kl_divergence(p._dirichlet, q._dirichlet)


@register_kl(Binomial, Binomial)
def _(p: Binomial, q: Binomial) -> Any:
    if bool((p.total_count < q.total_count).any()):
        raise UnsupportedError("KL between Binomials where q.total_count > p.total_count is not implemented")
    found = p.total_count * (p.probs * (p.logits - q.logits) + (-p.probs).log1p() - (-q.probs).log1p())
    return where(p.total_count > q.total_count, math.inf, found)


@register_kl(Categorical, Categorical)
def _(p: Categorical, q: Categorical) -> Any:
    terms = p.probs * (p.logits - q.logits)
    return where(p.probs == 0, 0.0, where(q.probs == 0, math.inf, terms)).sum(-1)


@register_kl(Cauchy, Cauchy)
def _(p: Cauchy, q: Cauchy) -> Any:
    return ((p.scale + q.scale) ** 2 + (p.loc - q.loc) ** 2).log() - (4 * p.scale * q.scale).log()


@register_kl(Dirichlet, Dirichlet)
def _(p: Dirichlet, q: Dirichlet) -> Any:
    total = p.concentration.sum(-1)
    norms = total.lgamma() - q.concentration.sum(-1).lgamma()
    norms = norms - (p.concentration.lgamma() - q.concentration.lgamma()).sum(-1)
    slopes = p.concentration.digamma() - total.digamma().unsqueeze(-1)
    return norms + ((p.concentration - q.concentration) * slopes).sum(-1)


@register_kl(Exponential, Exponential)
def _(p: Exponential, q: Exponential) -> Any:
    ratio = q.rate / p.rate
    return -ratio.log() + ratio - 1


@register_kl(Gamma, Gamma)
def _(p: Gamma, q: Gamma) -> Any:
    found = q.concentration * (p.rate / q.rate).log() + q.concentration.lgamma() - p.concentration.lgamma()
    found = found + (p.concentration - q.concentration) * p.concentration.digamma()
    return found + (q.rate - p.rate) * (p.concentration / p.rate)


@register_kl(Geometric, Geometric)
def _(p: Geometric, q: Geometric) -> Any:
    return -p.entropy() - (-q.probs).log1p() / p.probs - q.logits


@register_kl(Gumbel, Gumbel)
def _(p: Gumbel, q: Gumbel) -> Any:
    ratio, distance = p.scale / q.scale, (q.loc - p.loc) / q.scale
    found = -ratio.log() - distance + ratio * euler_constant
    return found + (distance + (1 + ratio).lgamma()).exp() - (1 + euler_constant)


@register_kl(HalfNormal, HalfNormal)
def _(p: HalfNormal, q: HalfNormal) -> Any:
    return kl_divergence(p.base_dist, q.base_dist)


@register_kl(Independent, Independent)
def _(p: Independent, q: Independent) -> Any:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise UnsupportedError("kl_divergence: got Independent of different reinterpreted_batch_ndims")
    return sum_rightmost(kl_divergence(p.base_dist, q.base_dist), p.reinterpreted_batch_ndims)


@register_kl(Laplace, Laplace)
def _(p: Laplace, q: Laplace) -> Any:
    ratio, distance = p.scale / q.scale, (p.loc - q.loc).abs()
    return -ratio.log() + distance / q.scale + ratio * (-distance / p.scale).exp() - 1


@register_kl(MultivariateNormal, MultivariateNormal)
def _(p: MultivariateNormal, q: MultivariateNormal) -> Any:
    if p.event_shape != q.event_shape:
        raise ArgumentError(
            f"KL-divergence between two Multivariate Normals with different event shapes cannot be computed: "
            f"{p.event_shape} and {q.event_shape}"
        )
    n, mine, theirs = p.event_shape[0], p._unbroadcasted_scale_tril, q._unbroadcasted_scale_tril
    shape = (*np.broadcast_shapes(mine.shape[:-2], theirs.shape[:-2]), n, n)
    trace = solve_triangular(theirs.expand(shape), mine.expand(shape), upper=False).square().sum((-2, -1))
    norms = half_log_determinant(theirs) - half_log_determinant(mine)
    return norms + 0.5 * (trace + mahalanobis(theirs, q.loc - p.loc) - n)


@register_kl(Normal, Normal)
def _(p: Normal, q: Normal) -> Any:
    ratio = (p.scale / q.scale) ** 2
    return 0.5 * (ratio + ((p.loc - q.loc) / q.scale) ** 2 - 1 - ratio.log())


@register_kl(OneHotCategorical, OneHotCategorical)
def _(p: OneHotCategorical, q: OneHotCategorical) -> Any:
    return kl_divergence(p._categorical, q._categorical)


@register_kl(Poisson, Poisson)
def _(p: Poisson, q: Poisson) -> Any:
    return p.rate * (p.rate.log() - q.rate.log()) - (p.rate - q.rate)


@register_kl(TransformedDistribution, TransformedDistribution)
def _(p: TransformedDistribution, q: TransformedDistribution) -> Any:
    if p.transforms != q.transforms or p.event_shape != q.event_shape:
        raise UnsupportedError("kl_divergence: got TransformedDistributions of different transforms or event shapes")
    return kl_divergence(p.base_dist, q.base_dist)


@register_kl(Uniform, Uniform)
def _(p: Uniform, q: Uniform) -> Any:
    found = ((q.high - q.low) / (p.high - p.low)).log()
    return where((q.low > p.low) | (q.high < p.high), math.inf, found)


# Between different classes: the cross entropy, whose terms are moments of p, less the entropy.


@register_kl(Beta, Exponential)
@register_kl(Gamma, Exponential)
@register_kl(Uniform, Exponential)
def _(p: Any, q: Exponential) -> Any:
    found = q.rate * p.mean - q.rate.log() - p.entropy()
    return where(p.low < 0, math.inf, found) if isinstance(p, Uniform) else found


@register_kl(Beta, Normal)
@register_kl(Exponential, Normal)
@register_kl(Gamma, Normal)
@register_kl(Gumbel, Normal)
@register_kl(Laplace, Normal)
@register_kl(Uniform, Normal)
def _(p: Any, q: Normal) -> Any:
    squares = (p.variance + (p.mean - q.loc) ** 2) / (2 * q.scale**2)
    return squares + q.scale.log() + 0.5 * math.log(2 * math.pi) - p.entropy()


def _mean_logarithm(p: Any) -> Any:
    """Return the mean of log(x) over draws x of p."""
    if isinstance(p, Beta):
        return p.concentration1.digamma() - (p.concentration1 + p.concentration0).digamma()
    if isinstance(p, Exponential):
        return -euler_constant - p.rate.log()
    return (xlogy(p.high, p.high) - xlogy(p.low, p.low)) / (p.high - p.low) - 1


@register_kl(Beta, Gamma)
@register_kl(Exponential, Gamma)
@register_kl(Uniform, Gamma)
def _(p: Any, q: Gamma) -> Any:
    norm = q.concentration.lgamma() - q.concentration * q.rate.log()
    found = norm + q.rate * p.mean - (q.concentration - 1) * _mean_logarithm(p) - p.entropy()
    return where(p.low < 0, math.inf, found) if isinstance(p, Uniform) else found


@register_kl(Beta, Uniform)
def _(p: Beta, q: Uniform) -> Any:
    return where((q.low > 0) | (q.high < 1), math.inf, (q.high - q.low).log() - p.entropy())


@register_kl(Uniform, Beta)
def _(p: Uniform, q: Beta) -> Any:
    ones, zeros = q.concentration1, q.concentration0
    norm = ones.lgamma() + zeros.lgamma() - (ones + zeros).lgamma()
    mirrored = Uniform(1 - p.high, 1 - p.low, validate_args=False)
    terms = (ones - 1) * _mean_logarithm(p) + (zeros - 1) * _mean_logarithm(mirrored)
    return where((p.high > 1) | (p.low < 0), math.inf, norm - terms - p.entropy())


@register_kl(Bernoulli, Poisson)
def _(p: Bernoulli, q: Poisson) -> Any:
    return q.rate - p.probs * q.rate.log() - p.entropy()


@register_kl(Normal, Laplace)
def _(p: Normal, q: Laplace) -> Any:
    distance = (p.loc - q.loc) / p.scale
    size = math.sqrt(2 / math.pi) * (-0.5 * distance**2).exp() + distance * erf(math.sqrt(0.5) * distance)
    return size * p.scale / q.scale + (2 * q.scale).log() - p.entropy()


def _mean_exponential(p: Any, loc: Tensor, scale: Tensor) -> Any:
    """Return the mean of exp(-(x - loc) / scale) over draws x of p."""
    if isinstance(p, Normal):
        return ((loc - p.loc) / scale + 0.5 * (p.scale / scale) ** 2).exp()
    if isinstance(p, Uniform):
        return scale / (p.high - p.low) * (((loc - p.low) / scale).exp() - ((loc - p.high) / scale).exp())
    shape = p.concentration if isinstance(p, Gamma) else 1
    return (loc / scale).exp() * (1 + 1 / (p.rate * scale)) ** -shape


@register_kl(Exponential, Gumbel)
@register_kl(Gamma, Gumbel)
@register_kl(Normal, Gumbel)
@register_kl(Uniform, Gumbel)
def _(p: Any, q: Gumbel) -> Any:
    return q.scale.log() + (p.mean - q.loc) / q.scale + _mean_exponential(p, q.loc, q.scale) - p.entropy()


def _infinite(p: Distribution, q: Distribution) -> Tensor:
    """Return infinity: p has draws where q has no density."""
    return full_like(p.mean, math.inf)


for _p, _others in {
    Exponential: (Beta, Uniform), Gamma: (Beta, Uniform), Gumbel: (Beta, Exponential, Gamma, Uniform),
    Laplace: (Beta, Exponential, Gamma, Uniform), Normal: (Beta, Exponential, Gamma, Uniform),
    Poisson: (Bernoulli, Binomial),
}.items():  # fmt: skip
    for _q in _others:
        register_kl(_p, _q)(_infinite)
