"""Compiled scalar functions against extended precision: 2 ulp everywhere, special values exactly, loops vectorised."""

import functools
import math
import re

import llvmlite.binding
import numba
import numpy as np
import pytest

from spillgrad_kernels.jit.compile import CONTRACT, DISABLE_JIT, jit, load
from spillgrad_kernels.tables import scalar_math

pytestmark = pytest.mark.skipif(DISABLE_JIT, reason="uncompiled, these names are NumPy's own functions")


def erf_series(x):
    """The series without cancellation; the remainder beyond 7 is below every float64's last bit."""
    size = np.minimum(np.abs(x), 7)
    term = total = size
    for k in range(1, 300):
        term = term * 2 * size * size / (2 * k + 1)
        total = total + term
    pi = 4 * np.arctan(np.longdouble(1))
    return np.copysign(2 / np.sqrt(pi) * np.exp(-size * size) * total, x)


TABLE = {
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "log2": np.log2,
    "log10": np.log10,
    "tanh": np.tanh,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "erf": erf_series,
    "sqrt": np.sqrt,
}
OF_TWO = {"pow": np.power, "atan2": np.arctan2}
CASES = [(name, dtype) for name in (*TABLE, *OF_TWO) for dtype in (np.float32, np.float64)]
FEATURES = llvmlite.binding.get_host_cpu_features()
SPECIAL = [
    *(
        0.0,
        np.inf,
        np.nan,
        0.5,
        1.0,
        1.5,
        2.0,
        3.0,
        8.0,
        10.0,
        100.0,
        1000.0,
        math.pi / 2,
        math.pi,
        52174 * math.pi / 2,
    ),
    *(
        1e-310,
        5e-324,
        1e-45,
        1e-40,
        87.4,
        88.7,
        89.0,
        103.0,
        709.5,
        710.0,
        710.4,
        745.0,
        2.0**52 + 1,
        2.0**53 + 2,
        1e30,
    ),
    *(np.finfo(np.float32).max, np.finfo(np.float64).max),
]


@functools.cache
def compiled(name):
    """A loop around the function, compiled here and now: machine code from the cache cannot be looked into."""
    load()
    function = getattr(scalar_math, name)
    options = {"fastmath": CONTRACT, "error_model": "numpy"}
    if name in TABLE:

        @numba.njit(**options)
        def over(a, out):
            for i in range(len(a)):
                out[i] = function(a[i])
    else:

        @numba.njit(**options)
        def over(a, b, out):
            for i in range(len(a)):
                out[i] = function(a[i], b[i])

    return over


def arguments(dtype, seed):
    """Special values, random bit patterns, bell curves of every width, and multiples of pi/2."""
    rng = np.random.default_rng(seed)
    bits = np.dtype(f"i{np.dtype(dtype).itemsize}")
    patterns = rng.integers(np.iinfo(bits).min, np.iinfo(bits).max, 20_000, bits, endpoint=True).view(dtype)
    spread = [rng.standard_normal(3_000) * scale for scale in (1e-30, 1e-4, 0.3, 1, 3, 30, 100, 400, 1e5)]
    turns = rng.integers(-600_000, 600_000, 10_000) * (math.pi / 2)
    signed = np.concatenate([SPECIAL, np.negative(SPECIAL)])
    with np.errstate(over="ignore"):
        return np.concatenate([signed, *spread, 1 + spread[1], rng.uniform(-1, 1, 10_000), turns]).astype(
            dtype
        ), patterns


def pairs(name, dtype):
    """Every special value with every other, and random ones; for pow mostly with a result neither 0 nor infinite."""
    special = arguments(dtype, 0)[0][: 2 * len(SPECIAL)]
    x, y = (np.concatenate(arguments(dtype, seed)) for seed in (1, 2))
    y = np.random.default_rng(3).permutation(y)
    if name == "pow":
        rng = np.random.default_rng(4)
        with np.errstate(all="ignore"):
            limit = 0.5 * math.log(np.finfo(dtype).max) / np.abs(np.log(np.abs(x)))
            y = np.where(rng.random(len(x)) < 0.8, rng.uniform(-2.2, 2.2, len(x)) * limit, y).astype(dtype)
            y = np.where(rng.random(len(x)) < 0.3, np.round(y), y)
    return np.concatenate([np.repeat(special, len(special)), x]), np.concatenate([np.tile(special, len(special)), y])


