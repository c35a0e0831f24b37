"""Pooling, windows and images of another size on a device, against the CPU's."""

import ml_dtypes
import numpy as np
import pytest

import spillgrad as sg
from spillgrad.nn import functional as F
from spillgrad.ops import interpolate, pooling, sliding_windows
from spillgrad_kernels.cpu import pooling as on_cpu
from spillgrad_kernels.cpu import resampling
from spillgrad_kernels.cuda import pooling as on_device
from spillgrad_kernels.cuda.array import to_device
from spillgrad_kernels.windows import Windows, adaptive_ranges, ranges

# The relative error by rounding a result, for half precision.
TOLERANCE = {np.float32: 3e-6, np.float64: 1e-13, np.float16: 2e-3, ml_dtypes.bfloat16: 1.6e-2}


def windows(image, size, stride, padding=(0, 0), dilation=(1, 1), more=(0, 0)):
    """Return the ranges of windows; with `more` down and across, the last windows reach beyond the image."""
    grid = tuple(
        (image[d] + 2 * padding[d] - dilation[d] * (size[d] - 1) - 1) // stride[d] + 1 + more[d] for d in range(2)
    )
    return ranges(Windows(size, stride, padding, dilation, image, grid))


# Images with their windows: separate, overlapping, with gaps, dilated in padding, beyond the end, adaptive.
PLAIN = ((4, 6), windows((4, 6), (2, 3), (2, 3)))
OVERLAPPING = ((5, 4), windows((5, 4), (3, 2), (2, 1), (1, 1)))
RANGES = [
    PLAIN,
    OVERLAPPING,
    ((7, 5), windows((7, 5), (1, 2), (3, 4))),
    ((5, 5), windows((5, 5), (3, 2), (1, 2), (1, 1), (2, 3))),
    ((5, 4), windows((5, 4), (2, 3), (2, 2), more=(1, 0))),
    ((5, 3), adaptive_ranges((5, 3), (3, 4))),
]
EVERY_DTYPE = [(each, np.float32) for each in RANGES] + [
    (OVERLAPPING, dtype) for dtype in TOLERANCE if dtype is not np.float32
]


