import math

import numpy as np
import pytest

import spillgrad as sg
from spillgrad import nn
from spillgrad.errors import ArgumentError
from spillgrad.nn import functional as F

# Layer, input, the function it stands for, its representation.
LAYERS = [
    (
        lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2),
        (2, 4, 9, 8),
        lambda m, x: F.conv2d(x, m.weight, m.bias, 2, 1, 1, 2),
        "Conv2d(4, 6, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1), groups=2)",
    ),
    (
        lambda: nn.Conv2d(2, 3, (3, 2), padding="same", dilation=2, bias=False),
        (2, 2, 9, 8),
        lambda m, x: F.conv2d(x, m.weight, None, 1, "same", 2),
        "Conv2d(2, 3, kernel_size=(3, 2), stride=(1, 1), padding='same', dilation=(2, 2), bias=False)",
    ),
    (
        lambda: nn.Conv1d(2, 3, 3),
        (2, 2, 9),
        lambda m, x: F.conv1d(x, m.weight, m.bias),
        "Conv1d(2, 3, kernel_size=(3,), stride=(1,))",
    ),
    (
        lambda: nn.ConvTranspose2d(2, 4, 3, stride=2, padding=1, output_padding=1),
        (2, 2, 4, 5),
        lambda m, x: F.conv_transpose2d(x, m.weight, m.bias, 2, 1, 1),
        "ConvTranspose2d(2, 4, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1), output_padding=(1, 1))",
    ),
    (
        lambda: nn.MaxPool2d(3, 2, 1),
        (1, 2, 9, 8),
        lambda m, x: F.max_pool2d(x, 3, 2, 1),
        "MaxPool2d(kernel_size=3, stride=2, padding=1, dilation=1, ceil_mode=False)",
    ),
    (
        lambda: nn.MaxPool1d(2),
        (1, 2, 9),
        lambda m, x: F.max_pool1d(x, 2),
        "MaxPool1d(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False)",
    ),
    (
        lambda: nn.AvgPool2d(2, divisor_override=3),
        (1, 2, 9, 8),
        lambda m, x: F.avg_pool2d(x, 2, divisor_override=3),
        "AvgPool2d(kernel_size=2, stride=2, padding=0)",
    ),
    (
        lambda: nn.AvgPool1d(3, 2, 1, count_include_pad=False),
        (1, 2, 9),
        lambda m, x: F.avg_pool1d(x, 3, 2, 1, count_include_pad=False),
        "AvgPool1d(kernel_size=3, stride=2, padding=1)",
    ),
    (
        lambda: nn.AdaptiveAvgPool2d((2, 3)),
        (1, 2, 9, 8),
        lambda m, x: F.adaptive_avg_pool2d(x, (2, 3)),
        "AdaptiveAvgPool2d(output_size=(2, 3))",
    ),
    (
        lambda: nn.AdaptiveMaxPool2d(1),
        (1, 2, 9, 8),
        lambda m, x: F.adaptive_max_pool2d(x, 1),
        "AdaptiveMaxPool2d(output_size=1)",
    ),
    (
        lambda: nn.ConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2, dilation=2),
        (2, 4, 5),
        lambda m, x: F.conv_transpose1d(x, m.weight, m.bias, 2, 1, 1, 2, 2),
        "ConvTranspose1d(4, 6, kernel_size=(3,), stride=(2,), padding=(1,), output_padding=(1,), dilation=(2,), "
        "groups=2)",
    ),
    (
        lambda: nn.AdaptiveAvgPool1d(3),
        (2, 4, 8),
        lambda m, x: F.adaptive_avg_pool1d(x, 3),
        "AdaptiveAvgPool1d(output_size=3)",
    ),
    (
        lambda: nn.AdaptiveMaxPool1d(3),
        (2, 4, 8),
        lambda m, x: F.adaptive_max_pool1d(x, 3),
        "AdaptiveMaxPool1d(output_size=3)",
    ),
    (
        lambda: nn.LPPool2d(2, 3, stride=2),
        (2, 4, 8, 7),
        lambda m, x: F.lp_pool2d(x, 2, 3, 2),
        "LPPool2d(norm_type=2, kernel_size=3, stride=2, ceil_mode=False)",
    ),
    (
        lambda: nn.LPPool1d(2, 3),
        (2, 4, 8),
        lambda m, x: F.lp_pool1d(x, 2, 3),
        "LPPool1d(norm_type=2, kernel_size=3, stride=None, ceil_mode=False)",
    ),
    (
        lambda: nn.GroupNorm(2, 4),
        (2, 4, 5),
        lambda m, x: F.group_norm(x, 2, m.weight, m.bias),
        "GroupNorm(2, 4, eps=1e-05, affine=True, bias=True)",
    ),
    (
        lambda: nn.LocalResponseNorm(3),
        (2, 4, 5),
        lambda m, x: F.local_response_norm(x, 3),
        "LocalResponseNorm(3, alpha=0.0001, beta=0.75, k=1.0)",
    ),
    (
        lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
        (2, 3, 4, 5),
        lambda m, x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        "Upsample(scale_factor=2.0, mode='bilinear')",
    ),
    (
        lambda: nn.UpsamplingNearest2d(size=(3, 7)),
        (2, 3, 4, 5),
        lambda m, x: F.interpolate(x, (3, 7)),
        "UpsamplingNearest2d(size=(3, 7), mode='nearest')",
    ),
    (
        lambda: nn.UpsamplingBilinear2d(scale_factor=2),
        (2, 3, 4, 5),
        lambda m, x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True),
        "UpsamplingBilinear2d(scale_factor=2.0, mode='bilinear')",
    ),
]


