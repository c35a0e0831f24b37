"""Convolutions on a device, against the CPU's in float64."""

import math
import warnings

import ml_dtypes
import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import HostComputeWarning
from spillgrad.nn import functional as F
from spillgrad_kernels.cpu import conv as on_cpu
from spillgrad_kernels.cuda import conv as on_device
from spillgrad_kernels.cuda import conv_direct, matmul
from spillgrad_kernels.cuda.array import to_device
from spillgrad_kernels.cuda.jit import compile
from spillgrad_kernels.windows import Windows

# The relative error by rounding a result, for half precision.
TOLERANCE = {np.float32: 3e-6, np.float64: 1e-13, np.float16: 2e-3, ml_dtypes.bfloat16: 1.6e-2}

# Images, channels of a group, outputs of a group, groups, image, kernel, stride, padding, dilation, output padding.
PLAIN = (2, 2, 3, 1, (3, 3), (2, 2), (1, 1), (1, 1), (1, 1))
STRIDED = (2, 1, 2, 2, (5, 6), (2, 3), (2, 3), (1, 1), (1, 2))
CASES = [
    PLAIN,
    STRIDED,
    (1, 2, 2, 2, (4, 4), (2, 2), (1, 2), (0, 1), (2, 1)),
    (3, 1, 1, 2, (3, 4), (3, 3), (1, 1), (1, 1), (1, 1)),  # depthwise
    (1, 1, 1, 1, (7, 1), (2, 1), (4, 3), (0, 0), (1, 1)),  # elements that no window contains
    (1, 1, 2, 1, (1, 5), (1, 3), (1, 1), (0, 3), (1, 1)),  # windows that contain only padding
]


