"""The gradient checkers: they accept what is right, whatever its layout, and name what is wrong."""

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.autograd import Function, gradcheck, gradgradcheck
from tests.ops.checks import leaf


class WrongSecondElement(Function):
    """Squares; its gradient is wrong by `error` at index 1."""

    error = 0.5

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (2 * x + sg.Tensor(np.array([0.0, WrongSecondElement.error, 0.0])))


class WrongSecondDerivative(Function):
    """Squares; the gradient is right, its own gradient is not."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 2 * x.detach()


def test_right_gradients_pass():
    a, b = leaf([[0.3, -0.7], [1.2, 0.4]]), leaf([0.6, 0.8])
    assert gradcheck(lambda x, y: (x @ y).tanh(), [a, b])
    assert gradgradcheck(lambda x, y: (x @ y).tanh(), [a, b])
    assert gradcheck(lambda x: x * 2, leaf(0.5))


def test_a_wrong_gradient_is_named_with_both_values():
    x = leaf([1.0, 2.0, 3.0])
    with pytest.raises(
        RuntimeError, match=r"gradient of input 0 is wrong at \(1,\): backward gives .*, central differ"
    ):
        gradcheck(WrongSecondElement.apply, x)
    assert not gradcheck(WrongSecondElement.apply, x, raise_exception=False)
    assert gradcheck(WrongSecondElement.apply, x, atol=5.0)


def test_a_wrong_second_derivative_is_found_where_the_first_is_right():
    x = leaf([1.0, 2.0, 3.0])
    assert gradcheck(WrongSecondDerivative.apply, x)
    with pytest.raises(RuntimeError, match="gradient of input 0 is wrong"):
        gradgradcheck(WrongSecondDerivative.apply, x)
    assert not gradgradcheck(WrongSecondDerivative.apply, x, raise_exception=False)


def test_not_a_number_is_wrong(monkeypatch):
    monkeypatch.setattr(WrongSecondElement, "error", np.nan)
    with pytest.raises(RuntimeError, match=r"wrong at \(1,\): backward gives nan"):
        gradcheck(WrongSecondElement.apply, leaf([1.0, 2.0, 3.0]))


def test_every_input_that_requires_a_gradient_is_checked():
    x = sg.Tensor(np.array([1.0, 2.0, 3.0]))
    y = leaf([1.0, 2.0, 3.0])
    assert gradcheck(lambda a, b: a * b, [x, y])
    with pytest.raises(RuntimeError, match="gradient of input 1"):
        gradcheck(lambda a, b: a + WrongSecondElement.apply(b), [leaf([1.0, 1.0, 1.0]), y])


def test_inputs_of_any_layout_are_perturbed_in_place_and_put_back():
    array = np.asfortranarray(np.arange(1.0, 7.0).reshape(2, 3))
    x = sg.Tensor(array[:, ::2], requires_grad=True)
    before = x.numpy().copy()
    assert not x.is_contiguous()
    assert gradcheck(lambda t: t * t, x)
    assert np.array_equal(x.numpy(), before) and x.grad is None


def test_several_outputs_are_checked_together_and_integers_left_out():
    assert gradcheck(lambda x: (x * x, x.tanh(), x > 0), leaf([0.5, -0.5]))
    with pytest.raises(RuntimeError, match="gradient of input 0"):
        gradcheck(lambda x: (x, WrongSecondElement.apply(x)), leaf([1.0, 2.0, 3.0]))


def test_nothing_to_check_is_an_error():
    with pytest.raises(RuntimeError, match="no output depends on an input"):
        gradcheck(lambda x: x * 2, sg.Tensor(np.ones(2)))
