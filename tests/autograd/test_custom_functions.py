"""Custom functions in both dialects: Paddle's `PyLayer`, PyTorch's `Function`."""

import threading
import traceback
import weakref
from typing import Any

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.autograd import Function, PyLayer, gradcheck, gradgradcheck
from spillgrad.autograd.function import once_differentiable
from spillgrad.autograd.graph import saved_tensors_hooks
from spillgrad.errors import GradientMismatchError, GraphError, OperandError
from tests.ops.checks import leaf


def layer(forward: Any, backward: Any, kind: type = PyLayer) -> Any:
    """Return a custom function made of two plain ones."""
    return type("Scale", (kind,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})


class Cube(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x * x * g


class CubeLayer(PyLayer):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensor()
        return 3 * x * x * g


class Tanh(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.tanh()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * (1 - y * y)


BOTH = pytest.mark.parametrize("kind", [PyLayer, Function])


# What both do


@pytest.mark.parametrize("function", [Cube, CubeLayer, Tanh])
def test_first_and_second_derivatives_are_right(function):
    x = leaf([0.5, -1.2])
    assert gradcheck(function.apply, x) and gradgradcheck(function.apply, x)


def test_the_node_is_named_after_the_class():
    y = layer(lambda ctx, x: x * 1, lambda ctx, g: g).apply(leaf([1.0]))
    assert y.grad_fn.name() == "ScaleBackward" and "ScaleBackward" in repr(y)


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
@BOTH
def test_forward_is_not_recorded_and_backward_only_under_create_graph(kind):
    modes: list[bool] = []

    def forward(ctx, x):
        modes.append(sg.is_grad_enabled())
        return x * 2

    def backward(ctx, g):
        modes.append(sg.is_grad_enabled())
        return g * 2

    x = leaf([1.0])
    y = layer(forward, backward, kind).apply(x)
    y.backward(retain_graph=True)
    y.backward(create_graph=True)
    assert modes == [False, False, True]


@BOTH
def test_nothing_is_recorded_without_need(kind):
    double = layer(lambda ctx, x: x * 2, lambda ctx, g: g * 2, kind)
    assert not double.apply(sg.ones(1)).requires_grad
    with sg.no_grad():
        assert not double.apply(leaf([1.0])).requires_grad


@BOTH
def test_ctx_carries_attributes_of_any_kind(kind):
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x * factor

    def backward(ctx, g):
        return (g * ctx.factor, None) if kind is Function else g * ctx.factor

    x = leaf([1.0])
    layer(forward, backward, kind).apply(x, 4).backward()
    assert x.grad.item() == 4.0


@BOTH
def test_non_differentiable_outputs_arrive_as_zeros(kind):
    arrived: list[Any] = []

    def forward(ctx, x):
        a, b = x * 2, x * 3
        ctx.mark_non_differentiable(a)
        return a, b

    def backward(ctx, ga, gb):
        arrived.append((ga.tolist(), gb.tolist()))
        return gb * 3

    x = leaf([1.0])
    a, b = layer(forward, backward, kind).apply(x)
    assert not a.requires_grad and a.is_leaf and b.requires_grad
    b.backward()
    assert arrived == [([0.0], [1.0])] and x.grad.item() == 3.0


@BOTH
@pytest.mark.parametrize("materialize", [True, False])
def test_gradients_that_nothing_computed_arrive_as_zeros_or_none(kind, materialize):
    arrived: list[Any] = []

    def forward(ctx, x):
        ctx.set_materialize_grads(materialize)
        return x * 2, x * 3

    def backward(ctx, ga, gb):
        arrived.append(ga)
        return gb * 3

    layer(forward, backward, kind).apply(leaf([1.0, 2.0]))[1].sum().backward()
    assert (arrived[0] is None) != materialize
    if materialize:
        assert arrived[0].tolist() == [0.0, 0.0]


@BOTH
def test_a_backward_that_returns_none_sends_zeros_to_materializing_functions_behind_it(kind):
    arrived: list[Any] = []

    def note(ctx, g):
        arrived.append(g.tolist())
        return g

    x = leaf([1.0])
    behind = layer(lambda ctx, v: v * 1, note, kind).apply(x)
    layer(lambda ctx, v: v * 1, lambda ctx, g: None, kind).apply(behind).backward()
    assert arrived == [[0.0]] and x.grad.tolist() == [0.0]
    y = leaf([1.0])
    layer(lambda ctx, v: v * 1, lambda ctx, g: None, kind).apply(y * y).backward()
    assert y.grad is None


@BOTH
def test_integer_outputs_and_other_values_pass_through(kind):
    seen: list[int] = []

    def forward(ctx, x):
        return x * 2, sg.arange(2), "text"

    def backward(ctx, *grads):
        seen.append(len(grads))
        return grads[0] * 2

    x = leaf([1.0, 2.0])
    y, order, text = layer(forward, backward, kind).apply(x)
    assert y.requires_grad and not order.requires_grad and text == "text"
    y.sum().backward()
    assert seen == [3 if kind is Function else 2] and x.grad.tolist() == [2.0, 2.0]


@pytest.mark.parametrize(("kind", "wanted"), [(PyLayer, 2 + 30), (Function, 10 * (2 + 3))])
def test_one_tensor_returned_twice_is_two_outputs_of_a_layer_and_the_last_output_of_a_function(kind, wanted):
    def forward(ctx, x):
        y = x * 1
        return y, y

    x = leaf([1.0])
    a, b = layer(forward, lambda ctx, ga, gb: ga + 10 * gb, kind).apply(x)
    assert (a is b) == (kind is Function) and b.output_nr == 1
    (2 * a + 3 * b).backward()
    assert x.grad.item() == wanted


@BOTH
def test_gradients_that_were_broadcast_are_summed_and_dtypes_follow_the_input(kind):
    x = leaf([1.0])
    stretch = layer(lambda ctx, v: v.expand(3) * 1, lambda ctx, g: g.float(), kind)
    stretch.apply(x).sum().backward()
    assert x.grad.tolist() == [3.0] and x.grad.dtype == sg.float64


@BOTH
def test_exceptions_of_the_users_code_pass_through(kind):
    class Mine(Exception):
        pass

    def fail(*_):
        raise Mine("here")

    with pytest.raises(Mine, match="here"):
        layer(fail, fail, kind).apply(leaf([1.0]))
    assert sg.is_grad_enabled()
    with pytest.raises(Mine, match="here"):
        layer(lambda ctx, x: x * 1, fail, kind).apply(leaf([1.0])).backward()
    assert sg.is_grad_enabled()


@BOTH
def test_missing_methods_are_named(kind):
    only_forward = type("Half", (kind,), {"forward": staticmethod(lambda ctx, x: x * 1)})
    y = only_forward.apply(leaf([1.0]))
    with pytest.raises(NotImplementedError, match=r"Half: define a static method backward\(ctx"):
        y.backward()
    with pytest.raises(NotImplementedError, match=r"Empty: define a static method forward\(ctx"):
        type("Empty", (kind,), {}).apply(leaf([1.0]))


def test_functions_run_backward_in_many_threads():
    x = leaf([2.0])
    threads = [threading.Thread(target=lambda: Cube.apply(x).backward()) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert x.grad.item() == 8 * 12.0


# save_for_backward


@BOTH
def test_saving_works_once_and_only_in_forward(kind):
    def twice(ctx, x):
        ctx.save_for_backward(x)
        ctx.save_for_backward(x)

    with pytest.raises(RuntimeError, match="a second time"):
        layer(twice, None, kind).apply(leaf([1.0]))

    def late(ctx, g):
        ctx.save_for_backward(g)

    with pytest.raises(RuntimeError, match="outside forward"):
        layer(lambda ctx, x: x * 1, late, kind).apply(leaf([1.0])).backward()


@BOTH
def test_only_tensors_and_none_can_be_saved(kind):
    def forward(ctx, x):
        ctx.save_for_backward(x, None, 3)

    with pytest.raises(TypeError, match="can only save variables, but argument 2 is of type int"):
        layer(forward, None, kind).apply(leaf([1.0]))


def test_none_comes_back_as_none():
    seen: list[Any] = []

    def forward(ctx, x):
        ctx.save_for_backward(None, x)
        return x * 1

    def backward(ctx, g):
        seen.extend(ctx.saved_tensors)
        return g

    x = leaf([1.0])
    layer(forward, backward, Function).apply(x).backward()
    assert seen[0] is None and seen[1] is x


def test_nothing_saved_is_none_in_paddle_and_empty_in_pytorch():
    seen: list[Any] = []

    def note_layer(ctx, g):
        seen.append(ctx.saved_tensor())
        return g

    def note_function(ctx, g):
        seen.append(ctx.saved_tensors)
        return g

    layer(lambda ctx, x: x * 1, note_layer).apply(leaf([1.0])).backward()
    layer(lambda ctx, x: x * 1, note_function, Function).apply(leaf([1.0])).backward()
    assert seen == [None, ()]


def test_saved_values_are_readable_in_forward_and_freed_by_backward():
    ctxs: list[Any] = []

    def forward(ctx, x):
        ctxs.append(ctx)
        ctx.save_for_backward(x)
        assert ctx.saved_tensor() == (x,)
        return x * 1

    y = layer(forward, lambda ctx, g: g * ctx.saved_tensor()[0]).apply(leaf([3.0]))
    assert y.grad_fn.saved_tensors[0].item() == 3.0 and len(y.grad_fn._raw_saved_tensors) == 1
    y.backward(retain_graph=True)
    y.backward()
    with pytest.raises(RuntimeError, match="already been freed"):
        ctxs[0].saved_tensor()
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        y.backward()


@BOTH
def test_hooks_pack_what_was_saved_after_forward_has_returned(kind):
    events: list[str] = []

    def forward(ctx, x):
        ctx.save_for_backward(x, x)
        events.append("forward ends")
        return x * 1

    def backward(ctx, g):
        events.append("backward begins")
        saved = ctx.saved_tensors if kind is Function else ctx.saved_tensor()
        return g * saved[0] * saved[1]

    def pack(tensor):
        events.append("pack")
        return tensor

    def unpack(tensor):
        events.append("unpack")
        return tensor

    x = leaf([3.0])
    with saved_tensors_hooks(pack, unpack):
        y = layer(forward, backward, kind).apply(x)
    y.backward()
    assert x.grad.item() == 9.0
    assert events == ["forward ends", "pack", "pack", "backward begins", "unpack", "unpack"]


def test_a_saved_tensor_that_was_changed_is_an_error_that_names_the_function():
    x = leaf([3.0])
    v = x * 1
    y = Cube.apply(v)
    v.add_(1)
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation.*saved by CubeBackward as '0'"):
        y.backward()


# PyLayer: arguments


def test_tensors_in_lists_and_keywords_count_and_other_values_do_not():
    seen: list[Any] = []

    def forward(ctx, x, parts, factor, *, bias, flag=None):
        seen.append((type(parts), flag))
        return x * factor + parts[0] * 10 + parts[1] * 100 + bias

    def backward(ctx, g):
        return g * 2, [g * 10, g * 100], g

    x, a, b, bias = (leaf([1.0]) for _ in range(4))
    layer(forward, backward).apply(x, [a, b], 2, bias=bias, flag="on").backward()
    assert [t.grad.item() for t in (x, a, b, bias)] == [2.0, 10.0, 100.0, 1.0] and seen == [(list, "on")]


def test_the_gradients_of_a_list_may_come_flat():
    a, b = leaf([1.0]), leaf([1.0])
    layer(lambda ctx, parts: parts[0] + parts[1], lambda ctx, g: (g * 2, g * 3)).apply((a, b)).backward()
    assert (a.grad.item(), b.grad.item()) == (2.0, 3.0)


def test_a_list_comes_back_as_a_list():
    halves = layer(lambda ctx, x: [x * 1, x * 2], lambda ctx, *grads: grads[0])
    assert isinstance(halves.apply(leaf([1.0])), list) and isinstance(halves.apply(sg.ones(1)), list)


def test_none_is_a_gradient_for_any_tensor():
    x, w = leaf([1.0]), leaf([2.0])
    layer(lambda ctx, a, b: a * b, lambda ctx, g: (g, None)).apply(x, w).backward()
    assert x.grad.item() == 1.0 and w.grad is None


WRONG = {
    "too few": (lambda g: g, "1 gradients; forward took 2 tensors"),
    "too many": (lambda g: (g, g, g), "3 gradients; forward took 2 tensors"),
    "a number": (lambda g: (g, 3.0), "returned float as gradient 1; wanted a Tensor or None"),
    "an array": (lambda g: (g.numpy(), g), "returned ndarray as gradient 0"),
    "a wrong shape": (lambda g: (g, g.reshape(1, 2)[:, :1].expand(3, 1)), r"gradient at index 1: got shape \(3, 1\)"),
    "a wrong list": (lambda g: (g, [g, g]), "returned 2 gradients for input 1; it holds 1 tensors"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_gradients_of_a_layer_are_a_value_error_that_says_which(case):
    returned, message = WRONG[case]
    y = layer(lambda ctx, a, b: a * b, lambda ctx, g: returned(g)).apply(leaf([1.0, 2.0]), leaf([1.0, 2.0]))
    with pytest.raises(ValueError, match=message) as caught:
        y.sum().backward()
    assert isinstance(caught.value, GradientMismatchError) and "ScaleBackward" in str(caught.value)


@pytest.mark.parametrize("returned", [None, 1, (), [1, None], np.ones(1), ([sg.ones(1)],)])
@pytest.mark.parametrize("recorded", [True, False])
def test_a_layer_returns_at_least_one_tensor(returned, recorded):
    x = leaf([1.0]) if recorded else sg.ones(1)
    with pytest.raises(ValueError, match=r"Scale: At least one output of `PyLayer\.forward` is a `Tensor`"):
        layer(lambda ctx, v: returned, lambda ctx, g: g).apply(x)
    y = layer(lambda ctx, v: [returned, v * 3], lambda ctx, g: g * 3).apply(leaf([1.0]))
    assert y[0] is returned and y[1].tolist() == [3.0]


# PyLayer: returned inputs


def test_a_returned_input_is_an_in_place_change():
    def forward(ctx, x):
        x.mul_(3)
        return x

    x = leaf([1.0, 2.0])
    v = x * 1
    saved = v * v
    y = layer(forward, lambda ctx, g: g * 3).apply(v)
    assert y is v and v.grad_fn.name() == "ScaleBackward" and v.tolist() == [3.0, 6.0]
    y.sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.sum().backward()


@pytest.mark.parametrize("error", [RuntimeError, ValueError])
def test_a_returned_leaf_needs_mark_not_inplace(error):
    x = leaf([1.0])
    with pytest.raises(error, match=r"Scale .*mark_not_inplace.*a leaf Variable that requires grad"):
        layer(lambda ctx, v: v, lambda ctx, g: g).apply(x)
    with sg.no_grad():
        assert layer(lambda ctx, v: v, lambda ctx, g: g).apply(x) is x


def test_mark_not_inplace_makes_the_returned_input_an_output_of_its_own():
    def forward(ctx, x):
        ctx.mark_not_inplace(x)
        ctx.save_for_backward(x)
        return x

    def backward(ctx, g):
        (x,) = ctx.saved_tensor()
        return g * x * x

    x = leaf([3.0])
    version = x._version
    y = layer(forward, backward).apply(x)
    assert y is not x and x.is_leaf and x._version == version and y.data_ptr() == x.data_ptr()
    (gradient,) = sg.grad(y, x, create_graph=True)
    assert gradient.item() == 9.0
    assert sg.grad(gradient, x)[0].item() == 6.0  # the saved value is the input, not the output


def test_an_in_place_layer_on_a_view_reaches_the_base():
    def forward(ctx, x):
        x.mul_(3)
        return x

    triple = layer(forward, lambda ctx, g: g * 3)
    x = leaf([1.0, 2.0])
    base = x * 1
    triple.apply(base[0])
    (base * 10).sum().backward()
    assert base.tolist() == [3.0, 2.0] and x.grad.tolist() == [30.0, 10.0]
    with pytest.raises(RuntimeError, match="a view of a leaf Variable that requires grad"):
        triple.apply(x[0])


@BOTH
@pytest.mark.parametrize("view", [lambda x: x, lambda x: x[:1], lambda x: x.detach()], ids=["itself", "part", "cut"])
def test_outputs_that_look_at_an_input_cannot_be_changed_in_place(kind, view):
    def forward(ctx, x):
        if kind is PyLayer:
            ctx.mark_not_inplace(x)
        return view(x)

    peek = layer(forward, lambda ctx, g: g.expand(2) * 5, kind)
    x = leaf([1.0, 2.0])
    v = x * 1
    with pytest.raises(RuntimeError, match="Output 0 of ScaleBackward is a view and is being modified inplace"):
        peek.apply(v).add_(1)
    y = peek.apply(v)
    v.add_(1)
    with pytest.raises(RuntimeError, match="Output 0 of ScaleBackward is a view and is being modified inplace"):
        y * 2
    with pytest.raises(RuntimeError, match="a view of a leaf Variable"):
        peek.apply(x).add_(1)
    peek.apply(x + 0).sum().backward()
    assert x.grad.tolist() == [5.0, 5.0]


# Function


def test_a_function_returns_one_gradient_per_argument():
    x = leaf([1.0])
    scale = layer(lambda ctx, v, factor, note: v * factor, lambda ctx, g: (g * 4, None, None, None, None), Function)
    scale.apply(x, 4, "note").backward()
    assert x.grad.item() == 4.0


WRONG_FUNCTION = {
    "too few": (lambda g: g, "incorrect number of gradients .expected 3, got 1"),
    "too many": (lambda g: (g, g, None, g), "incorrect number of gradients .expected 3, got 4"),
    "one for a number": (lambda g: (g, g, g), "different from None at position 3"),
    "a number": (lambda g: (g, 3.0, None), "returned float as gradient 1"),
    "a wrong shape": (lambda g: (g[:1].expand(3), g, None), "invalid gradient at index 0: got shape .3,., wanted .2,."),
}


@pytest.mark.parametrize("case", WRONG_FUNCTION)
def test_wrong_gradients_of_a_function_are_a_runtime_error_that_says_which(case):
    returned, message = WRONG_FUNCTION[case]
    function = layer(lambda ctx, a, b, n: a * b, lambda ctx, g: returned(g), Function)
    y = function.apply(leaf([1.0, 2.0]), leaf([1.0, 2.0]), 3)
    with pytest.raises(RuntimeError, match=message) as caught:
        y.sum().backward()
    assert isinstance(caught.value, GraphError)


def test_lists_are_opaque_to_a_function():
    x, inside = leaf([1.0]), leaf([2.0])
    function = layer(lambda ctx, v, parts: v * parts[0], lambda ctx, g: (g, None), Function)
    function.apply(x, [inside]).backward()
    assert x.grad.item() == 1.0 and inside.grad is None


def test_needs_input_grad_says_which_arguments_want_one():
    seen: list[Any] = []

    def forward(ctx, a, b, n):
        seen.append(ctx.needs_input_grad)
        return a * b

    function = layer(forward, None, Function)
    function.apply(sg.ones(1), leaf([1.0]), 3)
    function.apply(leaf([1.0]), sg.ones(1), 3)
    assert seen == [(False, True, False), (True, False, False)]


def test_a_returned_input_is_a_new_tensor():
    x = leaf([1.0])
    y = layer(lambda ctx, v: v, lambda ctx, g: g * 5, Function).apply(x)
    assert y is not x and x.is_leaf
    y.backward()
    assert x.grad.item() == 5.0


def test_a_dirty_input_is_changed_in_place():
    def forward(ctx, v):
        v.mul_(2)
        ctx.mark_dirty(v)
        return v

    double = layer(forward, lambda ctx, g: g * 2, Function)
    x = leaf([1.0, 2.0])
    base = x * 1
    part = base[1]
    assert double.apply(part) is part
    base.sum().backward()
    assert x.grad.tolist() == [1.0, 2.0]
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        double.apply(leaf([1.0]))


def test_a_dirty_input_that_is_not_differentiable_becomes_a_leaf():
    def forward(ctx, v):
        ctx.mark_dirty(v)
        ctx.mark_non_differentiable(v)
        return v.zero_()

    v = leaf([1.0]) * 2
    assert layer(forward, None, Function).apply(v) is v
    assert v.is_leaf and not v.requires_grad and v.item() == 0.0


def test_a_dirty_input_must_be_returned():
    def forward(ctx, v):
        ctx.mark_dirty(v)
        return v * 1

    with pytest.raises(
        RuntimeError, match="Some elements marked as dirty during the forward method were not returned as output"
    ):
        layer(forward, None, Function).apply(leaf([1.0]) * 1)


def test_setup_context_takes_over_the_ctx():
    class Product(Function):
        @staticmethod
        def forward(a, b):
            return a * b

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs, output)

        @staticmethod
        def backward(ctx, g):
            a, b, output = ctx.saved_tensors
            assert output.item() == a.item() * b.item()
            return g * b, g * a

    a, b = leaf([2.0]), leaf([3.0])
    Product.apply(a, b).backward()
    assert (a.grad.item(), b.grad.item()) == (3.0, 2.0)
    assert gradgradcheck(Product.apply, [a, b])


def test_a_once_differentiable_backward_cannot_be_differentiated():
    modes: list[bool] = []

    class Square(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @once_differentiable
        def backward(ctx, g):
            modes.append(sg.is_grad_enabled())
            return 2 * ctx.saved_tensors[0] * g

    x = leaf([3.0])
    assert sg.grad(Square.apply(x), x)[0].item() == 6.0
    y = x * 1
    (gradient,) = sg.grad(Square.apply(y) * y, x, create_graph=True)
    assert gradient.item() == 27.0 and modes == [False, False]
    with pytest.raises(RuntimeError, match=r"differentiate twice.*once_differentiable"):
        gradient.backward()


def test_a_second_derivative_flows_through_a_backward_that_uses_other_functions():
    class Square(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            return Cube.apply(ctx.saved_tensors[0]) * g

    x = leaf([2.0])
    (gradient,) = sg.grad(Square.apply(x), x, create_graph=True)
    assert gradient.item() == 8.0 and sg.grad(gradient, x)[0].item() == 12.0


def test_an_argument_that_is_no_tensor_in_save_for_backward_is_an_operand_error():
    with pytest.raises(OperandError):
        layer(lambda ctx, x: ctx.save_for_backward([x]), None).apply(leaf([1.0]))


def test_frozen_inputs_ignore_their_gradient_but_not_its_type():
    x, frozen = leaf([1.0]), sg.tensor(np.ones(1))
    layer(lambda ctx, a, b: a * b, lambda ctx, g: (g, g)).apply(x, frozen).backward()
    assert frozen.grad is None
    y = layer(lambda ctx, a, b: a * b, lambda ctx, g: (g, "no")).apply(x, frozen)
    with pytest.raises(ValueError, match="returned str as gradient 1"):
        y.backward()


# The rest of PyTorch's contract


def test_setup_context_gets_defaults_and_keywords_in_their_places():
    seen: list[Any] = []

    class Scale(Function):
        @staticmethod
        def forward(x, factor=3.0, *, shift=0.0):
            return x * factor + shift

        @staticmethod
        def setup_context(ctx, inputs, output):
            seen.append((ctx.needs_input_grad, inputs[1:], output.tolist()))
            ctx.factor = inputs[1]

        @staticmethod
        def backward(ctx, g):
            return g * ctx.factor, None, None

    x = leaf([1.0])
    Scale.apply(x).backward()
    Scale.apply(x, factor=5.0).backward()
    Scale.apply(x, shift=2.0).backward()
    flags = (True, False, False)
    assert seen == [(flags, (3.0, 0.0), [3.0]), (flags, (5.0, 0.0), [5.0]), (flags, (3.0, 2.0), [5.0])]
    assert x.grad.tolist() == [11.0]


def test_vjp_is_another_name_for_backward_and_both_are_one_too_many():
    def forward(ctx, x):
        return x * 7

    x = leaf([1.0])
    parts = {"forward": staticmethod(forward), "vjp": staticmethod(lambda ctx, g: g * 7)}
    type("Named", (Function,), parts).apply(x).backward()
    assert x.grad.tolist() == [7.0]
    both = type("Both", (Function,), {**parts, "backward": staticmethod(lambda ctx, g: g)})
    with pytest.raises(RuntimeError, match="Both: Implementing both 'backward' and 'vjp'"):
        both.apply(x).backward()
    neither = type("Neither", (Function,), {"forward": staticmethod(forward)})
    with pytest.raises(NotImplementedError, match=r"You must implement either the backward or vjp method.*Neither"):
        neither.apply(x).backward()


def test_a_function_is_called_by_apply_alone_also_through_an_instance():
    x = leaf([2.0])
    with pytest.raises(RuntimeError, match=r"non-static forward method is deprecated.*call Cube.apply"):
        Cube()(x)
    Cube().apply(x).backward()
    assert x.grad.tolist() == [12.0]


def test_the_node_shows_what_the_context_has_and_the_context_what_the_node_has():
    seen: list[Any] = []

    def forward(ctx, x, factor):
        ctx.factor = factor
        ctx.save_for_backward(x, None)
        return x * factor

    def backward(ctx, g):
        seen.append((ctx.name(), ctx.next_functions, ctx.metadata))
        return g * ctx.factor, None

    y = layer(forward, backward, Function).apply(leaf([1.0]), 4)
    node = y.grad_fn
    assert node.factor == 4 and node.needs_input_grad == (True, False) and len(node.saved_tensors) == 2
    assert node._raw_saved_tensors[1].data is None
    with pytest.raises(RuntimeError, match="None is forbidden"):
        node._raw_saved_tensors[1].register_hooks(lambda t: t, lambda t: t)
    with pytest.raises(AttributeError, match="nothing"):
        node.nothing  # noqa: B018
    node.metadata["note"] = 1
    y.backward()
    assert seen == [("ScaleBackward", node.next_functions, {"note": 1})]


@BOTH
def test_a_context_outlives_its_graph_without_keeping_it(kind):
    ctxs: list[Any] = []

    def forward(ctx, x):
        ctxs.append(ctx)
        ctx.save_for_backward(x)
        ctx.note = "kept"
        return x * 1

    x = leaf([3.0])
    y = layer(forward, lambda ctx, g: g, kind).apply(x)
    node = weakref.ref(y.grad_fn)
    del y
    ctx = ctxs[0]
    saved = ctx.saved_tensors if kind is Function else ctx.saved_tensor()
    assert node() is None and ctx.note == "kept" and saved[0] is x
    with pytest.raises(AttributeError, match="name"):
        ctx.name()
    freed = layer(forward, lambda ctx, g: g, kind).apply(x)
    freed.backward()
    del freed
    assert ctxs[1].note == "kept"
    with pytest.raises(RuntimeError, match="after they have already been freed"):
        _ = ctxs[1].saved_tensors if kind is Function else ctxs[1].saved_tensor()


def test_saved_tensors_may_be_cleared_at_the_first_look_in_backward():
    alive: list[bool] = []

    class Once(Function):
        clear_saved_tensors_on_access = True

        @staticmethod
        def forward(ctx, x):
            y = x.exp()
            Once.watch = weakref.ref(y.storage)
            ctx.save_for_backward(y)
            return y * 1

        @staticmethod
        def backward(ctx, g):
            (y,) = ctx.saved_tensors
            result = g * y
            del y
            alive.append(Once.watch() is not None)
            with pytest.raises(RuntimeError, match="saved_tensors can only be accessed once"):
                _ = ctx.saved_tensors
            return result

    x = leaf([0.0])
    Once.apply(x).backward()
    assert x.grad.tolist() == [1.0] and alive == [False]


def test_boxed_gradients_can_be_freed_one_by_one():
    alive: list[bool] = []

    class Boxed(Function):
        boxed_grads_call = True

        @staticmethod
        def forward(ctx, x):
            return x * 2, x * 3

        @staticmethod
        def backward(ctx, grads):
            first = grads.pop(0)
            watch = weakref.ref(first)
            total = first * 2
            del first
            alive.append(watch() is not None)
            return total + grads[0] * 3

    x = leaf([1.0])
    a, b = Boxed.apply(x)
    (a * 5 + b * 7).backward()
    assert x.grad.tolist() == [31.0] and alive == [False]


def test_saving_for_forward_mode_does_nothing():
    def forward(ctx, x):
        ctx.save_for_forward(x)
        return x * 1

    x = leaf([1.0])
    layer(forward, lambda ctx, g: g * 2, Function).apply(x).backward()
    assert x.grad.tolist() == [2.0]


@BOTH
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_an_exception_shows_the_frame_of_the_users_code(kind, where):
    def the_users_own_function(*_):
        raise ZeroDivisionError("mine")

    def forward(ctx, x):
        return the_users_own_function() if where == "forward" else x * 1

    def backward(ctx, g):
        return the_users_own_function()

    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        layer(forward, backward, kind).apply(leaf([1.0])).backward()
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert frames[-2:] == [where, "the_users_own_function"]


def test_a_function_returns_a_tuple_not_a_list_of_gradients():
    y = layer(lambda ctx, x: x * 1, lambda ctx, g: [g], Function).apply(leaf([1.0]))
    with pytest.raises(RuntimeError, match=r"expected Variable or None \(got list\)"):
        y.backward()


def test_a_dirty_input_returned_twice_is_one_tensor():
    def forward(ctx, x):
        ctx.mark_dirty(x)
        x.mul_(2)
        return x, x

    double = layer(forward, lambda ctx, ga, gb: (ga + gb) * 2, Function)

    def total(x: sg.Tensor) -> sg.Tensor:
        v = x * 1
        a, b = double.apply(v)
        assert a is b is v
        return a + b * 3

    x = leaf([1.5, -2.0])
    assert gradcheck(total, x) and gradgradcheck(total, x)


def test_a_dirty_view_may_be_one_of_several_outputs():
    def forward(ctx, x):
        ctx.mark_dirty(x)
        x.mul_(2)
        return x, x * 3

    double = layer(forward, lambda ctx, ga, gb: ga * 2 + gb * 6, Function)

    def total(x: sg.Tensor) -> sg.Tensor:
        v = x * 1
        part, other = double.apply(v[0])
        return (v * v).sum() + part * other

    x = leaf([1.5, -2.0])
    assert gradcheck(total, x) and gradgradcheck(total, x)


@BOTH
def test_backward_runs_a_backward_through_the_same_function_inside_itself(kind):
    def forward(ctx, x, depth):
        ctx.depth = depth
        return x * 1

    def backward(ctx, g):
        if ctx.depth:
            with sg.enable_grad():
                inner = leaf([1.0])
                scale.apply(inner, ctx.depth - 1).backward()
            g = g + inner.grad
        return (g, None) if kind is Function else g

    scale = layer(forward, backward, kind)
    x = leaf([1.0])
    scale.apply(x, 5).backward()
    assert x.grad.tolist() == [6.0]
