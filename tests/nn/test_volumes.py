"""Layers of volumes, the bilinear layer and the loss of label sequences call their functions."""

import pytest

import spillgrad as sg
from spillgrad import nn
from spillgrad.errors import ArgumentError
from spillgrad.nn import functional as F

# What makes a layer, the function it stands for, its representation.
LAYERS = [
    (lambda: nn.Conv3d(2, 4, (1, 2, 3), stride=2, padding=1, groups=2),
     lambda m, x: F.conv3d(x, m.weight, m.bias, 2, 1, 1, 2),
     "Conv3d(2, 4, kernel_size=(1, 2, 3), stride=(2, 2, 2), padding=(1, 1, 1), groups=2)"),
    (lambda: nn.Conv3d(2, 3, 3, padding=1, padding_mode="circular", bias=False),
     lambda m, x: F.conv3d(F.pad(x, (1,) * 6, mode="circular"), m.weight),
     "Conv3d(2, 3, kernel_size=(3, 3, 3), stride=(1, 1, 1), padding=(1, 1, 1), padding_mode='circular', bias=False)"),
    (lambda: nn.ConvTranspose3d(2, 3, 2, stride=2, padding=1, output_padding=1),
     lambda m, x: F.conv_transpose3d(x, m.weight, m.bias, 2, 1, 1),
     "ConvTranspose3d(2, 3, kernel_size=(2, 2, 2), stride=(2, 2, 2), padding=(1, 1, 1), output_padding=(1, 1, 1))"),
    (lambda: nn.MaxPool3d(2, 1), lambda m, x: F.max_pool3d(x, 2, 1),
     "MaxPool3d(kernel_size=2, stride=1, padding=0, dilation=1, ceil_mode=False)"),
    (lambda: nn.AvgPool3d(2, divisor_override=3), lambda m, x: F.avg_pool3d(x, 2, divisor_override=3),
     "AvgPool3d(kernel_size=2, stride=2, padding=0)"),
    (lambda: nn.AdaptiveAvgPool3d((2, 1, None)), lambda m, x: F.adaptive_avg_pool3d(x, (2, 1, None)),
     "AdaptiveAvgPool3d(output_size=(2, 1, None))"),
    (lambda: nn.AdaptiveMaxPool3d(2), lambda m, x: F.adaptive_max_pool3d(x, 2), "AdaptiveMaxPool3d(output_size=2)"),
    (lambda: nn.LPPool3d(2, 2), lambda m, x: F.lp_pool3d(x, 2, 2),
     "LPPool3d(norm_type=2, kernel_size=2, stride=None, ceil_mode=False)"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "function", "shown"), LAYERS, ids=[shown for *_, shown in LAYERS])
def test_a_layer_calls_its_function_and_shows_its_options(make, function, shown):
    layer, x = make(), sg.randn(2, 2, 4, 5, 4)
    assert layer(x).tolist() == function(layer, x).tolist()
    assert repr(layer) == shown


def test_pooling_of_volumes_can_be_undone():
    x = sg.randn(1, 2, 4, 4, 6)
    values, indices = nn.MaxPool3d(2, return_indices=True)(x)
    back = nn.MaxUnpool3d(2)(values, indices)
    assert back.shape == x.shape
    assert back.sum().item() == pytest.approx(values.sum().item(), rel=1e-5)
    assert (back == x)[back != 0].all()


def test_a_transposed_convolution_of_volumes_takes_the_wanted_size():
    layer = nn.ConvTranspose3d(1, 1, 3, stride=2, padding=1)
    assert layer(sg.zeros(1, 1, 3, 4, 5), output_size=(6, 8, 9)).shape == (1, 1, 6, 8, 9)
    assert nn.Conv3d(1, 2, 2)(sg.zeros(1, 3, 3, 3)).shape == (2, 2, 2, 2)


def test_a_bilinear_layer_calls_its_function():
    layer = nn.Bilinear(3, 2, 4)
    x, y = sg.randn(5, 3), sg.randn(5, 2)
    assert layer(x, y).tolist() == F.bilinear(x, y, layer.weight, layer.bias).tolist()
    assert repr(layer) == "Bilinear(in1_features=3, in2_features=2, out_features=4, bias=True)"
    assert layer.weight.abs().max().item() <= 3**-0.5
    assert nn.Bilinear(3, 2, 4, bias=False).bias is None
    with pytest.raises(ArgumentError, match="in1_features must be > 0"):
        nn.Bilinear(0, 2, 4)


def test_the_loss_of_label_sequences_calls_its_function():
    scores = sg.randn(6, 2, 4).log_softmax(-1)
    arguments = (scores, sg.tensor([[1, 2], [0, 1]]), sg.tensor([6, 5]), sg.tensor([2, 2]))
    loss = nn.CTCLoss(blank=3, reduction="sum", zero_infinity=True)
    assert loss(*arguments).item() == F.ctc_loss(*arguments, 3, "sum", True).item()
