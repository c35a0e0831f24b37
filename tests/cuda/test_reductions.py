"""Reductions on a device, against NumPy in float64."""

import numpy as np
import pytest

from spillgrad_kernels.cuda import reductions
from spillgrad_kernels.cuda.array import to_device
from tests.kernels.cuda.integer_rows import INTEGERS

SHAPES_AND_AXES = [
    ((7,), (0,)), ((5, 9), (0,)), ((5, 9), (1,)), ((5, 9), (0, 1)), ((3, 4, 5), (1,)), ((3, 4, 5), (0, 2)),
    ((2, 3, 4, 5), (1, 3)), ((4, 1, 33), (2,)), ((40, 3), (0,)), ((1,), (0,)), ((6,), ()), ((2, 0, 3), (1,)), ((), ()),
]  # fmt: skip


def norm(a, axis, keepdims=False):
    return np.sqrt(np.sum(a * a, axis, keepdims=keepdims))


def logsumexp(a, axis, keepdims=False):
    with np.errstate(divide="ignore"):
        return np.log(np.sum(np.exp(a), axis, keepdims=keepdims))


def mean(a, axis, keepdims=False):
    return np.sum(a, axis, keepdims=keepdims) / np.prod([a.shape[i] for i in axis])


EXACT = {"norm": norm, "logsumexp": logsumexp, "mean": mean}


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("shape, axes", SHAPES_AND_AXES)
@pytest.mark.parametrize("name", ["sum", "prod", "mean", "max", "min", "norm", "logsumexp"])
def test_a_reduction_agrees_with_numpy(name, shape, axes, dtype):
    a = (np.random.default_rng(0).random(shape) * 0.2 + 0.9).astype(dtype)
    if name in ("max", "min") and not a.size:
        with pytest.raises(ValueError, match="needs an element"):
            getattr(reductions, name)(to_device(a), axes)
        return
    keepdims = len(axes) > 1 or shape[:1] == (4,)
    result = getattr(reductions, name)(to_device(a), axes, keepdims)
    with np.errstate(invalid="ignore"):
        wanted = EXACT.get(name, getattr(np, name, None))(a.astype(np.float64), axes, keepdims=keepdims)
    assert result.shape == wanted.shape
    tolerance = {np.float16: 1e-3, np.float32: 1e-6}[dtype]
    np.testing.assert_allclose(result.to_host().astype(wanted.dtype), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_and_truth_values_fold_as_in_numpy(dtype):
    limits = np.iinfo(np.uint8 if dtype == np.bool_ else dtype)
    a = np.array([[limits.min, 0, limits.max, 3, limits.max], [0, 1, 0, 7, limits.min]], limits.dtype).astype(dtype)
    for axes in ((0,), (1,), (0, 1)):
        for name in ("sum", "prod"):
            wanted = getattr(np, name)(a, axes, dtype=np.int64)
            assert np.array_equal(getattr(reductions, name)(to_device(a), axes).to_host(), wanted)
        for name in ("max", "min", "any", "all"):
            found = getattr(reductions, name)(to_device(a), axes)
            wanted = getattr(np, name)(a, axes)
            assert (found.dtype, found.to_host().tolist()) == (wanted.dtype, wanted.tolist())
    for axis in (0, 1):
        for name in ("argmax", "argmin"):
            assert np.array_equal(getattr(reductions, name)(to_device(a), axis).to_host(), getattr(np, name)(a, axis))
        for name in ("cumsum", "cumprod"):
            wanted = getattr(np, name)(a, axis, dtype=np.int64)
            assert np.array_equal(getattr(reductions, name)(to_device(a), axis).to_host(), wanted)


def test_of_no_elements_all_hold_and_none_does():
    empty = to_device(np.empty((2, 0), np.float32))
    assert reductions.all(empty, (1,)).to_host().tolist() == [True, True]
    assert reductions.any(empty, (1,)).to_host().tolist() == [False, False]


def test_sums_of_exponentials_do_not_overflow():
    rows = [[800, 801, 799], [np.inf, 1, 2], [-np.inf] * 3, [np.nan, 1, 2], [-1e4, -1e4, -np.inf]]
    found = reductions.logsumexp(to_device(np.array(rows)), (1,)).to_host()
    wanted = [801 + np.log(1 + np.exp(-1) + np.exp(-2)), np.inf, -np.inf, np.nan, -1e4 + np.log(2)]
    np.testing.assert_allclose(found, wanted, rtol=1e-14)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("shape, axis", [
    ((9,), 0), ((4, 7), 0), ((4, 7), 1), ((2, 5, 3), 1), ((3, 0), 1), ((1, 200), 1), ((90, 2), 0), ((2, 83), 1),
])  # fmt: skip
def test_a_running_fold_agrees_with_numpy(shape, axis, dtype, monkeypatch):
    monkeypatch.setattr(reductions, "_PART_ELEMENTS", 80)
    monkeypatch.setattr(reductions, "_COLUMN_ELEMENTS", 8)
    a = (np.random.default_rng(3).random(shape) * 0.1 + 0.95).astype(dtype)
    tolerance = {np.float16: 1e-3, np.float32: 1e-6}[dtype]
    for name in ("cumsum", "cumprod"):
        found = getattr(reductions, name)(to_device(a), axis)
        wanted = getattr(np, name)(a.astype(np.float64), axis)
        assert found.dtype == dtype
        np.testing.assert_allclose(found.to_host().astype(np.float64), wanted, rtol=tolerance)


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
def test_a_nan_is_an_extreme_wherever_it_is(name):
    for at in range(0, 20, 3):
        a = np.random.default_rng(at).random((3, 20)).astype(np.float32)
        a[1, at] = np.nan
        if name.startswith("arg"):
            found = getattr(reductions, name)(to_device(a), 1).to_host()
            assert np.array_equal(found, getattr(np, name)(a, axis=1))
        else:
            found = getattr(reductions, name)(to_device(a), (1,)).to_host()
            assert np.array_equal(found, getattr(np, name)(a, axis=1), equal_nan=True)


def test_the_first_of_equal_extremes_is_found():
    a = np.zeros((4, 37), np.float32)
    assert np.array_equal(reductions.argmax(to_device(a), 1).to_host(), [0] * 4)
    assert np.array_equal(reductions.argmin(to_device(a), 0).to_host(), [0] * 37)


def test_a_long_fold_is_cut_into_parts(monkeypatch):
    monkeypatch.setattr(reductions, "_PART_ELEMENTS", 16)
    a = np.random.default_rng(1).random((3, 50)).astype(np.float32)
    for axes in ((0,), (1,), (0, 1)):
        np.testing.assert_allclose(reductions.sum(to_device(a), axes).to_host(), a.sum(axes, np.float64), rtol=1e-6)
        np.testing.assert_allclose(reductions.mean(to_device(a), axes).to_host(), a.mean(axes, np.float64), rtol=1e-6)
        assert np.array_equal(reductions.max(to_device(a), axes).to_host(), a.max(axes))
        np.testing.assert_allclose(reductions.logsumexp(to_device(a), axes).to_host(), logsumexp(a, axes), rtol=1e-6)
        np.testing.assert_allclose(reductions.norm(to_device(a), axes).to_host(), norm(a, axes), rtol=1e-6)
    assert np.array_equal(reductions.argmax(to_device(a), 1).to_host(), a.argmax(1))


@pytest.mark.parametrize("correction", [0, 1, 200])
def test_variance_is_of_deviations_from_the_mean(correction):
    a = np.random.default_rng(2).random((6, 50)).astype(np.float32) + 1000
    variance, mean = (part.to_host() for part in reductions.var(to_device(a), (1,), correction))
    exact = a.astype(np.float64)
    with np.errstate(all="ignore"):
        wanted = ((exact - exact.mean(1, keepdims=True)) ** 2).sum(1) / max(0, 50 - correction)
    np.testing.assert_allclose(variance, wanted, rtol=1e-4)
    np.testing.assert_allclose(mean, exact.mean(1), rtol=1e-7)


def test_of_no_elements_none_is_read():
    """An empty array's address may be the end of memory, so nothing is read there."""
    for name, wanted in (("sum", 0), ("prod", 1), ("mean", np.nan)):
        fold = reductions.kernel(name, name, np.dtype(np.float32), np.dtype(np.float32))
        out = to_device(np.full(8, 5, np.float32))
        fold.launch(1, 1, 8, 0, 1, 1, 1, 0, 1, 1, 1, 0, 0, out.address)  # the array is at address 0
        assert np.array_equal(out.to_host(), np.full(8, wanted, np.float32), equal_nan=True)
