"""`saved_tensors_hooks`: what is packed, when, in which order; what unpacking may return; whose hooks apply."""

import contextlib
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.autograd.core import hooks
from spillgrad.autograd.graph import disable_saved_tensors_hooks, save_on_cpu, saved_tensors_hooks
from spillgrad.errors import GraphError, HookTypeError, SavedTensorError
from spillgrad.nn.functional import layer_norm, linear
from spillgrad.ops.operation import operation
from tests.ops.checks import leaf


class Recorder(saved_tensors_hooks):
    """Hooks that note every call: (operation, slot) packed, and the values packed and unpacked."""

    def __init__(self) -> None:
        self.places: list[tuple[str, str]] = []
        self.packed: list[list[float]] = []
        self.unpacked: list[list[float]] = []
        super().__init__(self.pack, self.unpack)

    def pack(self, tensor: sg.Tensor) -> np.ndarray:
        self.places.append(hooks.packing())
        self.packed.append(tensor.tolist())
        return tensor.numpy().copy()

    def unpack(self, array: np.ndarray) -> sg.Tensor:
        self.unpacked.append(array.tolist())
        return sg.tensor(array)


def other(*shape: int) -> sg.Tensor:
    return sg.tensor(np.ones(shape))


# What is packed

PACKED: dict[str, tuple[Callable[[sg.Tensor], sg.Tensor], list[str]]] = {
    "a sum of two": (lambda x: x + other(2, 2), []),
    "a difference": (lambda x: x - other(2, 2), []),
    "a sum over a dimension": (lambda x: x.sum(0), []),
    "a mean": (lambda x: x.mean(), []),
    "a negation": (lambda x: -x, []),
    "a reshape": (lambda x: x.reshape(4), []),
    "an expansion": (lambda x: x.expand(3, 2, 2), []),
    "a transpose": (lambda x: x.t(), []),
    "a slice": (lambda x: x[0], []),
    "a concatenation": (lambda x: sg.cat([x, other(2, 2)]), []),
    "a clone": (lambda x: x.clone(), []),
    "a conversion": (lambda x: x.float(), []),
    "a product with a Python number": (lambda x: 2 * x, []),
    "a quotient by a Python number": (lambda x: x / 2, []),
    "a product with a constant": (lambda x: x * other(2, 2), ["other"]),
    "a constant times it": (lambda x: other(2, 2) * x, ["self"]),
    "a product with itself": (lambda x: x * x, ["self", "other"]),
    "a quotient by a constant": (lambda x: x / other(2, 2), ["other"]),
    "a matrix product with a constant": (lambda x: x @ other(2, 2), ["mat2"]),
    "a linear map of it": (lambda x: linear(x, other(2, 2), other(2)), ["weight"]),
    "a linear map by it": (lambda x: linear(other(2, 2), x, other(2)), ["input"]),
    "a power": (lambda x: x**2, ["self"]),
    "a hyperbolic tangent": (lambda x: x.tanh(), ["result"]),
    "an in-place product": (lambda x: (x + 0).mul_(other(2, 2)), ["other"]),
    "an in-place overwriting": (lambda x: (x + 0).copy_(other(2, 2)), []),
}


@pytest.mark.parametrize("case", PACKED)
def test_only_what_a_derivative_names_is_packed(case):
    function, slots = PACKED[case]
    recorder = Recorder()
    x = leaf([[1.0, 2.0], [3.0, 4.0]])
    with recorder:
        y = function(x)
    assert [slot for _, slot in recorder.places] == slots
    y.backward(sg.ones_like(y))
    assert recorder.unpacked == recorder.packed
    x.grad = None
    y = function(x)
    y.backward(sg.ones_like(y))
    assert recorder.unpacked == recorder.packed  # nothing outside the context


def test_nothing_is_packed_where_nothing_is_recorded():
    recorder = Recorder()
    x = leaf([1.0])
    with recorder:
        with sg.no_grad():
            x * x
        other(1) * other(1)
    assert recorder.places == []


def test_inputs_are_packed_before_outputs_and_outputs_before_auxiliaries():
    both = operation(
        "both",
        lambda a, b: (a * b, a + 1, b + 2),
        outputs=("result",),
        aux=("later", "last"),
        b=lambda g, last, result, a: g * a + 0 * (last + result),
        a=lambda g, later, b: g * b + 0 * later,
    )
    recorder = Recorder()
    with recorder:
        y = both(leaf([2.0]), leaf([3.0]))
    slots = ["a", "b", "result", "later", "last"]
    assert recorder.places == [("both", slot) for slot in slots]
    assert recorder.packed == [[2.0], [3.0], [6.0], [3.0], [5.0]]
    y.backward()
    assert recorder.unpacked == recorder.packed


