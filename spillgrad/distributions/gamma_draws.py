"""Draws of the gamma distribution, differentiable by its shape parameter, the concentration.

Source: Figurnov, Mohamed & Mnih 2018, "Implicit reparameterization gradients": a draw x of the distribution function
F(x; a) has dx/da = -(dF/da) / (dF/dx). Here F is the regularized lower incomplete gamma function, by the series and the
continued fraction of `spillgrad.ops.incomplete_gamma`; both are differentiated term by term, in float64.
"""

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from spillgrad import dtypes
from spillgrad.errors import GraphError
from spillgrad.ops.array_casts import as_own
from spillgrad.ops.operation import operation
from spillgrad.ops.placement import by_host
from spillgrad.ops.sampling import numpy_generator
from spillgrad.ops.special import digamma
from spillgrad.tensor import Tensor

__all__ = ["log_standard_gamma", "standard_gamma"]

_MOST_TERMS = 20_000
# From this concentration on, the expansion of the quantile about the normal distribution is exact to 1e-9.
_LARGE = 1e6


def _lower(a: np.ndarray, x: np.ndarray, log_x: np.ndarray, psi: np.ndarray) -> np.ndarray:
    """Return d(log x)/da by the series S = sum of x^n / (a (a + 1) … (a + n)): -(S (log x - psi(a)) + dS/da)."""
    term, slope = 1 / a, -1 / a  # of the series, and the logarithmic derivative of this term by a
    total, derivative = term.copy(), term * slope
    for n in range(1, _MOST_TERMS):
        term = term * x / (a + n)
        slope = slope - 1 / (a + n)
        total += term
        derivative += term * slope
        if (np.abs(term * slope) <= np.abs(derivative) * 1e-17).all():
            break
    return np.asarray(-(total * (log_x - psi) + derivative))


def _upper(a: np.ndarray, x: np.ndarray, log_x: np.ndarray, psi: np.ndarray) -> np.ndarray:
    """Return d(log x)/da by the continued fraction h of the upper function: h (log x - psi(a)) + dh/da."""
    b, db = x + 1 - a, -1.0
    c, dc = np.full_like(x, 1e300), np.zeros_like(x)
    d = 1 / b
    dd = -db * d * d
    total, derivative = d.copy(), dd.copy()
    for n in range(1, _MOST_TERMS):
        factor, dfactor = -n * (n - a), float(n)
        b = b + 2
        d, dd = 1 / (factor * d + b), dfactor * d + factor * dd + db
        dd = -dd * d * d
        dc = dfactor / c - factor / c * (dc / c) + db
        c = b + factor / c
        step, dstep = c * d, dc * d + c * dd
        derivative = derivative * step + total * dstep
        total = total * step
        if (np.abs(step - 1) <= 1e-15).all() and (np.abs(dstep) <= 1e-15).all():
            break
    return np.asarray(total * (log_x - psi) + derivative)


def _normal(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return d(log x)/da for a large concentration. Source: Cornish & Fisher 1938."""
    y = (x - a) / np.sqrt(a)
    return np.asarray((1 + y / (2 * np.sqrt(a)) - (y * y - 1) / (6 * a)) / x)


def log_gradient(a: np.ndarray, log_x: np.ndarray) -> np.ndarray:
    """Return the derivative of the logarithm of a draw by the concentration `a`, given the logarithm; in float64."""
    a, log_x = np.broadcast_arrays(np.asarray(a, np.float64), np.asarray(log_x, np.float64))
    x, result = np.exp(log_x), np.full(a.shape, np.nan)
    psi = digamma(Tensor.wrap(a.copy())).array
    inside = (a > 0) & (a < np.inf) & (x < np.inf)
    large = inside & (a >= _LARGE)
    low = inside & ~large & (x < a + 1)
    high = inside & ~large & ~low
    with np.errstate(all="ignore"):
        for chosen, function in ((low, _lower), (high, _upper)):
            if chosen.any():
                result[chosen] = function(a[chosen], x[chosen], log_x[chosen], psi[chosen])
        if large.any():
            result[large] = _normal(a[large], x[large])
    return result


def _log_draws(concentration: np.ndarray) -> np.ndarray:
    """Return logarithms of draws, exact also where a draw itself would be 0: a small concentration's mostly are.

    Source: Marsaglia & Tsang 2000, section 6: a draw of a + 1 times u^(1/a), with u uniform, is a draw of a.
    """
    a = concentration.astype(np.float64)
    small = a < 1
    generator = numpy_generator(8 * max(a.size, 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        draws = np.log(generator.standard_gamma(np.where(small, a + 1, a)))
        return as_own(np.where(small, draws - generator.standard_exponential(a.shape) / a, draws))


def _no_second_derivative(*_: Any) -> NoReturn:
    raise GraphError(
        "standard_gamma: the second derivative of a draw by the concentration is not implemented; detach() it"
    )


_slope: Callable[..., Tensor] = operation(
    "standard_gamma_grad", lambda self, log_draw: as_own(log_gradient(self, log_draw).astype(self.dtype)),
    self=lambda g: _no_second_derivative(), log_draw=lambda g: _no_second_derivative(),
)  # fmt: skip
_log_standard_gamma: Callable[..., Tensor] = operation(
    "log_standard_gamma", lambda self: as_own(_log_draws(self).astype(self.dtype)),
    self=lambda g, self, result: g * _slope(self, result),
)  # fmt: skip


def _draws(self: np.ndarray) -> np.ndarray:
    smallest = dtypes.finfo(self.dtype).tiny
    return as_own(np.maximum(np.exp(_log_draws(self)), smallest).astype(self.dtype))


_standard_gamma: Callable[..., Tensor] = operation(
    "standard_gamma", _draws, self=lambda g, self, result: g * result * _slope(self, result.log())
)


@by_host
def standard_gamma(concentration: Tensor) -> Tensor:
    """Return draws of the gamma distribution of rate 1, at least the smallest normal number of the dtype."""
    return _standard_gamma(concentration)


@by_host
def log_standard_gamma(concentration: Tensor) -> Tensor:
    """Return the logarithms of draws of the gamma distribution of rate 1."""
    return _log_standard_gamma(concentration)
