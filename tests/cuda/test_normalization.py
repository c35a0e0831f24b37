"""Softmax and normalizations on a device, against the CPU's in float64."""

import ml_dtypes
import numpy as np
import pytest

from spillgrad_kernels.cpu import normalization as on_cpu
from spillgrad_kernels.cuda import normalization as on_device
from spillgrad_kernels.cuda.array import to_device

# The relative error by rounding a result, for half precision.
TOLERANCE = {np.float32: 3e-6, np.float64: 1e-13, np.float16: 2e-3, ml_dtypes.bfloat16: 1.6e-2}


def with_dtypes(cases, few):
    """Return all cases in float32, and the first few in every dtype."""
    return [(*case, np.float32) for case in cases[few:]] + [
        (*case, dtype) for case in cases[:few] for dtype in TOLERANCE
    ]


# Rows with one thread and with many, more rows than a block takes, with accesses of 16 bytes and of one element.
SHAPES_AND_AXES = with_dtypes([
    ((3, 64), 1), ((2, 17, 3), 1), ((5,), 0), ((3, 7), 0), ((2, 3, 33), -1), ((20, 9), 0), ((19, 4), 1), ((20, 2), 1),
    ((2, 40, 9), 1), ((0, 4), 1), ((4, 0), 1), ((2, 0, 3), 1),
], 2)  # fmt: skip
SHAPES = [(3, 64), (2, 3, 7), (1, 1), (20, 33), (0, 5), (5, 0)]


