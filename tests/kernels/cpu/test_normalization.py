"""Softmax and normalization against NumPy in float64, their gradients against central differences."""

import os
import subprocess
import sys

import numpy as np
import pytest

from spillgrad_kernels.cpu import normalization

DTYPES = (np.float32, np.float64)
SHAPES = [
    ((5,), 0),
    ((3, 7), 1),
    ((3, 7), 0),
    ((2, 3, 33), -1),
    ((2, 17, 3), 1),
    ((0, 4), 1),
    ((4, 0), 1),
    ((300, 257), 1),
]


def draw(shape, dtype=np.float64, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def softmax(a, axis):
    e = np.exp(a - a.max(axis=axis, keepdims=True, initial=-np.inf))
    return e / e.sum(axis=axis, keepdims=True)


def layer_norm(a, weight, bias, eps):
    return (a - a.mean(-1, keepdims=True)) / np.sqrt(a.var(-1, keepdims=True) + eps) * weight + bias


def rms_norm(a, weight, eps):
    return a / np.sqrt((a * a).mean(-1, keepdims=True) + eps) * weight


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_softmax_agrees_with_numpy(shape, axis, dtype):
    a = draw(shape, dtype) * 5
    expected = softmax(a.astype(np.float64), axis)
    eps = 20 * np.finfo(dtype).eps
    result, log_result = normalization.softmax(a, axis), normalization.log_softmax(a, axis)
    assert result.flags.c_contiguous and log_result.flags.c_contiguous and result.dtype == dtype
    np.testing.assert_allclose(result, expected, rtol=eps, atol=eps)
    np.testing.assert_allclose(log_result, np.log(expected), rtol=eps, atol=eps)


def test_softmax_accepts_any_strides():
    a = draw((6, 8))
    for view in (a.T, a[::-1, ::2]):
        np.testing.assert_allclose(normalization.softmax(view, 1), softmax(view, 1), rtol=1e-13)


def test_softmax_of_large_numbers_does_not_overflow():
    a = draw((3, 40))
    np.testing.assert_allclose(normalization.softmax(a + 1e4, 1), softmax(a, 1), rtol=1e-11)
    np.testing.assert_allclose(normalization.log_softmax(a * 1e4, 1).max(1), 0, atol=1e-300)


def test_softmax_of_masked_and_undefined_rows_is_numpys():
    a = np.array([[1, -np.inf, 2], [-np.inf] * 3, [np.inf, 0, 1], [np.nan, 0, 1]], np.float32)
    with np.errstate(invalid="ignore"):
        expected = softmax(a, 1)
    np.testing.assert_allclose(normalization.softmax(a, 1), expected, rtol=1e-6)
    assert normalization.log_softmax(a, 1)[0, 1] == -np.inf


@pytest.mark.parametrize("undefined", [np.nan, -np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 40, 63, 64, 99])
def test_one_undefined_number_makes_its_row_undefined_and_no_other(place, undefined):
    a = draw((3, 100), np.float32)
    a[1, place] = undefined
    for function in (normalization.softmax, normalization.log_softmax):
        result = function(a, 1)
        if undefined == np.inf:  # inf - inf there; the others are infinitely less likely
            assert np.isnan(result[1, place])
        else:
            assert np.isnan(result[1]).all()
        np.testing.assert_array_equal(result[[0, 2]], function(a[[0, 2]], 1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden", [-1e4, -1e30, -np.finfo(np.float32).max, -np.inf])
def test_what_a_mask_hides_has_probability_zero_and_no_gradient(hidden, dtype):
    a = np.array([[1.0, hidden, 2.0] * 20], dtype)
    grad = draw(a.shape, dtype)
    for name in ("softmax", "log_softmax"):
        result = getattr(normalization, name)(a, 1)
        gradient = getattr(normalization, f"{name}_backward")(grad, result, 1)
        probabilities = result if name == "softmax" else np.exp(result)
        assert (probabilities[:, 1::3] == 0).all() and np.isfinite(gradient).all()
        wanted = grad[:, 1::3] if name == "log_softmax" else 0
        np.testing.assert_array_equal(gradient[:, 1::3], wanted)
        np.testing.assert_allclose(probabilities.sum(), 1, rtol=1e-6)


def test_an_undefined_row_has_an_undefined_gradient():
    a = np.array([[np.nan, 0, 1], [1, 2, 3]], np.float32)
    for name in ("softmax", "log_softmax"):
        gradient = getattr(normalization, f"{name}_backward")(np.ones_like(a), getattr(normalization, name)(a, 1), 1)
        np.testing.assert_array_equal(np.isnan(gradient), [[True] * 3, [False] * 3])


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_the_gradient_of_softmax_is_its_central_difference(name, axis, numeric_gradient):
    a, grad = draw((4, 5)), draw((4, 5), seed=1)
    forward, backward = getattr(normalization, name), getattr(normalization, f"{name}_backward")
    numeric = numeric_gradient(lambda x: forward(x, axis), a, grad)
    np.testing.assert_allclose(backward(grad, forward(a, axis), axis), numeric, atol=1e-8)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("parameters", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (2, 3, 64), (300, 257), (0, 5)])
def test_a_normalization_agrees_with_numpy(shape, parameters, dtype):
    a, n = draw(shape, dtype) * 3 + 2, shape[-1]
    weight, bias = (draw(n, dtype, 1), draw(n, dtype, 2)) if parameters else (None, None)
    wide, one, zero = a.astype(np.float64), np.ones(n), np.zeros(n)
    tolerance = 100 * np.finfo(dtype).eps

    out, mean, rstd = normalization.layer_norm(a, n, weight, bias, 1e-5)
    expected = layer_norm(wide, weight if parameters else one, bias if parameters else zero, 1e-5)
    assert out.dtype == dtype and mean.shape == rstd.shape == (a.size // n,)
    np.testing.assert_allclose(out, expected, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(mean, wide.mean(-1).ravel(), rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(rstd, 1 / np.sqrt(wide.var(-1).ravel() + 1e-5), rtol=tolerance)

    out, rstd = normalization.rms_norm(a, n, weight, 1e-5)
    np.testing.assert_allclose(out, rms_norm(wide, weight if parameters else one, 1e-5), rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(rstd, 1 / np.sqrt((wide * wide).mean(-1).ravel() + 1e-5), rtol=tolerance)


@pytest.mark.parametrize("has_weight", [False, True])
def test_the_gradients_of_layer_norm_are_their_central_differences(has_weight, numeric_gradient):
    a, grad, bias = draw((2, 3, 5)), draw((2, 3, 5), seed=1), draw(5, seed=3)
    weight = draw(5, seed=2) if has_weight else None
    _, mean, rstd = normalization.layer_norm(a, 5, weight, bias, 1e-5)
    da, dweight, dbias = normalization.layer_norm_backward(grad, a, weight, mean, rstd)
    full = np.ones(5) if weight is None else weight
    np.testing.assert_allclose(da, numeric_gradient(lambda x: layer_norm(x, full, bias, 1e-5), a, grad), atol=1e-8)
    np.testing.assert_allclose(dweight, numeric_gradient(lambda w: layer_norm(a, w, bias, 1e-5), full, grad), atol=1e-8)
    np.testing.assert_allclose(dbias, grad.sum(axis=(0, 1)), rtol=1e-12)


@pytest.mark.parametrize("has_weight", [False, True])
def test_the_gradients_of_rms_norm_are_their_central_differences(has_weight, numeric_gradient):
    a, grad = draw((2, 3, 5)), draw((2, 3, 5), seed=1)
    weight = draw(5, seed=2) if has_weight else None
    _, rstd = normalization.rms_norm(a, 5, weight, 1e-5)
    da, dweight = normalization.rms_norm_backward(grad, a, weight, rstd)
    full = np.ones(5) if weight is None else weight
    np.testing.assert_allclose(da, numeric_gradient(lambda x: rms_norm(x, full, 1e-5), a, grad), atol=1e-8)
    np.testing.assert_allclose(dweight, numeric_gradient(lambda w: rms_norm(a, w, 1e-5), full, grad), atol=1e-8)


@pytest.mark.parametrize("n", [257, 1024])
def test_float32_gradients_agree_with_float64_over_many_blocks_of_rows(n):
    a, grad, weight = draw((1500, n)), draw((1500, n), seed=1), draw(n, seed=2)
    results = []
    for dtype in (np.float32, np.float64):
        x, g, w = a.astype(dtype), grad.astype(dtype), weight.astype(dtype)
        _, mean, rstd = normalization.layer_norm(x, n, w, None, 1e-5)
        _, rms = normalization.rms_norm(x, n, w, 1e-5)
        results.append(
            normalization.layer_norm_backward(g, x, w, mean, rstd) + normalization.rms_norm_backward(g, x, w, rms)
        )
    for single, double in zip(*results, strict=True):
        np.testing.assert_allclose(single, double, rtol=1e-4, atol=1e-4)


def test_gradients_of_no_rows_are_zero():
    a, empty = np.empty((0, 5)), np.empty(0)
    da, dweight, dbias = normalization.layer_norm_backward(a, a, np.ones(5), empty, empty)
    assert da.shape == (0, 5)
    np.testing.assert_array_equal(dweight, np.zeros(5))
    np.testing.assert_array_equal(dbias, np.zeros(5))
    np.testing.assert_array_equal(normalization.rms_norm_backward(a, a, np.ones(5), empty)[1], np.zeros(5))


def test_a_constant_row_without_eps_has_no_scale():
    out, mean, rstd = normalization.layer_norm(np.full((1, 4), 3.0), 4, None, None, 0.0)
    assert np.isnan(out).all() and mean[0] == 3 and rstd[0] == np.inf


def test_a_nan_stays_in_its_row():
    a = draw((3, 8), np.float32)
    a[1, 2] = np.nan
    out, mean, rstd = normalization.layer_norm(a, 8, None, None, 1e-5)
    np.testing.assert_array_equal(np.isnan(out).all(1), [False, True, False])
    np.testing.assert_array_equal(np.isnan(mean) & np.isnan(rstd), [False, True, False])


def test_threads_change_no_bit_of_a_normalization(assert_same_on_any_number_of_threads):
    a, grad, weight = draw((1001, 130), np.float32), draw((1001, 130), np.float32, 1), draw(130, np.float32, 2)

    def everything():
        out, mean, rstd = normalization.layer_norm(a, 130, weight, weight, 1e-5)
        scaled, rms = normalization.rms_norm(a, 130, weight, 1e-5)
        probabilities, logs = normalization.softmax(a, 1), normalization.log_softmax(a, 1)
        return (
            out, mean, rstd, scaled, rms, probabilities, logs,
            *normalization.layer_norm_backward(grad, a, weight, mean, rstd),
            *normalization.rms_norm_backward(grad, a, weight, rms),
            normalization.softmax_backward(grad, probabilities, 1),
            normalization.log_softmax_backward(grad, logs, 1),
        )  # fmt: skip

    assert_same_on_any_number_of_threads(everything)


EVERY_STRUCTURED_KERNEL = """
import numpy as np
from spillgrad_kernels.cpu import indexing, losses, normalization, optim, random, reductions

rng = np.random.default_rng(0)
a, grad, weight = (rng.standard_normal(shape).astype(np.float32) for shape in ((6, 9), (6, 9), 9))
target, results = np.array([0, 8, 3, -100, 4, 1]), []
for name in ("sum", "prod", "max", "min", "logsumexp"):
    results += [getattr(reductions, name)(a, axes) for axes in ((0,), (1,), (0, 1))]
results += [reductions.argmax(a, 0), reductions.argmin(a, 1), *reductions.var(a, (0,))]
results += [reductions.cumsum(a, 1), reductions.cumsum(a, 0)]
soft, logs = normalization.softmax(a, 1), normalization.log_softmax(a, 0)
results += [soft, normalization.softmax_backward(grad, soft, 1)]
results += [logs, normalization.log_softmax_backward(grad, logs, 0)]
out, mean, rstd = normalization.layer_norm(a, 9, weight, weight, 1e-5)
results += [out, mean, rstd, *normalization.layer_norm_backward(grad, a, weight, mean, rstd)]
out, rms = normalization.rms_norm(a, 9, weight, 1e-5)
results += [out, rms, *normalization.rms_norm_backward(grad, a, weight, rms)]
rows, lse = losses.cross_entropy(a, target, -100, 0.1, abs(weight))
results += [rows, lse, losses.cross_entropy_backward(rows, a, target, lse, -100, 0.1, abs(weight))]
results += losses.linear_cross_entropy_with_gradients(rows, a, a[:5], None, target % 5, 3, 0.1)[:3]
results += [losses.linear_cross_entropy(a, a[:5], weight[:5], target % 5, 3)]
results += [random.uniform((7,), dtype, 1, 2) for dtype in (np.float32, np.float64)]
results += [random.normal((7,), np.float32, 1, 2), random.randint(-3, 9, (7,), 1, 2), random.permutation(9, 1, 2)]
results += [random.dropout(a, 0.3, 1, 2)]
index = np.array([[0, 5, 5], [2, 0, 1]])
results += [indexing.embedding(a, index), indexing.embedding_backward(a[index], index, 6)]
results += [indexing.gather(a, 0, index), indexing.scatter_add(a, 1, index, grad)]
param, square = a.copy(), abs(grad)
optim.run([optim.adamw(param, grad, a.copy(), square, 0.1, 0.9, 0.99, 1e-8, 0.1, 2)])
optim.run([optim.sgd(param, grad, a.copy(), 0.1, 0.9, 0.1, 0.1, True, False)])
results += [param, square, np.array(optim.sums_of_squares([a]))]
"""


def test_every_kernel_gives_the_same_results_uncompiled(tmp_path):
    compiled = {}
    exec(EVERY_STRUCTURED_KERNEL, compiled)
    script = EVERY_STRUCTURED_KERNEL + "import sys\nnp.savez(sys.argv[1], *results)\n"
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(
        [sys.executable, "-W", "error", "-c", script, str(tmp_path / "plain.npz")], env=environment, check=True
    )
    with np.load(tmp_path / "plain.npz") as plain:
        assert len(plain.files) == len(compiled["results"])
        for name, result in zip(plain.files, compiled["results"], strict=True):
            np.testing.assert_allclose(result, plain[name], rtol=2e-5, atol=1e-6)
