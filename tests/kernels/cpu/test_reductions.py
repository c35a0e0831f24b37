"""Reductions and scans against NumPy in float64."""

import math

import numpy as np
import pytest

from spillgrad_kernels.cpu import reductions

DTYPES = (np.float32, np.float64)
# Shape and axes: one and several axes, adjacent or not, nothing at all.
SMALL = [
    ((), ()),
    ((7,), (0,)),
    ((7,), ()),
    ((3, 5), (0,)),
    ((3, 5), (1,)),
    ((3, 5), (0, 1)),
    ((2, 3, 4), (1,)),
    ((2, 3, 4), (0, 2)),
    ((2, 3, 4, 3), (2, 1)),
    ((2, 1, 3), (1,)),
    ((0, 3), (1,)),
    ((3, 0), (0,)),
]
# Sizes beyond one block of elements, of rows, of columns.
LARGE = [((140_001,), (0,)), ((3, 70_001), (1,)), ((70_001, 3), (0,)), ((200, 1031), (0,)), ((2, 150, 1025), (0, 1))]


def logsumexp(a, axis, keepdims):
    largest = a.max(axis=axis, keepdims=True) if a.size else np.zeros((1,) * a.ndim)
    total = np.log(np.exp(a - largest).sum(axis=axis, keepdims=True)) + largest
    return total if keepdims else total.squeeze(axis)


def mean(a, axis, keepdims):
    total = a.sum(axis=axis, keepdims=keepdims)
    with np.errstate(all="ignore"):
        return total / np.float64(a.size / max(1, total.size))


ORACLES = {
    "sum": np.sum,
    "mean": mean,
    "prod": np.prod,
    "max": np.max,
    "min": np.min,
    "logsumexp": logsumexp,
}


def draw(shape, dtype, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def tolerance(dtype, n):
    return 4 * np.finfo(dtype).eps * max(1, math.sqrt(n))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize(("shape", "axes"), SMALL)
@pytest.mark.parametrize("name", ORACLES)
def test_a_reduction_agrees_with_numpy(name, shape, axes, keepdims, dtype):
    a = draw(shape, dtype)
    result = getattr(reductions, name)(a, axes, keepdims)
    expected = ORACLES[name](a.astype(np.float64), axis=axes, keepdims=keepdims)
    assert result.dtype == dtype and result.shape == expected.shape
    np.testing.assert_allclose(result, expected, rtol=tolerance(dtype, a.size), atol=tolerance(dtype, a.size))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "axes"), LARGE)
@pytest.mark.parametrize("name", ORACLES)
def test_a_reduction_of_many_blocks_agrees_with_numpy(name, shape, axes, dtype):
    a = draw(shape, dtype)
    if name == "prod":
        a = 1 + a * dtype(0.01)
    expected = ORACLES[name](a.astype(np.float64), axis=axes, keepdims=False)
    result = getattr(reductions, name)(a, axes)
    np.testing.assert_allclose(result, expected, rtol=tolerance(dtype, a.size), atol=tolerance(dtype, a.size))


@pytest.mark.parametrize("view", [lambda a: a.T, lambda a: a[::-1, ::2], lambda a: np.broadcast_to(a[:1], (9, 8))])
@pytest.mark.parametrize("name", ORACLES)
def test_a_reduction_accepts_any_strides(name, view):
    a = view(draw((6, 8), np.float64))
    np.testing.assert_allclose(getattr(reductions, name)(a, (0,)), ORACLES[name](a, axis=0, keepdims=False))


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("name", ["sum", "mean", "prod", "max", "min", "logsumexp"])
def test_nan_propagates(name, axes):
    a = draw((4, 40), np.float32)
    a[2, 17] = np.nan
    result = getattr(reductions, name)(a, axes)
    np.testing.assert_array_equal(np.isnan(result), np.isnan(a).any(axis=axes))


def test_infinities_reduce_as_in_numpy():
    a = np.array([[np.inf, 1.0, -np.inf], [2.0, np.inf, 3.0], [-np.inf] * 3])
    np.testing.assert_array_equal(reductions.max(a, (1,)), [np.inf, np.inf, -np.inf])
    np.testing.assert_array_equal(reductions.min(a, (1,)), [-np.inf, 2.0, -np.inf])
    np.testing.assert_array_equal(reductions.sum(a, (1,)), [np.nan, np.inf, -np.inf])
    np.testing.assert_array_equal(reductions.logsumexp(a, (1,)), [np.inf, np.inf, -np.inf])
    np.testing.assert_array_equal(reductions.logsumexp(np.empty((2, 0)), (1,)), [-np.inf, -np.inf])