@pytest.mark.parametrize(("make", "shape", "function", "shown"), LAYERS, ids=[shown for *_, shown in LAYERS])
def test_a_layer_stands_for_its_function_and_shows_its_options(make, shape, function, shown):
    layer, x = make(), sg.randn(*shape)
    assert repr(layer) == shown
    np.testing.assert_array_equal(layer(x).numpy(), function(layer, x).numpy())


@pytest.mark.parametrize(("mode", "numpys"), [("reflect", "reflect"), ("replicate", "edge"), ("circular", "wrap")])
@pytest.mark.parametrize("padding", [(1, 2), "same"])
def test_padding_may_be_the_images_own_elements(mode, numpys, padding):
    layer = nn.Conv2d(2, 3, (2, 3), padding=padding, dilation=(1, 2), padding_mode=mode)
    x = sg.randn(2, 2, 5, 6)
    widths = [(0, 1), (2, 2)] if padding == "same" else [(1, 1), (2, 2)]
    padded = np.pad(x.numpy(), [(0, 0), (0, 0), *widths], mode=numpys)
    expected = F.conv2d(sg.tensor(padded), layer.weight, layer.bias, dilation=(1, 2))
    np.testing.assert_allclose(layer(x).numpy(), expected.numpy(), 1e-5, 1e-6)
    assert f"padding_mode={mode!r}" in repr(layer)
    line = nn.Conv1d(2, 3, 3, padding=1, padding_mode=mode)
    padded = np.pad(x.numpy()[:, :, 0], [(0, 0), (0, 0), (1, 1)], mode=numpys)
    expected = F.conv1d(sg.tensor(padded), line.weight, line.bias)
    np.testing.assert_allclose(line(x[:, :, 0]).numpy(), expected.numpy(), 1e-5, 1e-6)


def test_an_unpooling_layer_undoes_its_pooling():
    x = sg.randn(2, 3, 6, 8)
    values, indices = nn.MaxPool2d(2, return_indices=True)(x)
    layer = nn.MaxUnpool2d(2)
    assert repr(layer) == "MaxUnpool2d(kernel_size=(2, 2), stride=(2, 2), padding=(0, 0))"
    again, same = nn.MaxPool2d(2, return_indices=True)(sg.where(layer(values, indices) != 0, x, -9.0))
    assert (again.tolist(), same.tolist()) == (values.tolist(), indices.tolist())
    values, indices = nn.MaxPool1d(2, return_indices=True)(x[0])
    assert nn.MaxUnpool1d(2)(values, indices, output_size=(3, 6, 9)).shape == (3, 6, 9)


def test_a_transposed_layer_makes_the_size_it_is_asked_for():
    down, up = nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.ConvTranspose2d(3, 2, 3, stride=2, padding=1)
    for size in ((8, 9), (7, 10)):
        small = down(sg.randn(1, 2, *size))
        assert up(small, output_size=size).shape == (1, 2, *size)
        assert up(small, output_size=(1, 2, *size)).shape == (1, 2, *size)
    with pytest.raises(ArgumentError, match=r"valid sizes range from \(7, 9\) to \(8, 10\)"):
        up(small, output_size=(9, 10))
    assert nn.ConvTranspose1d(3, 2, 3, stride=2)(sg.randn(1, 3, 4), output_size=(10,)).shape == (1, 2, 10)


def test_first_weights_are_uniform_within_the_inverse_root_of_the_fan_in():
    sg.manual_seed(0)
    for layer, fan_in in ((nn.Conv2d(8, 64, 3, groups=2), 36), (nn.ConvTranspose2d(64, 8, 3, groups=2), 36)):
        bound = 1 / math.sqrt(fan_in)
        for parameter in (layer.weight, layer.bias):
            assert float(abs(parameter).max()) <= bound
        assert float(layer.weight.std()) == pytest.approx(bound / math.sqrt(3), rel=0.05)


def test_a_small_convolutional_network_learns():
    sg.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2),
    )  # fmt: skip
    images = np.random.default_rng(0).normal(size=(32, 1, 8, 8)).astype(np.float32) * 0.1
    classes = np.arange(32) % 2
    images[classes == 0, :, 3, :] += 1  # a line across against a line down
    images[classes == 1, :, :, 3] += 1
    optimizer = sg.optim.AdamW(model.parameters(), lr=0.02)
    for _ in range(40):
        loss = F.cross_entropy(model(sg.tensor(images)), sg.tensor(classes))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.Conv2d(3, 4, 3, groups=2), "the groups must divide both"),
        (lambda: nn.Conv2d(3, 4, 3, padding_mode="mirror"), "padding_mode 'mirror'; accepted are zeros, reflect"),
        (lambda: nn.ConvTranspose2d(3, 4, 3, padding_mode="reflect"), "padding_mode 'reflect'"),
        (lambda: nn.Conv2d(3, 4, 0), "kernel_size 0"),
        (lambda: nn.ConvTranspose2d(3, 4, 2, padding="same"), "padding 'same'"),
    ],
)
def test_options_out_of_range_are_refused(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()
