"""Losses against NumPy, their gradients against central differences."""

import contextlib
import math
import os
import subprocess
import sys
from functools import partial

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.autograd import gradcheck, gradgradcheck
from spillgrad.errors import ArgumentError, ComplexDtypeError, DimensionError, DtypeError, ShapeError
from spillgrad.ops import elementwise_losses, losses, matrix_products, normalization
from spillgrad.ops.linear_cross_entropy import linear_cross_entropy
from tests.ops.checks import check_gradients, check_half_precision, leaf

RNG = np.random.default_rng(2)
LOGITS = RNG.normal(size=(5, 4))
TARGET = np.array([0, 3, 1, 1, 2])
WEIGHT = np.array([0.5, 1.0, 2.0, 0.25])
OTHER = RNG.normal(size=(5, 4))


def log_softmax(a, axis=1):
    return a - np.log(np.exp(a).sum(axis, keepdims=True))


def cross_entropy(logits, target, weight, ignore_index, label_smoothing):
    """Return per-row losses and the divisor of their mean, written out row by row."""
    classes = logits.shape[1]
    weight = np.ones(classes) if weight is None else weight
    rows, divisor = [], 0.0
    for row, t in zip(log_softmax(logits), target, strict=True):
        if t == ignore_index:
            rows.append(0.0)
            continue
        rows.append(-(1 - label_smoothing) * weight[t] * row[t] - label_smoothing / classes * (weight * row).sum())
        divisor += weight[t]
    return np.array(rows), divisor


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["equal", "weighted"])
@pytest.mark.parametrize("ignore_index", [-100, 1])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.2])
def test_cross_entropy_agrees_with_numpy_and_differences(weight, ignore_index, label_smoothing):
    rows, divisor = cross_entropy(LOGITS, TARGET, weight, ignore_index, label_smoothing)
    weights = None if weight is None else sg.tensor(weight)

    def loss(x, reduction="mean"):
        return losses.cross_entropy(x, sg.tensor(TARGET), weights, ignore_index, reduction, label_smoothing)

    x = sg.tensor(LOGITS)
    np.testing.assert_allclose(loss(x).item(), rows.sum() / divisor, 1e-12)
    np.testing.assert_allclose(loss(x, "sum").item(), rows.sum(), 1e-12)
    np.testing.assert_allclose(loss(x, "none").numpy(), rows, 1e-12)
    check_gradients(loss, LOGITS)
    check_gradients(lambda x: loss(x, "none") ** 2, LOGITS)


def test_cross_entropy_takes_one_row_and_further_dimensions():
    one = losses.cross_entropy(sg.tensor(LOGITS[0]), sg.tensor(2))
    np.testing.assert_allclose(one.item(), -log_softmax(LOGITS)[0, 2])
    logits, target = RNG.normal(size=(2, 4, 3)), RNG.integers(0, 4, (2, 3))
    rows = -np.take_along_axis(log_softmax(logits), target[:, None], 1)[:, 0]
    got = losses.cross_entropy(sg.tensor(logits), sg.tensor(target), reduction="none")
    np.testing.assert_allclose(got.numpy(), rows, 1e-12)
    check_gradients(lambda x: losses.cross_entropy(x, sg.tensor(target)), logits)


def test_cross_entropy_saves_logits_targets_and_one_number_a_row():
    node = (
        losses.cross_entropy(leaf(LOGITS), sg.tensor(TARGET), reduction="sum")
        .grad_fn.next_functions[0][0]
        .next_functions[0][0]
    )
    assert node.name() == "CrossEntropyBackward0"
    assert (node._saved_self.shape, node._saved_target.shape, node._saved_lse.shape) == ((5, 4), (5,), (5,))


def test_cross_entropy_in_half_precision_keeps_the_normaliser_exact():
    logits = LOGITS + 40  # one step of bfloat16 is 0.25 here: a rounded logarithm would change probabilities by a tenth
    x = sg.tensor(logits, dtype="bfloat16", requires_grad=True)
    losses.cross_entropy(x, sg.tensor(TARGET), reduction="sum").backward()
    exact = leaf(x.detach().to("float64").numpy())
    losses.cross_entropy(exact, sg.tensor(TARGET), reduction="sum").backward()
    np.testing.assert_allclose(x.grad.numpy().astype(np.float64), exact.grad.numpy(), 1e-2, 1e-4)


