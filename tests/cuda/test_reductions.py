"""Reductions on a device, against NumPy in float64."""

import numpy as np
import pytest

from spillgrad_kernels.cuda import reductions
from spillgrad_kernels.cuda.array import to_device

SHAPES_AND_AXES = [
    ((7,), (0,)), ((5, 9), (0,)), ((5, 9), (1,)), ((5, 9), (0, 1)), ((3, 4, 5), (1,)), ((3, 4, 5), (0, 2)),
    ((2, 3, 4, 5), (1, 3)), ((4, 1, 33), (2,)), ((40, 3), (0,)), ((1,), (0,)), ((6,), ()), ((2, 0, 3), (1,)), ((), ()),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int32, np.uint8])
@pytest.mark.parametrize("shape, axes", SHAPES_AND_AXES)
@pytest.mark.parametrize("name", ["sum", "prod", "mean", "max", "min"])
def test_a_reduction_agrees_with_numpy(name, shape, axes, dtype):
    rng = np.random.default_rng(0)
    a = (
        rng.integers(1, 4, shape).astype(dtype)
        if np.dtype(dtype).kind != "f"
        else (rng.random(shape) * 0.2 + 0.9).astype(dtype)
    )
    if name == "mean" and (np.dtype(dtype).kind != "f" or not a.size):
        return
    if name in ("max", "min") and not a.size:
        with pytest.raises(ValueError, match="needs an element"):
            getattr(reductions, name)(to_device(a), axes)
        return
    for keepdims in (False, True):
        result = getattr(reductions, name)(to_device(a), axes, keepdims)
        exact = a if np.dtype(dtype).kind != "f" else a.astype(np.float64)
        wanted = getattr(np, name)(exact, axis=axes, keepdims=keepdims)
        assert result.shape == wanted.shape
        tolerance = {np.float16: 1e-3, np.float32: 1e-6}.get(dtype, 1e-14)
        np.testing.assert_allclose(result.to_host().astype(wanted.dtype), wanted, rtol=tolerance)


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
def test_a_nan_is_an_extreme_wherever_it_is(name):
    for at in range(20):
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
    a = np.random.default_rng(1).random((3, 100)).astype(np.float32)
    for axes in ((0,), (1,), (0, 1)):
        np.testing.assert_allclose(reductions.sum(to_device(a), axes).to_host(), a.sum(axes, np.float64), rtol=1e-6)
        np.testing.assert_allclose(reductions.mean(to_device(a), axes).to_host(), a.mean(axes, np.float64), rtol=1e-6)
        assert np.array_equal(reductions.max(to_device(a), axes).to_host(), a.max(axes))
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
    """Where an array is empty, its address may be followed by nothing."""
    for name, wanted in (("sum", 0), ("prod", 1), ("mean", np.nan)):
        fold = reductions.kernel(name, name, np.dtype(np.float32), np.dtype(np.float32))
        out = to_device(np.full(8, 5, np.float32))
        fold.launch(1, 8, 0, 1, 1, 1, 0, 1, 1, 1, 0, 0, out.address)  # from address 0
        assert np.array_equal(out.to_host(), np.full(8, wanted, np.float32), equal_nan=True)
