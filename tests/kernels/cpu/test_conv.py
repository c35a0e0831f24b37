"""Convolution kernels against sums over taps in NumPy, over blocks, groups, phases and threads."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from spillgrad_kernels.cpu import conv, conv_plans, conv_product
from spillgrad_kernels.jit.compile import DISABLE_JIT
from spillgrad_kernels.windows import Windows

# Images, channels a group, outputs a group, groups, image, kernel, stride, padding, dilation. Beside the plain ones:
# several blocks of positions, of channels and of outputs; windows larger than a block of rows; runs across images;
# strides beyond the window; padding beyond it; grids of one column; padding that no phase
# sees at one side; images that are read where they lie; windows that
# see one phase only; many outputs of one channel.
CASES = [
    (2, 3, 5, 1, (9, 11), (3, 3), (1, 1), (1, 1), (1, 1)),
    (2, 3, 5, 2, (9, 11), (3, 2), (2, 3), (1, 0), (1, 2)),
    (3, 1, 1, 4, (9, 11), (3, 3), (1, 1), (1, 1), (1, 1)),
    (2, 1, 2, 3, (9, 11), (3, 3), (2, 2), (2, 1), (2, 1)),
    (2, 1, 1, 3, (10, 13), (2, 2), (3, 4), (1, 0), (1, 1)),
    (2, 1, 3, 2, (1, 19), (1, 4), (1, 1), (0, 3), (1, 1)),
    (1, 1, 1, 2, (5, 4), (3, 2), (1, 1), (4, 3), (1, 1)),
    (2, 3, 4, 1, (10, 13), (2, 2), (3, 4), (1, 0), (1, 1)),
    (3, 40, 130, 1, (13, 17), (3, 3), (1, 1), (1, 1), (1, 1)),
    (3, 300, 7, 1, (5, 5), (1, 1), (1, 1), (0, 0), (1, 1)),
    (1, 2, 3, 1, (40, 41), (17, 18), (2, 2), (8, 8), (1, 1)),
    (70, 4, 13, 1, (3, 3), (2, 2), (1, 1), (0, 0), (1, 1)),
    (1, 2, 3, 1, (33, 1), (3, 1), (3, 4), (1, 0), (1, 1)),
    (1, 3, 200, 1, (2, 70), (1, 5), (1, 2), (0, 2), (1, 1)),
    (8, 5, 20, 1, (5, 5), (3, 3), (1, 1), (1, 1), (1, 1)),
    (8, 30, 20, 2, (5, 1), (3, 1), (1, 1), (1, 0), (1, 1)),
    (4, 6, 40, 1, (1, 1), (1, 1), (1, 1), (0, 0), (1, 1)),
    (2, 8, 33, 1, (7, 8), (2, 1), (1, 1), (0, 0), (1, 1)),
    (2, 5, 6, 1, (9, 12), (1, 1), (2, 3), (0, 1), (1, 1)),
    (2, 5, 6, 1, (13, 40), (2, 3), (2, 2), (1, 3), (2, 2)),
    (2, 3, 8, 1, (14, 9), (4, 1), (3, 2), (2, 3), (1, 3)),
    (9, 3, 48, 1, (1, 1), (1, 1), (1, 1), (0, 0), (1, 1)),
    (2, 1, 5, 3, (1, 300), (1, 4), (1, 1), (0, 3), (1, 1)),
    (2, 1, 1, 2, (3, 70), (3, 5), (1, 1), (1, 2), (1, 1)),
    (2, 1, 17, 2, (9, 37), (3, 3), (1, 2), (1, 1), (1, 1)),
]


def draw(case, dtype=np.float64):
    count, channels, outputs, groups, image, size, stride, padding, dilation = case
    grid = tuple((image[d] + 2 * padding[d] - dilation[d] * (size[d] - 1) - 1) // stride[d] + 1 for d in range(2))
    rng = np.random.default_rng(0)
    shapes = (count, groups * channels, *image), (groups * outputs, channels, *size), (count, groups * outputs, *grid)
    arrays = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
    return Windows(size, stride, padding, dilation, image, grid), *arrays


def reference(windows, groups, x, weight, grad):
    """Return result and gradients by input and weight, tap by tap, in float64."""
    x, weight, grad = (part.astype(np.float64) for part in (x, weight, grad))
    (py, px), (sy, sx), (rows, columns) = windows.padding, windows.stride, windows.grid
    padded = np.pad(x, [(0, 0), (0, 0), (py, py + sy), (px, px + sx)])
    split = padded.reshape(len(x), groups, -1, *padded.shape[2:])
    by_input = np.zeros_like(split)
    weights = weight.reshape(groups, -1, *weight.shape[1:])
    grads = grad.reshape(len(x), groups, -1, *windows.grid)
    result, by_weight = np.zeros_like(grads), np.zeros_like(weights)
    for i, j in np.ndindex(windows.size):
        y, z = i * windows.dilation[0], j * windows.dilation[1]
        place = np.s_[..., y : y + sy * (rows - 1) + 1 : sy, z : z + sx * (columns - 1) + 1 : sx]
        result += np.einsum("gmc,ngcyx->ngmyx", weights[..., i, j], split[place])
        by_input[place] += np.einsum("gmc,ngmyx->ngcyx", weights[..., i, j], grads)
        by_weight[..., i, j] = np.einsum("ngmyx,ngcyx->gmc", grads, split[place])
    inner = by_input.reshape(padded.shape)[..., py : py + windows.image[0], px : px + windows.image[1]]
    return result.reshape(grad.shape), inner, by_weight.reshape(weight.shape)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_convolutions_are_sums_over_taps(case, dtype):
    windows, x, weight, grad = draw(case, dtype)
    groups = case[3]
    results = (
        conv.conv(x, weight, None, windows, groups),
        conv.conv_input(grad, weight, None, windows, groups),
        conv.conv_weight(grad, x, windows, groups),
    )
    for got, wanted in zip(results, reference(windows, groups, x, weight, grad), strict=True):
        assert got.dtype == dtype
        scale = np.abs(wanted).max()
        np.testing.assert_allclose(got / scale, wanted / scale, atol=1e-5 if dtype == np.float32 else 1e-13)


@pytest.mark.parametrize("case", [CASES[1], CASES[8], CASES[14]], ids=str)
def test_a_batch_may_be_computed_in_chunks(case, monkeypatch, request):
    windows, x, weight, grad = draw(case)
    monkeypatch.setattr(conv_plans, "_CHUNK_BYTES", 1)
    for plan in (conv_plans.correlation, conv_plans.weight_gradient):
        plan.cache_clear()
        request.addfinalizer(plan.cache_clear)
    for got, wanted in zip(
        (
            conv.conv(x, weight, None, windows, case[3]),
            conv.conv_input(grad, weight, None, windows, case[3]),
            conv.conv_weight(grad, x, windows, case[3]),
        ),
        reference(windows, case[3], x, weight, grad),
        strict=True,
    ):
        np.testing.assert_allclose(got, wanted, atol=1e-11)


@pytest.mark.parametrize("case", CASES[:4], ids=str)
def test_a_bias_is_added_to_every_place_of_its_channel(case):
    windows, x, weight, grad = draw(case)
    for run, array, channels in ((conv.conv, x, grad.shape[1]), (conv.conv_input, grad, x.shape[1])):
        bias = np.arange(channels) + 0.5
        with_bias = run(array, weight, bias, windows, case[3])
        np.testing.assert_allclose(
            with_bias, run(array, weight, None, windows, case[3]) + bias[:, None, None], atol=1e-12
        )


@pytest.mark.parametrize("case", [CASES[1], CASES[3]], ids=str)
def test_operands_may_have_any_strides(case):
    windows, x, weight, grad = draw(case)
    expected = reference(windows, case[3], x, weight, grad)
    x, weight, grad = (np.asfortranarray(part) for part in (x, weight, grad))
    np.testing.assert_allclose(conv.conv(x, weight, None, windows, case[3]), expected[0], atol=1e-12)
    np.testing.assert_allclose(conv.conv_input(grad, weight, None, windows, case[3]), expected[1], atol=1e-12)
    np.testing.assert_allclose(conv.conv_weight(grad, x, windows, case[3]), expected[2], atol=1e-12)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_infinity_reach_the_windows_that_see_them_only(value):
    windows, x, weight, _ = draw(CASES[0])
    x[1, 2, 4, 5] = value
    found = ~np.isfinite(conv.conv(x, weight, None, windows, 1))
    assert found[1, :, 3:6, 4:7].all()
    assert found.sum() == 5 * 9


@pytest.mark.parametrize("case", [CASES[3], CASES[4], CASES[7]], ids=str)
def test_threads_change_no_bit(case, assert_same_on_any_number_of_threads):
    case = (16, *case[1:])
    windows, x, weight, grad = draw(case, np.float32)
    assert_same_on_any_number_of_threads(
        lambda: (
            conv.conv(x, weight, None, windows, case[3]),
            conv.conv_input(grad, weight, None, windows, case[3]),
            conv.conv_weight(grad, x, windows, case[3]),
        )
    )


def test_an_infinity_reaches_only_the_taps_that_see_it():
    windows, x, _, grad = draw((1, 1, 1, 1, (4, 5), (1, 3), (1, 1), (0, 0), (1, 1)))
    x[0, 0, 1, 0] = np.inf  # only the first tap sees the first column
    found = conv.conv_weight(np.abs(grad), x, windows, 1).reshape(-1)
    assert found[0] == np.inf
    x[0, 0, 1, 0] = 0
    np.testing.assert_allclose(found[1:], conv.conv_weight(np.abs(grad), x, windows, 1).reshape(-1)[1:])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_panel_of_one_vector_is_packed_within_its_bounds(dtype):
    """Its neighbour in memory may be packed by another thread, earlier or later."""
    half = conv_product.VECTOR_BYTES // np.dtype(dtype).itemsize
    grads = np.arange(1, 9 * half + 1, dtype=dtype).reshape(9, 1, half, 1)
    panels = np.zeros(9 * 2 * half, dtype)
    for unit in range(8, -1, -1):
        conv_product.pack_gradients(unit, unit + 1, grads, panels)
    np.testing.assert_array_equal(panels[: 9 * half], grads.reshape(-1))
    weights = np.arange(1, half + 1, dtype=dtype).reshape(half, 1, 1, 1)
    panels[:] = -1
    phases = np.array([[1, 1, 0, 0, 1]])  # one task, of depth 1
    conv_product.pack_weights(
        0, 1, weights, phases, np.zeros(1, np.int64), weights.itemsize, weights.nbytes, half, 1, panels
    )
    np.testing.assert_array_equal(panels[:half], weights.reshape(-1))
    assert (panels[half:] == -1).all()


WITH_TILES_OF_ANOTHER_HOST = """
import llvmlite.binding, numpy as np
of_this = llvmlite.binding.get_host_cpu_features
llvmlite.binding.get_host_cpu_features = lambda: {features}
import spillgrad_kernels.cpu.product_tile
llvmlite.binding.get_host_cpu_features = of_this  # Numba compiles for this host
import test_conv as tests
from spillgrad_kernels.cpu import conv
for case in [tests.CASES[i] for i in {cases}]:
    for dtype in (np.float32, np.float64):
        windows, x, weight, grad = tests.draw(case, dtype)
        found = (
            conv.conv(x, weight, None, windows, case[3]), conv.conv_input(grad, weight, None, windows, case[3]),
            conv.conv_weight(grad, x, windows, case[3]),
        )
        for got, wanted in zip(found, tests.reference(windows, case[3], x, weight, grad), strict=True):
            np.testing.assert_allclose(got / abs(wanted).max(), wanted / abs(wanted).max(), atol=1e-5)
"""
HOSTS = {"AVX2": {"avx2": True, "fma": True}, "NEON": {"neon": True}, "SSE": {}}


def run_on(host, cases, tmp_path, **environment):
    code = WITH_TILES_OF_ANOTHER_HOST.format(features=HOSTS[host], cases=cases)
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = {**os.environ, "PYTHONPATH": paths, "XDG_CACHE_HOME": str(tmp_path), **environment}
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=environment, check=True, timeout=600)


@pytest.mark.parametrize("host", HOSTS)
def test_everything_holds_without_compilation_and_with_the_tiles_of_any_host(host, tmp_path):
    run_on(host, [0, 1, 3, 7, 11, 14, 16, 19, 21], tmp_path, NUMBA_DISABLE_JIT="1")


@pytest.mark.exhaustive
@pytest.mark.skipif(DISABLE_JIT, reason="nothing is compiled")
def test_vectors_of_another_host_compute_the_same(tmp_path):
    run_on("AVX2", range(len(CASES)), tmp_path)
