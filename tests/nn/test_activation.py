"""Activation, padding, rearranging and distance modules: each is the function of its name, and shows its options."""

import copy

import numpy as np
import pytest

import spillgrad as sg
from spillgrad import nn
from spillgrad.errors import ArgumentError, ShapeError
from spillgrad.nn import functional as F

X = np.random.default_rng(0).normal(size=(2, 4, 6, 6)).astype(np.float32) * 3

# module, the function it is, what it shows
MODULES = [
    (nn.CELU(0.5), lambda x: F.celu(x, 0.5), "CELU(alpha=0.5)"),
    (nn.ELU(2.0), lambda x: F.elu(x, 2.0), "ELU(alpha=2.0)"),
    (nn.GLU(1), lambda x: F.glu(x, 1), "GLU(dim=1)"),
    (nn.Hardshrink(0.25), lambda x: F.hardshrink(x, 0.25), "Hardshrink(lambd=0.25)"),
    (nn.Hardsigmoid(), F.hardsigmoid, "Hardsigmoid()"),
    (nn.Hardswish(), F.hardswish, "Hardswish()"),
    (nn.Hardtanh(-2.0, 1.0), lambda x: F.hardtanh(x, -2.0, 1.0), "Hardtanh(min_val=-2.0, max_val=1.0)"),
    (nn.LeakyReLU(0.2), lambda x: F.leaky_relu(x, 0.2), "LeakyReLU(negative_slope=0.2)"),
    (nn.LogSigmoid(), F.logsigmoid, "LogSigmoid()"),
    (nn.LogSoftmax(1), lambda x: F.log_softmax(x, 1), "LogSoftmax(dim=1)"),
    (nn.Mish(), F.mish, "Mish()"),
    (nn.PReLU(4, 0.1), lambda x: F.leaky_relu(x, 0.1), "PReLU(num_parameters=4)"),
    (nn.RReLU().eval(), F.rrelu, "RReLU(lower=0.125, upper=0.3333333333333333)"),
    (nn.ReLU(), lambda x: x.clamp(min=0), "ReLU()"),
    (nn.ReLU(inplace=True), F.relu, "ReLU(inplace=True)"),
    (nn.ReLU6(), lambda x: x.clamp(0, 6), "ReLU6()"),
    (nn.SELU(), F.selu, "SELU()"),
    (nn.SiLU(inplace=True), F.silu, "SiLU(inplace=True)"),
    (nn.Softmax(2), lambda x: F.softmax(x, 2), "Softmax(dim=2)"),
    (nn.Softmax2d(), lambda x: F.softmax(x, 1), "Softmax2d()"),
    (nn.Softmin(1), lambda x: F.softmin(x, 1), "Softmin(dim=1)"),
    (nn.Softplus(2.0), lambda x: F.softplus(x, 2.0), "Softplus(beta=2.0, threshold=20.0)"),
    (nn.Softshrink(), F.softshrink, "Softshrink(lambd=0.5)"),
    (nn.Softsign(), F.softsign, "Softsign()"),
    (nn.Tanhshrink(), F.tanhshrink, "Tanhshrink()"),
    (nn.Threshold(0.1, 20), lambda x: F.threshold(x, 0.1, 20), "Threshold(threshold=0.1, value=20)"),
    (nn.ZeroPad2d(1), lambda x: F.pad(x, (1, 1, 1, 1)), "ZeroPad2d((1, 1, 1, 1))"),
    (nn.ConstantPad1d((1, 0), 2.0), lambda x: F.pad(x, (1, 0), value=2.0), "ConstantPad1d(padding=(1, 0), value=2.0)"),
    (nn.ReflectionPad2d((1, 0, 2, 0)), lambda x: F.pad(x, (1, 0, 2, 0), "reflect"), "ReflectionPad2d((1, 0, 2, 0))"),
    (nn.ReplicationPad1d(2), lambda x: F.pad(x, (2, 2), "replicate"), "ReplicationPad1d((2, 2))"),
    (nn.CircularPad2d(1), lambda x: F.pad(x, (1,) * 4, "circular"), "CircularPad2d((1, 1, 1, 1))"),
    (nn.PixelShuffle(2), lambda x: F.pixel_shuffle(x, 2), "PixelShuffle(upscale_factor=2)"),
    (nn.PixelUnshuffle(3), lambda x: F.pixel_unshuffle(x, 3), "PixelUnshuffle(downscale_factor=3)"),
    (nn.ChannelShuffle(2), lambda x: F.channel_shuffle(x, 2), "ChannelShuffle(groups=2)"),
    (nn.Unflatten(1, (2, 2)), lambda x: x.unflatten(1, (2, 2)), "Unflatten(dim=1, unflattened_size=(2, 2))"),
    (nn.Unfold(2, stride=2), lambda x: F.unfold(x, 2, stride=2),
     "Unfold(kernel_size=2, dilation=1, padding=0, stride=2)"),
]  # fmt: skip


@pytest.mark.parametrize(("module", "function", "shown"), MODULES, ids=[shown for _, _, shown in MODULES])
def test_a_module_is_the_function_of_its_name_and_shows_its_options(module, function, shown):
    np.testing.assert_allclose(module(sg.tensor(X)).detach().numpy(), function(sg.tensor(X)).numpy(), 1e-6, 1e-6)
    assert repr(module) == repr(copy.deepcopy(module)) == shown


IN_PLACE = [
    "celu",
    "elu",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "leaky_relu",
    "mish",
    "relu",
    "relu6",
    "selu",
    "silu",
]


