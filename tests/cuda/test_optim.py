"""Optimizer updates on a device, against the CPU's kernels."""

import numpy as np
import pytest

from spillgrad_kernels.cpu import optim as host
from spillgrad_kernels.cuda import optim
from spillgrad_kernels.cuda.array import to_device
from spillgrad_kernels.cuda.driver import driver
from spillgrad_kernels.tables import optim as updates

UPDATES = {
    "adam": (2, (0.01, 0.9, 0.999, 1e-8, 0.1, 3)), "adamw": (2, (0.01, 0.9, 0.999, 1e-8, 0.1, 1)),
    "lion": (1, (0.01, 0.9, 0.99, 0.1)), "sgd": (0, (None, 0.01, 0.0, 0.0, 0.1, False, False)),
    "amsgrad": (3, (0.01, 0.9, 0.999, 1e-8, 0.1, True, 3)),
    "nadam": (2, (0.01, 0.9, 0.999, 1e-8, 0.1, False, 3, 0.8, 0.85, 0.5)),
    "radam": (2, (0.01, 0.9, 0.999, 1e-8, 0.1, False, 9)), "adamax": (2, (0.01, 0.9, 0.999, 1e-8, 0.1, 3)),
    "adagrad": (1, (0.01, 0.1, 0.1, 1e-8, 3)), "adadelta": (2, (0.1, 0.9, 1e-6, 0.1)),
    "asgd": (1, (0.1, 0.1, 0.01, 0.5)), "rprop": (2, (0.5, 1.2, 1e-3, 5.0)),
}  # fmt: skip
MOMENTUM = [
    (0.01, momentum, dampening, 0.1, nesterov, first_step)
    for momentum, dampening, nesterov in ((0.9, 0.0, False), (0.9, 0.3, False), (0.9, 0.0, True))
    for first_step in (True, False)
]


def draw(shape, dtype, seed):
    return np.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def assert_same_update(name, arrays, options, view=lambda a: a):
    """Return the results of the device and of the host, for views of the same memory."""
    on_device = [to_device(a) for a in arrays]
    on_host = [view(a).copy() for a in arrays]
    host.run([getattr(updates, name)(*on_host, *options)])
    optim.run([getattr(updates, name)(*[view(a) for a in on_device], *options)])
    near = 1e-5 if arrays[0].dtype == np.float32 else 1e-13
    for found, wanted in zip(on_device, on_host, strict=True):
        np.testing.assert_allclose(view(found).to_host(), wanted, rtol=near, atol=near)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (7, 3), (4, 8), (203,)])
@pytest.mark.parametrize("name", UPDATES)
def test_an_update_is_the_cpu_s(name, shape, dtype):
    states, options = UPDATES[name]
    arrays = [draw(shape, dtype, seed) for seed in range(2 + states)]
    assert_same_update(name, [*arrays[:2], *[np.abs(array, out=array) for array in arrays[2:]]], options)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("options", MOMENTUM)
def test_momentum_is_the_cpu_s(options, dtype):
    buffer = np.full((5, 4), np.nan, dtype) if options[-1] else draw((5, 4), dtype, 2)
    assert_same_update("sgd", [draw((5, 4), dtype, 0), draw((5, 4), dtype, 1), buffer], options)


@pytest.mark.parametrize("name", ["adamw", "lion"])
def test_an_update_keeps_to_its_elements_in_any_layout(name):
    states, options = UPDATES[name]
    arrays = [draw((6, 8), np.float32, seed) ** 2 for seed in range(2 + states)]
    for view in (lambda a: a.T, lambda a: a[1:5, 2:6], lambda a: a[::-2, ::3]):
        assert_same_update(name, arrays, options, view)
    param = to_device(arrays[0])
    optim.run([optim.scaled(param[1:3, 2:4], 0.5)])
    wanted = arrays[0].copy()
    wanted[1:3, 2:4] *= np.float32(0.5)
    assert np.array_equal(param.to_host(), wanted)


SEVERAL = [(3, 5), (40,), (), (0,), (64,), (41,), (4, 4), (1,)]