def test_the_mean_over_no_targets_is_nan():
    assert math.isnan(losses.cross_entropy(sg.tensor(LOGITS), sg.full((5,), -100)).item())
    assert math.isnan(losses.cross_entropy(sg.zeros(0, 4), sg.zeros(0, dtype="int64")).item())


FEATURES, HEAD, BIAS = RNG.normal(size=(5, 3)), RNG.normal(size=(4, 3)), RNG.normal(size=4)


@pytest.mark.parametrize("bias", [(), (BIAS,)], ids=["no bias", "bias"])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.2])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("hooked", [False, True], ids=["gradients made ahead", "logits made again"])
def test_the_loss_of_a_product_is_that_of_its_logits(hooked, reduction, label_smoothing, bias):
    target, options = sg.tensor(TARGET), {"reduction": reduction, "label_smoothing": label_smoothing, "ignore_index": 1}

    def fused(x, weight, *bias):
        with sg.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t) if hooked else contextlib.nullcontext():
            return linear_cross_entropy(x, weight, target, *bias, **options)

    def unfused(x, weight, *bias):
        return losses.cross_entropy(matrix_products.linear(x, weight, *bias), target, **options)

    values = (FEATURES, HEAD, *bias)
    one, other = [leaf(v) for v in values], [leaf(v) for v in values]
    results = fused(*one), unfused(*other)
    np.testing.assert_allclose(results[0].numpy(), results[1].numpy(), 1e-13)
    for result in results:
        (result * 3).sum().backward()
    for got, wanted in zip(one, other, strict=True):
        np.testing.assert_allclose(got.grad.numpy(), wanted.grad.numpy(), 1e-12, 1e-13)
    check_gradients(fused, *values)
    check_half_precision(fused, *values, tolerance=5e-2)


def test_hooks_change_no_bit_of_the_loss_of_a_product_and_see_its_inputs_only():
    seen, gradients = [], []

    def pack(tensor):
        seen.append(tensor.shape)
        return tensor

    for context in (contextlib.nullcontext(), sg.autograd.graph.saved_tensors_hooks(pack, lambda t: t)):
        operands = [sg.tensor(v, dtype="float32", requires_grad=True) for v in (FEATURES, HEAD, BIAS)]
        with context:
            loss = linear_cross_entropy(operands[0], operands[1], sg.tensor(TARGET), operands[2])
        (loss / 3).backward()
        gradients.append([loss.item(), *(operand.grad.tolist() for operand in operands)])
    assert gradients[0] == gradients[1]
    assert sorted(seen) == [(4,), (4, 3), (5,), (5, 3)]


def test_the_loss_of_a_product_may_be_differentiated_twice_and_one_operand_at_a_time():
    x, weight = leaf(FEATURES), leaf(HEAD)
    loss = linear_cross_entropy(x, weight, sg.tensor(TARGET))
    loss.backward(retain_graph=True)
    once = x.grad.clone()
    loss.backward(sg.tensor(2.0, dtype="float64"))
    np.testing.assert_allclose(x.grad.numpy(), 3 * once.numpy(), 1e-14)
    alone = leaf(FEATURES)
    linear_cross_entropy(alone, weight.detach(), sg.tensor(TARGET)).backward()
    np.testing.assert_array_equal(alone.grad.numpy(), once.numpy())


