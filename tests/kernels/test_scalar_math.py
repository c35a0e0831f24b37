"""Compiled scalar functions against NumPy: 2 ulp everywhere, special values exactly."""

import math

import numpy as np
import pytest
from numba import config

from spillgrad_kernels import scalar_math
from spillgrad_kernels.compile import jit

pytestmark = pytest.mark.skipif(config.DISABLE_JIT, reason="uncompiled, these names are NumPy's own functions")

SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 1e-310, 88.7, 89.0, -87.4, -103.0, 709.5, 710.0, -745.0]
TABLE = {
    "exp": np.exp,
    "log": np.log,
    "log1p": np.log1p,
    "expm1": np.expm1,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "sqrt": np.sqrt,
    "sin": np.sin,
    "cos": np.cos,
}


def compiled(name):
    function = getattr(scalar_math, name)

    @jit(name=f"test_scalar_math.{name}")
    def over(a, out):
        for i in range(len(a)):
            out[i] = function(a[i])

    return over


def ordered(values):
    """Map floats to integers in which neighbouring floats are neighbours."""
    bits = values.view(np.int32 if values.dtype == np.float32 else np.int64).astype(np.int64)
    return np.where(bits < 0, np.iinfo(bits.dtype if values.itemsize == 8 else np.int32).min - bits, bits)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", TABLE)
def test_a_compiled_function_is_within_two_ulp_of_numpy(name, dtype):
    rng = np.random.default_rng(0)
    spread = [rng.standard_normal(500) * scale for scale in (1e-30, 1e-4, 0.3, 1, 3, 30, 100, 400)]
    with np.errstate(all="ignore"):
        x = np.concatenate([*spread, SPECIAL]).astype(dtype)
        exact = TABLE[name](x.astype(np.float64 if name == "erf" else np.longdouble)).astype(dtype)
    result = np.empty_like(x)
    compiled(name)(x, result)
    assert np.array_equal(np.isnan(result), np.isnan(exact))
    infinite = np.isinf(exact)
    assert np.array_equal(result[infinite], exact[infinite])
    finite = np.isfinite(exact)
    assert np.abs(ordered(result[finite]) - ordered(exact[finite])).max() <= 2
    assert np.array_equal(np.signbit(result[x == 0]), np.signbit(exact[x == 0]))


def test_where_selects_without_evaluating_to_another_dtype():
    @jit(name="test_scalar_math.where")
    def pick(a, out):
        for i in range(len(a)):
            out[i] = scalar_math.where(a[i] > 0, a[i], -a[i])

    x = np.array([-2, 0, 3], np.float32)
    out = np.empty_like(x)
    pick(x, out)
    assert np.array_equal(out, np.abs(x))