def test_layer_norm_packs_its_input_and_weight_then_its_statistics():
    recorder = Recorder()
    with recorder:
        layer_norm(leaf([[1.0, 2.0], [3.0, 5.0]]), (2,), leaf([1.0, 2.0]), leaf([0.0, 0.0]))
    slots = [slot for _, slot in recorder.places]
    assert slots[:2] == ["input", "weight"] and len(slots) > 2


def test_packing_happens_when_the_operation_is_done_and_sees_no_graph():
    x = leaf([1.0, 2.0])
    seen = []

    def pack(tensor: sg.Tensor) -> sg.Tensor:
        seen.append((tensor.tolist(), tensor.requires_grad, tensor.grad_fn, sg.is_grad_enabled()))
        return tensor

    with saved_tensors_hooks(pack, lambda t: t):
        (x * 3).tanh()
    assert seen == [(np.tanh([3.0, 6.0]).tolist(), False, None, False)]


def test_a_pack_hook_learns_the_operation_and_slot_and_nobody_else():
    recorder = Recorder()
    with recorder:
        leaf([1.0]) * other(1)
    assert recorder.places == [("mul", "other")] and hooks.packing() == ("", "")


# When it is unpacked


def test_unpacking_happens_once_per_use_and_only_in_backward():
    recorder = Recorder()
    x = leaf([2.0])
    with recorder:
        y = x * x
    assert recorder.unpacked == []
    y.backward(retain_graph=True)
    assert len(recorder.unpacked) == 2
    y.backward()
    assert len(recorder.unpacked) == 4 and x.grad.tolist() == [8.0]


def test_the_graph_remembers_the_unpack_hook_it_was_packed_with():
    x = leaf([2.0])
    first, second = Recorder(), Recorder()
    with first:
        y = x * x
    with second:
        z = x.tanh()
        (y + z).backward()
    assert (len(first.unpacked), len(second.unpacked)) == (2, 1)


@pytest.mark.parametrize(
    ("around", "first", "second"), [("neither", 4, 2), ("forward", 12, 2), ("backward", 4, 6), ("both", 12, 6)]
)
def test_hooks_around_forward_and_around_backward_each_change_one_order(around, first, second):
    x = leaf([2.0])
    threefold = saved_tensors_hooks(lambda t: t * 3, lambda t: t)
    with threefold if around in ("forward", "both") else contextlib.nullcontext():
        y = x * x
    with threefold if around in ("backward", "both") else contextlib.nullcontext():
        (gradient,) = sg.grad(y, x, create_graph=True)
    assert (gradient.item(), sg.grad(gradient, x)[0].item()) == (first, second)


def test_second_derivatives_come_through_packed_values():
    x, w = leaf([[0.3, 0.8]]), leaf([[0.5], [0.2]])

    def second() -> tuple[Any, ...]:
        y = (x @ w).tanh() * x.sum()
        gradients = sg.grad(y, [x, w], create_graph=True)
        return sg.grad(gradients[0].sum() + (gradients[1] * gradients[1]).sum(), [x, w])

    plain = second()
    recorder = Recorder()
    with recorder:
        hooked = second()
    assert recorder.unpacked
    for got, wanted in zip(hooked, plain, strict=True):
        np.testing.assert_array_equal(got.numpy(), wanted.numpy())


def test_hooks_that_transform_values_apply_once_to_each():
    x = leaf([3.0])
    with saved_tensors_hooks(lambda t: t * 4, lambda t: t / 2):
        y = x * x
    y.backward()
    assert x.grad.tolist() == [2 * 2 * 3.0]


def test_what_unpacking_returns_is_used_whatever_its_graph():
    x = leaf([3.0])
    with saved_tensors_hooks(lambda t: t, lambda t: leaf([5.0]) * 1):
        y = x * x
    (gradient,) = sg.grad(y, x, create_graph=True)
    assert gradient.tolist() == [10.0]
    assert sg.grad(gradient, x)[0].tolist() == [2.0]


# Nesting, threads, disabling