def draw(shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def both(name, *operands):
    """Return the results of the device, and those of the CPU in float64; arguments are arrays, numbers or None."""
    given = [to_device(x) if isinstance(x, np.ndarray) else x for x in operands]
    exact = [x.astype(np.float64) if isinstance(x, np.ndarray) else x for x in operands]
    results = [getattr(module, name)(*x) for module, x in ((on_device, given), (on_cpu, exact))]
    found, wanted = (result if isinstance(result, tuple) else (result,) for result in results)
    return [result.to_host() for result in found], wanted


def assert_agree(found, wanted, dtype, scale=1.0):
    assert len(found) == len(wanted)
    for result, expected in zip(found, wanted, strict=True):
        assert result.shape == expected.shape
        tolerance = scale * TOLERANCE[dtype]
        np.testing.assert_allclose(result.astype(np.float64), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("shape", "axis", "dtype"), SHAPES_AND_AXES)
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_a_softmax_and_its_gradient_agree_with_the_cpu_s(name, shape, axis, dtype):
    a, grad = draw(shape, dtype) * dtype(3), draw(shape, dtype, 1)
    found, wanted = both(name, a, axis)
    assert found[0].dtype == dtype
    assert_agree(found, wanted, dtype, 4)
    assert_agree(*both(f"{name}_backward", grad, found[0], axis), dtype, 8)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_a_softmax_of_masked_and_undefined_rows_is_the_cpu_s(name):
    a = draw((12, 20)) * 100
    a[0, 3:] = -np.inf
    a[1, :17] = -np.inf
    a[2] = -np.inf
    a[3, 7], a[4, 0], a[5, 19] = np.nan, np.nan, np.nan
    a[6, 3] = np.inf
    a[7] = np.finfo(np.float32).max
    a[8, ::2] = -np.finfo(np.float32).max
    a[9] += 1e7
    with np.errstate(invalid="ignore"):
        (found,), (wanted,) = both(name, a, 1)
    # Beside an infinite element, the CPU's result in float32 is 0 for finite elements; by the definition it is NaN.
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted) | (np.arange(12) == 6)[:, None])
    np.testing.assert_allclose(np.delete(found, 6, 0), np.delete(wanted, 6, 0), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("begin", [0, 1, 2, 4])
def test_any_strides_and_any_boundary_are_taken(begin):
    memory = draw((9, 80))
    for view in (lambda a: a[:, begin : begin + 64], lambda a: a[:, begin:64].T, lambda a: a[::-1, begin::2]):
        result = on_device.softmax(view(to_device(memory)), 1).to_host()
        assert_agree([result], [on_cpu.softmax(view(memory).astype(np.float64), 1)], np.float32)
    row = to_device(memory).reshape(720)[begin : begin + 64]
    wanted = on_cpu.softmax(memory.reshape(720)[begin : begin + 64].astype(np.float64), 0)
    assert_agree([on_device.softmax(row, 0).to_host()], [wanted], np.float32)


@pytest.mark.parametrize(("shape", "parameters", "dtype"), with_dtypes([
    ((3, 64), "weight and bias"), *[(shape, parameters) for shape in SHAPES for parameters in ("", "weight and bias")],
    ((5, 8), "bias"), ((5, 8), "weight"),
], 2))  # fmt: skip
def test_layer_norm_and_its_gradients_agree_with_the_cpu_s(shape, parameters, dtype):
    a, grad, n = draw(shape, dtype) * dtype(3) + dtype(2), draw(shape, dtype, 1), shape[-1]
    weight = draw(n, dtype, 2) if "weight" in parameters else None
    bias = draw(n, dtype, 3) if "bias" in parameters else None
    found, wanted = both("layer_norm", a, n, weight, bias, 1e-2)
    number = np.float64 if dtype == np.float64 else np.float32
    assert [result.dtype for result in found] == [dtype, number, number]
    assert_agree(found[:1], wanted[:1], dtype, 10)
    assert_agree(found[1:], wanted[1:], number, 10)
    found, wanted = both("layer_norm_backward", grad, a, weight, *found[1:])
    assert {result.dtype for result in found} == {np.dtype(dtype)}
    assert_agree(found, wanted, dtype, 20)


@pytest.mark.parametrize(("shape", "has_weight", "dtype"), with_dtypes(
    [(shape, has_weight) for shape in SHAPES for has_weight in (True, False)], 2,
))  # fmt: skip
def test_rms_norm_and_its_gradients_agree_with_the_cpu_s(shape, has_weight, dtype):
    a, grad, n = draw(shape, dtype) * dtype(3) + dtype(2), draw(shape, dtype, 1), shape[-1]
    weight = draw(n, dtype, 2) if has_weight else None
    found, wanted = both("rms_norm", a, n, weight, 1e-2)
    assert_agree(found[:1], wanted[:1], dtype, 10)
    assert_agree(*both("rms_norm_backward", grad, a, weight, found[1]), dtype, 20)


def test_parameters_of_another_dtype_are_taken():
    a, weight, bias = draw((5, 8), np.float16), draw(8, np.float32, 1), draw(8, np.float32, 2)
    assert_agree(*both("layer_norm", a, 8, weight, bias, 1e-2), np.float16, 4)


def test_parameter_gradients_over_many_parts_are_folded_in_turn(monkeypatch):
    monkeypatch.setattr(on_device, "_PARTIAL_ROWS", 2)
    monkeypatch.setattr(on_device, "_MAX_PARTIALS", 5)
    for rows in (3, 4, 11):  # with 11 rows, the last part is empty
        for n in (1, 5, 8):
            a, grad = draw((rows, n)), draw((rows, n), seed=1)
            _, mean, rstd = on_cpu.layer_norm(a, n, None, None, 1e-2)
            assert_agree(*both("layer_norm_backward", grad, a, None, mean, rstd), np.float32, 20)
            _, rms = on_cpu.rms_norm(a, n, None, 1e-2)
            assert_agree(*both("rms_norm_backward", grad, a, None, rms), np.float32, 20)


def test_the_variance_of_numbers_far_from_zero_is_that_of_their_deviations():
    a = draw((5, 100)) + np.float32(3e4)
    (out, _, rstd), (wanted, _, exact) = both("layer_norm", a, 100, None, None, 0.0)
    np.testing.assert_allclose(rstd, exact, rtol=1e-5)
    np.testing.assert_allclose(out, wanted, atol=5e-3)  # the mean itself is rounded to 2e-3


def test_a_constant_row_without_eps_has_no_scale():
    out, mean, rstd = (x.to_host() for x in on_device.layer_norm(to_device(np.full((1, 40), 3.0)), 40, None, None, 0.0))
    assert np.isnan(out).all() and mean[0] == 3 and rstd[0] == np.inf


def test_a_nan_stays_in_its_row():
    a = draw((3, 40))
    a[1, 22] = np.nan
    out, mean, rstd = (x.to_host() for x in on_device.layer_norm(to_device(a), 40, None, None, 1e-5))
    np.testing.assert_array_equal(np.isnan(out).all(1), [False, True, False])
    np.testing.assert_array_equal(np.isnan(out).any(1), [False, True, False])
    np.testing.assert_array_equal(np.isnan(mean) & np.isnan(rstd), [False, True, False])


def test_gradients_of_no_rows_are_zero():
    a, none = to_device(np.empty((0, 5))), to_device(np.empty(0))
    da, dweight, dbias = on_device.layer_norm_backward(a, a, to_device(np.ones(5)), none, none)
    assert da.shape == (0, 5)
    for gradient in (dweight, dbias, on_device.rms_norm_backward(a, a, to_device(np.ones(5)), none)[1]):
        np.testing.assert_array_equal(gradient.to_host(), np.zeros(5))