@pytest.mark.parametrize("shift", [-1000.0, 1000.0])
def test_logsumexp_does_not_overflow(shift):
    a = draw((5, 300), np.float64)
    np.testing.assert_allclose(reductions.logsumexp(a + shift, (1,)), logsumexp(a, 1, False) + shift, rtol=1e-14)


@pytest.mark.parametrize("axes", [(0,), (0, 1)])
def test_a_float32_sum_is_exact_to_the_last_bits(axes):
    a = np.random.default_rng(1).random((1 << 20, 3), np.float32)
    exact = a.astype(np.float64).sum(axis=axes)
    np.testing.assert_allclose(reductions.sum(a, axes), exact, rtol=2 * np.finfo(np.float32).eps)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "axis"), [((9,), 0), ((4, 7), 0), ((4, 7), 1), ((2, 5, 3), 1), ((3, 0, 2), 0)])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_the_position_of_an_extreme_is_that_of_its_first_occurrence(name, shape, axis, dtype):
    a = np.random.default_rng(2).integers(0, 3, shape).astype(dtype)
    result = getattr(reductions, name)(a, axis)
    assert result.dtype == np.int64
    np.testing.assert_array_equal(result, getattr(np, name)(a, axis=axis))
    np.testing.assert_array_equal(
        getattr(reductions, name)(a, axis, True), getattr(np, name)(a, axis=axis, keepdims=True)
    )


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_the_first_nan_is_the_extreme(name, axis):
    a = draw((70_001, 3), np.float32)
    a[40_000, 1] = a[60_000, 1] = a[5, 2] = np.nan
    np.testing.assert_array_equal(getattr(reductions, name)(a, axis), getattr(np, name)(a, axis=axis))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("correction", [0, 1, 2])
@pytest.mark.parametrize(
    ("shape", "axes"), [((9,), (0,)), ((4, 7), (0,)), ((4, 7), (1,)), ((3, 4, 5), (0, 2)), ((0, 4), (1,))]
)
def test_variance_and_mean_agree_with_numpy(shape, axes, correction, dtype):
    a = draw(shape, dtype) + dtype(100)
    variance, mean = reductions.var(a, axes, correction, True)
    wide = a.astype(np.float64)
    np.testing.assert_allclose(
        variance, wide.var(axis=axes, ddof=correction, keepdims=True), rtol=5e3 * np.finfo(dtype).eps
    )
    np.testing.assert_allclose(mean, wide.mean(axis=axes, keepdims=True), rtol=2 * np.finfo(dtype).eps)


def test_the_variance_of_too_few_elements_is_nan():
    variance, mean = reductions.var(np.ones((2, 1)), (1,))
    np.testing.assert_array_equal(variance, [np.nan, np.nan])
    np.testing.assert_array_equal(mean, [1, 1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "axis"), [((9,), 0), ((4, 7), 0), ((4, 7), 1), ((2, 5, 3), 1), ((3, 0), 1), ((3, 1030), 0)]
)
def test_running_sums_agree_with_numpy(shape, axis, dtype):
    a = draw(shape, dtype)
    np.testing.assert_allclose(reductions.cumsum(a, axis), np.cumsum(a.astype(np.float64), axis), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["max", "min"])
def test_an_extreme_of_nothing_names_the_empty_dimension(name):
    with pytest.raises(ValueError, match=rf"{name}: got shape \(2, 0\), dimension 1 is empty"):
        getattr(reductions, name)(np.empty((2, 0)), (1,))
    with pytest.raises(ValueError, match=rf"arg{name}: .* dimension 1 is empty"):
        getattr(reductions, f"arg{name}")(np.empty((2, 0)), 1)


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("name", [*ORACLES, "var"])
def test_threads_change_no_bit_of_a_reduction(name, axes, assert_same_on_any_number_of_threads):
    a = draw((700, 1033), np.float32)
    assert_same_on_any_number_of_threads(lambda: getattr(reductions, name)(a, axes))