def test_gradients_made_in_advance_are_scaled_in_place_where_the_graph_is_freed_and_only_there():
    def gradients(factor: float, **options: bool) -> list[list[list[float]]]:
        (linear_cross_entropy(x, weight, sg.tensor(TARGET)) * factor).backward(**options)
        found = [x.grad.tolist(), weight.grad.tolist()]
        x.grad = weight.grad = None
        return found

    x, weight = (sg.tensor(values, dtype="float32", requires_grad=True) for values in (FEATURES, HEAD))
    for factor in (1.0, 0.37):
        assert gradients(factor) == gradients(factor, retain_graph=True)
    loss = linear_cross_entropy(x, weight, sg.tensor(TARGET))
    found: list[list[list[float]]] = []

    def apply_alone(grad: sg.Tensor) -> None:  # the node alone, which frees nothing
        with sg.no_grad():
            found.extend(loss.grad_fn(sg.tensor(0.37))[1].tolist() for _ in range(2))

    apply_alone(x)
    handle = weight.register_hook(apply_alone)
    sg.grad(linear_cross_entropy(x, weight, sg.tensor(TARGET)), [weight])
    handle.remove()
    assert len(found) == 4 and all(each == found[0] for each in found)
    saved = loss.grad_fn._saved_grad_weight
    version = saved._version
    (loss * 0.37).backward()
    assert saved._version == version + 1  # who has it can see that it changed
    before = weight.grad.clone()
    with pytest.raises(sg.errors.SavedTensorError, match="retain_graph"):
        loss.backward()
    assert sg.equal(weight.grad, before)


def test_a_weight_changed_before_backward_is_noticed():
    x, weight = leaf(FEATURES), leaf(HEAD)
    loss = linear_cross_entropy(x, weight, sg.tensor(TARGET))
    with sg.no_grad():
        weight.mul_(2.0)
    with pytest.raises(sg.errors.SpillgradError, match="modified"):
        loss.backward()


def test_the_loss_of_a_product_takes_further_dimensions_and_no_rows():
    x, target = RNG.normal(size=(2, 3, 3)), RNG.integers(0, 4, (2, 3))
    got = linear_cross_entropy(sg.tensor(x), sg.tensor(HEAD), sg.tensor(target), reduction="none")
    np.testing.assert_allclose(
        got.numpy(), -np.take_along_axis(log_softmax(x @ HEAD.T, 2), target[..., None], 2)[..., 0]
    )
    none = linear_cross_entropy(sg.zeros(0, 3), sg.zeros(4, 3), sg.zeros(0, dtype="int64"))
    assert math.isnan(none.item())


LARGE_VOCABULARY = """
import numpy as np
import spillgrad as sg
from spillgrad_kernels.memory.buffers import pool

rows, width, classes = 2048, 8, 50257
x, weight = sg.randn(rows, width, requires_grad=True), sg.randn(classes, width, requires_grad=True)
target = sg.tensor(np.arange(rows))
before = pool.stats().live_bytes
with {context}:
    loss = sg.nn.functional.linear_cross_entropy(x, weight, target)
loss.backward()
print(pool.stats().peak_live_bytes - before)
"""


@pytest.mark.parametrize(
    "context", ["sg.enable_grad()", "sg.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)"]
)
def test_the_logits_of_a_large_vocabulary_never_exist(context):
    script = LARGE_VOCABULARY.format(context=context)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run([sys.executable, "-c", script], env=environment, check=True, capture_output=True, text=True)
    logits_bytes = 2048 * 50257 * 4
    assert int(ran.stdout) < 48 << 20 < logits_bytes / 8


def test_cross_entropy_of_probabilities_agrees_with_numpy():
    goal = normalization.softmax(sg.tensor(OTHER), 1).numpy()
    wanted = -(goal * log_softmax(LOGITS)).sum(1)
    got = losses.cross_entropy(sg.tensor(LOGITS), sg.tensor(goal))
    np.testing.assert_allclose(got.item(), wanted.mean(), 1e-12)
    smoothed = losses.cross_entropy(
        sg.tensor(LOGITS), sg.tensor(goal), sg.tensor(WEIGHT), reduction="sum", label_smoothing=0.1
    )
    wanted = -((goal * 0.9 + 0.1 / 4) * WEIGHT * log_softmax(LOGITS)).sum()
    np.testing.assert_allclose(smoothed.item(), wanted, 1e-12)
    check_gradients(lambda x, t: losses.cross_entropy(x, t, label_smoothing=0.1), LOGITS, goal)