@pytest.mark.parametrize("name", IN_PLACE)
def test_an_activation_may_overwrite_its_input(name):
    function, x = getattr(F, name), sg.tensor(X)
    wanted = function(x)
    assert function(x, inplace=True) is x
    np.testing.assert_array_equal(x.numpy(), wanted.numpy())
    gradients = []
    for inplace in (False, True):
        leaf = sg.tensor(X, requires_grad=True)
        function(leaf * 2, inplace=inplace).sum().backward()
        gradients.append(leaf.grad.numpy())
    np.testing.assert_array_equal(*gradients)


def test_the_slopes_of_prelu_are_learned():
    module = nn.PReLU(4)
    module(sg.tensor(X)).sum().backward()
    np.testing.assert_allclose(module.weight.grad.numpy(), np.minimum(X, 0).sum((0, 2, 3)), 1e-4)


def test_folding_undoes_unfolding_where_windows_do_not_overlap():
    columns = nn.Unfold(3, stride=3)(sg.tensor(X))
    np.testing.assert_array_equal(nn.Fold((6, 6), 3, stride=3)(columns).numpy(), X)


def test_distances_are_modules_too():
    a, b = sg.tensor(X[0, 0]), sg.tensor(X[0, 1])
    assert sg.equal(nn.CosineSimilarity(0)(a, b), F.cosine_similarity(a, b, 0))
    assert sg.equal(nn.PairwiseDistance(1.0, keepdim=True)(a, b), F.pairwise_distance(a, b, 1.0, keepdim=True))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: nn.Hardtanh(1.0, 1.0), ArgumentError, "Hardtanh: got min_val=1.0"),
        (lambda: nn.ZeroPad2d((1, 2)), ArgumentError, r"ZeroPad2d: got padding \(1, 2\)"),
        (lambda: nn.Softmax2d()(sg.ones(2)), ShapeError, "Softmax2d: got a tensor"),
        (lambda: F.glu(sg.ones(3)), ShapeError, r"glu: got a tensor of shape \(3,\); wanted an even size"),
        (lambda: F.celu(sg.ones(3), 0.0), ArgumentError, "celu: got alpha=0"),
        (lambda: F.softshrink(sg.ones(3), -1.0), ArgumentError, "softshrink: got lambd=-1.0"),
        (lambda: F.hardtanh(sg.ones(3), 1.0, 0.0), ArgumentError, "the lower bound comes first"),
        (lambda: F.rrelu(sg.ones(3), 1.0, 0.0), ArgumentError, "rrelu: got lower=1.0"),
        (lambda: F.prelu(sg.ones(2, 3), sg.ones(2)), ShapeError, r"got input \(2, 3\) and weight \(2,\)"),
        (lambda: F.prelu(sg.ones(2, 3), sg.ones(1, 3)), ShapeError, r"prelu: got weight \(1, 3\)"),
        (lambda: F.pixel_shuffle(sg.ones(3, 2, 2), 2), ShapeError, "pixel_shuffle: got a tensor"),
        (lambda: F.pixel_unshuffle(sg.ones(3, 2, 3), 2), ShapeError, "pixel_unshuffle: got a tensor"),
        (lambda: F.channel_shuffle(sg.ones(1, 3, 2), 2), ShapeError, "channel_shuffle: got a tensor"),
        (lambda: sg.polygamma(-1, sg.ones(1)), ArgumentError, "polygamma: got n=-1"),
        (lambda: sg.mvlgamma(sg.ones(1), 3), ArgumentError, "mvlgamma: got p=3"),
        (lambda: sg.einsum("ij,jk", sg.ones(2, 2)), ArgumentError, "got 2 subscripts in 'ij,jk' for 1 operands"),
        (lambda: sg.einsum("i1->i", sg.ones(2, 2)), ArgumentError, "got '1' in the subscript 'i1'"),
        (lambda: sg.einsum("i->j", sg.ones(2)), ArgumentError, "got the label 'j' in the result"),
        (lambda: sg.einsum("i", sg.ones(2, 2)), ShapeError, "wanted a label for each dimension"),
        (lambda: sg.einsum("i,i", sg.ones(2), sg.ones(3)), ShapeError, "got sizes 2 and 3 for the label 'i'"),
        (lambda: sg.einsum("ii", sg.ones(2, 3)), ShapeError, "repeated label 'i'"),
        (lambda: sg.tensordot(sg.ones(2), sg.ones(3), 1), ShapeError, "their sizes must be equal"),
        (lambda: sg.tensordot(sg.ones(2), sg.ones(3), 2), ArgumentError, "got dims=2 for 1 and 1"),
        (lambda: sg.inner(sg.ones(2), sg.ones(3)), ShapeError, "inner: got"),
        (lambda: sg.cross(sg.ones(2), sg.ones(2)), ShapeError, "must be of size 3"),
        (lambda: sg.cdist(sg.ones(2, 3), sg.ones(2, 4)), ShapeError, "with one M"),
        (lambda: sg.trace(sg.ones(2)), ShapeError, "trace: got"),
        (lambda: sg.rot90(sg.ones(2, 2), 1, (0,)), ArgumentError, "wanted two"),
        (lambda: sg.hsplit(sg.ones(3), 2), ArgumentError, "tensor_split takes any"),
        (lambda: sg.ones(2, 3).sum_to_size(2, 2), ShapeError, "it must broadcast to that"),
    ],
)
def test_errors_say_what_was_given_and_what_is_wanted(call, error, message):
    with pytest.raises(error, match=message):
        call()
