"""Paddle's `nn.Layer`, beyond what `tests/peers/programs/paddle_layers.py` compares."""

import pytest

import spillgrad as sg
from spillgrad import nn
from spillgrad.errors import ArgumentError


class Net(nn.Layer):
    def __init__(self):
        super().__init__(name_scope="net", dtype="float64")
        self.weight = self.create_parameter([4, 3])
        self.inner = nn.Linear(3, 2)

    def forward(self, x):
        return x


def test_created_parameters_have_the_layers_dtype_and_glorots_bounds():
    weight = Net().weight
    assert weight.dtype == sg.float64
    assert 0 < float(weight.detach().abs().max()) <= (6 / 7) ** 0.5


def test_layers_and_modules_hold_each_other():
    model = nn.Sequential(Net())
    assert [name for name, _ in model.named_parameters()] == ["0.weight", "0.inner.weight", "0.inner.bias"]
    for word in ("include_sublayers", "recurse"):
        assert len(model[0].parameters(**{word: False})) == 1
        assert model[0].buffers(**{word: False}) == []
    assert [type(layer).__name__ for layer in model[0].sublayers()] == ["Linear"]


def test_attributes_of_parameters_are_refused_by_name():
    with pytest.raises(ArgumentError, match="give default_initializer"):
        nn.Layer().create_parameter([2], attr="w")


def test_full_names_differ_within_a_scope():
    first, second = Net().full_name(), Net().full_name()
    assert first != second and first.startswith("net_") and second.startswith("net_")
