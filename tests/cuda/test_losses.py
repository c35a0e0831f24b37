"""Cross entropy on a device, against the CPU's in float64."""

import ml_dtypes
import numpy as np
import pytest

from spillgrad_kernels import losses as on_cpu
from spillgrad_kernels.cuda import losses as on_device
from spillgrad_kernels.cuda.array import to_device

IGNORED = -100
TOLERANCE = {np.float32: 2e-5, np.float64: 1e-13, np.float16: 4e-3, ml_dtypes.bfloat16: 4e-2}


def draw(rows, classes, dtype=np.float32):
    rng = np.random.default_rng(0)
    target = rng.integers(0, classes, rows)
    target[::4] = IGNORED
    return (rng.standard_normal((rows, classes)) * 3).astype(dtype), target, rng.random(classes).astype(dtype)


def forward(logits, target, smoothing=0.0, weight=None, ignored=IGNORED):
    weight = None if weight is None else to_device(weight)
    return on_device.cross_entropy(to_device(logits), to_device(target), ignored, smoothing, weight)


def exact(array):
    return None if array is None else array.astype(np.float64)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("rows", "classes", "dtype"), [
    *[(*shape, np.float32) for shape in ((1, 1), (9, 5), (20, 33), (3, 64), (0, 3))],
    *[(5, 16, dtype) for dtype in (np.float64, np.float16, ml_dtypes.bfloat16)],
])  # fmt: skip
def test_cross_entropy_and_its_gradient_agree_with_the_cpu_s(rows, classes, weighted, smoothing, dtype):
    logits, target, weight = draw(rows, classes, dtype)
    weight, grad = weight if weighted else None, (np.arange(rows) / 4).astype(dtype)
    losses, lse = forward(logits, target, smoothing, weight)
    wanted, wanted_lse = on_cpu.cross_entropy(exact(logits), target, IGNORED, smoothing, exact(weight))
    assert losses.dtype == dtype and lse.dtype == (np.float64 if dtype == np.float64 else np.float32)
    tolerance = TOLERANCE[dtype]
    np.testing.assert_allclose(exact(losses.to_host()), wanted, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(lse.to_host(), wanted_lse, rtol=2e-6)
    gradient = on_device.cross_entropy_backward(
        to_device(grad), to_device(logits), to_device(target), lse, IGNORED, smoothing,
        None if weight is None else to_device(weight),
    )  # fmt: skip
    wanted = on_cpu.cross_entropy_backward(
        exact(grad), exact(logits), target, wanted_lse, IGNORED, smoothing, exact(weight)
    )
    assert gradient.dtype == dtype
    np.testing.assert_allclose(exact(gradient.to_host()), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32])
def test_targets_of_any_integer_dtype_and_strided_operands_are_taken(dtype):
    logits, target, weight = draw(5, 130)
    target = np.maximum(target, 0)
    expected, lse = (x.to_host() for x in forward(logits, target, 0.1, weight, 3))
    strided, doubled = to_device(np.repeat(logits, 2, axis=1))[:, ::2], to_device(np.repeat(target.astype(dtype), 2))
    weights = to_device(weight[::-1].copy())[::-1]
    losses, _ = on_device.cross_entropy(strided, doubled[::2], 3, 0.1, weights)
    np.testing.assert_array_equal(losses.to_host(), expected)
    grad = to_device(np.ones(2 * len(lse), np.float32))[::2]
    results = [
        on_device.cross_entropy_backward(g, x, t, to_device(lse), 3, 0.1, w).to_host()
        for g, x, t, w in (
            (grad, strided, doubled[::2], weights),
            (to_device(np.ones(len(lse), np.float32)), to_device(logits), to_device(target), to_device(weight)),
        )
    ]
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("wrong", [-1, 5, 1 << 60])
def test_a_target_outside_the_classes_makes_its_row_undefined_and_no_other(wrong, weighted, smoothing):
    logits, target, weight = draw(8, 5)
    target[5], weight = wrong, weight if weighted else None
    losses, lse = forward(logits, target, smoothing, weight)
    np.testing.assert_array_equal(np.isnan(losses.to_host()), np.arange(8) == 5)
    gradient = on_device.cross_entropy_backward(
        to_device(np.ones(8, np.float32)), to_device(logits), to_device(target), lse, IGNORED, smoothing,
        None if weight is None else to_device(weight),
    )  # fmt: skip
    np.testing.assert_array_equal(np.isnan(gradient.to_host()), (np.arange(8) == 5)[:, None].repeat(5, 1))


def test_large_logits_do_not_overflow():
    logits = np.array([[1e5, 0.0, -1e5]], np.float32)
    for t, expected in enumerate([0.0, 1e5, 2e5]):
        losses, lse = forward(logits, np.array([t]))
        np.testing.assert_allclose(losses.to_host(), [expected])
        gradient = on_device.cross_entropy_backward(
            to_device(np.ones(1, np.float32)), to_device(logits), to_device(np.array([t])), lse, IGNORED
        )
        assert np.isfinite(gradient.to_host()).all()


def test_masked_classes_and_nan_propagate():
    logits = np.array([[0.0, -np.inf, 0.0], [0.0, -np.inf, 0.0], [np.nan, 0.0, 0.0], [-np.inf] * 3, [0, np.inf, 0]])
    losses, lse = forward(logits, np.array([0, 1, 0, IGNORED, 0]))
    np.testing.assert_allclose(losses.to_host(), [np.log(2), np.inf, np.nan, 0.0, np.inf])
    np.testing.assert_allclose(lse.to_host(), [np.log(2), np.log(2), np.nan, -np.inf, np.inf])


def test_ignored_rows_have_no_gradient_whatever_is_in_them():
    logits = np.array([[np.nan, 0.0, 0.0], [-np.inf] * 3, [np.inf, 0, 1]])
    target = to_device(np.full(3, IGNORED))
    for smoothing in (0.0, 0.1):
        losses, lse = on_device.cross_entropy(to_device(logits), target, IGNORED, smoothing)
        gradient = on_device.cross_entropy_backward(
            to_device(np.full(3, np.inf)), to_device(logits), target, lse, IGNORED, smoothing
        )
        assert not losses.to_host().any() and not gradient.to_host().any()


def test_the_ignored_index_may_be_a_class():
    losses, _ = forward(draw(3, 5)[0], np.array([0, 1, 2]), ignored=1)
    np.testing.assert_array_equal(losses.to_host() > 0, [True, False, True])
