"""Compiled loops of complex numbers against NumPy: every row that takes them, special values, and kinds of memory."""

import numpy as np
import pytest

from spillgrad_kernels.cpu.elementwise import elementwise
from spillgrad_kernels.jit.compile import DISABLE_JIT
from spillgrad_kernels.tables.complex_derivatives import COMPLEX_ROWS
from spillgrad_kernels.tables.formula import parameters

DTYPES = [np.complex64, np.complex128]
INF, NAN, LOG_2 = np.inf, np.nan, np.log(2)


def drawn(rng, shape, dtype):
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)


def operands_of(row, formula, rng, dtype):
    """Random operands, by what their names say: a condition, and the real gradient of a real result."""
    made = {name: drawn(rng, (3, 5), dtype) for name in parameters(formula)}
    if "condition" in made:
        made["condition"] = made["condition"].real > 0
    if "g" in made and row.result == "real":
        made["g"] = made["g"].real.copy()
    return list(made.values())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", COMPLEX_ROWS)
def test_a_compiled_row_agrees_with_its_formula(name, dtype):
    rng = np.random.default_rng(0)
    row = COMPLEX_ROWS[name]
    formulas = {name: row.forward, **{f"{name}.{source}": formula for source, formula in row.derivatives.items()}}
    for kernel, formula in formulas.items():
        operands = operands_of(row, formula, rng, dtype)
        wide = [o.astype(np.result_type(o, np.float64)) if o.dtype != bool else o for o in operands]
        wanted = np.asarray(formula(*wide))
        kind = {"b": np.bool_, "c": dtype, "f": dtype().real.dtype}[wanted.dtype.kind]
        tolerance = 2e-5 if dtype == np.complex64 else 1e-13
        result = elementwise(formula, kernel, operands, kind)
        np.testing.assert_allclose(result, wanted, tolerance, tolerance, err_msg=kernel)


PARTS = [0.0, -0.0, 1.0, -1.0, 0.5, -2.0, 1e-200, 1e300, -1e300, 720.0, -720.0, INF, -INF, NAN]
NUMBERS = np.array([complex(a, b) for a in PARTS for b in PARTS])
NUMPYS = {
    "exp": np.exp, "log": np.log, "log2": np.log2, "log10": np.log10, "sqrt": np.sqrt, "sinh": np.sinh,
    "cosh": np.cosh, "tanh": np.tanh, "sin": np.sin, "cos": np.cos, "tan": np.tan, "asinh": np.arcsinh,
    "acosh": np.arccosh, "atanh": np.arctanh, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "abs": np.abs,
    "isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite,
}  # fmt: skip


def assert_alike(result, wanted):
    """Numbers agree to 1e-13, infinities and NaN as they are; the sign of an infinity beside NaN is not specified."""
    for part in (np.real, np.imag):
        got, exact = part(result), part(wanted)
        unsure = np.isinf(exact) & (np.isnan(np.real(wanted)) | np.isnan(np.imag(wanted)))
        np.testing.assert_allclose(np.where(unsure, np.abs(got), got), np.where(unsure, np.abs(exact), exact), 1e-13)


@pytest.mark.parametrize("name", NUMPYS)
def test_zeros_infinities_and_what_is_not_a_number_give_what_they_give_in_numpy(name):
    with np.errstate(all="ignore"):
        wanted = np.asarray(NUMPYS[name](NUMBERS))
        result = elementwise(COMPLEX_ROWS[name].forward, name, [NUMBERS], wanted.dtype)
    assert_alike(result, wanted)


@pytest.mark.parametrize("name", ["sqrt", "log", "asinh", "acosh", "atanh", "asin", "acos", "atan"])
def test_a_signed_zero_says_on_which_side_of_a_branch_cut_a_number_lies(name):
    cuts = np.array([complex(a, b) for a in (-3.0, -0.5, 0.0, 0.5, 3.0) for b in (0.0, -0.0)])
    sides = np.concatenate([cuts, [complex(z.imag, z.real) for z in cuts]])
    with np.errstate(divide="ignore"):
        result = elementwise(COMPLEX_ROWS[name].forward, name, [sides], np.complex128)
        wanted = NUMPYS[name](sides)
    np.testing.assert_allclose(result.view(float), wanted.view(float), 1e-13)
    assert np.array_equal(np.signbit(result.view(float)), np.signbit(wanted.view(float)))


