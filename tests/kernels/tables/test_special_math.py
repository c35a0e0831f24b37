"""Gamma, error and inverse hyperbolic functions, uncompiled and compiled, against known values and identities."""

import math

import numpy as np
import pytest

from spillgrad_kernels.cpu.elementwise import elementwise
from spillgrad_kernels.tables import scalar_math
from spillgrad_kernels.tables.special_math import digamma, erfinv, lgamma, polygamma

EULER = 0.57721566490153286
# Known to all digits: Abramowitz & Stegun, 6.3 and 6.4.
KNOWN = [
    (digamma, (1.0,), -EULER),
    (digamma, (0.5,), -EULER - 2 * math.log(2)),
    (digamma, (10.0,), 2.2517525890667211),
    (digamma, (-0.5,), 0.03648997397857652),
    (digamma, (1e-310,), -math.inf),
    (polygamma, (0.0, 1.0), -EULER),
    (polygamma, (1.0, 1.0), math.pi**2 / 6),
    (polygamma, (1.0, 0.5), math.pi**2 / 2),
    (polygamma, (1.0, -0.5), math.pi**2 / 2 + 4),
    (polygamma, (2.0, 1.0), -2.4041138063191886),
    (polygamma, (3.0, 1.0), math.pi**4 / 15),
    (lgamma, (0.5,), math.log(math.pi) / 2),
    (lgamma, (-0.5,), math.log(2 * math.sqrt(math.pi))),
    (lgamma, (-3.0,), math.inf),
    (erfinv, (0.5,), 0.47693627620446987),
    (erfinv, (1.0,), math.inf),
    (erfinv, (-1.0,), -math.inf),
]  # fmt: skip


@pytest.mark.parametrize(("function", "arguments", "wanted"), KNOWN)
def test_known_values(function, arguments, wanted):
    assert function(*arguments) == pytest.approx(wanted, rel=1e-14, abs=1e-15)


@pytest.mark.parametrize("n", [0, 1, 2, 5, 9])
@pytest.mark.parametrize("x", [-1234.5678, -20.3, -2.5, -0.25, 1e-3, 0.7, 3.3, 9.99, 57.0, 1e6])
def test_polygamma_of_neighbours_differs_by_its_recurrence(n, x):
    """psi_n(x + 1) - psi_n(x) = (-1)**n n! / x**(n + 1): Abramowitz & Stegun, 6.4.6."""
    here, there = polygamma(float(n), x), polygamma(float(n), x + 1)
    step = (-1) ** n * math.factorial(n) / x ** (n + 1)
    assert there - here == pytest.approx(step, abs=1e-13 * max(abs(here), abs(there)))


def test_the_error_function_undoes_its_inverse_to_the_last_digits():
    y = np.concatenate([np.linspace(-0.999, 0.999, 4001), 1 - np.logspace(-3, -15, 200)])
    x = np.vectorize(erfinv)(y)
    back = np.vectorize(math.erf)(x)
    np.testing.assert_allclose(back[:4001], y[:4001], 3e-16, 3e-16)
    np.testing.assert_allclose(np.vectorize(math.erfc)(x[4001:]), 1 - y[4001:], 1e-13)


def test_what_is_outside_the_domain_is_not_a_number():
    nan = [digamma(-1.0), digamma(-math.inf), digamma(math.nan), erfinv(1.5), erfinv(math.nan), polygamma(-1.0, 1.0)]
    assert all(math.isnan(value) for value in nan)
    assert (digamma(0.0), digamma(-0.0), digamma(math.inf)) == (-math.inf, math.inf, math.inf)
    assert (polygamma(1.0, -2.0), polygamma(2.0, 0.0), polygamma(1.0, math.inf)) == (math.inf, -math.inf, 0)
    assert (lgamma(math.inf), lgamma(1e307), lgamma(-math.inf)) == (math.inf,) * 3


VALUES = np.array([-7.25, -0.5, -1e-3, 1e-3, 0.25, 0.5, 0.999, 1.0, 1.5, 3.0, 88.0, math.inf, math.nan])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["lgamma", "digamma", "erfinv", "erfc", "asinh", "acosh", "atanh"])
def test_compiled_they_agree_with_themselves_uncompiled(name, dtype):
    function, x = getattr(scalar_math, name), VALUES.astype(dtype)
    namespace = {name: function}
    formula = eval(f"lambda self: {name}(self)", namespace)
    with np.errstate(all="ignore"):
        wanted = np.asarray(function(x.astype(np.float64)))
    got = elementwise(formula, f"test_special_math.{name}", [x], dtype)
    np.testing.assert_allclose(got, wanted.astype(dtype), 4 * np.finfo(dtype).eps, np.finfo(dtype).eps)