def draw(case, dtype):
    count, channels, outputs, groups, image, size, stride, padding, dilation = case
    grid = tuple((image[d] + 2 * padding[d] - dilation[d] * (size[d] - 1) - 1) // stride[d] + 1 for d in range(2))
    rng = np.random.default_rng(0)
    shapes = (count, groups * channels, *image), (groups * outputs, channels, *size), (count, groups * outputs, *grid)
    x, weight, grad = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    return Windows(size, stride, padding, dilation, image, grid), x, weight, grad


def turned(array):
    """Copy an array to the device, with its dimensions in another order in memory."""
    return to_device(array.T).T


def assert_agree(case, dtype, has_bias=True, place=to_device):
    """Compare the convolution and its gradients with the host's."""
    windows, x, weight, grad = draw(case, dtype)
    groups = case[3]
    biases = [np.arange(1, array.shape[1] + 1).astype(dtype) if has_bias else None for array in (grad, x)]
    for name, operands in (
        ("conv", (x, weight, biases[0], windows, groups)),
        ("conv_input", (grad, weight, biases[1], windows, groups)),
        ("conv_weight", (grad, x, windows, groups)),
    ):  # fmt: skip
        given = [place(each) if isinstance(each, np.ndarray) else each for each in operands]
        exact = [each.astype(np.float64) if isinstance(each, np.ndarray) else each for each in operands]
        found, wanted = getattr(on_device, name)(*given), getattr(on_cpu, name)(*exact)
        assert (found.shape, found.dtype) == (wanted.shape, dtype)
        scale = np.abs(wanted).max(initial=1.0)
        np.testing.assert_allclose(found.to_host().astype(np.float64) / scale, wanted / scale, atol=TOLERANCE[dtype])


@pytest.fixture(params=["sums by threads", "products"])
def way(request, monkeypatch):
    """Run a test with both algorithms of the device: for groups of few outputs, and of many."""
    monkeypatch.setattr(on_device, "_FEW_OUTPUTS", 0 if request.param == "products" else math.inf)


@pytest.mark.parametrize("case, dtype", [
    *[(case, np.float32) for case in CASES], *[(STRIDED, dtype) for dtype in TOLERANCE if dtype is not np.float32],
])  # fmt: skip
def test_convolutions_and_their_gradients_agree_with_the_cpu_s(way, case, dtype):
    assert_agree(case, dtype)


def test_operands_may_have_any_strides(way):
    case = (2, 2, 2, 1, (3, 3), (2, 2), (1, 1), (0, 0), (1, 1))
    assert_agree(case, np.float32, place=turned)


@pytest.mark.parametrize("nbytes", [1, 600])
def test_pieces_change_nothing(nbytes, monkeypatch):
    monkeypatch.setattr(on_device, "_FEW_OUTPUTS", 0)
    monkeypatch.setattr(on_device, "_PIECE_BYTES", nbytes)
    assert_agree((2, 1, 2, 1, (3, 3), (2, 2), (2, 1), (1, 0), (1, 2)), np.float32)


def test_pieces_are_as_small_as_they_were_asked_to_be():
    whole, row = on_device._pieces(5, 4, (1 << 24) // 4), on_device._pieces(2, 8, 1 << 24)
    assert [piece.images for piece in whole] == [slice(0, 3), slice(3, 5)]
    assert [(piece.images, piece.rows) for piece in row] == [
        (slice(n, n + 1), slice(y, y + 4)) for n in range(2) for y in (0, 4)
    ]
    assert len(on_device._pieces(2, 8, 1 << 30)) == 16


def test_the_gradient_of_a_weight_is_shared_among_products_or_blocks(monkeypatch):
    case = (1, 1, 1, 1, (3, 4), (1, 2), (1, 1), (0, 0), (1, 1))
    monkeypatch.setattr(conv_direct, "_PART_POSITIONS", 5)
    assert_agree(case, np.float32)
    monkeypatch.setattr(on_device, "_FEW_OUTPUTS", 0)
    monkeypatch.setattr(matmul, "_PART_DEPTH", 4)
    matmul.prepare.cache_clear()
    assert_agree(case, np.float32)
    matmul.prepare.cache_clear()


def test_results_do_not_depend_on_the_number_of_blocks(way, monkeypatch):
    monkeypatch.setattr(conv_direct, "_PART_POSITIONS", 3)
    windows, *arrays = draw((1, 1, 2, 1, (3, 3), (2, 1), (1, 1), (0, 0), (1, 1)), np.float32)
    x, weight, grad = map(to_device, arrays)
    found = []
    for blocks in (1, 3):
        monkeypatch.setattr(compile, "blocks_for", lambda work, blocks=blocks: blocks)
        results = (
            on_device.conv(x, weight, None, windows, 1), on_device.conv_input(grad, weight, None, windows, 1),
            on_device.conv_weight(grad, x, windows, 1),
        )  # fmt: skip
        found.append([result.to_host().tobytes() for result in results])
    assert found[0] == found[1]


@pytest.mark.parametrize("has_bias", [False, True])
def test_images_are_matrices_to_windows_of_one_element(has_bias, monkeypatch):
    monkeypatch.setattr(on_device, "_FEW_OUTPUTS", 0)
    monkeypatch.setattr(on_device, "_TILE", 8)
    assert_agree((2, 2, 3, 2, (2, 4), (1, 1), (1, 1), (0, 0), (1, 1)), np.float32, has_bias)
    assert_agree((1, 2, 3, 1, (2, 4), (1, 1), (1, 1), (0, 0), (1, 1)), np.float16, has_bias)


def test_nan_reaches_the_windows_that_see_it_only(way):
    windows, x, weight, _ = draw((1, 2, 2, 1, (4, 4), (2, 2), (1, 1), (0, 0), (1, 1)), np.float32)
    x[0, 1, 1, 1] = np.nan
    found = np.isnan(on_device.conv(to_device(x), to_device(weight), None, windows, 1).to_host())
    wanted = np.zeros((3, 3), bool)
    wanted[:2, :2] = True
    np.testing.assert_array_equal(found, np.broadcast_to(wanted, (1, 2, 3, 3)))


def test_of_no_images_there_is_no_result_and_no_gradient(way):
    assert_agree((0, *PLAIN[1:]), np.float32)


SECOND = {
    "conv2d": (lambda x, w: F.conv2d(x, w, None, 2, 1), (1, 2, 3, 3), (2, 2, 2, 2)),
    "conv_transpose1d": (lambda x, w: F.conv_transpose1d(x, w, stride=2), (1, 2, 3), (2, 1, 2)),
    "conv3d": (lambda x, w: F.conv3d(x, w), (1, 1, 3, 2, 2), (1, 1, 2, 2, 1)),
    "max_pool2d": (lambda x, w: F.max_pool2d(x * w, 2, 1), (1, 2, 3, 3), (1, 2, 3, 3)),
    "avg_pool2d": (lambda x, w: F.avg_pool2d(x * w, 2, 1), (1, 2, 3, 3), (1, 2, 3, 3)),
    "unfold": (lambda x, w: F.unfold(x * w, 2), (1, 1, 3, 3), (1, 1, 3, 3)),
    "bilinear": (lambda x, w: F.interpolate(x * w, (3, 2), mode="bilinear"), (1, 1, 2, 3), (1, 1, 2, 3)),
}


@pytest.mark.parametrize("name", SECOND)
def test_second_derivatives_are_those_of_the_host(name):
    function, *shapes = SECOND[name]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]

    def second(device):
        operands = [sg.tensor(array, device=device, requires_grad=True) for array in arrays]
        first = sg.autograd.grad((function(*operands) ** 3).sum(), operands, create_graph=True)
        return sg.autograd.grad((first[0] * first[1].mean()).sum() + (first[1] ** 2).sum(), operands)

    with warnings.catch_warnings():
        warnings.simplefilter("error", HostComputeWarning)
        found = second("cuda")
    for gradient, wanted in zip(found, second("cpu"), strict=True):
        assert gradient.device == "cuda"
        np.testing.assert_allclose(gradient.numpy(force=True), wanted.numpy(), 2e-4, 2e-5)