def test_the_innermost_pair_applies():
    outer, inner = Recorder(), Recorder()
    x = leaf([2.0])
    with outer:
        a = x * x
        with inner:
            b = x * x
        c = x * x
    (a + b + c).backward()
    assert (len(outer.packed), len(inner.packed)) == (4, 2)
    assert (len(outer.unpacked), len(inner.unpacked)) == (4, 2)


def test_a_context_can_be_entered_again_also_within_itself():
    recorder = Recorder()
    x = leaf([2.0])
    with recorder:
        x * x
        with recorder:
            x * x
    with recorder:
        x * x
    assert len(recorder.packed) == 6 and hooks.depth() == 0


def test_hooks_are_the_threads_own():
    recorder = Recorder()
    x = leaf([2.0])

    def work() -> None:
        x * x

    with recorder:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert recorder.packed == []


def test_a_graph_packed_here_is_unpacked_wherever_backward_runs():
    recorder = Recorder()
    x = leaf([2.0])
    with recorder:
        y = x * x
    thread = threading.Thread(target=y.backward)
    thread.start()
    thread.join()
    assert len(recorder.unpacked) == 2 and x.grad.tolist() == [4.0]


def test_disabling_makes_entering_an_error_with_the_given_message():
    recorder = Recorder()
    with disable_saved_tensors_hooks("not here"):
        with disable_saved_tensors_hooks("nor here"), pytest.raises(RuntimeError, match="nor here"):
            recorder.__enter__()
        with pytest.raises(RuntimeError, match="not here"):
            recorder.__enter__()
        leaf([1.0]) * leaf([1.0])
    with recorder:
        leaf([1.0]) * leaf([1.0])
        with pytest.raises(RuntimeError, match="inside"), disable_saved_tensors_hooks("inside"):
            raise AssertionError("not reached")
        leaf([1.0]) * leaf([1.0])
    assert len(recorder.packed) == 4


def test_contexts_may_come_and_go_inside_an_unpack_hook():
    x = leaf([2.0])
    inside = Recorder()

    def unpack(tensor: sg.Tensor) -> sg.Tensor:
        with sg.enable_grad(), inside:
            leaf([1.0]) * leaf([1.0])
        return tensor

    with saved_tensors_hooks(lambda t: t, unpack):
        y = x * x
    y.backward()
    assert len(inside.packed) == 4 and hooks.depth() == 0


# Errors


def test_an_unpack_hook_must_return_a_tensor():
    x = leaf([2.0])
    with saved_tensors_hooks(lambda t: t, lambda t: 7):
        y = x * x
    with pytest.raises(
        TypeError, match=r"mul: Output of saved tensor unpack_hook expected to be a Tensor.*int.*'self'"
    ):
        y.backward()


@pytest.mark.parametrize(
    "inputs", [lambda x: x, lambda x: x + 0, lambda x: x.detach()], ids=["leaf", "non-leaf", "no gradient"]
)
def test_a_pack_hook_must_not_change_its_input(inputs):
    x, w = leaf([2.0]), leaf([3.0])
    value = inputs(x)
    with saved_tensors_hooks(lambda t: t.add_(1), lambda t: t):
        with pytest.raises(
            RuntimeError, match=r"mul: A saved tensor pack hook is modifying its input in place.*'self'"
        ):
            value * w
        assert hooks.packing() == ("", "")


@pytest.mark.parametrize(
    ("back", "what"),
    [
        (lambda t: t.reshape(1, 2), r"\(1, 2\)"),
        (lambda t: t.float(), "float32"),
        (lambda t: t[:1], r"\(1,\)"),
    ],
)
def test_a_value_that_comes_back_different_names_operation_and_slot(back, what):
    x = leaf([1.0, 2.0])
    with saved_tensors_hooks(lambda t: t, back):
        y = x.tanh()
    with pytest.raises(SavedTensorError, match=rf"tanh: slot 'result' was packed as \(2,\) float64.*{what}"):
        y.sum().backward()


class Mine(Exception):
    pass


def raise_mine(value: Any) -> Any:
    raise Mine("as it was")


