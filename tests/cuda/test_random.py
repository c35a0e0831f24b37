"""Random numbers on a device are the same as on the CPU."""

import ml_dtypes
import numpy as np
import pytest

from spillgrad_kernels.cpu import random as host
from spillgrad_kernels.cuda import random
from spillgrad_kernels.cuda.array import to_device

SHAPES = [(), (0,), (1,), (3,), (4,), (5, 1), (3, 0), (2, 3, 7), (203,)]
SEEDS = [(0, 0), (-3, 1 << 33), (0x0123456789ABCDEF, (7 << 32) - 1), (1 << 63, (1 << 64) - 3)]
HALF = (np.float16, ml_dtypes.bfloat16)


@pytest.mark.parametrize("seed, offset", SEEDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_uniform_numbers_and_integers_are_the_cpu_s(shape, seed, offset):
    for dtype in (np.float32, np.float64):
        found = random.uniform(shape, dtype, seed, offset)
        assert found.shape == shape and found.dtype == dtype
        assert np.array_equal(found.to_host(), host.uniform(shape, dtype, seed, offset))
    found = random.words64(shape, seed, offset)
    assert found.dtype == np.uint64
    assert np.array_equal(found.to_host(), host.words64(shape, seed, offset))


@pytest.mark.parametrize("low, high", [(0, 1), (-3, 4), (-(1 << 63), (1 << 63) - 1), (5, 1 << 62)])
def test_integers_of_a_range_are_the_cpu_s(low, high):
    found = random.randint(low, high, (37,), 5, 6)
    assert found.dtype == np.int64
    assert np.array_equal(found.to_host(), host.randint(low, high, (37,), 5, 6))
    with pytest.raises(ValueError, match="randint: got low=3 and high=3"):
        random.randint(3, 3, (2,), 0, 0)


@pytest.mark.parametrize("n", [0, 1, 40])
def test_a_permutation_is_the_cpu_s(n):
    assert np.array_equal(random.permutation(n, 3, 4).to_host(), host.permutation(n, 3, 4))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", SHAPES)
def test_normal_numbers_are_the_cpu_s_but_for_the_last_bits(shape, dtype):
    found = random.normal(shape, dtype, 7, 8)
    assert found.shape == shape and found.dtype == dtype
    tolerance = 8 * np.finfo(dtype).eps
    np.testing.assert_allclose(found.to_host(), host.normal(shape, dtype, 7, 8), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", ["uniform", "normal"])
def test_half_precision_rounds_the_numbers_of_float32(name, dtype):
    found = getattr(random, name)((41,), dtype, 1, 2).to_host()
    wanted = getattr(random, name)((41,), np.float32, 1, 2).to_host().astype(dtype)
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, *HALF])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("p", [0, 0.3, 1])
def test_dropout_is_the_cpu_s(p, shape, dtype):
    rng = np.random.default_rng(0)
    a, residual = rng.standard_normal(shape).astype(dtype), rng.standard_normal(shape).astype(dtype)
    if a.size > 1:
        a.reshape(-1)[::2] = np.nan
        a.reshape(-1)[1] = np.inf
    computed = np.float32 if dtype in HALF else dtype
    for other in (None, residual):
        on_device = None if other is None else to_device(other)
        found = random.dropout(to_device(a), p, 9, 10, on_device)
        on_host = None if other is None else other.astype(computed)
        wanted = host.dropout(a.astype(computed), p, 9, 10, on_host).astype(dtype)
        assert found.shape == shape and found.dtype == dtype
        np.testing.assert_array_equal(found.to_host().astype(np.float64), wanted.astype(np.float64))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("begin", [1, 2, 4])
def test_dropout_takes_any_layout(begin, dtype):
    memory = np.random.default_rng(1).standard_normal((9, 12)).astype(dtype)
    for view in (lambda a: a.T, lambda a: a[1:, ::2], lambda a: a.reshape(108)[begin : begin + 50]):
        found = random.dropout(view(to_device(memory)), 0.4, 3, 4, view(to_device(memory)))
        assert np.array_equal(found.to_host(), host.dropout(view(memory), 0.4, 3, 4, view(memory)))


@pytest.mark.parametrize("p", [-0.1, 1.5, float("nan")])
def test_a_dropout_probability_outside_zero_to_one_is_refused(p):
    with pytest.raises(ValueError, match="dropout: got p="):
        random.dropout(to_device(np.ones(3)), p, 0, 0)


def test_a_residual_that_does_not_fit_is_refused():
    for residual in (np.ones(2), np.ones(3, np.float32)):
        with pytest.raises(ValueError, match="dropout: got a residual of shape"):
            random.dropout(to_device(np.ones(3)), 0.5, 0, 0, to_device(residual))
