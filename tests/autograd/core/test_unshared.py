"""Gradients of one value are summed in place where only backward can see the first, and nowhere else."""

import numpy as np
import pytest

import spillgrad as sg

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
