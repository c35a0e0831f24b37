"""Optimizer updates against PyTorch's documented algorithms, written in NumPy and float64."""

import numpy as np
import pytest

from spillgrad_kernels.cpu import optim

DTYPES = (np.float32, np.float64)
SIZES = [(0,), (1,), (7, 3), (4099,), (60_001,)]


def adam(param, grad, m, v, lr, beta1, beta2, eps, weight_decay, step, decoupled):
    if decoupled:
        param = param * (1 - lr * weight_decay)
    else:
        grad = grad + weight_decay * param
    m, v = beta1 * m + (1 - beta1) * grad, beta2 * v + (1 - beta2) * grad**2
    denominator = np.sqrt(v / (1 - beta2**step)) + eps
    return param - lr * (m / (1 - beta1**step)) / denominator, m, v


def sgd(param, grad, buffer, lr, momentum, dampening, weight_decay, nesterov, first_step):
    grad = grad + weight_decay * param
    if buffer is not None:
        buffer = grad if first_step else momentum * buffer + (1 - dampening) * grad
        grad = grad + momentum * buffer if nesterov else buffer
    return param - lr * grad, buffer


def draw(shape, dtype, seed):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("name", ["adam", "adamw"])
@pytest.mark.parametrize("shape", SIZES)
def test_adam_follows_its_definition_over_several_steps(shape, name, weight_decay, dtype):
    state = [draw(shape, dtype, 0), np.zeros(shape, dtype), np.zeros(shape, dtype)]
    expected = [part.astype(np.float64) for part in state]
    for step in range(1, 5):
        grad, settings = draw(shape, dtype, step), (0.01, 0.9, 0.999, 1e-8, weight_decay, step)
        optim.run([getattr(optim, name)(state[0], grad, *state[1:], *settings)])
        expected = adam(expected[0], grad.astype(np.float64), *expected[1:], *settings, name == "adamw")
    for part, reference in zip(state, expected, strict=True):
        np.testing.assert_allclose(part, reference, rtol=1e-5 if dtype == np.float32 else 1e-12, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize(
    ("momentum", "dampening", "nesterov"), [(None, 0.0, False), (0.9, 0.0, False), (0.9, 0.3, False), (0.9, 0.0, True)]
)
def test_sgd_follows_its_definition_over_several_steps(momentum, dampening, nesterov, weight_decay, dtype):
    param = draw((7, 11), dtype, 0)
    buffer = None if momentum is None else np.full((7, 11), np.nan, dtype)  # the first step must not read it
    wide, wide_buffer = param.astype(np.float64), buffer
    for step in range(4):
        grad, settings = (
            draw((7, 11), dtype, step + 1),
            (0.01, momentum or 0.0, dampening, weight_decay, nesterov, step == 0),
        )
        optim.run([optim.sgd(param, grad, buffer, *settings)])
        wide, wide_buffer = sgd(wide, grad.astype(np.float64), wide_buffer, *settings)
    np.testing.assert_allclose(param, wide, rtol=1e-5, atol=1e-6)
    if buffer is not None:
        np.testing.assert_allclose(buffer, wide_buffer, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SIZES)
def test_lion_follows_its_definition_over_several_steps(shape, dtype):
    param, momentum = draw(shape, dtype, 0), np.zeros(shape, dtype)
    wide, wide_momentum = param.astype(np.float64), momentum.astype(np.float64)
    for step in range(1, 5):
        grad = draw(shape, dtype, step)
        optim.run([optim.lion(param, grad, momentum, 0.01, 0.9, 0.99, 0.1)])
        change = np.sign(0.9 * wide_momentum + 0.1 * grad)
        wide = wide * (1 - 0.01 * 0.1) - 0.01 * change
        wide_momentum = 0.99 * wide_momentum + 0.01 * grad
    np.testing.assert_allclose(momentum, wide_momentum, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(param, wide, rtol=1e-5, atol=1e-6)


def test_lion_stands_still_where_nothing_ever_pulled_and_keeps_nan():
    param, grad = np.ones(3), np.array([0.0, np.nan, -2.0])
    optim.run([optim.lion(param, grad, np.zeros(3), 0.5, 0.9, 0.99, 0.0)])
    np.testing.assert_array_equal(param, [1.0, np.nan, 1.5])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SIZES)
def test_the_sum_of_squares_agrees_with_numpy(shape, dtype):
    a = draw(shape, dtype, 0)
    (result,) = optim.sums_of_squares([a])
    assert isinstance(result, float)
    np.testing.assert_allclose(result, (a.astype(np.float64) ** 2).sum(), rtol=1e-14)


def test_the_sum_of_squares_does_not_overflow_float32():
    large, nan, infinite = optim.sums_of_squares(
        [np.full(5000, 1e30, np.float32), np.array([1, np.nan], np.float32), np.array([1, -np.inf], np.float32)]
    )
    np.testing.assert_allclose(large, 5e63, rtol=1e-6)
    assert np.isnan(nan)
    assert infinite == np.inf


def test_gradients_may_have_any_strides():
    grad, param, same = draw((5, 6), np.float64, 0).T, draw((6, 5), np.float64, 1), draw((6, 5), np.float64, 1)
    optim.run([optim.sgd(param, grad, None, 0.1, 0.0, 0.0, 0.0, False, False)])
    np.testing.assert_allclose(param, same - 0.1 * grad)
    np.testing.assert_allclose(optim.sums_of_squares([grad]), [(grad**2).sum()])


def test_an_update_of_memory_that_is_not_contiguous_is_refused():
    a, b = np.ones((4, 3)).T, np.ones((3, 4))
    for who, call in (
        ("sgd", lambda: optim.sgd(a, b, None, 0.1, 0.0, 0.0, 0.0, False, False)),
        ("sgd", lambda: optim.sgd(b, b, a, 0.1, 0.9, 0.0, 0.0, False, False)),
        ("adamw", lambda: optim.adamw(b, b, b.copy(), a, 0.1, 0.9, 0.99, 1e-8, 0.0, 1)),
        ("lion", lambda: optim.lion(b, b, a, 0.1, 0.9, 0.99, 0.0)),
        ("adam", lambda: optim.adam(a, b, b.copy(), b.copy(), 0.1, 0.9, 0.99, 1e-8, 0.0, 1)),
    ):
        with pytest.raises(ValueError, match=f"{who}: got an array of shape .* needs contiguous memory"):
            call()
    np.testing.assert_array_equal(b, 1)


def test_numbers_of_numpy_are_no_parameters_but_may_be_gradients():
    param = np.ones(())
    optim.run([optim.sgd(param, np.float64(2), None, 0.25, 0.0, 0.0, 0.0, False, False)])
    assert param == 0.5
    with pytest.raises(ValueError, match=r"sgd: got an array of shape .* may be written to"):
        optim.sgd(np.float64(1), np.float64(2), None, 0.25, 0.0, 0.0, 0.0, False, False)


def test_state_of_another_shape_is_refused():
    a, b = np.ones((4, 3)), np.ones((3, 4))
    with pytest.raises(ValueError, match=r"adamw: got shapes \(4, 3\), \(4, 3\), \(3, 4\), \(4, 3\)"):
        optim.adamw(a, a.copy(), b, a.copy(), 0.1, 0.9, 0.99, 1e-8, 0.0, 1)
    with pytest.raises(ValueError, match=r"sgd: got shapes \(4, 3\), \(4, 3\), \(3, 4\)"):
        optim.sgd(a, a.copy(), b, 0.1, 0.9, 0.0, 0.0, False, False)
    np.testing.assert_array_equal(a, 1)


def test_a_nan_gradient_reaches_its_parameter_only():
    param, grad = np.ones(100, np.float32), np.ones(100, np.float32)
    grad[42] = np.nan
    zeros = [np.zeros(100, np.float32) for _ in range(2)]
    optim.run([optim.adamw(param, grad, *zeros, 0.1, 0.9, 0.99, 1e-8, 0.1, 1)])
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(param)), [42])


