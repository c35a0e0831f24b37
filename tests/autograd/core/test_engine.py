"""`backward` and `grad`: what arrives where, what is freed, and who owns the result."""

import contextlib
import gc
import itertools
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, ClassVar

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.autograd import Function, backward, saved_tensors_hooks
from spillgrad.autograd.core import engine, hooks
from spillgrad.autograd.graph import GradientEdge, get_gradient_edge
from spillgrad.errors import ArgumentError, GraphError, OperandError, SavedTensorError, ShapeError
from spillgrad.nn.functional import linear
from spillgrad.ops.intercept import intercept
from spillgrad.ops.operation import operation
from tests.ops.checks import check_gradients, leaf

CHAIN = 150_000


def same(tensor: sg.Tensor | None, wanted: Any) -> bool:
    return tensor is not None and np.array_equal(tensor.numpy(), np.asarray(wanted, np.float64))


# A chain longer than any stack


@pytest.fixture
def collector_off() -> Iterator[None]:
    """Let reference counts alone free things."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("context", [contextlib.nullcontext(), saved_tensors_hooks(lambda t: t, lambda t: t)])
def test_a_long_chain_runs_backward_and_is_freed_without_overflow(context, collector_off):
    x, one = leaf([1.0]), sg.tensor(np.ones(1))
    y = x
    with context:
        for _ in range(CHAIN):
            y = y * one
    oldest = y.grad_fn
    while (node := oldest.next_functions[0][0]).next_functions:
        oldest = node
    oldest = weakref.ref(oldest)
    y.backward()
    assert same(x.grad, [1.0]) and oldest() is not None
    del y, node
    assert oldest() is None


def test_a_long_chain_of_in_place_changes_of_a_view_runs_backward_and_is_freed():
    x = leaf([1.0, 1.0])
    y = x * 1.0
    view = y[0]
    for _ in range(2_000):
        view.add_(x[1])
    y.sum().backward()
    assert same(x.grad, [1.0, 2001.0])
    del y, view


# What arrives


def test_gradients_of_all_paths_add_up():
    x = leaf([2.0, 3.0])
    y = x * x
    (y + x + y * x).sum().backward()
    assert same(x.grad, 2 * x.numpy() + 1 + 3 * x.numpy() ** 2)


def test_several_roots_may_be_outputs_of_one_node_ancestors_of_each_other_or_the_same():
    x = leaf([1.0, 2.0])
    first, second = sg.split(x * x, 1)
    ones = sg.tensor(np.ones(1))
    backward([first, second], [ones, ones])
    assert same(x.grad, [2.0, 4.0])

    y = x * 3
    total = y.sum()
    assert same(sg.grad([total, y, total], x, [None, sg.tensor(np.array([1.0, 0.0])), None])[0], [9.0, 6.0])


def test_a_leaf_is_its_own_gradient_root():
    x = leaf([1.0, 2.0])
    x.backward(sg.tensor(np.array([5.0, 6.0])))
    assert same(x.grad, [5.0, 6.0])


def test_a_gradient_takes_the_dtype_of_its_tensor():
    x = leaf([1.0, 2.0])
    x.backward(sg.ones(2, dtype=sg.float32))
    (x * x).backward(sg.ones(2, dtype=sg.float32))
    assert x.grad.dtype == sg.float64
    half = sg.ones(2, dtype=sg.float32, requires_grad=True)
    (half.double() * x).sum().backward()
    assert half.grad.dtype == sg.float32


def test_zero_size_tensors_have_zero_size_gradients():
    x = sg.tensor(np.zeros((0, 3)), requires_grad=True)
    (x * x).sum().backward()
    assert x.grad.shape == (0, 3)


def test_an_unused_output_counts_as_zeros():
    x = leaf([1.0, 2.0])
    first, _ = sg.split(x * x, 1)
    first.backward()
    assert same(x.grad, [2.0, 0.0])


def test_integer_results_carry_no_gradient():
    x = leaf([3.0, 1.0])
    values, order = sg.sort(x * 2)
    assert values.requires_grad and not order.requires_grad and not (x > 2).requires_grad


def test_tensors_that_need_no_gradient_get_none():
    x, frozen = leaf([1.0]), sg.tensor(np.ones(1))
    (x * frozen).backward()
    assert frozen.grad is None


# Twice


def test_a_second_backward_says_how_to_keep_the_graph():
    x = leaf([2.0])
    y = x * x
    y.backward()
    with pytest.raises(RuntimeError, match=r"backward through the graph a second time.*Specify retain_graph=True"):
        y.backward()
    assert same(x.grad, [4.0])


def test_retain_graph_allows_any_number_of_backwards():
    x = leaf([2.0])
    y = x * x
    for times in (1, 2, 3):
        y.backward(retain_graph=times < 3)
        assert same(x.grad, [4.0 * times])
    with pytest.raises(SavedTensorError):
        y.backward()


def test_a_graph_that_saved_nothing_can_run_again():
    x = leaf([2.0])
    y = (x + x).sum()
    y.backward()
    y.backward()
    assert same(x.grad, [4.0])


def test_grad_frees_only_what_it_ran():
    x = leaf([2.0])
    y = x * x
    z = y * y
    sg.grad(z, y)
    y.backward()
    assert same(x.grad, [4.0])


# create_graph

SECOND_ORDER: dict[str, tuple[Callable[..., sg.Tensor], tuple[tuple[int, ...], ...]]] = {
    "elementwise": (lambda a, b: (a * b).tanh() / (b + 3), ((2, 3), (3,))),
    "matmul": (lambda a, b: (a @ b).tanh(), ((2, 3), (3, 2))),
    "linear": (lambda a, w, b: linear(a, w, b).tanh(), ((2, 3), (4, 3), (4,))),
    "reduction": (lambda a: a.tanh().sum(0) * a.mean(), ((2, 3),)),
    "views": (lambda a: a.t().reshape(2, 3)[1:, ::2].unsqueeze(0).expand(2, 1, 2) ** 2, ((2, 3),)),
    "through one value twice": (lambda a: a * a.sum() * a, ((3,),)),
}


@pytest.mark.parametrize("case", SECOND_ORDER)
def test_second_derivatives_equal_central_differences_of_the_first(case):
    function, shapes = SECOND_ORDER[case]
    rng = np.random.default_rng(0)
    check_gradients(function, *(rng.uniform(0.2, 1, shape) for shape in shapes))


def test_derivatives_of_any_order():
    x = leaf(2.0)
    y = x**3 * x
    for wanted in (32.0, 48.0, 48.0, 24.0):
        (y,) = sg.grad(y, x, create_graph=True)
        assert y.item() == wanted


def test_without_create_graph_a_gradient_has_no_graph():
    x = leaf([2.0])
    y = x * x
    assert not sg.grad(y, x, retain_graph=True)[0].requires_grad
    assert sg.grad(y, x, create_graph=True)[0].requires_grad
    y.backward()
    assert not x.grad.requires_grad


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
def test_create_graph_keeps_the_graph_and_accumulates_with_it():
    x = leaf([2.0])
    (x * x * x).backward(create_graph=True)
    first = x.grad
    (x * x).backward(create_graph=True)
    assert x.grad is not first and x.grad.requires_grad and same(x.grad.detach(), [16.0])
    assert same(sg.grad(x.grad, x)[0], [6 * 2.0 + 2])


def test_a_gradient_penalty_reaches_the_weights():
    x, w = leaf([[0.3, -0.2]]), leaf([[0.5, 0.1], [0.4, -0.7]])
    (gradient,) = sg.grad((x @ w).tanh().sum(), x, create_graph=True)
    (gradient * gradient).sum().backward()

    def penalty(values: np.ndarray) -> float:
        slope = (1 - np.tanh(x.numpy() @ values) ** 2) @ values.T
        return float((slope**2).sum())

    step = 1e-6
    for place in np.ndindex(2, 2):
        nudge = np.zeros((2, 2))
        nudge[place] = step
        slope = (penalty(w.numpy() + nudge) - penalty(w.numpy() - nudge)) / (2 * step)
        assert abs(w.grad.numpy()[place] - slope) < 1e-8


# grad


def test_grad_returns_and_accumulates_nothing():
    x, w = leaf([2.0]), leaf([3.0])
    gradients = sg.grad(x * w, [x, w, x])
    assert [g.item() for g in gradients] == [3.0, 2.0, 3.0]
    assert x.grad is None and w.grad is None


def test_grad_of_a_non_leaf_stops_there():
    x = leaf([2.0])
    y = x * x
    reached = []
    x.register_hook(reached.append)
    assert same(sg.grad(y * y, y)[0], [8.0]) and reached == []


def test_grad_runs_hooks_of_what_it_returns():
    x = leaf([2.0])
    x.register_hook(lambda g: g * 10)
    assert same(sg.grad(x * x, x)[0], [40.0])


def test_an_unused_input_is_an_error_none_or_zeros():
    x, unused = leaf([2.0]), leaf([1.0, 2.0])
    y = x * x
    with pytest.raises(RuntimeError, match=r"tensor at index 1 .*not have been used in the graph.*allow_unused=True"):
        sg.grad(y, [x, unused], retain_graph=True)
    assert sg.grad(y, [x, unused], retain_graph=True, allow_unused=True)[1] is None
    assert same(sg.grad(y, [x, unused], retain_graph=True, materialize_grads=True)[1], [0.0, 0.0])
    with pytest.raises(ValueError, match="allow_unused"):
        sg.grad(y, [x, unused], allow_unused=False, materialize_grads=True)


# backward(inputs=)


def test_inputs_limit_where_gradients_accumulate():
    x, w = leaf([2.0]), leaf([3.0])
    y = x * w
    (y * y).backward(inputs=[w])
    assert x.grad is None and same(w.grad, [2 * 6.0 * 2])


def test_a_non_leaf_among_inputs_retains_its_gradient():
    x = leaf([2.0])
    y = x * x
    (y * y).backward(inputs=y)
    assert same(y.grad, [8.0]) and x.grad is None


def test_a_leaf_that_was_frozen_after_the_forward_gets_no_gradient():
    x, w = leaf([2.0]), leaf([3.0])
    seen = []
    w.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf))
    y = x * w
    w.requires_grad_(False)
    y.backward(retain_graph=True)
    assert w.grad is None and seen == [] and same(x.grad, [3.0])
    w.requires_grad_()
    y.backward()
    assert same(w.grad, [2.0]) and seen == [w]


def test_a_gradient_can_be_deleted():
    x = leaf([2.0])
    (x * x).backward()
    del x.grad
    assert x.grad is None


def test_an_input_that_was_not_used_stays_without_gradient():
    x, unused = leaf([2.0]), leaf([3.0])
    (x * x).backward(inputs=[unused])
    assert unused.grad is None and x.grad is None


# Who owns `.grad`


def test_accumulation_adds_in_place():
    x = leaf([2.0])
    (x * x).backward()
    held = x.grad
    (x * x).backward()
    assert x.grad is held and same(held, [8.0])


def keep(kept: list[Any]) -> Callable[[sg.Tensor], None]:
    return lambda grad: kept.append(grad)


class PassOn(sg.autograd.PyLayer):
    kept: Any = None

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, g):
        PassOn.kept = g * 1
        return PassOn.kept


def held_by_the_caller(x: sg.Tensor) -> Any:
    given = sg.tensor(np.array([1.0, 1.0]))
    x.backward(given)
    return given


def held_by_the_caller_through_identity(x: sg.Tensor) -> Any:
    given = sg.tensor(np.array([1.0, 1.0]))
    (x + 0).backward(given)
    return given


def held_by_the_caller_with_create_graph(x: sg.Tensor) -> Any:
    given = leaf([1.0, 1.0])
    x.backward(given, create_graph=True)
    return given


def held_as_an_array(x: sg.Tensor) -> Any:
    given = np.ones(2)
    (x + 0).backward(given)
    return given


def held_by_another_leaf(x: sg.Tensor) -> Any:
    other = leaf([1.0, 1.0])
    (x + other).backward(sg.tensor(np.ones(2)))
    return other.grad


def held_by_a_custom_function(x: sg.Tensor) -> Any:
    PassOn.apply(x).sum().backward()
    return PassOn.kept


def held_by_a_tensor_hook(x: sg.Tensor) -> Any:
    kept: list[Any] = []
    y = x + 0
    y.register_hook(keep(kept))
    (y * 1).sum().backward()
    return kept[0]


def held_as_a_hooks_result(x: sg.Tensor) -> Any:
    result = sg.tensor(np.ones(2))
    x.register_hook(lambda g: result)
    (x * 1).sum().backward()
    return result


def held_by_a_node_prehook(x: sg.Tensor) -> Any:
    kept: list[Any] = []
    y = x + 0
    y.grad_fn.register_prehook(lambda grads: kept.extend(grads))
    (y * 1).sum().backward()
    return kept[0]


def held_by_a_node_hook(x: sg.Tensor) -> Any:
    kept: list[Any] = []
    y = x * 1
    y.grad_fn.register_hook(lambda inputs, outputs: kept.append(inputs[0]))
    y.sum().backward()
    return kept[0]


def held_as_a_retained_gradient(x: sg.Tensor) -> Any:
    y = x + 0
    y.retain_grad()
    (y * 1).sum().backward()
    return y.grad


HOLDERS = [value for name, value in list(globals().items()) if name.startswith("held_")]


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
@pytest.mark.parametrize("holder", HOLDERS, ids=[holder.__name__ for holder in HOLDERS])
def test_a_leafs_gradient_never_shares_memory_with_one_that_is(holder):
    x = leaf([1.0, 2.0])
    held = holder(x)
    before = np.array(held.numpy() if isinstance(held, sg.Tensor) else held)
    assert same(x.grad.detach(), before)
    with sg.no_grad():
        x.grad.add_(5)
    assert np.array_equal(held.numpy() if isinstance(held, sg.Tensor) else held, before)
    x.grad = None
    (x * 1).sum().backward()
    (x * 1).sum().backward()
    assert np.array_equal(held.numpy() if isinstance(held, sg.Tensor) else held, before)


def test_a_retained_gradient_accumulates_over_backwards():
    x = leaf([1.0, 2.0])
    y = x * 2
    y.retain_grad()
    total = y.sum()
    total.backward(retain_graph=True)
    total.backward()
    assert same(y.grad, [2.0, 2.0]) and same(x.grad, [4.0, 4.0])


# Threads


def test_ten_threads_into_one_leaf_give_the_exact_sum():
    x = leaf(np.zeros(64))
    barrier = threading.Barrier(10)
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            barrier.wait()
            for _ in range(20):
                (x * float(number)).sum().backward()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and same(x.grad, np.full(64, 20.0 * sum(range(10))))


@contextlib.contextmanager
def being_added_to(x: sg.Tensor) -> Iterator[None]:
    """Have another thread add 3 to the leaf's gradient, and stand still within the addition during the block."""
    (x * 2).sum().backward()
    adding, go_on = threading.Event(), threading.Event()

    def add(operation, arguments):
        adding.set()
        assert go_on.wait(60)
        return operation(*arguments)

    def work():
        with intercept(add, ["add"]):
            (x * 3).sum().backward(create_graph=True)

    thread = threading.Thread(target=work)
    thread.start()
    assert adding.wait(60)
    try:
        yield
    finally:
        go_on.set()
        thread.join()
        assert x.grad.tolist() == [5.0]
        x.grad = None  # which has a graph, and this the leaf


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
def test_a_leaf_waits_for_no_other_leafs_gradient():
    x, other = leaf([1.0]), leaf([1.0])
    with being_added_to(x):
        thread = threading.Thread(target=(other * 7).sum().backward)
        thread.start()
        thread.join(timeout=5)
        waited = thread.is_alive()
    thread.join()
    assert not waited and other.grad.tolist() == [7.0]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
