"""Cross entropy on a device, against the CPU's in float64."""

import ml_dtypes
import numpy as np
import pytest

from spillgrad_kernels.cpu import losses as on_cpu
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


@pytest.fixture(params=[1 << 25, 1], ids=["one block of rows", "several"])
def _blocks(request, monkeypatch):
    monkeypatch.setattr(on_device, "_WORKSPACE_BYTES", request.param)
    monkeypatch.setattr(on_device, "_BLOCK_ROWS", 4)


def draw_linear(dtype=np.float64):
    rng = np.random.default_rng(3)
    a, weight, bias = (rng.standard_normal(shape) for shape in ((10, 5), (11, 5), (11,)))
    target = rng.integers(0, 11, 10)
    target[::4] = IGNORED
    return a.astype(dtype), weight.astype(dtype), bias.astype(dtype), target


def linear_on_device(grad, a, weight, bias, *further):
    arrays = [None if array is None else to_device(array) for array in (grad, a, weight, bias)]
    results = on_device.linear_cross_entropy_with_gradients(*arrays, *further)
    return [None if result is None else exact(result.to_host()) for result in results]


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize(("smoothing", "has_bias", "dtype"), [
    (0.0, True, np.float64), (0.1, False, np.float32), (0.1, True, np.float16), (0.0, True, ml_dtypes.bfloat16),
])  # fmt: skip
def test_the_loss_of_a_product_and_its_gradients_agree_with_the_cpu_s(smoothing, has_bias, dtype):
    a, weight, bias, target = draw_linear(dtype)
    grad, bias = (np.arange(10) / 8).astype(dtype), bias if has_bias else None
    wanted = on_cpu.linear_cross_entropy_with_gradients(
        exact(grad), exact(a), exact(weight), exact(bias), target, IGNORED, smoothing
    )
    results = linear_on_device(grad, a, weight, bias, to_device(target), IGNORED, smoothing)
    for result, value in zip(results, wanted, strict=True):
        np.testing.assert_allclose(result, value, rtol=TOLERANCE[dtype], atol=4 * TOLERANCE[dtype])
    only = on_device.linear_cross_entropy(
        to_device(a), to_device(np.asarray(weight, order="F").T).T, None if bias is None else to_device(bias),
        to_device(target), IGNORED, smoothing,
    )  # fmt: skip
    np.testing.assert_array_equal(exact(only.to_host()), results[0])


@pytest.mark.parametrize("needs", [(True, False, False), (False, True, False), (False, False, True)])
def test_gradients_that_nobody_needs_are_not_made(needs):
    a, weight, bias, target = draw_linear()
    every = linear_on_device(np.ones(10), a, weight, bias, to_device(target), IGNORED)
    some = linear_on_device(np.ones(10), a, weight, bias, to_device(target), IGNORED, 0.0, needs)
    for wanted, need, got in zip(every[1:], needs, some[1:], strict=True):
        np.testing.assert_array_equal(got, wanted if need else None)


@pytest.mark.parametrize(("rows", "width", "classes"), [(0, 3, 4), (2, 0, 4)])
def test_the_loss_of_an_empty_product_is_defined(rows, width, classes):
    a, weight, target = np.ones((rows, width)), np.ones((classes, width)), to_device(np.zeros(rows, np.int64))
    result, da, dweight, dbias = linear_on_device(np.ones(rows), a, weight, np.zeros(classes), target, IGNORED)
    np.testing.assert_allclose(result, np.full(rows, np.log(classes)))
    assert da.shape == a.shape and not dweight.any()
    np.testing.assert_allclose(dbias, rows * (1 / classes - (np.arange(classes) == 0)))