def test_threads_change_no_bit(assert_same_on_any_number_of_threads):
    grad = draw(300_001, np.float32, 1)

    def one_step():
        param, m, v, buffer = (draw(300_001, np.float32, seed) ** 2 for seed in (2, 3, 4, 5))
        optim.run([optim.adamw(param, grad, m, v, 0.01, 0.9, 0.99, 1e-8, 0.1, 2)])
        optim.run([optim.sgd(param, grad, buffer, 0.01, 0.9, 0.1, 0.1, True, False)])
        optim.run([optim.lion(param, grad, buffer, 0.01, 0.9, 0.99, 0.1)])
        return param, m, v, buffer, *optim.sums_of_squares([param])

    assert_same_on_any_number_of_threads(one_step)


@pytest.mark.parametrize("dtype", DTYPES)
def test_many_parameters_at_once_get_the_bits_each_gets_alone(dtype):
    shapes = [(3,), (0,), (4096,), (5, 1000), (1,), (4097,), (20_000,), ()]

    def parts():
        return [[np.asarray(draw(shape, dtype, seed) ** 2) for seed in range(4)] for shape in shapes]

    def updates(arrays):
        for step, (param, grad, first, second) in enumerate(arrays, 1):
            yield optim.adamw(param, grad, first, second, 0.01, 0.9, 0.99, 1e-8, 0.1, step)

    together, alone = parts(), parts()
    optim.run(updates(together))
    for update in updates(alone):
        optim.run([update])
    for both in zip(together, alone, strict=True):
        for one, other in zip(*both, strict=True):
            np.testing.assert_array_equal(one, other)
    together, alone = parts(), parts()
    optim.run(optim.lion(*three, 0.1, 0.9, 0.99, 0.1) for *three, _ in together)
    optim.run(optim.sgd(*three, 0.1, 0.9, 0.0, 0.1, True, i % 2 == 0) for i, (*three, _) in enumerate(together))
    for i, (*three, _) in enumerate(alone):
        optim.run([optim.lion(*three, 0.1, 0.9, 0.99, 0.1)])
        optim.run([optim.sgd(*three, 0.1, 0.9, 0.0, 0.1, True, i % 2 == 0)])
    for both in zip(together, alone, strict=True):
        for one, other in zip(*both, strict=True):
            np.testing.assert_array_equal(one, other)
