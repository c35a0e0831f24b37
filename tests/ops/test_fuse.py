"""Fused functions against the same functions run operation by operation."""

import pickle
import threading

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.autograd.differentiate import grad
from spillgrad.errors import FusionError, ShapeError
from tests.ops.checks import check_gradients, check_half_precision, leaf

F = sg.nn.functional


def chain(x, y):
    return sg.tanh(x) * y + 0.5 * x


def several(x, y):
    return x * y, (x + 1).sigmoid(), 2 * y, x > y


FUNCTIONS = {
    "chain": chain,
    "methods": lambda x, y: (x.pow(2).sqrt() - y.exp().clamp(-1, 2)) / (1 + y.square()),
    "activations": lambda x, y: F.gelu(x) + F.gelu(y, "tanh") * F.silu(x) - F.softplus(y) * F.elu(x) + x.relu(),
    "choices": lambda x, y: sg.where((x > y) & ~(x < 0) | (y == 0), sg.maximum(x, y), -y.abs()) + (x > 0.2) * y,
    "logic": lambda x, y: sg.where(sg.logical_not(sg.logical_and(x > 0, y)) ^ (y > 0), 1.5, 2.5) * x,
    "masks": lambda x, y: x.masked_fill(y > 0, 3.0) + sg.where(x.isfinite(), 1.0, 0.0) * y,
    "powers": lambda x, y: x**3 + 2.0**y + sg.addcmul(x, x, y, value=0.3) + sg.lerp(x, y, 0.25),
    "the input twice": lambda x, y: (x + x) * x - y,
    "an input alone": lambda x, y: x,
    "passed on": lambda x, y: x - y,
    "detached": lambda x, y: x * x.detach() + (y.round() - y).detach() + y,
    "converted": lambda x, y: (x.float() * y.to("float64")).double() + x,
}


def values(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.uniform(0.2, 0.9, shape) * rng.choice([-1, 1], shape) for shape in shapes]


def agree(fused, function, *arguments, leaves=()):
    got, wanted = fused(*arguments), function(*arguments)
    pairs = list(zip(got, wanted, strict=True)) if isinstance(wanted, tuple) else [(got, wanted)]
    for a, b in pairs:
        assert (a.shape, a.dtype, a.requires_grad) == (b.shape, b.dtype, b.requires_grad)
        np.testing.assert_allclose(a.numpy().astype(float), b.numpy().astype(float), 1e-6, 1e-6)
    for create_graph in (False, True):
        sums = [sum((t * t).sum() for t in side if t.requires_grad) for side in zip(*pairs, strict=True)]
        if leaves:
            gradients = [grad(s, leaves, create_graph=create_graph, retain_graph=True) for s in sums]
            for a, b in zip(*gradients, strict=True):
                assert (a.shape, a.dtype) == (b.shape, b.dtype)
                np.testing.assert_allclose(a.numpy(), b.numpy(), 1e-5, 1e-5)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_fused_function_and_its_gradients_are_those_of_its_operations(name):
    x, y = map(leaf, values((4, 6), (4, 6)))
    fused = sg.fuse(FUNCTIONS[name])
    leaves = [t for t in (x, y) if name not in ("an input alone", "logic") or t is x]
    agree(fused, FUNCTIONS[name], x, y, leaves=leaves)


@pytest.mark.parametrize("name", ["chain", "methods", "activations", "powers", "passed on"])
def test_both_derivatives_agree_with_differences(name):
    check_gradients(sg.fuse(FUNCTIONS[name]), *values((2, 3), (2, 3)))


@pytest.mark.parametrize(
    "shapes", [((4, 6), (6,)), ((4, 1), (1, 6)), ((), (3, 2)), ((0, 3), (3,)), ((2, 3, 4), (3, 1))]
)
def test_operands_broadcast_and_every_result_has_its_own_shape(shapes):
    x, y = map(leaf, values(*shapes))
    agree(sg.fuse(several), several, x, y, leaves=[x, y])
    agree(sg.fuse(chain), chain, x, y, leaves=[x, y])


