"""Gradients of one value are summed in place where only backward can see the first, and nowhere else."""

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.ops import getitem_setitem

SIZE = 1 << 18  # floats


def twice(x: sg.Tensor, first: sg.Tensor, second: sg.Tensor) -> sg.Tensor:
    return (x * first).sum() + (x * second).sum()


def operands() -> tuple[sg.Tensor, sg.Tensor, sg.Tensor]:
    sg.manual_seed(0)
    return sg.randn(SIZE, requires_grad=True), sg.randn(SIZE), sg.randn(SIZE)


def test_a_sum_of_gradients_takes_no_memory_but_the_first_terms():
    x, first, second = operands()
    twice(x, first, second).backward()
    assert x.grad._version == 1  # changed in place, once


def test_the_sum_is_the_same_as_in_new_memory():
    x, first, second = operands()
    twice(x, first, second).backward()
    np.testing.assert_array_equal(x.grad.numpy(), first.numpy() + second.numpy())


def test_a_gradient_that_flows_to_two_inputs_is_not_changed_for_both():
    x, _, _ = operands()
    y = sg.randn(SIZE, requires_grad=True)
    total = x + y  # the very same gradient for both
    ((total + x) * 3).sum().backward()
    assert (x.grad.numpy() == 6).all()
    assert (y.grad.numpy() == 3).all()


def test_a_gradient_that_a_hook_kept_stays_as_it_was():
    x, first, second = operands()
    y = x * 1
    kept = []
    left = y * first
    left.register_hook(lambda gradient: kept.append(gradient))
    middle = left * 1
    right = left * 2
    (middle.sum() + (right * second).sum()).backward()
    before = kept[0].numpy().copy()
    x.grad = None
    (x * first).sum().backward()
    np.testing.assert_array_equal(kept[0].numpy(), before)


@pytest.mark.parametrize("keep", ["tensor", "array", "view", "detached"])
def test_what_a_custom_backward_keeps_is_never_changed(keep: str):
    x, first, second = operands()
    kept: list[object] = []

    class Keeps(sg.autograd.Function):
        @staticmethod
        def forward(ctx, x, factor):
            ctx.save_for_backward(factor)
            return x * factor

        @staticmethod
        def backward(ctx, g):
            result = g * ctx.saved_tensors[0]
            kept.append(
                {
                    "tensor": lambda: result,
                    "array": lambda: result.numpy(),
                    "view": lambda: result[: SIZE // 2],
                    "detached": lambda: result.detach(),
                }[keep]()
            )
            return result, None

    (Keeps.apply(x, first).sum() + Keeps.apply(x, second).sum()).backward()
    np.testing.assert_array_equal(x.grad.numpy(), first.numpy() + second.numpy())
    for value, factor in zip(kept, (second, first), strict=True):
        array = value if isinstance(value, np.ndarray) else value.numpy()  # type: ignore[attr-defined]
        np.testing.assert_array_equal(array, factor.numpy()[: array.size])


def test_the_gradient_a_user_gave_is_never_changed():
    x, _, _ = operands()
    y = x * 1
    given = sg.ones(SIZE)
    memory_of_user = np.ones(SIZE, np.float32)
    for gradient in (given, sg.from_numpy(memory_of_user), sg.from_numpy(memory_of_user)[:]):
        sg.autograd.backward([y, y, x], [gradient, gradient, gradient], retain_graph=True)
    assert (given.numpy() == 1).all()
    assert (memory_of_user == 1).all()
    assert (x.grad.numpy() == 9).all()


def test_a_graph_of_gradients_is_not_overwritten():
    x, first, second = operands()
    (gradient,) = sg.autograd.grad(((x * x * first).sum() + (x * x * second).sum()), x, create_graph=True)
    (second_order,) = sg.autograd.grad(gradient.sum(), x)
    np.testing.assert_allclose(second_order.numpy(), 2 * (first.numpy() + second.numpy()), rtol=1e-5, atol=1e-5)


# The gradient of a part of a tensor, such as a slice, is added to that part of another gradient.

STEPS = 8
PARTS = {
    "select": lambda x, t: x[:, t],
    "slice": lambda x, t: x[1:-1, t : t + 1],
    "steps": lambda x, t: x[::-3, t],
    "narrow": lambda x, t: x.narrow(1, t, 1),
    "split": lambda x, t: x.split([1] * STEPS, 1)[t],
}


def of_parts(part, x: sg.Tensor, weights: sg.Tensor) -> sg.Tensor:
    return sum(((part(x, t) * weights[t]).sum() for t in range(STEPS)), start=sg.zeros(()))


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "complex64"])
def test_gradients_of_parts_are_those_of_whole_gradients(part, dtype):
    leaf, weights = sg.ones(SIZE // 256, STEPS, 32, dtype=dtype, requires_grad=True), sg.arange(1, STEPS + 1)
    loss = of_parts(part, leaf * 1, weights)
    (loss.real if loss.is_complex() else loss).backward()
    wanted = np.zeros(leaf.shape)
    for t in range(STEPS):
        taken = sg.from_numpy(wanted)
        part(taken, t).add_(t + 1)
    np.testing.assert_array_equal(leaf.grad.to("complex128").numpy(), wanted)


def test_only_the_first_part_takes_a_whole_gradient(monkeypatch):
    made = []
    whole = getitem_setitem._place
    monkeypatch.setattr(getitem_setitem, "_place", lambda *arguments: made.append(1) or whole(*arguments))
    leaf = sg.ones(SIZE // 256, STEPS, 32, requires_grad=True)
    of_parts(PARTS["select"], leaf * 1, sg.ones(STEPS)).backward()
    assert len(made) == 1


def test_hooks_of_parts_and_of_the_whole_see_what_they_see_of_small_tensors():
    def seen(rows: int) -> list[float]:
        whole = sg.ones(rows, STEPS, 32, requires_grad=True) * 1
        found = []
        whole.register_hook(lambda g: found.append(g.mean().item()))
        whole.retain_grad()
        parts = [whole[:, t] for t in range(STEPS)]
        parts[2].grad_fn.register_hook(lambda inputs, _: found.append(inputs[0].sum().item() / rows))
        parts[3].grad_fn.register_prehook(lambda outputs: found.append(outputs[0].mean().item()))
        parts[4].register_hook(lambda g: found.append(g.mean().item()))
        sum((part.sum() * (t + 1) for t, part in enumerate(parts)), start=sg.zeros(())).backward()
        return [*found, whole.grad.mean().item()]

    assert seen(SIZE // 256) == seen(4)


def test_a_gradient_of_the_whole_that_is_not_alone_is_not_changed_by_parts():
    leaf = sg.ones(SIZE // 256, STEPS, 32, requires_grad=True)
    whole = leaf * 1
    given = sg.ones(*leaf.shape)
    kept = []
    left = whole * 1
    left.register_hook(lambda g: kept.append(g))
    sg.autograd.backward([whole[:, 0], whole, left], [sg.ones(SIZE // 256, 32), given, given])
    assert (given.numpy() == 1).all()
    assert (kept[0].numpy() == 1).all()
    assert leaf.grad.numpy()[:, 0].max() == 3
    assert leaf.grad.numpy()[:, 1:].max() == 2


def test_gradients_of_parts_have_a_graph_when_asked_for():
    leaf = sg.ones(SIZE // 256, STEPS, 32, requires_grad=True)
    whole = leaf * leaf
    (first,) = sg.autograd.grad(of_parts(PARTS["select"], whole, sg.ones(STEPS)), leaf, create_graph=True)
    (second,) = sg.autograd.grad(first.sum(), leaf)
    assert (second.numpy() == 2).all()
