"""What ctc_loss does at the borders; its definition and derivatives are rows of test_composed."""

import math

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import ArgumentError, DimensionError, DtypeError, ShapeError
from spillgrad.nn import functional as F
from tests.ops.checks import leaf


def test_a_target_too_long_for_its_input_has_an_infinite_ctc_loss_or_none():
    scores = leaf(np.log(np.full((2, 1, 3), 1 / 3)))
    target = sg.tensor([[1, 1]])  # equal labels need a blank between them
    loss = F.ctc_loss(scores, target, (2,), (2,))
    assert loss.item() == math.inf
    loss.backward()
    assert not np.isfinite(scores.grad.numpy()).all()
    scores.grad = None
    loss = F.ctc_loss(scores, target, (2,), (2,), zero_infinity=True)
    assert loss.item() == 0
    loss.backward()
    assert not scores.grad.numpy().any()


def test_impossible_labels_do_not_spoil_the_ctc_loss_of_others():
    scores = leaf(np.where(np.arange(3) == 2, -np.inf, np.log(0.5)) * np.ones((3, 1, 1)))
    F.ctc_loss(scores, sg.tensor([[1]]), (3,), (1,), reduction="sum").backward()
    assert np.isfinite(scores.grad.numpy()).all()


def test_the_mean_of_ctc_losses_is_that_by_label():
    scores = sg.tensor(np.random.default_rng(0).normal(size=(5, 2, 4)))
    options = (sg.tensor([[1, 2, 3], [2, 0, 0]]), (5, 4), (3, 0))
    each = F.ctc_loss(scores, *options, reduction="none").numpy()
    assert F.ctc_loss(scores, *options).item() == pytest.approx((each[0] / 3 + each[1]) / 2)
    assert F.ctc_loss(scores, *options, reduction="sum").item() == pytest.approx(each.sum())


def test_half_precision_ctc_losses_are_computed_in_float32():
    scores = sg.tensor(np.random.default_rng(0).normal(size=(40, 1, 4))).log_softmax(-1)
    exact = F.ctc_loss(scores, sg.tensor([[1, 2]]), (40,), (2,)).item()
    rough = F.ctc_loss(scores.to("bfloat16"), sg.tensor([[1, 2]]), (40,), (2,))
    assert rough.dtype == sg.bfloat16
    assert rough.item() == pytest.approx(exact, rel=1e-2)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((sg.tensor([[1, 2]]), (4,), (2,)), ArgumentError, "Expected input_lengths to have value at most 3"),
        ((sg.tensor([[1, 3]]), (3,), (2,)), DimensionError, "got labels 1 to 3; 3 classes take 0 on"),
        ((sg.tensor([[1]]), (3,), (2,)), ShapeError, "as long as the longest"),
        ((sg.tensor([1, 2, 2]), (3,), (2,)), ShapeError, "or all labels in one: 2 of them"),
        ((sg.tensor([[1, 2]]), (3, 3), (2,)), ShapeError, "input_lengths must be of size batch_size"),
        ((sg.tensor([[1.0]]), (3,), (1,)), DtypeError, "wanted class indices"),
        ((sg.tensor([[1]]), (3,), (1,), 3), ArgumentError, "blank must be in label range"),
        ((sg.tensor([[1]]), (3,), (1,), 0, "all"), ArgumentError, "got reduction='all'"),
    ],
)
def test_what_ctc_loss_does_not_take_is_named(arguments, error, message):
    with pytest.raises(error, match=message):
        F.ctc_loss(sg.zeros(3, 1, 3), *arguments)
