import numpy as np
import pytest

import spillgrad as sg
from spillgrad import nn
from spillgrad.errors import ArgumentError, ShapeError
from spillgrad.nn import functional as F

RNG = np.random.default_rng(0)
X = RNG.normal(size=(4, 3, 2, 5)).astype(np.float32) * 2 + 1
SHAPES = {1: (4, 3, 5), 2: (4, 3, 2, 5), 3: (4, 3, 2, 2, 5)}


def drawn(layer):
    with sg.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(sg.randn(*parameter.shape))
    return layer


@pytest.mark.parametrize("dims", SHAPES)
def test_batch_norm_uses_the_batch_in_training_and_its_statistics_afterwards(dims):
    layer = drawn(getattr(nn, f"BatchNorm{dims}d")(3))
    batches = [sg.randn(*SHAPES[dims]) * 3 + 1 for _ in range(3)]
    mean, variance = np.zeros(3), np.ones(3)
    axes = (0, *range(2, dims + 2))
    for x in batches:
        got = layer(x)
        expected = F.batch_norm(x, None, None, layer.weight, layer.bias, training=True)
        np.testing.assert_array_equal(got.numpy(), expected.numpy())
        mean = 0.9 * mean + 0.1 * x.numpy().mean(axes)
        variance = 0.9 * variance + 0.1 * x.numpy().var(axes, ddof=1)
    np.testing.assert_allclose(layer.running_mean.numpy(), mean, 1e-4)
    np.testing.assert_allclose(layer.running_var.numpy(), variance, 1e-4)
    assert layer.num_batches_tracked.item() == 3
    layer.eval()
    got = layer(batches[0])
    expected = F.batch_norm(batches[0], layer.running_mean, layer.running_var, layer.weight, layer.bias)
    np.testing.assert_array_equal(got.numpy(), expected.numpy())
    assert layer.num_batches_tracked.item() == 3


def test_without_momentum_the_statistics_are_those_of_all_batches():
    layer = nn.BatchNorm2d(3, momentum=None)
    for part in np.split(X, 2):
        layer(sg.tensor(part))
    means = [part.mean((0, 2, 3)) for part in np.split(X, 2)]
    np.testing.assert_allclose(layer.running_mean.numpy(), np.mean(means, 0), 1e-5)
    layer.reset_running_stats()
    assert (layer.running_var.tolist(), layer.num_batches_tracked.item()) == ([1] * 3, 0)


def test_without_statistics_evaluation_uses_the_batch():
    layer = nn.BatchNorm2d(3, affine=False, track_running_stats=False).eval()
    expected = F.batch_norm(sg.tensor(X), None, None, training=True)
    np.testing.assert_array_equal(layer(sg.tensor(X)).numpy(), expected.numpy())
    assert layer.state_dict() == {}
    assert layer.running_mean is None


def test_features_without_places_are_normalized():
    layer = nn.BatchNorm1d(3)
    assert abs(layer(sg.tensor(X[:, :, 0, 0])).mean(0)).max().item() < 1e-6


@pytest.mark.parametrize("dims", SHAPES)
def test_instance_norm_uses_each_sample_and_may_track(dims):
    make = getattr(nn, f"InstanceNorm{dims}d")
    x = sg.randn(*SHAPES[dims])
    plain = make(3)
    assert list(plain.state_dict()) == []
    np.testing.assert_array_equal(plain(x).numpy(), F.instance_norm(x).numpy())
    np.testing.assert_allclose(plain(x[0]).numpy(), plain(x).numpy()[0], 1e-5, 1e-6)
    layer = drawn(make(3, affine=True, track_running_stats=True))
    layer(x)
    axes = tuple(range(2, dims + 2))
    np.testing.assert_allclose(layer.running_mean.numpy(), 0.1 * x.numpy().mean((0, *axes)), 1e-4, 1e-6)
    layer.eval()
    expected = F.instance_norm(x, layer.running_mean, layer.running_var, layer.weight, layer.bias, False)
    np.testing.assert_array_equal(layer(x).numpy(), expected.numpy())


def test_state_has_pytorchs_names_and_survives_loading():
    source, target = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
    source(sg.tensor(X))
    assert list(source.state_dict()) == ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    target.load_state_dict(source.state_dict())
    assert target.num_batches_tracked.item() == 1
    np.testing.assert_array_equal(target.running_var.numpy(), source.running_var.numpy())
    half = source.half()
    assert (half.running_mean.dtype, half.num_batches_tracked.dtype) == (sg.float16, sg.int64)


def test_parameters_may_lack_a_bias():
    for layer in (nn.BatchNorm1d(3, bias=False), nn.GroupNorm(3, 3, bias=False)):
        assert [name for name, _ in layer.named_parameters()] == ["weight"]
        assert layer(sg.tensor(X[:, :, 0])).shape == (4, 3, 5)


@pytest.mark.parametrize(
    ("make", "shown"),
    [
        (
            lambda: nn.BatchNorm2d(3, momentum=None),
            "BatchNorm2d(3, eps=1e-05, momentum=None, affine=True, bias=True, track_running_stats=True)",
        ),
        (
            lambda: nn.InstanceNorm1d(3),
            "InstanceNorm1d(3, eps=1e-05, momentum=0.1, affine=False, bias=False, track_running_stats=False)",
        ),
    ],
)
def test_the_representation_is_pytorchs(make, shown):
    assert repr(make()) == shown


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: nn.BatchNorm1d(3)(sg.zeros(1, 3, 2, 2)), ShapeError, r"expected 2D or 3D input \(got 4D input\)"),
        (lambda: nn.BatchNorm2d(3)(sg.zeros(2, 3)), ShapeError, r"expected 4D input \(got 2D input\)"),
        (lambda: nn.BatchNorm2d(3)(sg.zeros(2, 4, 2, 2)), ShapeError, "one number for each of 4 channels"),
        (lambda: nn.InstanceNorm2d(3)(sg.zeros(2, 4, 2, 2)), ShapeError, r"match num_features \(3\)"),
        (lambda: nn.InstanceNorm2d(3)(sg.zeros(2, 2)), ShapeError, r"expected 3D or 4D input \(got 2D input\)"),
        (lambda: nn.GroupNorm(2, 3), ArgumentError, r"num_channels \(3\) must be divisible by num_groups \(2\)"),
    ],
)
def test_what_does_not_fit_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