def test_strided_operands_are_computed_with_where_they_lie():
    x, y = (leaf(v) for v in values((6, 4), (8, 6)))
    agree(sg.fuse(chain), chain, x.t(), y[::2], leaves=[x, y])


def test_gradients_of_a_function_of_several_results_agree_with_differences():
    fused = sg.fuse(lambda x, y: (x * y, x.exp(), 2 * y))
    check_gradients(lambda x, y: sum(part.sum() * k for k, part in enumerate(fused(x, y), 1)), *values((2, 3), (3,)))


def test_half_precision_is_computed_in_float32():
    check_half_precision(sg.fuse(chain), *values((3, 4), (4,)))
    x = sg.tensor([1.0, 2.0], dtype="float16")
    assert sg.fuse(chain)(x, x).dtype == sg.float16


def test_dtypes_mix_as_they_do_operation_by_operation():
    function = lambda x, y: x * y + 0.5  # noqa: E731
    fused = sg.fuse(function)
    numbers = [1, 2, 3]
    for first in ("float32", "float64", "bfloat16", "int64", "uint8", "bool"):
        x = sg.tensor([1.0, 0.0, 2.0], requires_grad=True)
        agree(fused, function, x, sg.tensor(numbers, dtype=first), leaves=[x])
        agree(fused, function, sg.tensor(2, dtype=first), x, leaves=[x])


def test_integers_and_bools_choose_and_are_compared():
    def function(x, labels, mask):
        return sg.where(mask & (labels != 300) & (labels < 7.5), x, -x) * (labels == 3)

    x, labels = leaf([1.0, 2.0, 3.0]), sg.tensor([3, 3, 250], dtype="uint8")
    agree(sg.fuse(function), function, x, labels, sg.tensor([True, False, True]), leaves=[x])


def test_a_float_argument_changes_without_another_kernel_and_others_choose_one():
    calls = []

    @sg.fuse
    def scaled(x, alpha=0.5, *, power=2, mode="plain"):
        calls.append((power, mode))
        return (x * alpha) ** power if mode == "plain" else x

    x = leaf([1.0, 2.0])
    for alpha in (0.5, 2.0, 3.0):
        (gradient,) = grad(scaled(x, alpha).sum(), x)
        np.testing.assert_allclose(gradient.numpy(), 2 * alpha**2 * x.numpy())
    assert scaled(x, power=3).tolist() == [0.125, 1.0]
    assert scaled(x, mode="none").tolist() == [1.0, 2.0]
    assert calls == [(2, "plain"), (3, "plain"), (2, "none")]
    assert scaled(np.array([2.0])).tolist() == [1.0]
    assert scaled(2.0) == 1.0


def saved_by(function, *arguments):
    saved = []
    with sg.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.shape) or t, lambda t: t):
        result = function(*arguments)
    return saved, result


def test_only_arguments_that_gradients_need_are_saved():
    x, y = map(leaf, values((4, 6), (6,)))
    saved, result = saved_by(sg.fuse(lambda x, y: (x * y).tanh().exp()), x, y)
    assert saved == [(4, 6), (6,)]
    assert result.grad_fn.name() == "LambdaBackward0"
    assert saved_by(sg.fuse(lambda x, y: 2 * x - y), x, y)[0] == []
    assert saved_by(sg.fuse(lambda x, y: x.exp() + y.exp()), x, y.detach())[0] == [(4, 6)]
    with sg.no_grad():
        saved, result = saved_by(sg.fuse(chain), x, y)
    assert saved == [] and not result.requires_grad


def test_no_grad_inside_cuts_the_graph():
    @sg.fuse
    def function(x):
        with sg.no_grad():
            constant = x * x
        return constant * x

    x = leaf([3.0])
    (gradient,) = grad(function(x).sum(), x, create_graph=True)
    assert gradient.tolist() == [9.0]
    assert not gradient.requires_grad


