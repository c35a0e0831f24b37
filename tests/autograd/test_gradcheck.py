"""The gradient checkers: they accept what is right, whatever its layout, and name what is wrong."""

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.autograd import Function, gradcheck, gradgradcheck
from spillgrad.errors import GradcheckError
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
        return g * (2 * x + sg.tensor(np.array([0.0, WrongSecondElement.error, 0.0])))


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


def test_inputs_without_elements_pass():
    empty = sg.tensor(np.zeros((0, 3)), requires_grad=True)
    assert gradcheck(lambda x: x * 2, empty) and gradcheck(lambda x, y: x.sum() * y, (empty, leaf([1.0])))


def test_right_gradients_pass():
    a, b = leaf([[0.3, -0.7], [1.2, 0.4]]), leaf([0.6, 0.8])
    assert gradcheck(lambda x, y: (x @ y).tanh(), [a, b])
    assert gradgradcheck(lambda x, y: (x @ y).tanh(), [a, b])
    assert gradcheck(lambda x: x * 2, leaf(0.5))


def test_a_wrong_gradient_is_named_with_both_values():
    x = leaf([1.0, 2.0, 3.0])
    with pytest.raises(GradcheckError) as caught:
        gradcheck(WrongSecondElement.apply, x)
    message = str(caught.value)
    assert "Jacobian mismatch for output 0 with respect to input 0" in message
    assert "output 0 at (1,) by input 0 at (1,) is wrong: backward gives 4.5, central differences 4;" in message
    assert "1 of 9 elements differ" in message and "numerical:" in message and "analytical:" in message
    assert isinstance(caught.value, RuntimeError)
    assert not gradcheck(WrongSecondElement.apply, x, raise_exception=False)
    assert gradcheck(WrongSecondElement.apply, x, atol=5.0)


def test_a_wrong_second_derivative_is_found_where_the_first_is_right():
    x = leaf([1.0, 2.0, 3.0])
    assert gradcheck(WrongSecondDerivative.apply, x)
    with pytest.raises(RuntimeError, match="with respect to input 0"):
        gradgradcheck(WrongSecondDerivative.apply, x)
    assert not gradgradcheck(WrongSecondDerivative.apply, x, raise_exception=False)


def test_not_a_number_is_wrong(monkeypatch):
    monkeypatch.setattr(WrongSecondElement, "error", np.nan)
    with pytest.raises(RuntimeError, match=r"at \(1,\) is wrong: backward gives nan"):
        gradcheck(WrongSecondElement.apply, leaf([1.0, 2.0, 3.0]))


def test_every_input_that_requires_a_gradient_is_checked():
    x = sg.tensor(np.array([1.0, 2.0, 3.0]))
    y = leaf([1.0, 2.0, 3.0])
    assert gradcheck(lambda a, b: a * b, [x, y])
    with pytest.raises(RuntimeError, match="output 0 with respect to input 1"):
        gradcheck(lambda a, b: a + WrongSecondElement.apply(b), [leaf([1.0, 1.0, 1.0]), y])


def test_inputs_of_any_layout_are_perturbed_in_place_and_put_back():
    array = np.asfortranarray(np.arange(1.0, 7.0).reshape(2, 3))
    x = sg.from_numpy(array[:, ::2]).requires_grad_()
    before = x.numpy().copy()
    assert not x.is_contiguous()
    assert gradcheck(lambda t: t * t, x)
    assert np.array_equal(x.numpy(), before) and x.grad is None


def test_several_outputs_are_checked_together_and_integers_left_out():
    assert gradcheck(lambda x: (x * x, x.tanh(), x > 0), leaf([0.5, -0.5]))
    with pytest.raises(RuntimeError, match="output 1 with respect to input 0"):
        gradcheck(lambda x: (x, WrongSecondElement.apply(x)), leaf([1.0, 2.0, 3.0]))


def test_nothing_to_check_is_an_error():
    with pytest.raises(ValueError, match="none of the inputs requires a gradient"):
        gradcheck(lambda x: x * 2, sg.tensor(np.ones(2)))


class Detached(Function):
    """Doubles; forgets that its output depends on its input."""

    @staticmethod
    def forward(ctx, x):
        output = x * 2
        ctx.mark_non_differentiable(output)
        return output

    @staticmethod
    def backward(ctx, g):
        return g


def test_an_output_without_gradient_must_not_depend_on_the_inputs():
    assert gradcheck(lambda x: (x > 0).to(sg.float64), leaf([1.0, -2.0]))
    with pytest.raises(GradcheckError, match=r"expected to be zero: output 0 .* changes with input 0 at \(0,\)"):
        gradcheck(Detached.apply, leaf([1.0, -2.0]))


class Remembering(Function):
    """Squares; its backward changes what the next one gives."""

    calls = 0

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        Remembering.calls += 1
        return g * 2 * x + 1e-9 * (Remembering.calls % 2) * g


def test_a_backward_that_differs_from_run_to_run_is_found():
    with pytest.raises(GradcheckError, match=r"not reentrant: for input 0 at \(0,\)"):
        gradcheck(Remembering.apply, leaf([1.0]))
    assert gradcheck(Remembering.apply, leaf([1.0]), nondet_tol=1e-6)