def test_a_child_forked_while_another_thread_adds_to_a_gradient_goes_backward():
    x = leaf([1.0])
    with being_added_to(x):
        child = os.fork()
        if child == 0:
            try:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(5)  # what hangs must die
                (x * 7).sum().backward()
            finally:
                os._exit(0 if x.grad.tolist() == [9.0] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_threads_share_a_retained_graph():
    x = leaf([3.0])
    y = (x * x).sum()
    threads = [threading.Thread(target=y.backward, kwargs={"retain_graph": True}) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert same(x.grad, [24.0])


# Backward inside backward


def test_backward_may_run_inside_a_hook_and_inside_a_custom_backward():
    x, w = leaf([2.0]), leaf([5.0])
    y = x * x

    def also(grad: sg.Tensor) -> None:
        with sg.enable_grad():
            (w * 3).backward()

    y.register_hook(also)

    class Inner(sg.autograd.Function):
        @staticmethod
        def forward(ctx, v):
            ctx.save_for_backward(v)
            return v * v

        @staticmethod
        def backward(ctx, g):
            (v,) = ctx.saved_tensors
            with sg.enable_grad():
                inner = v.detach().requires_grad_()
                (inner * inner).sum().backward()
            return g * inner.grad

    Inner.apply(y).backward()
    assert same(x.grad, [4 * 2.0**3]) and same(w.grad, [3.0])


def test_an_exception_in_backward_leaves_the_engine_usable_and_grad_mode_as_it_was():
    x = leaf([2.0])
    y = x * x

    def fail(grad: sg.Tensor) -> None:
        raise KeyError("mine")

    handle = y.register_hook(fail)
    with pytest.raises(KeyError, match="mine"):
        (y * 1).backward()
    assert sg.is_grad_enabled() and x.grad is None
    handle.remove()
    (y * 1).backward()
    assert same(x.grad, [4.0])


# Bad input


def test_a_derivative_of_the_wrong_shape_names_its_operation():
    wrong = operation("wrong_sum", lambda x: x.sum(keepdims=True), x=lambda g: g)
    with pytest.raises(GraphError, match=r"WrongSumBackward0: .*index 0: got shape \(1,\), wanted \(2,\)"):
        wrong(leaf([1.0, 2.0])).backward()


def test_a_derivative_can_name_only_what_there_is():
    with pytest.raises(TypeError, match="a derivative names nothing; it can name g, grads, needs, result, x"):
        operation("odd", lambda x: x, x=lambda g, nothing: g)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: leaf([1.0, 2.0]).backward(), GraphError, "implicitly created only for scalar outputs.*\\(2,\\)"),
        (lambda: sg.ones(1).backward(), GraphError, "element 0 of tensors does not require grad"),
        (lambda: backward([leaf(1.0), sg.ones(1)]), GraphError, "element 1 of tensors does not require grad"),
        (lambda: (leaf([1.0, 2.0]) * 2).backward(sg.ones(3)), ShapeError, r"\(3,\).*\(2,\)"),
        (lambda: backward([leaf(1.0)], [sg.ones(()), sg.ones(())]), ArgumentError, "1 tensors and 2 gradients"),
        (lambda: backward([3.0]), OperandError, "float"),
        (lambda: leaf(1.0).backward(inputs=[]), GraphError, "inputs cannot be empty"),
        (lambda: leaf(1.0).backward(inputs=[sg.ones(1)]), GraphError, "requires_grad=False"),
        (lambda: sg.grad(leaf(1.0), sg.ones(1)), GraphError, "does not require grad"),
    ],
)
def test_wrong_requests_say_what_was_given(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_the_gradient_has_pytorchs_and_paddles_names():
    x = leaf([1.0, 2.0])
    (x * 1).backward(gradient=sg.tensor(np.ones(2)))
    (x * 1).backward(grad_tensor=sg.tensor(np.ones(2)))
    assert same(x.grad, [2.0, 2.0])


class Deep(Function):
    """Its backward runs a backward of its own, as deep as its number says."""

    level = 0
    modes: ClassVar[list[tuple[bool, int, str]]] = []

    @staticmethod
    def forward(ctx, x, depth):
        ctx.depth = depth
        with sg.enable_grad():
            ctx.x = x.detach().requires_grad_() * 1
        return ctx.x.detach()

    @staticmethod
    def backward(ctx, g):
        Deep.modes.append((sg.is_grad_enabled(), hooks.depth(), threading.current_thread().name))
        if ctx.depth:
            with sg.enable_grad():
                Deep.apply(ctx.x, ctx.depth - 1).sum().backward()
        return g * 2, None


@pytest.mark.parametrize("depth", [61, 1000])
def test_backward_inside_backward_goes_as_deep_as_one_likes_with_modes_and_hooks_of_the_thread(depth):
    Deep.modes.clear()
    x = leaf([1.0])
    with saved_tensors_hooks(lambda t: t, lambda t: t):
        Deep.apply(x, depth).sum().backward()
    assert x.grad.tolist() == [2.0] and len(Deep.modes) == depth + 1
    assert {mode[:2] for mode in Deep.modes} == {(False, 1)}
    assert len({name for *_, name in Deep.modes}) <= 2 and hooks.depth() == 0


def test_an_exception_far_inside_passes_through_all_of_them():
    class Fail(Function):
        @staticmethod
        def forward(ctx, x, depth):
            ctx.depth = depth
            return x * 1

        @staticmethod
        def backward(ctx, g):
            if not ctx.depth:
                raise KeyError("far inside")
            with sg.enable_grad():
                Fail.apply(leaf([1.0]), ctx.depth - 1).backward()
            return g, None

    x = leaf([1.0])
    with pytest.raises(KeyError, match="far inside"):
        Fail.apply(x, 40).backward()
    (x * 2).backward()
    assert x.grad.tolist() == [2.0] and sg.is_grad_enabled()


# Gradient edges


def test_an_edge_stands_for_its_tensor_in_grad():
    x = leaf([2.0])
    y = x * 3
    z = (y * y).sum()
    edge, of_leaf, root = get_gradient_edge(y), get_gradient_edge(x), get_gradient_edge(z)
    assert [g.tolist() for g in sg.grad(z, [edge, of_leaf, x], retain_graph=True)] == [[12.0], [36.0], [36.0]]
    assert same(sg.grad(root, edge, retain_graph=True)[0], [12.0])
    del y, z
    assert same(sg.grad(root, edge)[0], [12.0])
    unused = get_gradient_edge(leaf([1.0]) * 1)
    total = (x * 1).sum()
    assert sg.grad(total, unused, allow_unused=True, retain_graph=True) == (None,)
    assert same(sg.grad(total, unused, materialize_grads=True)[0], [0.0])


def test_an_edge_stands_for_its_tensor_in_backward():
    x = leaf([2.0, 3.0])
    y = x * 3
    edge = get_gradient_edge(y)
    backward(edge, sg.tensor(np.ones(2)), retain_graph=True)
    assert same(x.grad, [3.0, 3.0])
    x.grad = None
    y.sum().backward(inputs=[edge], retain_graph=True)
    assert x.grad is None and not y.retains_grad
    y.sum().backward(inputs=[get_gradient_edge(x)], retain_graph=True)
    assert same(x.grad, [3.0, 3.0])
    with pytest.raises(RuntimeError, match=r"only for scalar outputs, got shape \(2,\)"):
        backward(edge)
    with pytest.raises(ShapeError, match=r"Mismatch in shape: grad_output\[0\] has a shape of \(3,\)"):
        backward([edge], [sg.ones(3)])


def test_an_edge_that_leads_nowhere_is_refused():
    with pytest.raises(RuntimeError, match="It is not possible to get the gradient edge for a Tensor that does not"):
        get_gradient_edge(sg.ones(1))
    with pytest.raises(TypeError, match="grad: all inputs have to be Tensors or GradientEdges, but got GradientEdge"):
        sg.grad(leaf(1.0), GradientEdge(None, 0))


def test_inputs_may_be_any_iterable_and_backward_takes_a_dicts_values():
    layer = sg.nn.Linear(2, 1, dtype=sg.float64)
    x = sg.ones(1, 2, dtype=sg.float64)
    assert len(sg.grad(layer(x).sum(), layer.parameters())) == 2
    layer(x).sum().backward(inputs=dict(layer.named_parameters()))
    assert same(layer.bias.grad, [1.0])
    with pytest.raises(RuntimeError, match="inputs cannot be empty"):
        sg.grad(leaf(1.0), [])


def test_hooks_run_only_where_a_gradient_is_asked_for():
    x, w = leaf([2.0]), leaf([3.0])
    y = x * w
    seen: list[str] = []
    x.register_hook(lambda grad: seen.append("x"))
    w.register_hook(lambda grad: seen.append("w"))
    y.register_hook(lambda grad: seen.append("y"))
    w.register_post_accumulate_grad_hook(lambda leaf: seen.append("accumulated"))
    sg.grad(y, x, retain_graph=True)
    y.backward(inputs=[x], retain_graph=True)
    assert seen == ["y", "x", "y", "x"]
    y.backward()
    assert sorted(seen[4:]) == ["accumulated", "w", "x", "y"]


@pytest.mark.parametrize("where", ["tensor hook", "node prehook", "node hook", "unpack hook", "backward"])
def test_a_mode_that_user_code_switches_and_forgets_stays_its_own(where):
    def switch(*_: Any) -> None:
        sg.set_grad_enabled(False)

    class PassOn(Function):
        @staticmethod
        def forward(ctx, v):
            return v * 1

        @staticmethod
        def backward(ctx, g):
            result = g * 1
            if where == "backward":
                switch()
            return result

    x = leaf([2.0])
    y = x * x
    if where == "unpack hook":
        with saved_tensors_hooks(lambda t: t, lambda t: [switch(), t][1]):
            z = y * sg.tensor(np.array([3.0]))
    else:
        z = PassOn.apply(y * 3)
    if where == "tensor hook":
        z.register_hook(switch)
    elif where == "node prehook":
        z.grad_fn.next_functions[0][0].register_prehook(switch)
    elif where == "node hook":
        z.grad_fn.register_hook(switch)
    (gradient,) = sg.grad(z * 1, x, create_graph=True)
    assert gradient.item() == 12.0 and sg.is_grad_enabled()
    assert sg.grad(gradient, x)[0].item() == 6.0


def raising_after_call(number: int, code: CodeType) -> Callable[[FrameType, str, Any], None]:
    """Return a profiler that raises when `code` begins, or after one of its calls, as the handler of a signal can."""
    left = [number]

    def note(frame: FrameType, event: str, value: object) -> None:
        is_of_callee = event == "return" and frame.f_back is not None and frame.f_back.f_code is code
        if is_of_callee or (frame.f_code is code and event in ("call", "c_return")):
            left[0] -= 1
            if not left[0]:
                raise Interrupted

    return note


class Interrupted(Exception):
    """What a signal's handler raises."""


def test_a_backward_that_a_signal_handler_ended_goes_on_nowhere():
    x, interruptions = leaf([1.0, 2.0]), 0
    for number in itertools.count(1):
        y = (x * x).sum()
        sys.setprofile(raising_after_call(number, engine.run_backward.__code__))
        try:
            y.backward()
            break
        except Interrupted:
            interruptions += 1
        finally:
            sys.setprofile(None)
        assert engine.outermost_run() is None
        assert sg.is_grad_enabled()
    assert interruptions > 20
    x.grad = None
    (x * x).sum().backward()
    np.testing.assert_array_equal(x.grad, [2.0, 4.0])
