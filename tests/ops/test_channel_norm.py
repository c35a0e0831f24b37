"""Normalizations of channels against NumPy, their gradients against central differences."""

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import ArgumentError, DtypeError, ShapeError
from spillgrad.nn import functional as F
from tests.ops.checks import check_gradients, check_half_precision, leaf

RNG = np.random.default_rng(0)
X, WEIGHT, BIAS = RNG.normal(size=(3, 4, 3, 2)) * 2 + 1, RNG.normal(size=4), RNG.normal(size=4)
MEAN, VARIANCE = RNG.normal(size=4), RNG.uniform(0.5, 2, 4)


def scaled(x, weight, bias):
    along = (1, -1, *(1,) * (x.ndim - 2))
    return x * weight.reshape(along) + bias.reshape(along)


def standardized(x, axes, eps=1e-5):
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


def batch(x, weight, bias):
    return scaled(standardized(x, (0, *range(2, x.ndim))), weight, bias)


def instances(x, weight, bias):
    return scaled(standardized(x, tuple(range(2, x.ndim))), weight, bias)


def groups(x, weight, bias):
    parts = x.reshape(len(x), 2, -1)
    return scaled(standardized(parts, 2).reshape(x.shape), weight, bias)


def constants(x, weight, bias):
    return scaled(scaled(x, 1 / np.sqrt(VARIANCE + 1e-5), -MEAN / np.sqrt(VARIANCE + 1e-5)), weight, bias)


def tracked(like):
    return [sg.tensor(a, dtype=like.dtype) for a in (MEAN, VARIANCE)]


NORMS = {
    "batch_norm": (lambda x, w=None, b=None: F.batch_norm(x, None, None, w, b, True), batch),
    "batch_norm in evaluation": (lambda x, w=None, b=None: F.batch_norm(x, *tracked(x), w, b), constants),
    "instance_norm": (lambda x, w=None, b=None: F.instance_norm(x, None, None, w, b), instances),
    "instance_norm in evaluation": (lambda x, w=None, b=None: F.instance_norm(x, *tracked(x), w, b, False), constants),
    "group_norm": (lambda x, w=None, b=None: F.group_norm(x, 2, w, b), groups),
}


