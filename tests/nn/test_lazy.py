"""Lazy modules, beyond what `tests/peers/programs/lazy_modules.py` compares with PyTorch."""

import copy
import pickle

import numpy as np
import pytest

import spillgrad as sg
from spillgrad import nn
from spillgrad.errors import ArgumentError
from spillgrad.nn.modules.lazy import LazyModuleMixin


def test_a_pickled_lazy_layer_keeps_its_dtype():
    layer = pickle.loads(pickle.dumps(nn.LazyLinear(3).double()))
    assert layer(sg.ones(2, 4, dtype="float64")).dtype == sg.float64


def test_a_loaded_layer_knows_its_size():
    norm = nn.LazyInstanceNorm1d()
    known = nn.InstanceNorm1d(4, affine=True, track_running_stats=True)
    norm.load_state_dict(known.state_dict())
    assert norm(sg.ones(4, 5)).shape == (4, 5)
    assert repr(norm) == repr(known)


def test_the_signature_is_the_layers_without_the_size():
    with pytest.raises(TypeError):
        nn.LazyConv2d(out_channels=4, kernel_size=3, in_channels=2)
    layer = nn.LazyConv2d(out_channels=4, kernel_size=3)
    assert layer(sg.ones(1, 2, 5, 5)).shape == (1, 4, 3, 3)


def test_a_lazy_layer_starts_as_its_layer_does():
    sg.manual_seed(3)
    lazy = nn.LazyConv1d(4, 3)
    lazy(sg.ones(1, 2, 5))
    sg.manual_seed(3)
    layer = nn.Conv1d(2, 4, 3)
    np.testing.assert_array_equal(lazy.weight.numpy(), layer.weight.numpy())
    np.testing.assert_array_equal(lazy.bias.numpy(), layer.bias.numpy())


def test_an_optimizer_made_before_the_first_call_trains_the_parameters():
    layer = nn.LazyLinear(1)
    optimizer = sg.optim.SGD(layer.parameters(), lr=0.5)
    optimizer.step()
    layer(sg.ones(1, 2)).sum().backward()
    before = layer.weight.detach().clone()
    optimizer.step()
    np.testing.assert_allclose(layer.weight.detach().numpy(), before.numpy() - 0.5)


def test_assigning_memory_to_an_uninitialized_parameter_names_materialize():
    with pytest.raises(ArgumentError, match=r"materialize\(shape\)"):
        nn.UninitializedParameter().data = sg.ones(2)


def test_registered_buffers_and_parameters_may_be_without_shape():
    class Lazy(LazyModuleMixin, nn.Module):
        pass

    module = Lazy()
    module.count = nn.UninitializedBuffer()
    assert dict(module.named_buffers()).keys() == {"count"}
    assert module.has_uninitialized_params()
    assert copy.copy(module.count).dtype == module.count.dtype