def assert_within_ulp(result, exact, most=2):
    assert np.array_equal(np.isnan(result), np.isnan(exact))
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        nearest = exact.astype(result.dtype)
        finite = np.isfinite(nearest) & np.isfinite(result)
        assert np.array_equal(result[~finite], nearest[~finite], equal_nan=True)
        error = np.abs(result[finite] - exact[finite]) / np.spacing(np.abs(nearest[finite]))
    # The error in units of the spacing above the nearest float, and what rounding the exact value may add.
    assert error.max() <= most + 0.5
    zeros = (nearest == 0) & (result == 0)
    assert np.array_equal(np.signbit(result[zeros]), np.signbit(nearest[zeros]))


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_a_compiled_function_is_within_two_ulp(name, dtype):
    operands = pairs(name, dtype) if name in OF_TWO else (np.concatenate(arguments(dtype, 0)),)
    with np.errstate(all="ignore"):
        exact = (OF_TWO.get(name) or TABLE[name])(*(x.astype(np.longdouble) for x in operands))
    result = np.empty_like(operands[0])
    compiled(name)(*operands, result)
    assert_within_ulp(result, exact)


@pytest.mark.skipif(
    not (FEATURES.get("fma") or FEATURES.get("neon")), reason="a fused multiply-add is a scalar call here"
)
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_a_loop_around_a_compiled_function_works_on_vectors(name, dtype):
    x = np.ones(3, dtype)
    compiled(name)(*(x,) * (2 if name in OF_TWO else 1), x)
    code = next(text for types, text in compiled(name).inspect_llvm().items() if types[0].dtype.name == x.dtype.name)
    arithmetic = r"(fadd|fmul|fsub|fdiv|llvm\.sqrt|llvm\.fma)[^\n]*<\d+ x (float|double)>"
    assert re.search(arithmetic, code)


def test_powers_of_the_base_have_whole_logarithms():
    for dtype in (np.float32, np.float64):
        for name, base, largest in (("log2", 2.0, 120), ("log10", 10.0, 10)):
            exponents = np.arange(largest + 1, dtype=dtype)
            result = np.empty_like(exponents)
            compiled(name)(np.asarray(base, dtype) ** exponents, result)
            assert np.array_equal(result, exponents)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_normal_distribution_is_right_to_half_an_ulp_of_one(dtype):
    function = scalar_math.normal_cdf

    @jit(name="test_scalar_math.normal_cdf")
    def over(a, out):
        for i in range(len(a)):
            out[i] = function(a[i])

    x = np.concatenate([np.linspace(-12, 12, 40_001), [-1e30, -200.0, 200.0, 1e30, -np.inf, np.inf, np.nan]]).astype(
        dtype
    )
    result = np.empty_like(x)
    over(x, result)
    wanted = function(x.astype(np.float64))
    assert np.isnan(result[-1])
    assert np.array_equal(result[-7:-1], [0, 0, 1, 1, 0, 1])
    assert np.abs(result[:-1] - wanted[:-1]).max() <= np.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_logaddexp_is_right_to_two_ulp_of_the_larger_operand(dtype):
    function = scalar_math.logaddexp

    @jit(name="test_scalar_math.logaddexp")
    def over(a, b, out):
        for i in range(len(a)):
            out[i] = function(a[i], b[i])

    x, y = pairs("logaddexp", dtype)
    result = np.empty_like(x)
    over(x, y, result)
    with np.errstate(all="ignore"):
        wanted = np.logaddexp(x.astype(np.longdouble), y.astype(np.longdouble))
        nearest = wanted.astype(dtype)
        finite = np.isfinite(nearest)
        assert np.array_equal(result[~finite], nearest[~finite], equal_nan=True)
        scale = np.maximum(np.abs(nearest), np.maximum(np.abs(x), np.abs(y)).clip(max=1))[finite]
        assert (np.abs(result[finite] - wanted[finite]) <= 2.5 * np.spacing(scale)).all()


def test_where_selects_without_evaluating_to_another_dtype():
    @jit(name="test_scalar_math.where")
    def pick(a, out):
        for i in range(len(a)):
            out[i] = scalar_math.where(a[i] > 0, a[i], -a[i])

    x = np.array([-2, 0, 3], np.float32)
    out = np.empty_like(x)
    pick(x, out)
    assert np.array_equal(out, np.abs(x))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_normal_exp_is_exp_but_for_float32s_subnormal_results(dtype):
    function = scalar_math.normal_exp

    @jit(name="test_scalar_math.normal_exp")
    def over(x, out):
        for i in range(len(x)):
            out[i] = function(x[i])

    edge = np.log(dtype(np.finfo(np.float32).tiny))
    x = np.concatenate([*arguments(dtype, 0), edge + np.arange(-50, 51, dtype=dtype) * np.spacing(edge)])
    x = x[~(x > 88)]
    result = np.empty_like(x)
    over(x, result)
    with np.errstate(all="ignore"):
        exact, plain = np.exp(x.astype(np.longdouble)), function(x)
    if dtype == np.float32:
        exact[exact < np.finfo(np.float32).tiny] = 0
    assert_within_ulp(result, exact, most=1)
    assert_within_ulp(plain, exact)