def test_one_hot_probabilities_are_class_indices():
    x, target = sg.tensor(LOGITS), sg.tensor(TARGET)
    goal = sg.tensor(np.eye(4)[TARGET])
    np.testing.assert_allclose(losses.cross_entropy(x, goal).item(), losses.cross_entropy(x, target).item(), 1e-12)


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["equal", "weighted"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_nll_loss_of_log_softmax_is_cross_entropy(weight, reduction):
    weights = None if weight is None else sg.tensor(weight)
    options = {"weight": weights, "ignore_index": 3, "reduction": reduction}
    x, target = sg.tensor(LOGITS), sg.tensor(TARGET)
    got = losses.nll_loss(normalization.log_softmax(x, 1), target, **options)
    np.testing.assert_allclose(got.numpy(), losses.cross_entropy(x, target, **options).numpy(), 1e-12)
    check_gradients(lambda x: losses.nll_loss(x, target, **options) ** 2, LOGITS)


def huber(difference, delta):
    distance = np.abs(difference)
    return np.where(distance < delta, distance**2 / 2, delta * (distance - delta / 2))


REGRESSION = {
    "mse": (elementwise_losses.mse_loss, lambda d: d**2),
    "l1": (elementwise_losses.l1_loss, np.abs),
    "huber": (partial(elementwise_losses.huber_loss, delta=0.7), lambda d: huber(d, 0.7)),
    "smooth l1": (partial(elementwise_losses.smooth_l1_loss, beta=0.7), lambda d: huber(d, 0.7) / 0.7),
    "smooth l1, beta 0": (partial(elementwise_losses.smooth_l1_loss, beta=0.0), np.abs),
}


@pytest.mark.parametrize("name", REGRESSION)
def test_regression_losses_agree_with_numpy_and_differences(name):
    loss, oracle = REGRESSION[name]
    wanted = oracle(LOGITS - OTHER)
    x, y = sg.tensor(LOGITS), sg.tensor(OTHER)
    np.testing.assert_allclose(loss(x, y).item(), wanted.mean(), 1e-12)
    np.testing.assert_allclose(loss(x, y, "sum").item(), wanted.sum(), 1e-12)
    np.testing.assert_allclose(loss(x, y, "none").numpy(), wanted, 1e-12)
    check_gradients(loss, LOGITS, OTHER)
    check_half_precision(lambda x: loss(x, y.to(x.dtype)), LOGITS, tolerance=5e-2)


def test_binary_cross_entropy_agrees_with_numpy_and_differences():
    goal = RNG.random((5, 4))
    p = 1 / (1 + np.exp(-LOGITS))
    wanted = -(goal * np.log(p) + (1 - goal) * np.log(1 - p))
    loss = elementwise_losses.binary_cross_entropy_with_logits
    np.testing.assert_allclose(loss(sg.tensor(LOGITS), sg.tensor(goal)).item(), wanted.mean(), 1e-12)
    positive = -(WEIGHT * goal * np.log(p) + (1 - goal) * np.log(1 - p))
    got = loss(sg.tensor(LOGITS), sg.tensor(goal), reduction="none", pos_weight=sg.tensor(WEIGHT))
    np.testing.assert_allclose(got.numpy(), positive, 1e-12)
    got = loss(sg.tensor(LOGITS), sg.tensor(goal), sg.tensor(WEIGHT), "sum")
    np.testing.assert_allclose(got.item(), (wanted * WEIGHT).sum(), 1e-12)
    check_gradients(loss, LOGITS, goal)
    extreme = loss(sg.tensor([1000.0, -1000.0]), sg.tensor([0.0, 0.0]), reduction="none")
    assert extreme.tolist() == [1000, 0]


ELEMENTWISE = {
    **{name: loss for name, (loss, _) in REGRESSION.items()},
    "binary cross entropy": elementwise_losses.binary_cross_entropy_with_logits,
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_losses_save_their_tensors_and_nothing_of_their_size_besides(name):
    seen = []

    def pack(tensor):
        seen.append(tensor)
        return tensor

    x, y = leaf(LOGITS) * 1, leaf(OTHER) * 1
    with sg.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        ELEMENTWISE[name](x, y, reduction="none")
    large = [t for t in seen if t.numel() > 1]
    assert [any(np.shares_memory(t.numpy(), of.detach().numpy()) for t in large) for of in (x, y)] == [True, True]
    assert len(large) == 2


@pytest.mark.parametrize("dtype", ["int64", "bool"])
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_losses_take_targets_that_are_no_floats(name, dtype):
    loss, target = ELEMENTWISE[name], sg.tensor(OTHER > 0)
    wanted, got = leaf(LOGITS), leaf(LOGITS)
    loss(wanted, target.to("float64")).backward()
    loss(got, target.to(dtype)).backward()
    np.testing.assert_array_equal(got.grad.numpy(), wanted.grad.numpy())


@pytest.mark.parametrize(("name", "second"), [("mse", 2.0), ("huber", 1.0), ("smooth l1", 1 / 0.7)])
def test_where_prediction_and_target_agree_the_second_derivative_is_that_of_the_parabola(name, second):
    x = leaf([0.5])
    (slope,) = sg.grad(REGRESSION[name][0](x, sg.tensor([0.5], dtype="float64"), "sum"), x, create_graph=True)
    assert slope.item() == 0
    np.testing.assert_allclose(sg.grad(slope, x)[0].item(), second, 1e-15)


@pytest.mark.parametrize(
    ("loss", "slope"),
    [
        (partial(elementwise_losses.huber_loss, delta=0.5), 0.5),
        (partial(elementwise_losses.smooth_l1_loss, beta=0.5), 1.0),
    ],
)
@pytest.mark.parametrize("arriving", [1.0, math.inf])
def test_the_slope_of_the_robust_losses_is_bounded_however_large_the_difference(loss, slope, arriving):
    x = sg.tensor([math.inf, -math.inf, 3e38, -1e30, 0.25, math.nan]).requires_grad_()
    (gradient,) = sg.grad(loss(x, sg.zeros(6), "none"), x, sg.full((6,), arriving))
    near = 0.25 * slope / 0.5
    wanted = [s * arriving for s in (slope, -slope, slope, -slope, near, math.nan)]
    np.testing.assert_allclose(gradient.numpy(), np.float32(wanted), 1e-6)


def test_the_smooth_loss_of_the_largest_difference_is_finite():
    assert elementwise_losses.smooth_l1_loss(sg.tensor([3e38]), sg.zeros(1), beta=4.0).item() == np.float32(3e38)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_cross_entropy_of_ignored_targets_alone_is_nan_in_the_mean_and_has_gradients_of_0(reduction, label_smoothing):
    options = {"ignore_index": 7, "reduction": reduction, "label_smoothing": label_smoothing}
    target, weight = sg.tensor([7, 7]), sg.ones(4, 3).requires_grad_()
    for x, function in (
        (sg.ones(2, 4).requires_grad_(), lambda x: losses.cross_entropy(x, target, **options)),
        (sg.ones(2, 3).requires_grad_(), lambda x: linear_cross_entropy(x, weight, target, **options)),
    ):
        loss = function(x)
        np.testing.assert_array_equal(loss.detach().numpy(), np.nan if reduction == "mean" else np.zeros(loss.shape))
        for recorded in (False, True):
            (gradient,) = sg.grad(loss, x, sg.ones(*loss.shape), retain_graph=True, create_graph=recorded)
            np.testing.assert_array_equal(gradient.detach().numpy(), np.zeros(x.shape))


@pytest.mark.parametrize("fused", [False, True])
def test_an_infinite_gradient_of_cross_entropy_stays_infinite(fused):
    x = sg.tensor([[0.5, -1.0, 2.0]]).requires_grad_()
    target, same = sg.tensor([1]), sg.eye(3)
    loss = linear_cross_entropy(x, same, target) if fused else losses.cross_entropy(x, target)
    (gradient,) = sg.grad(loss, x, sg.tensor(math.inf))
    np.testing.assert_array_equal(gradient.numpy(), [[math.inf, -math.inf if fused else math.nan, math.inf]])


X, T = sg.zeros(2, 3), sg.tensor([0, 1])


def linear_loss(target=(0, 1), weight=None, **options):
    weight = sg.zeros(4, 3) if weight is None else weight
    return linear_cross_entropy(X, weight, sg.tensor(target), **options)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: losses.cross_entropy(X, sg.tensor([0, 3])), DimensionError, "got target 3; the 3 classes are 0 to 2"),
        (lambda: losses.cross_entropy(X, sg.tensor([0])), ShapeError, r"got input \(2, 3\) and target \(1,\)"),
        (lambda: losses.cross_entropy(X, sg.tensor([True, False])), DtypeError, "got a target of bool"),
        (lambda: losses.cross_entropy(X, sg.zeros(2, 4)), ShapeError, r"got input \(2, 3\) and probabilities \(2, 4\)"),
        (lambda: losses.cross_entropy(X, T, sg.ones(2)), ShapeError, r"got weight \(2,\) for input \(2, 3\)"),
        (lambda: losses.cross_entropy(X, T, reduction="avg"), ArgumentError, "got reduction='avg'; accepted are"),
        (lambda: losses.cross_entropy(X, T, label_smoothing=2.0), ArgumentError, "label_smoothing=2.0"),
        (lambda: linear_loss(target=[0, 4]), DimensionError, "linear_cross_entropy: got target 4; the 4 classes"),
        (lambda: linear_loss(target=[0]), ShapeError, r"got input \(2, 3\) and target \(1,\)"),
        (lambda: linear_loss(target=[0.0, 1.0]), DtypeError, "linear_cross_entropy: got a target of float32"),
        (lambda: linear_loss(weight=sg.zeros(4, 2)), ShapeError, r"got input \(2, 3\) and weight \(4, 2\)"),
        (lambda: linear_loss(weight=sg.zeros(4, 3, dtype="float64")), DtypeError, "and weight float64"),
        (lambda: linear_loss(bias=sg.zeros(3)), ShapeError, r"got weight \(4, 3\) and bias \(3,\)"),
        (lambda: linear_loss(reduction="avg"), ArgumentError, "linear_cross_entropy: got reduction='avg'"),
        (lambda: linear_loss(label_smoothing=-1.0), ArgumentError, "linear_cross_entropy: got label_smoothing=-1.0"),
        (lambda: losses.nll_loss(sg.tensor([[1, 2]]), T), DtypeError, "nll_loss: got a tensor of int64"),
        (
            lambda: elementwise_losses.mse_loss(X, sg.zeros(2, 4)),
            ShapeError,
            r"mse_loss: got shapes \(2, 3\) and \(2, 4\)",
        ),
        (lambda: elementwise_losses.huber_loss(X, X, delta=0), ArgumentError, "huber_loss: got delta=0"),
    ],
)
def test_errors_say_what_was_given_and_what_is_wanted(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", ["mse_loss", "huber_loss", "smooth_l1_loss", "binary_cross_entropy_with_logits"])
def test_a_reduced_loss_is_one_operation_with_gradients_of_both_operands(name, reduction):
    loss = partial(getattr(sg.nn.functional, name), reduction=reduction)
    rng = np.random.default_rng(0)
    shapes = [((2, 3), (2, 3)), ((), ()), ((0, 3), (0, 3))]
    if not name.startswith("binary"):
        shapes += [((2, 3), (3,)), ((3,), (2, 1))]
    for of_input, of_target in shapes:
        x, t = (sg.tensor(rng.uniform(-2, 2, shape), requires_grad=True) for shape in (of_input, of_target))
        assert loss(x, t).grad_fn.name() == name.title().replace("_", "") + "Backward0"
        assert gradcheck(loss, (x, t)) and gradgradcheck(loss, (x, t))


@pytest.mark.parametrize(
    "name",
    [
        "mse_loss", "smooth_l1_loss", "huber_loss", "kl_div", "binary_cross_entropy",
        "binary_cross_entropy_with_logits",
    ],
)  # fmt: skip
def test_losses_refuse_complex_tensors_under_their_own_names(name):
    real, complex_ = sg.ones(3), sg.ones(3, dtype="complex64")
    for operands in ((complex_, complex_), (complex_, real), (real, complex_)):
        with pytest.raises(ComplexDtypeError, match=f"^{name}: does not support complex input, got complex64"):
            getattr(sg.nn.functional, name)(*operands)
