"""Every module gives the same outputs, gradients and buffers on a device as on the host."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import spillgrad as sg
from spillgrad import nn
from tests.peers import op_table

# The constructor of a module, and the arguments of its call: inputs of `tests.peers.op_table`.
CALLS = {
    "AdaptiveAvgPool1d(2)": "seq",
    "AdaptiveAvgPool2d(2)": "img",
    "AdaptiveAvgPool3d(2)": "vol",
    "AdaptiveMaxPool1d(2)": "seq",
    "AdaptiveMaxPool2d(2)": "img",
    "AdaptiveMaxPool3d(2)": "vol",
    "AdaptiveLogSoftmaxWithLoss(5, 5, [2, 4], 1.5)": "n, t",
    "AlphaDropout()": "x",
    "AvgPool1d(2)": "seq",
    "AvgPool2d(2)": "img",
    "AvgPool3d(2)": "vol",
    "BCELoss()": "p / 4, u",
    "BCEWithLogitsLoss()": "x, u",
    "BatchNorm1d(4)": "seq",
    "BatchNorm2d(4)": "img",
    "BatchNorm3d(2)": "vol",
    "Bilinear(3, 3, 2)": "x, y",
    "CELU()": "x",
    "CTCLoss()": "ctc.log_softmax(-1), ij[:, :2] + 1, (6, 6), (2, 1)",
    "ChannelShuffle(2)": "seq",
    "CircularPad1d(1)": "seq",
    "CircularPad2d(1)": "img[:, :1]",
    "CircularPad3d(1)": "vol[:, :1]",
    "ConstantPad1d(1, 2.0)": "seq",
    "ConstantPad2d(1, 2.0)": "img",
    "ConstantPad3d(1, 2.0)": "vol",
    "Conv1d(4, 2, 3)": "seq",
    "Conv2d(4, 2, 2)": "img[..., :3, :3]",
    "Conv3d(2, 1, 2)": "vol[..., :2, :2, :2]",
    "ConvTranspose1d(4, 2, 3)": "seq[..., :3]",
    "ConvTranspose2d(4, 2, 2)": "img[..., :2, :2]",
    "ConvTranspose3d(2, 1, 2)": "vol[..., :2, :2, :2]",
    "CosineEmbeddingLoss()": "x, y, i[:2] - 1",
    "CosineSimilarity()": "x, y",
    "CrossEntropyLoss()": "n, t",
    "Dropout()": "x",
    "Dropout1d()": "seq",
    "Dropout2d()": "img",
    "Dropout3d()": "vol",
    "ELU()": "x",
    "Embedding(4, 3, padding_idx=0)": "ij",
    "EmbeddingBag(4, 3)": "ij",
    "FeatureAlphaDropout()": "img",
    "Flatten()": "a",
    "Fold((3, 2), (2, 1))": "a.reshape(2, 6, 2).repeat(1, 1, 2)",
    "GELU()": "x",
    "GLU()": "b",
    "GRU(3, 2)": "a",
    "GRUCell(3, 2)": "x",
    "GaussianNLLLoss()": "x, y, p",
    "GroupNorm(2, 4)": "img[..., :2]",
    "Hardshrink()": "x",
    "Hardsigmoid()": "x",
    "Hardswish()": "x",
    "Hardtanh()": "x",
    "HingeEmbeddingLoss()": "x, sign",
    "HuberLoss()": "x, y",
    "Identity()": "x",
    "InstanceNorm1d(4, affine=True, track_running_stats=True)": "seq",
    "InstanceNorm2d(4)": "img",
    "InstanceNorm3d(2)": "vol",
    "KLDivLoss()": "x, u",
    "L1Loss()": "x, y",
    "LPPool1d(2, 2)": "seq",
    "LPPool2d(2, 2)": "img",
    "LPPool3d(2, 2)": "vol",
    "LSTM(3, 2, bidirectional=True)": "a",
    "LSTMCell(3, 2)": "x",
    "LayerNorm(3)": "x",
    "LeakyReLU()": "x",
    "Linear(3, 2)": "x",
    "LoRALinear(nn.Linear(3, 2), 1)": "x",
    "LoRAConv1D(nn.gpt2_linear.Conv1D(3, 2), 1)": "x",
    "LocalResponseNorm(2)": "seq",
    "LogSigmoid()": "x",
    "LogSoftmax(1)": "x",
    "MSELoss()": "x, y",
    "MarginRankingLoss()": "x, y, sign",
    "MaxPool1d(2)": "seq",
    "MaxPool2d(2)": "img",
    "MaxPool3d(2)": "vol",
    "MaxUnpool1d(2)": "seq[..., :3], ij[:, None].expand(2, 4, 3)",
    "MaxUnpool2d(2)": "seq[None, ..., :3], ij[:, None].expand(1, 2, 4, 3)",
    "MaxUnpool3d(2)": "seq[None, ..., :3], ij[:, None].expand(1, 2, 4, 3)",
    "Mish()": "x",
    "ModuleDict({'a': nn.Linear(3, 2)})['a']": "x",
    "ModuleList([nn.Linear(3, 2)])[0]": "x",
    "MultiLabelMarginLoss()": "x, ij",
    "MultiLabelSoftMarginLoss()": "x, u",
    "MultiMarginLoss()": "n, t",
    "MultiheadAttention(4, 2)": "b, b, b",
    "NLLLoss()": "n, t",
    "PReLU(4)": "seq",
    "PairwiseDistance()": "x, y",
    "PixelShuffle(2)": "img",
    "PixelUnshuffle(2)": "img[..., :6]",
    "PoissonNLLLoss()": "x, p",
    "RMSNorm(3)": "x",
    "RNN(3, 2)": "a",
    "RNNCell(3, 2)": "x",
    "RReLU()": "x",
    "ReLU()": "x",
    "ReLU6()": "x",
    "ReflectionPad1d(1)": "seq",
    "ReflectionPad2d(1)": "img[:, :1]",
    "ReflectionPad3d(1)": "vol[:, :1]",
    "ReplicationPad1d(1)": "seq",
    "ReplicationPad2d(1)": "img[:, :1]",
    "ReplicationPad3d(1)": "vol[:, :1]",
    "SELU()": "x",
    "Sequential(nn.Linear(3, 2), nn.Tanh())": "x",
    "SiLU()": "x",
    "Sigmoid()": "x",
    "SmoothL1Loss()": "x, y",
    "SoftMarginLoss()": "x, sign",
    "Softmax(1)": "x",
    "Softmax2d()": "img",
    "Softmin(1)": "x",
    "Softplus()": "x",
    "Softshrink()": "x",
    "Softsign()": "x",
    "SyncBatchNorm(4)": "img",
    "Tanh()": "x",
    "Tanhshrink()": "x",
    "Threshold(0.5, 2.0)": "x",
    "Transformer(4, 1, 1, 1, 4)": "b[:1], b[1:]",
    "TransformerDecoder(nn.TransformerDecoderLayer(4, 1, 4), 1)": "b[:1], b[1:]",
    "TransformerDecoderLayer(4, 1, 4)": "b[:1], b[1:]",
    "TransformerEncoder(nn.TransformerEncoderLayer(4, 1, 4), 1)": "b[:1]",
    "TransformerEncoderLayer(4, 1, 4)": "b[:1]",
    "TripletMarginLoss()": "x, y, p",
    "TripletMarginWithDistanceLoss()": "x, y, p",
    "Unflatten(1, (2, 2))": "a",
    "Unfold(2)": "img[..., :3]",
    "Upsample(scale_factor=2)": "seq",
    "UpsamplingBilinear2d(scale_factor=2)": "img[:, :1]",
    "UpsamplingNearest2d(scale_factor=2)": "img[:, :1]",
    "ZeroPad1d(1)": "seq",
    "ZeroPad2d(1)": "img",
    "ZeroPad3d(1)": "vol",
}
# Base classes, and containers.
NOT_CALLED = {"Layer", "Module", "ParameterDict", "ParameterList", "RNNBase", "RNNCellBase"}


def flat(results: Any) -> Iterator[sg.Tensor]:
    for result in (results,) if isinstance(results, sg.Tensor) else results:
        yield from (result,) if isinstance(result, sg.Tensor) else flat(result)


def outcome(made: str, called: str, device: str) -> list[sg.Tensor | None]:
    """Return a module's outputs, the gradients of its inputs and parameters, and its buffers."""
    sg.manual_seed(3)
    module = eval(f"nn.{made}", {"nn": nn}).to(device)
    inputs = {}
    for name in re.findall(r"\b[a-z]\w*\b", called):
        if name in op_table.INPUTS:
            array = np.ascontiguousarray(op_table.INPUTS[name])
            inputs[name] = sg.tensor(array.astype(np.float32) if array.dtype.kind == "f" else array, device=device)
    leaves = [x.requires_grad_() for name, x in inputs.items() if x.is_floating_point() and name not in ("sign", "u")]
    results = list(flat(module(*eval(f"({called},)", inputs))))
    seeds = [sg.tensor(np.cos(np.arange(x.numel())).reshape(x.shape), x.dtype, device) for x in results]
    sg.autograd.backward(results, seeds)
    return [*results, *[x.grad for x in (*leaves, *module.parameters())], *module.buffers()]