@pytest.mark.parametrize(
    "name, options", [*[(name, options) for name, (_, options) in UPDATES.items()], ("sgd", MOMENTUM[0])]
)
def test_many_parameters_are_updated_in_a_launch_for_each_access_and_number(name, options, monkeypatch):
    monkeypatch.setattr(optim, "_PART_ELEMENTS", 16)
    states = 1 if options == MOMENTUM[0] else UPDATES[name][0]
    host_updates, device_updates, arrays = [], [], []
    for turn, dtype in enumerate((np.float32, np.float64, np.float32)):
        own = (options[0] or 0.0) + turn // 2, *options[1:]  # another learning rate
        if name == "sgd" and states == 0:
            own = (None, own[1] + turn // 2, *own[2:])
        for shape in SEVERAL:
            given = [np.asarray(np.abs(draw(shape, dtype, seed))) for seed in range(2 + states)]
            there = [to_device(a) for a in given]
            host_updates.append(getattr(updates, name)(*given, *own))
            device_updates.append(getattr(updates, name)(*there, *own))
            arrays += zip(there, given, strict=True)
    alone = []
    monkeypatch.setattr(optim, "_run_alone", alone.append)
    optim.run(device_updates)
    host.run(host_updates)
    assert alone == []
    for found, wanted in arrays:
        np.testing.assert_allclose(found.to_host(), wanted, rtol=1e-5, atol=1e-6)


def test_a_nan_gradient_reaches_its_parameter_only():
    grad = np.ones(100, np.float32)
    grad[42] = np.nan
    param, *state = (to_device(np.full(100, value, np.float32)) for value in (1, 0, 0))
    optim.run([optim.adamw(param, to_device(grad), *state, 0.1, 0.9, 0.99, 1e-8, 0.1, 1)])
    assert np.array_equal(np.flatnonzero(np.isnan(param.to_host())), [42])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_of_squares_agree_with_numpy(dtype, monkeypatch):
    monkeypatch.setattr(optim, "_PART_ELEMENTS", 40)
    arrays = [draw(shape, dtype, 0) for shape in ((), (0,), (3, 5), (40,), (41,), (130,), *[(1,)] * 12)]
    found = optim.sums_of_squares([*map(to_device, arrays), to_device(arrays[2]).T])
    wanted = [(a.astype(np.float64) ** 2).sum() for a in (*arrays, arrays[2])]
    assert all(isinstance(total, float) for total in found)
    np.testing.assert_allclose(found, wanted, rtol=1e-14)
    assert optim.sums_of_squares([]) == []


def test_the_sum_of_squares_does_not_overflow_float32():
    a = [np.full(50, 1e30, np.float32), np.array([1, np.nan], np.float32), np.array([1, -np.inf], np.float32)]
    large, nan, infinite = optim.sums_of_squares([*map(to_device, a)])
    np.testing.assert_allclose(large, 5e61, rtol=1e-6)
    assert np.isnan(nan)
    assert infinite == np.inf


def test_sums_follow_what_arrays_hold_and_where_they_lie():
    a = to_device(np.ones(50, np.float32))
    assert optim.sums_of_squares([a]) == [50]
    optim.run([optim.scaled(a, 2)])
    assert optim.sums_of_squares([a]) == [200]
    assert optim.sums_of_squares([a[:10], a]) == [40, 200]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("max_norm", [0.5, 100.0])
def test_gradients_are_clipped_without_waiting(max_norm, dtype, monkeypatch):
    arrays = [draw(shape, dtype, 0) for shape in ((3, 5), (40,))]
    grads = [to_device(a) for a in arrays]
    with monkeypatch.context() as patch:
        patch.setattr(driver, "copy_to_host", None)  # any wait would call it
        patch.setattr(driver, "copy_to_device", None)
        norm, factor = optim.clipping(optim.squares_on_device(grads), max_norm, dtype)
        optim.run(optim.scaled(grad, factor) for grad in grads)
    wanted = np.sqrt(sum((a.astype(np.float64) ** 2).sum() for a in arrays))
    np.testing.assert_allclose(norm.to_host(), wanted, rtol=1e-14)
    by = min(1, max_norm / (wanted + 1e-6))
    for grad, a in zip(grads, arrays, strict=True):
        np.testing.assert_allclose(grad.to_host(), a * dtype(by), rtol=1e-6)
    assert by < 1 or all(np.array_equal(grad.to_host(), a) for grad, a in zip(grads, arrays, strict=True))


def test_an_undefined_norm_reaches_the_gradients():
    grad = to_device(np.array([1, np.nan, 2], np.float32))
    norm, factor = optim.clipping(optim.squares_on_device([grad]), 1.0, np.float32)
    optim.run([optim.scaled(grad, factor)])
    assert np.isnan(norm.to_host()) and np.isnan(grad.to_host()).all()


def test_arrays_that_do_not_fit_are_refused():
    a, b, half = to_device(np.ones((4, 3))), to_device(np.ones((3, 4))), to_device(np.ones((4, 3), np.float16))
    with pytest.raises(ValueError, match=r"adamw: got shapes \(4, 3\), \(4, 3\), \(3, 4\), \(4, 3\)"):
        optim.adamw(a, a, b, a, 0.1, 0.9, 0.99, 1e-8, 0.0, 1)
    with pytest.raises(TypeError, match=r"sgd: got float16, float16; .* must all be float32"):
        optim.sgd(half, half, None, 0.1, 0.0, 0.0, 0.0, False, False)
    for arrays in ((a, np.ones((4, 3))), (np.ones((4, 3)), a)):
        with pytest.raises(ValueError, match=r"sgd: got arrays of the host and of a device; .* move them"):
            optim.sgd(*arrays, None, 0.1, 0.0, 0.0, 0.0, False, False)
    with pytest.raises(TypeError, match="sums_of_squares: got float16, float64"):
        optim.sums_of_squares([a, half])