def test_a_hooks_own_exception_passes_through_unchanged_and_the_stack_is_clean():
    x = leaf([2.0])
    error: Any = None
    try:
        with saved_tensors_hooks(raise_mine, lambda t: t):
            x * x
    except Mine as caught:
        error = caught
    assert type(error) is Mine and error.args == ("as it was",) and error.__cause__ is None
    assert hooks.depth() == 0 and hooks.packing() == ("", "")
    with saved_tensors_hooks(lambda t: t, raise_mine):
        y = x * x
    with pytest.raises(Mine, match="as it was"):
        y.backward()
    assert hooks.depth() == 0 and sg.is_grad_enabled()
    z = x * x
    z.backward()
    assert x.grad.tolist() == [4.0]


def test_hooks_must_be_callable():
    with pytest.raises(HookTypeError, match="int and builtin_function_or_method"), saved_tensors_hooks(3, abs):
        leaf([1.0]) * leaf([1.0])


# Changes between packing and unpacking


def test_a_copy_outlives_a_change_of_the_original_and_a_look_at_it_does_not():
    changes: dict[str, Callable[[sg.Tensor], Any]] = {
        "identity": lambda t: t,
        "a view": lambda t: t.reshape(1, 2),
        "an array over the same memory": lambda t: t.numpy(),
    }
    for name, pack in changes.items():
        x = leaf([1.0, 2.0])
        y = x + 0
        with saved_tensors_hooks(pack, lambda p: sg.as_tensor(p).reshape(2)):
            z = y * y
        y.add_(1)
        with pytest.raises(SavedTensorError, match=r"modified by an inplace operation.*mul as 'self'"):
            z.sum().backward()
        assert name
    with saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        z = y * y
    y.zero_()
    z.sum().backward()
    assert x.grad.tolist() == [4.0, 6.0]


# save_on_cpu


@pytest.mark.parametrize("pin_memory", [False, True])
def test_save_on_cpu_gives_the_same_gradients(pin_memory):
    x, w = leaf([[1.0, 2.0]]), leaf([[3.0], [4.0]])
    with save_on_cpu(pin_memory):
        y = (x @ w).tanh()
    assert y.grad_fn._raw_saved_result.data[0] == x.device
    y.backward()
    slope = 1 - np.tanh(11.0) ** 2
    np.testing.assert_allclose(x.grad.numpy(), [[3 * slope, 4 * slope]], rtol=1e-9, atol=1e-15)


def test_a_saved_tensor_takes_hooks_once_by_hand():
    x = leaf([3.0])
    y = x * 1 * x.detach()
    recorder = Recorder()
    raw = y.grad_fn._raw_saved_other
    raw.register_hooks(recorder.pack, recorder.unpack)
    assert recorder.packed == [[3.0]] and raw.unpack_hook == recorder.unpack
    with pytest.raises(GraphError, match="already been set"):
        raw.register_hooks(recorder.pack, recorder.unpack)
    y.backward()
    assert recorder.unpacked == [[3.0]]
    with pytest.raises(SavedTensorError, match="freed"):
        raw.register_hooks(recorder.pack, recorder.unpack)


# Left and entered where nobody expects it


def test_leaving_a_context_inside_an_unpack_hook_does_not_crash():
    outer = saved_tensors_hooks(lambda t: t, lambda t: t)

    def unpack(tensor: sg.Tensor) -> sg.Tensor:
        inner.__exit__()
        return tensor

    inner = saved_tensors_hooks(lambda t: t, unpack)
    x = leaf([1.0])
    for _ in range(3):
        with outer:
            inner.__enter__()
            y = x.sin().sum()
            y.backward()
        assert hooks.depth() == 0
    inner.__exit__()
    x.exp().grad_fn._raw_saved_result.register_hooks(lambda t: t, lambda t: t)


def test_entering_a_context_inside_an_unpack_hook_does_not_leak():
    def scope() -> Any:
        def unpack(tensor: sg.Tensor) -> sg.Tensor:
            known().__enter__()
            return tensor

        context = saved_tensors_hooks(lambda t: t, unpack)
        known = weakref.ref(context)
        with context:
            y = leaf([1.0]).sin().sum()
        y.backward()
        assert hooks.depth() == 0
        with context:
            leaf([1.0]).sin().sum().backward()
            assert hooks.depth() == 1
        return weakref.ref(unpack)

    gc.disable()
    try:
        assert scope()() is None and hooks.depth() == 0
    finally:
        gc.enable()


def test_what_was_entered_inside_a_context_and_not_left_is_left_with_it():
    outer, inner = Recorder(), Recorder()
    with outer:
        inner.__enter__()
        inner.__enter__()
    assert hooks.depth() == 0
    leaf([1.0]) * leaf([1.0])
    assert inner.packed == outer.packed == []