def test_a_gradient_that_two_inputs_share_is_each_ones_own():
    x, y = map(leaf, values((3,), (3,)))
    sg.fuse(lambda x, y: (x + y).tanh())(x, y).sum().backward()
    x.grad.add_(1)
    np.testing.assert_allclose(x.grad.numpy(), y.grad.numpy() + 1)


def test_a_fused_function_inside_another_becomes_part_of_it():
    inner = sg.fuse(chain)
    outer = sg.fuse(lambda x, y: inner(x, y) * inner(y, x))
    x, y = map(leaf, values((3,), (3,)))
    agree(outer, lambda x, y: chain(x, y) * chain(y, x), x, y, leaves=[x, y])


def test_arguments_may_have_any_name():
    def function(g, grads, result, x_shape):
        return g * grads + result * x_shape

    tensors = [leaf(v) for v in values(*[(3,)] * 4)]
    agree(sg.fuse(function), function, *tensors, leaves=tensors)


@sg.fuse
def decorated(x):
    """Return a square."""
    return x * x


def test_a_fused_function_keeps_its_name_and_can_be_pickled():
    assert decorated.__name__ == "decorated" and decorated.__doc__ == "Return a square."
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    copy = pickle.loads(pickle.dumps(sg.fuse(chain)))
    assert copy(sg.ones(2), sg.ones(2)).shape == (2,)


def test_threads_share_a_fused_function():
    fused = sg.fuse(lambda x: (x * 3).sin() + x)
    wanted = (sg.arange(50.0) * 3).sin() + sg.arange(50.0)
    results = []
    threads = [threading.Thread(target=lambda: results.append(fused(sg.arange(50.0)))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 6 and all(sg.allclose(result, wanted) for result in results)


OUTSIDE = sg.ones(3)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x.sum(), "got sum, which is no elementwise operation"),
        (lambda x: x @ x, "got matmul, which is"),
        (lambda x: sg.softmax(x), "got softmax, which is"),
        (lambda x: sg.cat([x, x]), "got cat, which is"),
        (lambda x: sg.dropout(x), "got dropout, which is"),
        (lambda x: x[0], "got select, which is"),
        (lambda x: x.reshape(-1), "got reshape, which is"),
        (lambda x: x.shape, "got shape, which is"),
        (lambda x: x.item(), "got item, which is"),
        (lambda x: x.numpy(), "got numpy, which is"),
        (lambda x: x.add_(1), "got add_, which is"),
        (lambda x: x + OUTSIDE, "got a tensor from outside in add; pass it as an argument"),
        (lambda x: x if x > 0 else -x, r"got a branch .* use where\(\), & or |"),
        (lambda x: x.int(), "got a conversion to int32; only to floats and bool"),
        (lambda x: 3, "returns int; wanted what is computed from its arguments"),
        (lambda x: (), "returns nothing"),
        (lambda x: OUTSIDE, "returns Tensor"),
    ],
)
def test_what_cannot_be_fused_is_refused_by_name(function, message):
    with pytest.raises(FusionError, match=message):
        sg.fuse(function)(leaf([1.0, 2.0, 3.0]))


def test_more_refusals_say_what_to_do():
    with pytest.raises(FusionError, match="got add of int64; integers and bools can be compared"):
        sg.fuse(lambda x, n: x * (n + 1))(sg.ones(2), sg.tensor([1, 2]))
    with pytest.raises(FusionError, match="bitwise_and of numbers"):
        sg.fuse(lambda x, n: x * (n & 1))(sg.ones(2), sg.tensor([1, 2]))
    with pytest.raises(FusionError, match=r"takes \*arguments"):
        sg.fuse(lambda *x: x)
    with pytest.raises(FusionError, match=r"unhashable.*; pass tensors, numbers"):
        sg.fuse(lambda x, y: x)(sg.ones(2), [1, 2])
    with pytest.raises(ShapeError, match=r"chain: got shapes \(2,\) and \(3,\); sizes must match"):
        sg.fuse(chain)(sg.ones(2), sg.ones(3))
    with pytest.raises(TypeError, match="missing a required argument"):
        sg.fuse(chain)(sg.ones(2))