def test_a_quotient_is_what_it_is_in_numpy():
    x, y = np.repeat(NUMBERS, len(NUMBERS)), np.tile(NUMBERS, len(NUMBERS))
    with np.errstate(all="ignore"):
        assert_alike(elementwise(COMPLEX_ROWS["div"].forward, "div", [x, y], np.complex128), x / y)


def test_the_logarithm_of_a_sum_of_powers_neither_overflows_nor_loses_infinities():
    x = np.array([800 + 1j, -800 + 1j, 5j, complex(-INF, 2), complex(-INF, 2), complex(INF, 0), complex(INF, 0), NAN])
    y = np.array([800 + 1j, -800 + 1j, -900, complex(-INF, 1), 3 + 4j, complex(INF, 0), 2j, 1])
    wanted = [800 + LOG_2 + 1j, -800 + LOG_2 + 1j, 5j, complex(-INF, 1), 3 + 4j, complex(INF, 0), complex(INF, 0)]
    result = elementwise(COMPLEX_ROWS["logaddexp"].forward, "logaddexp", [x, y], np.complex128)
    np.testing.assert_allclose(result[:-1].view(float), np.array(wanted).view(float), 1e-14)
    assert np.isnan(result[-1].real) and np.isnan(result[-1].imag)


def test_a_small_whole_power_is_exact():
    x = np.array([3 + 4j, -2 + 1j, 1j])
    for n in (-2, 0, 1, 2, 5):
        exponent = np.array(complex(n))
        result = elementwise(COMPLEX_ROWS["pow"].forward, "pow", [x, exponent], np.complex128)
        np.testing.assert_allclose(result, [z**n for z in x.tolist()], 1e-15)


@pytest.mark.skipif(DISABLE_JIT, reason="uncompiled, it is NumPy's own logarithm, which cancels")
def test_near_one_the_logarithm_does_not_cancel():
    z = np.array([1e-12 + 1e-8j, -3e-10 + 2e-5j])
    wanted = np.array([1e-12 + 0.5e-16, -3e-10 + 2e-10 - 4.5e-20])  # x + y**2 / 2 - x**2 / 2 …
    result = elementwise(COMPLEX_ROWS["log1p"].forward, "log1p", [z], np.complex128)
    np.testing.assert_allclose(result.real, wanted, 1e-8)


def test_a_product_with_the_conjugate_has_no_imaginary_part():
    for dtype in DTYPES:
        z = drawn(np.random.default_rng(2), 1001, dtype)
        result = elementwise(lambda self, other: self * other, "mul", [z, z.conj()], dtype)
        assert not result.imag.any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_operands_may_be_strided_broadcast_and_written_in_place(dtype):
    rng = np.random.default_rng(1)
    a, b = drawn(rng, (6, 8), dtype)[::2, ::-2], drawn(rng, (4, 3), dtype).T
    row, number = drawn(rng, 4, dtype), np.asarray(2 - 1j, dtype)
    subtract = COMPLEX_ROWS["sub"].forward
    for x, y in ((a, b), (a, row), (row, b), (a, number), (number, b)):
        wanted = x - y
        assert np.array_equal(elementwise(subtract, "sub", [x, y], dtype), wanted)
        out = np.zeros(wanted.shape[::-1], dtype).T
        assert elementwise(subtract, "sub", [x, y], dtype, out) is out
        assert np.array_equal(out, wanted)
    wanted = a - b
    elementwise(subtract, "sub", [a, b], dtype, a)
    assert np.array_equal(a, wanted)


def test_a_large_array_is_shared_among_threads():
    z = drawn(np.random.default_rng(3), 300_001, np.complex64)
    result = elementwise(COMPLEX_ROWS["mul"].forward, "mul", [z, z], np.complex64)
    np.testing.assert_allclose(result, z * z, 1e-5, 1e-6)
