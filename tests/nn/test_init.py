import math

import numpy as np
import pytest

import spillgrad as sg
from spillgrad import nn
from spillgrad.errors import ArgumentError, ShapeError
from spillgrad.nn import init

SHAPE = (300, 200)  # 200 in, 300 out
# Initialiser, the bounds of its values (None: normal), their standard deviation.
DISTRIBUTIONS = [
    (lambda t: init.uniform_(t, -2.0, 6.0), (-2.0, 6.0), 8 / math.sqrt(12)),
    (lambda t: init.normal_(t, std=3.0), None, 3.0),
    (init.xavier_uniform_, (-math.sqrt(6 / 500), math.sqrt(6 / 500)), math.sqrt(2 / 500)),
    (lambda t: init.xavier_normal_(t, gain=2.0), None, 2 * math.sqrt(2 / 500)),
    (init.kaiming_uniform_, (-math.sqrt(6 / 200), math.sqrt(6 / 200)), math.sqrt(2 / 200)),
    (lambda t: init.kaiming_normal_(t, mode="fan_out", nonlinearity="relu"), None, math.sqrt(2 / 300)),
    (lambda t: init.kaiming_normal_(t, a=1.0), None, math.sqrt(1 / 200)),
]


@pytest.mark.parametrize(("fill", "bounds", "std"), DISTRIBUTIONS)
def test_values_follow_the_distribution(fill, bounds, std):
    sg.manual_seed(0)
    tensor = sg.zeros(*SHAPE)
    assert fill(tensor) is tensor
    values = tensor.numpy().astype(np.float64)
    assert values.std() == pytest.approx(std, rel=0.02)
    assert values.mean() == pytest.approx(0 if bounds is None else sum(bounds) / 2, abs=0.03 * std)
    if bounds is not None:
        assert bounds[0] <= values.min() < values.max() <= bounds[1]
        assert values.max() - values.min() > 0.99 * (bounds[1] - bounds[0])


def test_constants_fill():
    tensor = sg.empty(2)
    assert [init.ones_(tensor).tolist(), init.zeros_(tensor).tolist(), init.constant_(tensor, 7).tolist()] == [
        [1.0, 1.0],
        [0.0, 0.0],
        [7.0, 7.0],
    ]


def test_parameters_stay_leaves_and_the_seed_decides():
    sg.manual_seed(5)
    first = nn.Linear(3, 3)
    sg.manual_seed(5)
    second = nn.Linear(3, 3)
    assert first.weight.is_leaf
    assert first.weight.requires_grad
    assert first.weight.tolist() == second.weight.tolist()
    assert nn.Linear(3, 3).weight.tolist() != first.weight.tolist()


def test_layers_begin_as_pytorchs_do():
    sg.manual_seed(0)
    linear, table = nn.Linear(100, 400), nn.Embedding(300, 100)
    for tensor in (linear.weight, linear.bias):
        assert np.abs(tensor.numpy()).max() == pytest.approx(0.1, rel=0.02)
        assert np.abs(tensor.numpy()).max() <= 0.1
    assert table.weight.numpy().std() == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize("shape", [(3,), (), (0, 3)])
def test_fans_need_a_matrix(shape):
    with pytest.raises(ShapeError, match="two or more dimensions"):
        init.xavier_uniform_(sg.zeros(*shape) if shape else sg.tensor(0.0))


def test_unknown_options_are_refused():
    with pytest.raises(ArgumentError, match="sideways"):
        init.kaiming_normal_(sg.zeros(2, 2), mode="sideways")
    with pytest.raises(ArgumentError, match="cubic"):
        init.calculate_gain("cubic")
