"""Draws: their distribution within five standard errors, their repetition, and what is refused."""

import math

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import ArgumentError, DtypeError, ShapeError
from spillgrad.nn import functional as F

COUNT = 20_000

P = sg.tensor([0.3]).expand(COUNT)
# name: draws, their mean and standard deviation.
DRAWS = {
    "bernoulli": (lambda: sg.bernoulli(P), 0.3, math.sqrt(0.21)),
    "bernoulli_": (lambda: sg.empty(COUNT).bernoulli_(0.3), 0.3, math.sqrt(0.21)),
    "normal": (lambda: sg.normal(2.0, 3.0, (COUNT,)), 2, 3),
    "normal of tensors": (lambda: sg.normal(sg.full((COUNT,), 2.0), sg.tensor([3.0])), 2, 3),
    "poisson": (lambda: sg.poisson(sg.full((COUNT,), 4.0)), 4, 2),
    "exponential_": (lambda: sg.empty(COUNT).exponential_(2.0), 0.5, 0.5),
    "geometric_": (lambda: sg.empty(COUNT).geometric_(0.25), 4, math.sqrt(12)),
    "log_normal_": (lambda: sg.empty(COUNT).log_normal_(0.0, 0.5).log(), 0, 0.5),
    "cauchy_": (lambda: sg.empty(COUNT).cauchy_(1.0, 2.0).sub_(1.0).div_(2.0).atan_(), 0, math.pi / math.sqrt(12)),
    "random_": (lambda: sg.empty(COUNT).random_(10), 4.5, math.sqrt(99 / 12)),
    "randint_like": (lambda: sg.randint_like(sg.zeros(COUNT), 2, 12), 6.5, math.sqrt(99 / 12)),
    "multinomial": (lambda: sg.multinomial(sg.tensor([1.0, 0.0, 3.0]), COUNT, True).float(), 1.5, math.sqrt(0.75)),
}


@pytest.mark.parametrize(("draw", "mean", "std"), DRAWS.values(), ids=DRAWS)
def test_draws_have_their_distributions_mean_and_spread_and_can_be_repeated(draw, mean, std):
    sg.manual_seed(1)
    draws = draw()
    a = draws.numpy().astype(np.float64)
    assert abs(a.mean() - mean) < 5 * std / math.sqrt(COUNT)
    assert abs(a.std() - std) < 0.1 * std
    sg.manual_seed(1)
    np.testing.assert_array_equal(draw().numpy(), draws.numpy())


def test_samples_without_replacement_are_different_and_weights_of_0_never_drawn():
    weights = sg.tensor([[1.0, 2.0, 0.0, 4.0], [1.0, 1.0, 1.0, 0.0]])
    for _ in range(20):
        rows = sg.multinomial(weights, 3).tolist()
        assert sorted(rows[0]) == [0, 1, 3]
        assert sorted(rows[1]) == [0, 1, 2]
    firsts = sg.multinomial(sg.tensor([1.0, 3.0]).expand(COUNT, 2), 1).float().mean().item()
    assert abs(firsts - 0.75) < 0.02


def test_gumbel_softmax_draws_with_the_probabilities_of_its_logits():
    logits = sg.tensor([0.1, 0.6, 0.3]).log().expand(COUNT, 3).clone().requires_grad_()
    hard = F.gumbel_softmax(logits, hard=True)
    np.testing.assert_allclose(hard.detach().numpy().mean(0), [0.1, 0.6, 0.3], atol=0.02)
    assert set(np.unique(hard.detach().numpy().round(6))) == {0, 1}
    (hard * sg.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert logits.grad.abs().sum().item() > 0
    np.testing.assert_allclose(logits.grad.sum(1).numpy(), 0, atol=1e-5)
    np.testing.assert_allclose(F.gumbel_softmax(logits.detach(), 0.5).sum(1).numpy(), 1, 1e-5)


@pytest.mark.parametrize(
    ("dropped", "shape", "channels"),
    [
        (F.dropout1d, (40, 50, 3), 2), (F.dropout1d, (50, 3), 1), (F.dropout2d, (40, 50, 2, 2), 2),
        (F.dropout2d, (40, 50, 3), 2), (F.dropout3d, (40, 50, 2, 1, 2), 2), (F.dropout3d, (50, 2, 1, 2), 1),
    ],
)  # fmt: skip
def test_whole_channels_are_dropped(dropped, shape, channels):
    sg.manual_seed(0)
    result = dropped(sg.ones(*shape), 0.25)
    rows = result.numpy().reshape(int(np.prod(shape[:channels])), -1)
    assert (rows == rows[:, :1]).all()
    assert set(np.unique(rows)) == {np.float32(0), np.float32(1 / 0.75)}
    x = sg.ones(*shape)
    assert dropped(x, 0.25, training=False) is x
    assert dropped(x, 0.25, inplace=True) is x
    assert (x == 0).any()


@pytest.mark.parametrize("dropped", [F.alpha_dropout, F.feature_alpha_dropout])
def test_alpha_dropout_keeps_mean_and_variance(dropped):
    sg.manual_seed(0)
    x = sg.randn(200, 300)
    result = dropped(x, 0.3, training=True)
    assert abs(result.mean().item()) < 0.03
    assert abs(result.std().item() - 1) < 0.03
    assert dropped(x, 0.3) is x
    assert not dropped(x, 1.0, training=True).any()


def test_rrelu_draws_a_slope_for_each_negative_element():
    sg.manual_seed(0)
    x = sg.full((1000,), -1.0).requires_grad_()
    y = F.rrelu(x, 0.1, 0.5, training=True)
    slopes = -y.detach().numpy()
    assert slopes.min() >= 0.1
    assert slopes.max() <= 0.5
    assert slopes.std() > 0.1
    y.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), slopes)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: sg.bernoulli(sg.tensor([1.5])), ArgumentError, "wanted probabilities"),
        (lambda: sg.bernoulli(sg.tensor([1])), DtypeError, "bernoulli: got a tensor of int64"),
        (lambda: sg.multinomial(sg.tensor([-1.0, 2.0]), 1), ArgumentError, "either inf, nan or an element < 0"),
        (lambda: sg.multinomial(sg.zeros(2), 1), ArgumentError, "a row of zeros"),
        (lambda: sg.multinomial(sg.ones(2), 3), ArgumentError, "cannot sample 3 indices without replacement"),
        (lambda: sg.multinomial(sg.ones(2, 2, 2), 1), ShapeError, r"wanted \(n,\) or \(m, n\)"),
        (lambda: sg.normal(0.0, -1.0, (2,)), ArgumentError, "got a negative std"),
        (lambda: sg.normal(0.0, 1.0), ArgumentError, "no size"),
        (lambda: sg.normal(sg.zeros(2), 1.0, (2,)), ArgumentError, "got a size and a tensor"),
        (lambda: sg.zeros(2).exponential_(0.0), ArgumentError, "exponential_: got lambd=0.0"),
        (lambda: sg.zeros(2).geometric_(1.0), ArgumentError, "geometric_: got p=1.0"),
        (lambda: F.dropout2d(sg.ones(2)), ShapeError, r"dropout2d: got a tensor of shape \(2,\); wanted 3 or 4"),
        (lambda: F.alpha_dropout(sg.ones(2), 2.0), ArgumentError, "alpha_dropout: got p=2.0"),
    ],
)
def test_errors_say_what_was_given_and_what_is_wanted(call, error, message):
    with pytest.raises(error, match=message):
        call()