@pytest.mark.filterwarnings("ignore::spillgrad.errors.HostComputeWarning")
@pytest.mark.parametrize("made", CALLS)
def test_a_module_gives_on_a_device_what_it_gives_on_the_host(made):
    for found, wanted in zip(outcome(made, CALLS[made], "cuda"), outcome(made, CALLS[made], "cpu"), strict=True):
        assert (found is None) == (wanted is None)
        if wanted is not None:
            assert (found.device, found.dtype, found.shape) == ("cuda", wanted.dtype, wanted.shape)
            np.testing.assert_allclose(found.numpy(force=True), wanted.numpy(force=True), 1e-4, 1e-5)


QUANTIZED = {
    "QuantizedLinear": (lambda: nn.Linear(70, 9), lambda: sg.ones(2, 70) / 3),
    "QuantizedConv1D": (lambda: nn.gpt2_linear.Conv1D(70, 9), lambda: sg.ones(2, 70) / 3),
    "QuantizedEmbedding": (lambda: nn.Embedding(70, 9), lambda: sg.tensor([3, 69, 3])),
}


@pytest.mark.filterwarnings("ignore::spillgrad.errors.HostComputeWarning")
@pytest.mark.parametrize("to", ["nf4", "int8"])
@pytest.mark.parametrize("name", QUANTIZED)
def test_a_quantized_module_gives_on_a_device_what_it_gives_on_the_host(name, to):
    layer, inputs = QUANTIZED[name]
    found = {}
    for device in ("cpu", "cuda"):
        sg.manual_seed(3)
        model = nn.quantize(nn.Sequential(layer().requires_grad_(False)), to, embeddings=True)
        assert type(model[0]).__name__ == name
        given = inputs().to(device)
        given.requires_grad_(given.is_floating_point())
        result = model.to(device)(given)
        if given.requires_grad:
            result.sum().backward()
        found[device] = [result, given.grad]
    for on_device, on_host in zip(found["cuda"], found["cpu"], strict=True):
        assert (on_device is None) == (on_host is None)
        if on_host is not None:
            assert (on_device.device, on_device.shape) == ("cuda", on_host.shape)
            np.testing.assert_allclose(on_device.numpy(force=True), on_host.numpy(force=True), 1e-5, 1e-6)


def test_every_module_is_called():
    modules = {name for name, kind in vars(nn).items() if inspect.isclass(kind) and issubclass(kind, nn.Module)}
    ordinary = {name for name in modules - NOT_CALLED if not name.startswith("Lazy")}  # which lazy ones become
    assert ordinary == {made.partition("(")[0] for made in CALLS} | QUANTIZED.keys()