def draw(shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def exact(array):
    return array.astype(np.float64)


def assert_close(found, wanted, dtype=np.float32):
    assert (found.shape, found.dtype) == (wanted.shape, dtype)
    np.testing.assert_allclose(exact(found.to_host()), wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("lying, dtype", EVERY_DTYPE)
def test_largest_elements_are_found_and_get_the_gradients_of_their_windows(lying, dtype):
    image, ranges = lying
    x = draw((2, 2, *image), dtype)
    found, places = on_device.max_pool(to_device(x), *ranges)
    wanted, wanted_places = on_cpu.max_pool(exact(x), *ranges)
    np.testing.assert_array_equal(places.to_host(), wanted_places)
    np.testing.assert_array_equal(exact(found.to_host()), wanted)
    assert found.dtype == dtype
    grad = draw(found.shape, dtype, 1)
    spread = pooling.spread_maxima(to_device(grad), places, image, *ranges)
    assert_close(spread, pooling.spread_maxima(exact(grad), wanted_places, image, *ranges), dtype)


def test_of_equal_elements_the_first_is_taken_and_of_nan_the_last():
    x = np.array([[1, 1, 0, np.nan], [1, 1, np.nan, 5], [-np.inf] * 4, [-np.inf, -np.inf, -0.0, 0]], np.float32)
    ranges = windows((4, 4), (2, 2), (2, 2))
    values, places = on_device.max_pool(to_device(x.reshape(1, 1, 4, 4)), *ranges)
    wanted, wanted_places = on_cpu.max_pool(x.reshape(1, 1, 4, 4), *ranges)
    np.testing.assert_array_equal(values.to_host(), wanted)
    np.testing.assert_array_equal(places.to_host(), wanted_places)


@pytest.mark.parametrize("many", [1, 64])
@pytest.mark.parametrize("lying, dtype", [pair for pair in EVERY_DTYPE if pair[0] is not RANGES[3]])
def test_means_and_their_gradients_agree_with_the_cpu_s(lying, dtype, many, monkeypatch):
    monkeypatch.setattr(on_device, "_MANY_ELEMENTS", many)
    image, ranges = lying
    scales = [draw(found.starts.size, np.float64, 2) for found in ranges]
    numbers = [tuple(each.tolist()) for each in scales]
    x = draw((2, 1, *image), dtype)
    found = on_device.mean_pool(to_device(x), *ranges, *numbers)
    assert_close(found, on_cpu.mean_pool(exact(x), *ranges, *scales), dtype)
    grad = draw(found.shape, dtype, 1)
    spread = on_device.mean_pool_backward(to_device(grad), image, *ranges, *numbers)
    assert_close(spread, on_cpu.mean_pool_backward(exact(grad), image, *ranges, *scales), dtype)


def test_of_no_windows_there_is_no_result_and_a_gradient_of_zeros():
    x, ranges = draw((1, 2, 3, 2)), adaptive_ranges((3, 2), (0, 2))
    assert on_device.mean_pool(to_device(x), *ranges, (), (1.0, 1.0)).shape == (1, 2, 0, 2)
    found, places = on_device.max_pool(to_device(x), *ranges)
    assert (found.shape, places.shape) == ((1, 2, 0, 2), (1, 2, 0, 2))
    for spread in (
        on_device.mean_pool_backward(found, (3, 2), *ranges, (), (1.0, 1.0)),
        pooling.spread_maxima(found, places, (3, 2), *ranges),
    ):
        np.testing.assert_array_equal(spread.to_host(), np.zeros((1, 2, 3, 2)))


def test_images_may_have_any_strides():
    x, (image, ranges) = draw((4, 5, 2, 2)), OVERLAPPING
    view = to_device(x).T[:, :, :, ::-1]
    found, places = on_device.max_pool(view, *ranges)
    wanted, wanted_places = on_cpu.max_pool(x.T[:, :, :, ::-1], *ranges)
    np.testing.assert_array_equal(found.to_host(), wanted)
    np.testing.assert_array_equal(places.to_host(), wanted_places)
    grad, wanted_grad = to_device(wanted.T).T, pooling.spread_maxima(wanted, wanted_places, image, *ranges)
    assert_close(pooling.spread_maxima(grad, places, image, *ranges), wanted_grad)


@pytest.mark.filterwarnings("ignore::spillgrad.errors.HostComputeWarning")  # by writes at an index
def test_largest_elements_are_put_back_where_they_were():
    x = draw((1, 2, 4, 3))

    def unpooled(device):
        leaf = sg.tensor(x, device=device, requires_grad=True)
        values, places = F.max_pool2d(leaf, 2, 1, return_indices=True)
        back = F.max_unpool2d(values, places, 2, 1)
        (back * sg.arange(24, device=device).reshape(1, 2, 4, 3)).sum().backward()
        return back.numpy(force=True), leaf.grad.numpy(force=True)

    for found, wanted in zip(unpooled("cuda"), unpooled("cpu"), strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape, dim, step, spacing, length", [
    ((2, 3, 2, 2), 1, 1, 1, 4), ((3, 2, 4), 0, 3, 1, 11), ((4, 2), 0, 1, 3, 7), ((2, 3, 2), 1, 2, 2, 7),
    ((2, 3, 0), 1, 1, 1, 2), ((0, 3, 2), 1, 1, 1, 4),
])  # fmt: skip
def test_windows_along_a_dimension_are_added_up_where_they_are_from(shape, dim, step, spacing, length, dtype):
    given = draw(shape, dtype)
    found = sliding_windows.sum_along(to_device(given), dim, step, spacing, length)
    assert_close(found, sliding_windows.sum_along(exact(given), dim, step, spacing, length), dtype)


@pytest.mark.parametrize("dilation, stride, size", [((1, 1), (1, 1), (4, 3)), ((1, 2), (3, 1), (8, 5))])
def test_patches_are_added_up_where_they_are_from(dilation, stride, size):
    patches = draw((2, 2, 2, 2, 3, 2))
    wanted = sliding_windows.sum_over_images(exact(patches), dilation, stride, size)
    assert_close(sliding_windows.sum_over_images(to_device(patches), dilation, stride, size), wanted)
    assert_close(sliding_windows.sum_over_images(to_device(patches.T).T, dilation, stride, size), wanted)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("mode, size, count", [
    ("nearest", 3, 5), ("nearest", 5, 2), ("linear", 3, 4), ("bicubic", 3, 7), ("linear", 4, 1),
])  # fmt: skip
def test_elements_are_resampled_as_on_the_cpu(mode, size, count, dtype):
    taps = interpolate._taps(mode, size, count, False, None)
    x, grad = draw((2, size, 2), dtype), draw((2, count, 2), dtype)
    assert_close(resampling.resample(to_device(x), 1, taps), resampling.resample(exact(x), 1, taps), dtype)
    back = interpolate._transposed(taps)
    assert_close(resampling.resample(to_device(grad), 1, back), resampling.resample(exact(grad), 1, back), dtype)
