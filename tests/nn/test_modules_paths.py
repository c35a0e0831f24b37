"""Layers are found under the paths of PyTorch's package `torch.nn.modules`."""

import importlib

import pytest

from spillgrad import nn

# The modules of PyTorch 2.13, and one to four of the names that each defines.
PATHS = {
    "activation": "ReLU GELU Softmax MultiheadAttention",
    "adaptive": "AdaptiveLogSoftmaxWithLoss",
    "batchnorm": "BatchNorm1d BatchNorm2d BatchNorm3d",
    "channelshuffle": "ChannelShuffle",
    "container": "Sequential ModuleList ModuleDict ParameterList",
    "conv": "Conv1d Conv2d ConvTranspose2d",
    "distance": "CosineSimilarity",
    "dropout": "Dropout Dropout2d",
    "flatten": "Flatten Unflatten",
    "fold": "Fold Unfold",
    "instancenorm": "InstanceNorm2d",
    "linear": "Linear Bilinear Identity",
    "loss": "CrossEntropyLoss MSELoss",
    "module": "Module",
    "normalization": "LayerNorm GroupNorm RMSNorm",
    "padding": "ZeroPad2d ReflectionPad2d",
    "pixelshuffle": "PixelShuffle",
    "pooling": "MaxPool2d AdaptiveAvgPool2d",
    "rnn": "LSTM GRU RNNBase",
    "sparse": "Embedding EmbeddingBag",
    "transformer": "TransformerEncoderLayer Transformer",
    "upsampling": "Upsample",
}


@pytest.mark.parametrize("path", PATHS)
def test_a_module_has_the_layers_of_its_family(path):
    module = importlib.import_module(f"spillgrad.nn.modules.{path}")
    assert getattr(nn.modules, path) is module
    for name in PATHS[path].split():
        assert getattr(module, name) is getattr(nn, name) is getattr(nn.modules, name)


@pytest.mark.parametrize(
    ("path", "base", "layer"),
    [
        ("conv", "_ConvNd", nn.ConvTranspose1d(1, 1, 1)),
        ("batchnorm", "_BatchNorm", nn.BatchNorm2d(1)),
        ("batchnorm", "_NormBase", nn.InstanceNorm1d(1)),
        ("dropout", "_DropoutNd", nn.Dropout2d()),
        ("loss", "_Loss", nn.MSELoss()),
    ],
)
def test_programs_ask_for_layers_by_the_base_of_their_family(path, base, layer):
    assert isinstance(layer, getattr(importlib.import_module(f"spillgrad.nn.modules.{path}"), base))
    assert not isinstance(nn.Linear(1, 1), getattr(importlib.import_module(f"spillgrad.nn.modules.{path}"), base))


def test_a_number_becomes_a_tuple_with_one_for_each_dimension():
    utils = nn.modules.utils
    assert [f(3) for f in (utils._single, utils._pair, utils._triple, utils._quadruple)] == [
        (3,) * n for n in range(1, 5)
    ]
    assert utils._pair([1, 2]) == (1, 2)
    assert utils._reverse_repeat_tuple((1, 2), 2) == (2, 2, 1, 1)
