"""float16 and bfloat16 in compiled loops, against NumPy's conversions at every bit pattern."""

import ml_dtypes
import numpy as np
import pytest

from spillgrad_kernels.cpu.elementwise import elementwise
from spillgrad_kernels.jit.compile import DISABLE_JIT

HALF = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
EVERY = np.arange(1 << 16, dtype=np.uint16)


def convert(a, dtype):
    return elementwise(lambda self: self, "convert", [a], np.dtype(dtype))


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_every_half_precision_number_is_read_as_what_it_is(dtype):
    a = EVERY.view(dtype)
    expected = a.astype(np.float32)
    result = convert(a, np.float32)
    np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(np.signbit(result), np.signbit(expected))


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_a_float_is_rounded_to_the_nearest_half_precision_number(dtype):
    with np.errstate(all="ignore"):
        numbers = EVERY.view(dtype).astype(np.float32).astype(np.float64)
        # Halfway between neighbours, where the even one is right, and just beside.
        middle = ((numbers[:-1] + numbers[1:]) / 2).astype(np.float32)
        beside = [np.nextafter(middle, np.float32(end)) for end in (-np.inf, np.inf)]
        words = np.random.default_rng(0).integers(0, 1 << 32, 1 << (12 if DISABLE_JIT else 21), np.uint32)
        extremes = np.array([65504, 65519.99, 65520, 65536, 3.4e38, 1e-8, 1e-45, np.inf, np.nan, 0.0], np.float32)
        x = np.concatenate([numbers.astype(np.float32), middle, *beside, words.view(np.float32), extremes, -extremes])
        expected = x.astype(dtype)
    result = convert(x, dtype)
    assert result.dtype == dtype
    nan = np.isnan(x)
    np.testing.assert_array_equal(np.isnan(result.astype(np.float32)), nan)
    np.testing.assert_array_equal(result.view(np.uint16)[~nan], expected.view(np.uint16)[~nan])


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_half_precision_operands_of_any_layout_are_computed_in_float32(dtype):
    random = np.random.default_rng(1)
    a, b = random.standard_normal((40, 33)).astype(dtype), random.standard_normal((33, 40)).astype(dtype).T
    row = random.standard_normal(33).astype(np.float32)
    result = elementwise(lambda x, y, z: x * y + z * 0.1, "mixed", [a, b, row], dtype)
    wide = a.astype(np.float32) * b.astype(np.float32) + row * np.float32(0.1)
    np.testing.assert_allclose(result.astype(np.float32), wide, rtol=float(ml_dtypes.finfo(dtype).eps), atol=1e-6)
