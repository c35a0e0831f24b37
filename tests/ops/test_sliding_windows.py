"""Windows as views: changes in place of what they look at, and of themselves."""

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import ArgumentError, GraphError, ShapeError
from spillgrad.nn import functional as F
from spillgrad.ops.inplace import repeats_places
from tests.ops.checks import check_gradients


def test_windows_are_a_view():
    x = sg.arange(6)
    windows = x.unfold(0, 3, 1)
    assert windows.tolist() == [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]]
    x[2] = 9
    assert windows.tolist()[:2] == [[0, 1, 9], [1, 9, 3]]
    assert sg.tensor(5.0).unfold(0, 1, 1).tolist() == [[5.0]]


def test_windows_over_a_tensor_that_changed_add_up_their_gradients():
    def through_a_change(x):
        base = x * 1
        windows = base.unfold(0, 3, 1)
        base.mul_(2)
        return windows * windows

    check_gradients(through_a_change, np.arange(1.0, 6.0))


def test_windows_that_share_elements_cannot_be_changed_and_others_can():
    x = sg.zeros(6)
    with pytest.raises(GraphError, match="more than one element of the expanded tensor refers to one memory location"):
        x.unfold(0, 3, 1).add_(1)
    x.unfold(0, 2, 3).add_(1)
    assert x.tolist() == [1, 1, 0, 1, 1, 0]
    check_gradients(lambda x: [y := x * 1, y.unfold(0, 2, 3).mul_(3), y * y][2], np.arange(1.0, 7.0))


@pytest.mark.parametrize(
    ("shape", "strides", "repeats"),
    [
        ((2, 3), (3, 1), False), ((3, 2), (1, 3), False), ((2, 3), (0, 1), True), ((1, 3), (0, 1), False),
        ((4, 3), (1, 1), True), ((3, 2), (2, 3), False), ((3, 3), (2, 3), False), ((4, 3), (2, 3), True),
        ((2, 3), (-3, 1), False), ((0, 3), (0, 0), False), ((), (), False),
    ],
)  # fmt: skip
def test_strides_repeat_places_or_not(shape, strides, repeats):
    places = np.array([sum(i * s for i, s in zip(index, strides, strict=True)) for index in np.ndindex(shape)])
    assert (np.unique(places).size < places.size) == repeats
    assert repeats_places(shape, strides) == repeats


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: sg.zeros(3).unfold(0, 4, 1), ArgumentError, "unfold: got size 4 and step 1; dimension 0"),
        (lambda: sg.zeros(3).unfold(0, 2, 0), ArgumentError, "the step is at least 1"),
        (lambda: F.unfold(sg.zeros(3, 3), 2), ShapeError, r"unfold: got a tensor of shape \(3, 3\)"),
        (lambda: F.unfold(sg.zeros(1, 3, 3), 4), ShapeError, "not one window fits"),
        (lambda: F.unfold(sg.zeros(1, 3, 3), (2, 2, 2)), ArgumentError, r"got kernel_size \(2, 2, 2\)"),
        (lambda: F.fold(sg.zeros(1, 4, 5), (3, 3), 2), ShapeError, r"fold: got a tensor of shape \(1, 4, 5\)"),
    ],
)
def test_errors_say_what_was_given_and_what_is_wanted(call, error, message):
    with pytest.raises(error, match=message):
        call()