class IgnoresItsGradient(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return sg.full_like(g, 2.0)


def test_a_backward_that_ignores_its_gradient_is_found():
    with pytest.raises(GradcheckError, match="not multiplied by grad_output: the gradient of input 0 is not zero"):
        gradcheck(IgnoresItsGradient.apply, leaf([1.0]))


class NeedsItsGradient(Function):
    """Doubles; without a gradient its backward fails, or, told to, invents one."""

    invents = False

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2

    @staticmethod
    def backward(ctx, g):
        if g is None and NeedsItsGradient.invents:
            return sg.ones(1, dtype=sg.float64)
        return g * 2


def test_undefined_gradients_must_count_as_zeros(monkeypatch):
    with pytest.raises(GradcheckError, match="undefined output grads: without a gradient of output 0 it raised TypeE"):
        gradcheck(NeedsItsGradient.apply, leaf([1.0]))
    with pytest.raises(GradcheckError, match="without a gradient of output 0, 1 it raised"):
        gradcheck(lambda x: (NeedsItsGradient.apply(x) + x, x * 2), leaf([1.0]))
    monkeypatch.setattr(NeedsItsGradient, "invents", True)
    with pytest.raises(GradcheckError, match=r"undefined or zero; without a gradient of output 0, input 0 got \[1"):
        gradcheck(NeedsItsGradient.apply, leaf([1.0]))
    assert gradcheck(NeedsItsGradient.apply, leaf([1.0]), check_undefined_grad=False)


def test_fast_mode_finds_the_same_errors_and_names_the_element():
    x = leaf([1.0, 2.0, 3.0])
    assert gradcheck(lambda x: (x * x, (x.tanh() @ x)), x, fast_mode=True)
    assert gradgradcheck(lambda x: x.tanh(), x, fast_mode=True)
    with pytest.raises(GradcheckError, match=r"output 0 at \(1,\) by input 0 at \(1,\) is wrong"):
        gradcheck(WrongSecondElement.apply, x, fast_mode=True)


def test_fast_mode_runs_one_backward_per_output():
    calls = []

    def function(x):
        y = x * x
        y.register_hook(lambda g: calls.append(None))
        return y

    gradcheck(function, leaf(np.ones(50)), fast_mode=True, check_undefined_grad=False)
    few = len(calls)
    gradcheck(function, leaf(np.ones(50)), check_undefined_grad=False)
    assert few < 10 < 50 < len(calls) - few


def test_batched_gradients_can_be_checked():
    assert gradcheck(lambda x, y: (x @ y, x.sum()), [leaf([[1.0, 2.0]]), leaf([[3.0], [4.0]])], check_batched_grad=True)


def test_inputs_whose_elements_share_memory_or_cannot_be_written_are_refused():
    with pytest.raises(RuntimeError, match="0th input has a dimension with stride 0"):
        gradcheck(lambda x: x * 2, sg.tensor(np.ones((1, 2))).expand(3, 2).requires_grad_())
    array = np.ones(2)
    array.flags.writeable = False
    with pytest.raises(ValueError, match="input 0 is read-only"):
        gradcheck(lambda x: x * 2, sg.from_numpy(array).requires_grad_())


def test_inputs_are_put_back_when_the_function_fails():
    x = leaf([1.0, 2.0])

    def fails_when_perturbed(t):
        if t.numpy()[0] != 1.0:
            raise KeyError("perturbed")
        return t * 2

    with pytest.raises(KeyError, match="perturbed"):
        gradcheck(fails_when_perturbed, x)
    assert x.tolist() == [1.0, 2.0]


def test_forward_mode_is_refused_with_a_reason():
    for options in ({"check_forward_ad": True}, {"check_batched_forward_grad": True}, {"check_backward_ad": False}):
        with pytest.raises(ValueError, match="forward-mode differentiation, which spillgrad does not have"):
            gradcheck(lambda x: x * 2, leaf([1.0]), **options)
    with pytest.raises(ValueError, match="forward-mode"):
        gradgradcheck(lambda x: x * 2, leaf([1.0]), check_fwd_over_rev=True)


def test_options_without_effect_are_accepted():
    assert gradcheck(lambda x: x * 2, leaf([1.0]), check_grad_dtypes=True, masked=True)
    assert gradgradcheck(lambda x: x * x, leaf([1.0]), check_grad_dtypes=True, masked=True)


def test_second_derivatives_are_checked_with_the_gradients_given():
    x = leaf([1.0, 2.0])
    assert gradgradcheck(lambda x: x * x * x, x, leaf([0.5, -1.0]))
    assert gradgradcheck(lambda x: x.tanh(), leaf([[1.0, 2.0]]), gen_non_contig_grad_outputs=True)


def test_a_function_whose_output_changes_shape_is_an_error():
    with pytest.raises(GradcheckError, match="same shape when inputs are perturbed; output 0"):
        gradcheck(lambda x: x[: 2 if x.numpy()[0] > 1 else 1] * 1, leaf([1.0, 2.0]))


def test_the_module_and_the_function_have_one_name_as_in_pytorch():
    from spillgrad.autograd.gradcheck import GradcheckError, gradcheck

    assert sg.autograd.gradcheck is gradcheck and callable(sg.autograd.gradcheck)
    with pytest.raises(GradcheckError):
        gradcheck(lambda x: x * x.detach(), leaf([1.0]))