def test_disabling_decorates_a_function():
    @disable_saved_tensors_hooks("not in here")
    def guarded() -> None:
        with Recorder():
            pass

    for _ in range(2):
        with pytest.raises(RuntimeError, match="not in here"):
            guarded()
    with Recorder():
        leaf([1.0]) * leaf([1.0])


# only=


@pytest.mark.parametrize(
    ("only", "wanted"),
    [
        (lambda saved: saved.op == "tanh", [("tanh", "result")]),
        (lambda saved: saved.slot == "other", [("mul", "other")]),
        (lambda saved: saved.nbytes > 16, [("exp", "result")]),
        (lambda saved: saved.tensor.dtype == sg.float32, []),
        (lambda saved: False, []),
        (None, [("mul", "self"), ("mul", "other"), ("tanh", "result"), ("exp", "result")]),
    ],
)
def test_only_selects_by_operation_slot_size_or_the_tensor(only, wanted):
    def run() -> sg.Tensor:
        y = (x * x).tanh()
        return y.sum() + y.expand(2, 2).exp().sum()

    x = leaf([1.0, 2.0])
    (plain,) = sg.grad(run(), x)
    recorder = Recorder()
    recorder.only = only
    with recorder:
        y = run()
    assert recorder.places == wanted
    np.testing.assert_array_equal(sg.grad(y, x)[0].numpy(), plain.numpy())
    assert len(recorder.unpacked) == len(wanted)


def test_only_selects_by_module():
    class Net(sg.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = sg.nn.Linear(2, 2)
            self.second = sg.nn.Sequential(sg.nn.Linear(2, 2), sg.nn.Tanh())

        def forward(self, x: sg.Tensor) -> sg.Tensor:
            return self.second(self.first(x)) * 1

    seen: list[tuple[str, str]] = []
    with saved_tensors_hooks(
        lambda t: t, lambda t: t, only=lambda saved: bool(seen.append((saved.module, saved.op))) or False
    ):
        net = Net()
        net(sg.ones(1, 2)).sum().backward()
    modules = dict(seen)
    assert set(modules) == {"first", "second.0", "second.1"} and modules["second.1"] == "tanh"


def test_what_the_innermost_pair_does_not_take_goes_to_the_one_around_it():
    outer, inner = Recorder(), Recorder()
    inner.only = lambda saved: saved.op == "mul"
    outer.only = lambda saved: saved.op != "exp"
    x = leaf([1.0])
    with outer, inner:
        y = (x * x).tanh().exp()
    assert inner.places == [("mul", "self"), ("mul", "other")] and outer.places == [("tanh", "result")]
    y.backward()
    assert (len(inner.unpacked), len(outer.unpacked)) == (2, 1)


def test_only_sees_a_tensor_without_graph_and_its_exception_passes_through():
    seen: list[Any] = []
    x = leaf([1.0])
    with saved_tensors_hooks(lambda t: t, lambda t: t, only=lambda saved: bool(seen.append(saved.tensor))):
        (x * 2).tanh()
    assert [(t.requires_grad, t.grad_fn) for t in seen] == [(False, None)]
    with saved_tensors_hooks(lambda t: t, lambda t: t, only=raise_mine), pytest.raises(Mine, match="as it was"):
        x * x


def test_only_must_be_callable():
    with pytest.raises(TypeError, match="saved_tensors_hooks: got only=3; wanted a function of one argument"):
        saved_tensors_hooks(lambda t: t, lambda t: t, only=3)


def test_a_custom_functions_values_are_selected_by_its_nodes_name():
    class Keep(sg.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x, x * 2)
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[1]

    recorder = Recorder()
    recorder.only = lambda saved: (saved.op, saved.slot) == ("KeepBackward", "1")
    x = leaf([3.0])
    with recorder:
        y = Keep.apply(x) * x
    assert recorder.places == [("KeepBackward", "1")]
    y.backward()
    assert x.grad.item() == 6.0 * 3.0 + 3.0


def test_save_on_cpu_selects_too():
    x = leaf([1.0, 2.0])
    with save_on_cpu(only=lambda saved: saved.op == "tanh"):
        y = (x * x).tanh()
    assert isinstance(y.grad_fn._raw_saved_result.data, tuple)
    assert isinstance(y.grad_fn.next_functions[0][0]._raw_saved_self.data, sg.Tensor)
