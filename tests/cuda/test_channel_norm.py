"""Normalization of batches, instances and groups on a device, against the CPU's in float64."""

import ml_dtypes
import numpy as np
import pytest

from spillgrad_kernels.cpu import channel_norm
from spillgrad_kernels.cuda import channel_norm as on_device
from spillgrad_kernels.cuda.array import to_device
from spillgrad_kernels.cuda.jit import compile
from spillgrad_kernels.device_array import DeviceArray

# The relative error by rounding a result, for half precision.
TOLERANCE = {np.float32: 3e-6, np.float64: 1e-13, np.float16: 2e-3, ml_dtypes.bfloat16: 1.6e-2}

# (samples, groups, channels of a group, places), and the dimensions over which statistics are taken.
BATCH, GROUPS, INSTANCES = ((3, 4, 1, 5), (0, 2, 3)), ((2, 2, 3, 3), (2, 3)), ((2, 3, 1, 11), (2, 3))
EVEN = (2, 2, 1, 16), (0, 2, 3)  # adjacent elements move in one access
CASES = [BATCH, GROUPS, INSTANCES, EVEN, ((17, 2, 1, 1), (0, 2, 3)), ((1, 1, 9, 2), (2, 3)), ((2, 2, 2, 3), (0, 2, 3))]


def draw(shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def both(name, *operands):
    """Return the results of the device, and those of the host in float64."""
    exact = [x.astype(np.float64) if isinstance(x, np.ndarray) else x for x in operands]
    given = [to_device(x) if isinstance(x, np.ndarray) else x for x in operands]
    function = getattr(channel_norm, name)
    return [[y.to_host() if type(y) is DeviceArray else y for y in function(*x)] for x in (given, exact)]


def assert_close(found, wanted, dtypes):
    for result, expected, dtype in zip(found, wanted, dtypes, strict=True):
        assert (result.shape, result.dtype) == (expected.shape, dtype)
        tolerance = 8 * TOLERANCE[dtype]
        np.testing.assert_allclose(result.astype(np.float64), expected, rtol=tolerance, atol=tolerance)


def assert_agree(case, dtype=np.float32, has_parameters=True, offset=2.0):
    places, dims = case
    shape, channels = (places[0], places[1] * places[2], places[3]), places[1] * places[2]
    x, grad = (draw(shape, np.float64) * 3 + offset).astype(dtype), draw(shape, dtype, 1)
    weight, bias = (draw(channels, dtype, seed) if has_parameters else None for seed in (2, 3))
    number = np.float64 if dtype == np.float64 else np.float32
    results = both("normalize", x, weight, bias, places, dims, 1e-2, (None, None), 0.0)
    assert_close(*results, [dtype, number, number])
    _, mean, rstd = (statistic.astype(number) for statistic in results[1])
    results = both("gradients", grad, x, weight, mean, rstd, places, dims)
    assert_close(*results, [dtype, number, number])


@pytest.mark.parametrize("case, dtype", [
    *[(case, np.float32) for case in CASES],
    *[(case, dtype) for case in (GROUPS, EVEN) for dtype in TOLERANCE if dtype is not np.float32],
])  # fmt: skip
def test_normalization_and_its_gradients_agree_with_the_cpu_s(case, dtype):
    assert_agree(case, dtype)


@pytest.mark.parametrize("case", [BATCH, GROUPS])
def test_without_parameters_they_are_one_and_zero(case):
    assert_agree(case, has_parameters=False)


@pytest.mark.parametrize("case", [BATCH, GROUPS, EVEN])
def test_units_of_several_parts_are_joined(case, monkeypatch):
    monkeypatch.setattr(on_device, "_PART_ELEMENTS", 4)
    assert_agree(case)


def test_results_do_not_depend_on_the_number_of_blocks(monkeypatch):
    monkeypatch.setattr(on_device, "_PART_ELEMENTS", 4)
    places, dims = GROUPS
    x, weight = draw((2, 6, 3)), draw(6, seed=1)
    found = []
    for blocks in (1, 3):
        monkeypatch.setattr(compile, "blocks_for", lambda work, blocks=blocks: blocks)
        out, mean, rstd = channel_norm.normalize(
            to_device(x), to_device(weight), None, places, dims, 0.1, (None, None), 0.0
        )
        gradients = channel_norm.gradients(to_device(x), out, to_device(weight), mean, rstd, places, dims)
        found.append([result.to_host().tobytes() for result in (out, mean, rstd, *gradients)])
    assert found[0] == found[1]


def test_the_variance_of_numbers_far_from_zero_is_that_of_their_deviations():
    x = (draw((2, 3, 9)) + np.float32(3e4)).astype(np.float32)
    x[0, 1, 0] = 5e6  # the first element, from which distances are taken
    found, wanted = both("normalize", x, None, None, (2, 3, 1, 9), (2, 3), 0.0, (None, None), 0.0)
    np.testing.assert_allclose(found[2], wanted[2], rtol=1e-5)


@pytest.mark.parametrize("case", [BATCH, INSTANCES])
def test_running_statistics_move_wherever_they_lie(case):
    places, dims = case
    x, channels = draw((places[0], places[1], places[3])), places[1]
    running = draw((channels, 2)), abs(draw(channels, ml_dtypes.bfloat16, 1))
    wanted = running[0][:, 0].astype(np.float64), running[1].astype(np.float64)
    channel_norm.normalize(
        x.astype(np.float64), None, None, places, dims, 0.1, wanted, 0.3
    )  # fmt: skip
    memory, second = (to_device(array) for array in running)
    channel_norm.normalize(to_device(x), None, None, places, dims, 0.1, (memory[:, 0], second), 0.3)
    np.testing.assert_allclose(memory.to_host(), np.stack([wanted[0], running[0][:, 1]], 1), rtol=1e-5)
    np.testing.assert_allclose(second.to_host().astype(np.float64), wanted[1], rtol=1.6e-2)


def test_of_no_elements_statistics_are_undefined_and_gradients_zero():
    x, weight = to_device(np.empty((0, 2, 3), np.float32)), to_device(np.ones(2, np.float32))
    places, dims = (0, 2, 1, 3), (0, 2, 3)
    out, mean, rstd = channel_norm.normalize(x, weight, None, places, dims, 0.1, (None, None), 0.0)
    assert out.shape == x.shape and np.isnan(mean.to_host()).all() and np.isnan(rstd.to_host()).all()
    _, *by_parameters = channel_norm.gradients(x, x, weight, mean, rstd, places, dims)
    assert [part.to_host().tolist() for part in by_parameters] == [[0, 0], [0, 0]]
