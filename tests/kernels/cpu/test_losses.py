"""Cross entropy against its definition in NumPy and float64, its gradient against central differences."""

import numpy as np
import pytest

from spillgrad_kernels.cpu import losses

IGNORED = -100


def definition(logits, target, smoothing, weight):
    """Weighted losses of torch.nn.functional.cross_entropy, row by row."""
    classes = logits.shape[1]
    weight = np.ones(classes) if weight is None else weight
    result = []
    for row, t in zip(logits.astype(np.float64), target, strict=True):
        log_p = row - row.max() - np.log(np.exp(row - row.max()).sum())
        smooth = -(weight * log_p).sum() / classes
        result.append(0.0 if t == IGNORED else -(1 - smoothing) * weight[t] * log_p[t] + smoothing * smooth)
    return np.array(result)


def draw(rows, classes, dtype=np.float64):
    rng = np.random.default_rng(0)
    target = rng.integers(0, classes, rows)
    target[::4] = IGNORED
    return rng.standard_normal((rows, classes)).astype(dtype) * 3, target, rng.random(classes).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("rows", "classes"), [(1, 1), (9, 5), (200, 257), (0, 3)])
def test_cross_entropy_agrees_with_its_definition(rows, classes, weighted, smoothing, dtype):
    logits, target, weight = draw(rows, classes, dtype)
    weight = weight if weighted else None
    result, lse = losses.cross_entropy(logits, target, IGNORED, smoothing, weight)
    tolerance = 30 * np.finfo(dtype).eps
    assert result.dtype == lse.dtype == dtype
    np.testing.assert_allclose(result, definition(logits, target, smoothing, weight), rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(lse, np.log(np.exp(logits.astype(np.float64)).sum(1)), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_gradient_is_its_central_difference(weighted, smoothing, numeric_gradient):
    logits, target, weight = draw(6, 5)
    weight, grad = weight if weighted else None, np.arange(1.0, 7.0)
    _, lse = losses.cross_entropy(logits, target, IGNORED, smoothing, weight)
    result = losses.cross_entropy_backward(grad, logits, target, lse, IGNORED, smoothing, weight)
    numeric = numeric_gradient(lambda x: definition(x, target, smoothing, weight), logits, grad)
    np.testing.assert_allclose(result, numeric, atol=1e-7)
    np.testing.assert_array_equal(result[target == IGNORED], 0)


def test_targets_of_any_integer_dtype_and_strided_logits_are_taken():
    logits, target, _ = draw(8, 6)
    expected, _ = losses.cross_entropy(logits, target, IGNORED)
    strided = np.repeat(logits, 2, axis=1)[:, ::2]
    for dtype in (np.int8, np.int16, np.int32):
        np.testing.assert_array_equal(losses.cross_entropy(strided, target.astype(dtype), IGNORED)[0], expected)


def test_large_logits_do_not_overflow():
    logits = np.array([[1e5, 0.0, -1e5]], np.float32)
    for t, expected in enumerate([0.0, 1e5, 2e5]):
        result, lse = losses.cross_entropy(logits, np.array([t]), IGNORED)
        np.testing.assert_allclose(result, [expected])
        assert np.isfinite(
            losses.cross_entropy_backward(np.ones(1, np.float32), logits, np.array([t]), lse, IGNORED)
        ).all()


def test_masked_classes_and_nan_propagate():
    logits = np.array([[0.0, -np.inf, 0.0], [0.0, -np.inf, 0.0], [np.nan, 0.0, 0.0], [-np.inf] * 3])
    result, lse = losses.cross_entropy(logits, np.array([0, 1, 0, IGNORED]), IGNORED)
    np.testing.assert_allclose(result, [np.log(2), np.inf, np.nan, 0.0])
    np.testing.assert_allclose(lse, [np.log(2), np.log(2), np.nan, -np.inf])


@pytest.mark.parametrize("wrong", [-1, 5, 1 << 40])
def test_a_target_outside_the_classes_is_named(wrong):
    logits, target, _ = draw(8, 5)
    target[5] = wrong
    with pytest.raises(IndexError, match=f"got target {wrong} in row 5; the 5 classes"):
        losses.cross_entropy(logits, target, IGNORED)
    with pytest.raises(IndexError, match=f"got target {wrong} in row 5"):
        losses.cross_entropy_backward(np.ones(8), logits, target, np.ones(8), IGNORED)


def test_the_ignored_index_may_be_a_class():
    logits, _, _ = draw(3, 5)
    result, _ = losses.cross_entropy(logits, np.array([0, 1, 2]), 1)
    assert result[1] == 0 and result[0] > 0 and result[2] > 0


def draw_linear(dtype=np.float64):
    rng = np.random.default_rng(3)
    a, weight, bias = (rng.standard_normal(shape).astype(dtype) for shape in ((150, 7), (11, 7), (11,)))
    target = rng.integers(0, 11, 150)
    target[::4] = IGNORED
    return a, weight, bias, target


@pytest.fixture(params=[1 << 25, 1], ids=["one block of rows", "several"])
def _blocks(request, monkeypatch):
    monkeypatch.setattr(losses, "_WORKSPACE_BYTES", request.param)


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("order", ["C", "F"])
def test_the_loss_of_a_product_is_that_of_its_logits(order, has_bias, smoothing):
    a, weight, bias, target = draw_linear()
    a, weight = np.asarray(a, order=order), np.asarray(weight, order=order)
    logits, grad = a @ weight.T + (bias if has_bias else 0), np.arange(150.0)
    bias = bias if has_bias else None
    expected, lse = losses.cross_entropy(logits, target, IGNORED, smoothing)
    by_logits = losses.cross_entropy_backward(grad, logits, target, lse, IGNORED, smoothing)
    only = losses.linear_cross_entropy(a, weight, bias, target, IGNORED, smoothing)
    np.testing.assert_allclose(only, expected, rtol=1e-12, atol=1e-12)
    results = losses.linear_cross_entropy_with_gradients(grad, a, weight, bias, target, IGNORED, smoothing)
    wanted = (expected, by_logits @ weight, by_logits.T @ a, by_logits.sum(0))
    for result, value in zip(results, wanted, strict=True):
        np.testing.assert_allclose(result, value, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("needs", [(True, False, False), (False, True, False), (False, False, True)])
def test_gradients_that_nobody_needs_are_not_made(needs):
    a, weight, bias, target = draw_linear()
    every = losses.linear_cross_entropy_with_gradients(np.ones(150), a, weight, bias, target, IGNORED)
    some = losses.linear_cross_entropy_with_gradients(np.ones(150), a, weight, bias, target, IGNORED, 0.0, needs)
    for wanted, need, got in zip(every[1:], needs, some[1:], strict=True):
        np.testing.assert_array_equal(got, wanted if need else None)


@pytest.mark.parametrize(("rows", "width", "classes"), [(0, 3, 4), (2, 0, 4)])
def test_the_loss_of_an_empty_product_is_defined(rows, width, classes):
    a, weight, target = np.ones((rows, width)), np.ones((classes, width)), np.zeros(rows, np.int64)
    result, da, dweight, dbias = losses.linear_cross_entropy_with_gradients(
        np.ones(rows), a, weight, np.zeros(classes), target, IGNORED
    )
    np.testing.assert_allclose(result, np.full(rows, np.log(classes)))
    np.testing.assert_array_equal(losses.linear_cross_entropy(a, weight, None, target, IGNORED), result)
    assert da.shape == a.shape and not dweight.any()
    np.testing.assert_allclose(dbias, rows * (1 / classes - (np.arange(classes) == 0)))


def test_masked_and_undefined_logits_of_a_product_propagate():
    a, target = np.array([[1.0], [np.nan]]), np.array([0, 0])
    bias = np.array([0.0, -np.inf, 0.0])
    result, da, _, dbias = losses.linear_cross_entropy_with_gradients(
        np.ones(2), a, np.zeros((3, 1)), bias, target, IGNORED
    )
    np.testing.assert_allclose(result, [np.log(2), np.nan])
    np.testing.assert_array_equal(np.isnan(da[:, 0]), [False, True])
    assert np.isnan(dbias).all()


def test_threads_change_no_bit_of_the_loss_of_a_product(assert_same_on_any_number_of_threads):
    a, weight, bias, target = draw_linear(np.float32)
    assert_same_on_any_number_of_threads(
        lambda: losses.linear_cross_entropy_with_gradients(a[:, 0], a, weight, bias, target, IGNORED, 0.1)
    )


def test_threads_change_no_bit(assert_same_on_any_number_of_threads):
    logits, target, weight = draw(501, 300, np.float32)

    def both_ways():
        rows, lse = losses.cross_entropy(logits, target, IGNORED, 0.1, weight)
        return rows, lse, losses.cross_entropy_backward(rows, logits, target, lse, IGNORED, 0.1, weight)

    assert_same_on_any_number_of_threads(both_ways)