@pytest.mark.parametrize("shape", [(3, 4, 3, 2), (3, 4, 5), (3, 4, 2, 1, 2), (5, 4)], ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_a_norm_agrees_with_numpy_and_its_gradients_with_differences(name, shape):
    function, oracle = NORMS[name]
    if name == "instance_norm" and len(shape) == 2:
        return  # refused: one number has no variance
    x = RNG.normal(size=shape) + 1
    got = function(*map(sg.tensor, (x, WEIGHT, BIAS)))
    np.testing.assert_allclose(got.numpy(), oracle(x, WEIGHT, BIAS), 1e-9, 1e-11)
    plain = oracle(x, np.ones(4), np.zeros(4))
    np.testing.assert_allclose(function(sg.tensor(x)).numpy(), plain, 1e-9, 1e-11)
    check_gradients(function, x, WEIGHT, BIAS, second=shape in ((3, 4, 5), (5, 4)))
    check_gradients(function, x, second=False)


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_takes_any_strides_and_half_precision(name):
    function, oracle = NORMS[name]
    channels_last = sg.tensor(np.ascontiguousarray(X.transpose(0, 2, 3, 1))).permute(0, 3, 1, 2)
    got = function(channels_last, sg.tensor(WEIGHT), sg.tensor(BIAS))
    np.testing.assert_allclose(got.numpy(), oracle(X, WEIGHT, BIAS), 1e-9, 1e-11)
    check_half_precision(function, X, WEIGHT, BIAS, tolerance=5e-2)


@pytest.mark.parametrize("name", NORMS)
def test_nothing_is_normalized_to_nothing(name):
    x, weight, bias = leaf(X[:0]), leaf(WEIGHT), leaf(BIAS)
    result = NORMS[name][0](x, weight, bias)
    result.sum().backward()
    assert result.shape == x.grad.shape == (0, 4, 3, 2)
    assert weight.grad.tolist() == bias.grad.tolist() == [0] * 4


@pytest.mark.parametrize("wanted", [(True, False, False), (False, True, False), (False, False, True)])
@pytest.mark.parametrize("name", NORMS)
def test_a_gradient_goes_to_whoever_wants_one(name, wanted):
    alone = [sg.tensor(a).requires_grad_(want) for a, want in zip((X, WEIGHT, BIAS), wanted, strict=True)]
    everyone = [leaf(a) for a in (X, WEIGHT, BIAS)]
    for operands in (alone, everyone):
        (NORMS[name][0](*operands) ** 2).sum().backward()
    for got, reference, want in zip(alone, everyone, wanted, strict=True):
        assert (got.grad is not None) == want
        if want:
            np.testing.assert_array_equal(got.grad.numpy(), reference.grad.numpy())


@pytest.mark.parametrize("momentum", [0.0, 0.3, 1.0])
def test_running_statistics_move_towards_those_of_the_batch(momentum):
    mean, variance = tracked(sg.tensor(X))
    versions = mean._version, variance._version
    F.batch_norm(leaf(X), mean, variance, training=True, momentum=momentum)
    axes = (0, 2, 3)
    np.testing.assert_allclose(mean.numpy(), (1 - momentum) * MEAN + momentum * X.mean(axes), 1e-12)
    unbiased = X.var(axes, ddof=1)
    np.testing.assert_allclose(variance.numpy(), (1 - momentum) * VARIANCE + momentum * unbiased, 1e-12)
    assert (mean._version, variance._version) == (versions[0] + 1, versions[1] + 1)
    mean, variance = tracked(sg.tensor(X))
    F.instance_norm(leaf(X), mean, variance, momentum=momentum)
    expected = (1 - momentum) * VARIANCE + momentum * X.var((2, 3), ddof=1).mean(0)
    np.testing.assert_allclose(variance.numpy(), expected, 1e-12)


def test_running_statistics_stay_as_they_are_without_a_batch_or_in_evaluation():
    for x, training in ((X[:0], True), (X, False)):
        mean, variance = tracked(sg.tensor(X))
        F.batch_norm(sg.tensor(x), mean, variance, training=training)
        assert (mean.tolist(), variance.tolist()) == (MEAN.tolist(), VARIANCE.tolist())


def test_running_statistics_may_be_of_another_dtype():
    mean, variance = sg.zeros(4), sg.ones(4)
    x = sg.tensor(X, dtype="bfloat16")
    assert F.batch_norm(x, mean, variance, training=True, momentum=1.0).dtype == sg.bfloat16
    np.testing.assert_allclose(mean.numpy(), x.float().numpy().mean((0, 2, 3)), 1e-5)
    assert F.batch_norm(x, mean, variance).dtype == sg.bfloat16


def test_a_norm_saves_its_input_and_few_numbers():
    node = F.batch_norm(leaf(X), None, None, leaf(WEIGHT), leaf(BIAS), True).grad_fn
    assert node.name() == "NativeBatchNormBackward0"
    assert node._saved_input.shape == X.shape
    assert node._saved_mean.numel() == node._saved_rstd.numel() == 4
    assert not hasattr(node, "_saved_bias")
    assert F.group_norm(leaf(X), 2).grad_fn.name() == "NativeGroupNormBackward0"


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_local_response_norm_divides_by_the_squares_of_neighbouring_channels(size):
    padded = np.pad(X**2, ((0, 0), (size // 2, (size - 1) // 2), (0, 0), (0, 0)))
    around = sum(padded[:, i : i + 4] for i in range(size)) / size
    expected = X / (2 + 0.3 * around) ** 0.6

    def function(x):
        return F.local_response_norm(x, size, alpha=0.3, beta=0.6, k=2.0)

    np.testing.assert_allclose(function(sg.tensor(X)).numpy(), expected, 1e-10)
    check_gradients(function, X[:1])
    check_half_precision(function, X, tolerance=5e-2)
    assert function(sg.zeros(0, 4, 3)).shape == (0, 4, 3)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: F.batch_norm(x, None, None), ArgumentError, "no running_mean or running_var; pass both"),
        (lambda x: F.batch_norm(x[0, 0, 0], None, None, training=True), ShapeError, r"wanted \(N, C, ...\)"),
        (lambda x: F.batch_norm(x, None, None, sg.ones(3), training=True), ShapeError, r"weight \(3,\); wanted one"),
        (lambda x: F.batch_norm(x, sg.ones(3), sg.ones(4)), ShapeError, r"running_mean \(3,\)"),
        (lambda x: F.batch_norm(x, None, None, sg.ones(4).double(), training=True), DtypeError, "weight float64"),
        (lambda x: F.batch_norm(x.long(), None, None, training=True), DtypeError, "floating-point"),
        (lambda x: F.batch_norm(x[:1, :, 0, 0], None, None, training=True), ArgumentError, "more than 1 value per"),
        (lambda x: F.instance_norm(x[:, :, :1, 0]), ArgumentError, "more than 1 spatial element when training"),
        (lambda x: F.instance_norm(x, use_input_stats=False), ArgumentError, "use_input_stats=False; pass both"),
        (lambda x: F.group_norm(x, 3), ArgumentError, "divisible by num_groups"),
        (lambda x: F.group_norm(x[:1, :, 0, 0], 4), ArgumentError, "more than 1 value"),
        (lambda x: F.local_response_norm(x[0, 0], 2), ShapeError, "Expected 3D or higher"),
        (lambda x: F.local_response_norm(x, 0), ArgumentError, "got size 0"),
    ],
)
def test_what_does_not_fit_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call(sg.ones(3, 4, 3, 2))


def test_a_batch_without_channels_stays_as_it_is():
    x = sg.zeros(3, 0, 2, 2, requires_grad=True)
    y = F.batch_norm(x, None, None, training=True)
    y.sum().backward()
    assert y.shape == x.grad.shape == (3, 0, 2, 2)


@pytest.mark.parametrize("shape", [(70, 45), (70, 33, 1), (2, 32, 1, 1)], ids=str)
def test_channels_of_single_elements_are_normalized_as_those_of_images(shape):
    """They are computed side by side."""
    rng = np.random.default_rng(0)
    x, g = rng.normal(3, 2, (2, *shape))
    weight, bias = rng.normal(size=(2, shape[1]))
    found = []
    for repeats in (1, 2):  # images of one element, and of twice the same element
        leaves = [leaf(a) for a in (x, weight, bias)]
        whole = leaves[0].reshape(*shape[:2], 1).expand(-1, -1, repeats)
        running = sg.zeros(shape[1]).double(), sg.ones(shape[1]).double()
        y = F.batch_norm(whole.contiguous(), *running, *leaves[1:], training=True)
        (y * sg.tensor(g.reshape(*shape[:2], 1)) / repeats).sum().backward()
        found.append([y.numpy(force=True)[..., 0], running[0].numpy(), *(a.grad.numpy() for a in leaves)])
    for single, double in zip(*found, strict=True):
        np.testing.assert_allclose(single, double, atol=1e-12)
