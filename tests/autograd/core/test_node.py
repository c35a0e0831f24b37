"""Nodes of the graph: their names and edges, and hooks on tensors, nodes and leaves."""

import os
import signal
import sys
import threading
from typing import Any

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.autograd import graph
from spillgrad.autograd.core import node
from spillgrad.autograd.graph import get_gradient_edge
from spillgrad.errors import GraphError, HookTypeError
from tests.ops.checks import leaf

NAMES = {
    "AddBackward0": lambda x: x + x,
    "MulBackward0": lambda x: x * x,
    "SumBackward0": lambda x: x.sum(),
    "TanhBackward0": lambda x: x.tanh(),
    "PermuteBackward0": lambda x: x.permute(0),
    "UnsqueezeBackward0": lambda x: x.unsqueeze(0),
}


@pytest.mark.parametrize("name", NAMES)
def test_nodes_are_named_as_in_pytorch(name):
    y = NAMES[name](leaf([1.0, 2.0]))
    assert y.grad_fn.name() == name and name in repr(y)


def test_edges_lead_to_the_inputs_nodes_and_nowhere_for_constants():
    x = leaf([1.0])
    y = x * 2
    z = y * sg.tensor(np.ones(1))
    (first, second) = z.grad_fn.next_functions
    assert first == (y.grad_fn, 0) and second == (None, 0)
    assert y.grad_fn.next_functions[0][0].variable is x
    assert get_gradient_edge(x) == (y.grad_fn.next_functions[0][0], 0) and get_gradient_edge(z) == (z.grad_fn, 0)


def test_metadata_is_a_dict_for_the_users_notes():
    node = (leaf([1.0]) * 2).grad_fn
    node.metadata["layer"] = 3
    assert node.metadata == {"layer": 3}


# Hooks on tensors


@pytest.mark.parametrize("of_leaf", [False, True])
def test_tensor_hooks_run_in_order_and_each_sees_what_the_one_before_made(of_leaf):
    x = leaf([1.0, 2.0])
    y = x * 2
    z = y.sum()
    target = x if of_leaf else y  # registered after forward: the leaf's accumulator exists already
    seen: list[Any] = []
    target.register_hook(lambda g: seen.append(g.tolist()))
    target.register_hook(lambda g: g + 1)
    target.register_hook(lambda g: seen.append(g.tolist()))
    target.register_hook(lambda g: g * 10)
    z.backward()
    before = 2.0 if of_leaf else 1.0
    assert seen == [[before] * 2, [before + 1] * 2]
    assert x.grad.tolist() == ([30.0] * 2 if of_leaf else [40.0] * 2)


def test_a_tensor_hook_sees_the_sum_of_all_paths_once():
    x = leaf([1.0])
    y = x * 1
    seen: list[float] = []
    y.register_hook(lambda g: seen.append(g.item()))
    (y * 2 + y * 3).backward()
    assert seen == [5.0]


def test_a_removed_hook_does_not_run_again():
    x = leaf([1.0])
    seen: list[int] = []
    handle = x.register_hook(lambda g: seen.append(1))
    (x * 2).backward()
    handle.remove()
    handle.remove()
    (x * 2).backward()
    with x.register_hook(lambda g: seen.append(2)):
        (x * 2).backward()
    (x * 2).backward()
    assert seen == [1, 2]


def test_a_hook_may_remove_itself_and_add_another_during_backward():
    x = leaf([1.0])
    y = x * 2
    seen: list[str] = []

    def first(grad: sg.Tensor) -> None:
        seen.append("first")
        handle.remove()
        y.register_hook(lambda g: seen.append("added"))

    handle = y.register_hook(first)
    y.backward(retain_graph=True)
    assert seen == ["first"]
    y.backward()
    assert seen == ["first", "added"]


def test_a_hooks_result_under_create_graph_stays_in_the_graph():
    x = leaf([3.0])
    y = x * x
    y.register_hook(lambda g: g * x)
    (gradient,) = sg.grad(y, x, create_graph=True)
    assert gradient.item() == 2 * 3.0 * 3.0
    assert sg.grad(gradient, x)[0].item() == 4 * 3.0


def test_hooks_of_several_outputs_of_one_node_see_their_own_gradient():
    x = leaf([1.0, 2.0])
    first, second = sg.split(x * 1, 1)
    seen: dict[str, float] = {}
    first.register_hook(lambda g: seen.update(first=g.item()))
    second.register_hook(lambda g: seen.update(second=g.item()))
    (first * 3 + second * 4).backward()
    assert seen == {"first": 3.0, "second": 4.0} and (first.output_nr, second.output_nr) == (0, 1)


@pytest.mark.parametrize(
    ("result", "error", "message"),
    [
        (3, HookTypeError, "hook 'wrong': got int"),
        (sg.ones(3, dtype=sg.float64), GraphError, r"hook 'wrong' has changed .*\(3,\)"),
        (sg.ones(2, dtype=sg.float32), GraphError, "hook 'wrong' has changed .*float32"),
    ],
)
def test_a_hook_must_return_a_gradient_like_the_one_it_got(result, error, message):
    def wrong(*grads: Any) -> Any:
        return result

    for register in ("tensor", "prehook", "hook"):
        y = leaf([1.0, 2.0]) * 2
        if register == "tensor":
            y.register_hook(wrong)
        elif register == "prehook":
            y.grad_fn.register_prehook(lambda grads: (wrong(),))
        else:
            y.grad_fn.register_hook(lambda inputs, outputs: (wrong(), None))
        with pytest.raises(error, match=message.replace("wrong", "(wrong|<lambda>)")):
            y.sum().backward()


@pytest.mark.parametrize("register", ["register_prehook", "register_hook"])
@pytest.mark.parametrize("result", [[None], 3.0, sg.ones(1)])
def test_a_node_hook_returns_a_tuple_or_nothing(register, result):
    y = leaf([1.0]).exp()
    getattr(y.grad_fn, register)(lambda *grads: result)
    with pytest.raises(TypeError, match=f"expected tuple, but hook returned '{type(result).__name__}'"):
        y.backward()


def test_a_hook_needs_a_tensor_that_requires_a_gradient():
    with pytest.raises(RuntimeError, match="doesn't require gradient"):
        sg.ones(1).register_hook(print)


# retain_grad


def test_retain_grad_keeps_the_gradient_after_all_hooks():
    x = leaf([1.0])
    y = x * 2
    y.retain_grad()
    y.register_hook(lambda g: g * 7)
    (y * 3).backward()
    assert y.grad.item() == 21.0 and x.grad.item() == 42.0


def test_retain_grad_follows_an_in_place_change_and_a_hook_stays():
    x = leaf([1.0])
    y = x * 2
    y.retain_grad()
    seen: list[float] = []
    y.register_hook(lambda g: seen.append(g.item()))
    y.mul_(3)
    (y * 5).backward()
    assert y.grad.item() == 5.0 and seen == [15.0] and x.grad.item() == 30.0


def test_retain_grad_changes_nothing_for_a_leaf_and_refuses_constants():
    x = leaf([1.0])
    x.retain_grad()
    (x * 2).backward()
    assert x.grad.item() == 2.0
    with pytest.raises(RuntimeError, match="can't retain_grad on Tensor that has requires_grad=False"):
        sg.ones(1).retain_grad()


# Hooks on nodes


def test_node_hooks_run_around_the_node_and_may_replace():
    x = leaf([3.0])
    y = x * x.detach()
    seen: list[Any] = []
    y.grad_fn.register_prehook(lambda outputs: (outputs[0] * 10,))
    y.grad_fn.register_hook(lambda inputs, outputs: seen.append((inputs[0].item(), inputs[1], outputs[0].item())))
    y.grad_fn.register_hook(lambda inputs, outputs: (inputs[0] + 1, None))
    y.backward()
    assert seen == [(30.0, None, 10.0)] and x.grad.item() == 31.0


def test_node_hooks_can_be_removed():
    x = leaf([1.0])
    y = x * 2
    seen: list[int] = []
    before = y.grad_fn.register_prehook(lambda outputs: seen.append(1))
    after = y.grad_fn.register_hook(lambda inputs, outputs: seen.append(2))
    y.backward(retain_graph=True)
    before.remove()
    after.remove()
    y.backward()
    assert seen == [1, 2]


def test_a_node_hook_must_return_as_many_gradients_as_it_got():
    y = leaf([1.0]) * leaf([2.0])
    y.grad_fn.register_hook(lambda inputs, outputs: (inputs[0],))
    with pytest.raises(RuntimeError, match="incorrect number of values: got 1, wanted 2"):
        y.backward()


def test_the_order_is_tensor_hook_node_prehook_accumulation_node_hook():
    x = leaf([1.0])
    y = x * 2
    order: list[str] = []
    node = get_gradient_edge(x).node
    node.register_hook(lambda inputs, outputs: order.append(f"hook {x.grad.item()}"))
    node.register_prehook(lambda outputs: order.append("prehook"))
    x.register_post_accumulate_grad_hook(lambda leaf: order.append(f"accumulated {leaf.grad.item()}"))
    x.register_hook(lambda g: order.append("tensor"))
    y.backward()
    assert order == ["tensor", "prehook", "accumulated 2.0", "hook 2.0"]


def test_a_post_accumulate_hook_runs_once_the_gradient_of_all_paths_is_there():
    x = leaf([1.0])
    y = x * 2 + x * 3
    seen: list[float] = []

    def take(variable: sg.Tensor) -> None:
        seen.append(variable.grad.item())
        variable.grad = None

    handle = x.register_post_accumulate_grad_hook(take)
    y.backward(retain_graph=True)
    assert seen == [5.0] and x.grad is None
    sg.grad(y, x, retain_graph=True)
    handle.remove()
    y.backward()
    assert seen == [5.0] and x.grad.item() == 5.0


@pytest.mark.parametrize(("result", "error"), [(sg.ones(1), RuntimeError), (3, TypeError)])
def test_a_post_accumulate_hook_returns_nothing(result, error):
    x = leaf([1.0])
    x.register_post_accumulate_grad_hook(lambda leaf: result)
    with pytest.raises(error, match="Tensor post accumulate grad hooks should return None"):
        x.backward()


def test_only_leaves_accumulate():
    with pytest.raises(RuntimeError, match="cannot be registered on non-leaf tensors"):
        (leaf([1.0]) * 2).register_post_accumulate_grad_hook(print)


def test_a_saved_value_may_get_a_hook_while_its_node_runs():
    x = leaf([1.0])
    y = x * 2
    seen: list[str] = []

    def unpack(value: Any) -> Any:
        z.grad_fn.register_hook(lambda inputs, outputs: seen.append("node"))
        return value

    with sg.autograd.saved_tensors_hooks(lambda t: t, unpack):
        z = y * y.detach()
    z.backward()
    assert seen == ["node"]


def test_a_hook_removed_by_an_earlier_node_does_not_run_and_one_added_ahead_does():
    x = leaf([1.0])
    middle = x * 2
    y = middle * 3
    seen: list[str] = []
    handles = [x.register_hook(lambda g: seen.append("leaf")), middle.register_hook(lambda g: seen.append("middle"))]
    handles.append(middle.grad_fn.register_prehook(lambda grads: seen.append("prehook")))
    handles.append(middle.grad_fn.register_hook(lambda inputs, outputs: seen.append("hook")))
    handles.append(x.register_post_accumulate_grad_hook(lambda leaf: seen.append("accumulated")))

    def change(grad: sg.Tensor) -> None:
        for handle in handles:
            handle.remove()
        x.register_hook(lambda g: seen.append("added"))

    y.register_hook(change)
    y.backward()
    assert seen == ["added"] and x.grad.tolist() == [6.0]


def test_retains_grad_tells_of_a_non_leaf_that_keeps_its_gradient():
    x = leaf([1.0])
    y = x * 2
    x.retain_grad()
    assert not x.retains_grad and not y.retains_grad
    y.retain_grad()
    assert y.retains_grad
    y.mul_(2)
    assert y.retains_grad and not sg.ones(1).retains_grad


def test_every_public_name_of_the_graph_module_is_there():
    names = set(graph.__all__)
    assert names >= {
        "GradientEdge",
        "Node",
        "allow_mutation_on_saved_tensors",
        "compose",
        "disable_saved_tensors_hooks",
        "get_gradient_edge",
        "increment_version",
        "register_multi_grad_hook",
        "save_on_cpu",
        "save_on_disk",
        "saved_tensors_hooks",
    }
    assert all(hasattr(graph, name) for name in names)
    assert isinstance((leaf([1.0]) * 2).grad_fn, graph.Node)
    assert isinstance((leaf([1.0]) ** 2).grad_fn._raw_saved_self, sg.autograd.SavedTensor)
    assert all(hasattr(sg.autograd, name) for name in sg.autograd.__all__)


def test_an_increment_of_the_version_tells_of_a_write_past_the_library():
    x = leaf([1.0])
    y, other = x * 1, x * 1
    z = y * y
    y.numpy()[:] = 7.0
    graph.increment_version([y, other])
    assert (y._version, other._version) == (1, 1)
    graph.increment_version(other)
    assert other._version == 2
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


def test_a_node_can_be_called_with_gradients():
    x, w = leaf([2.0]), leaf([3.0])
    node = (x * w).grad_fn
    assert [g.item() for g in node(sg.tensor(np.array([5.0])))] == [15.0, 10.0]
    assert x.exp().grad_fn(sg.tensor(np.array([1.0]))).item() == np.exp(2.0)
    assert x.grad is None
    with pytest.raises(RuntimeError, match="MulBackward0: got 2 gradients; it has 1 outputs"):
        node(None, None)


def test_variable_is_the_former_name_of_a_tensor():
    from spillgrad.autograd import Variable
    from spillgrad.autograd.variable import Variable as same

    data = sg.ones(2)
    x = Variable(data, requires_grad=True)
    (x * 2).sum().backward()
    assert Variable is same and type(x) is sg.Tensor and isinstance(x.grad, Variable)
    assert x.data_ptr() == data.data_ptr()


def test_threads_that_use_a_leaf_for_the_first_time_at_once_find_one_accumulator():
    """With two, `grad` would see the part of a gradient that arrives at one of them."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        leaves = [sg.ones(1, requires_grad=True) for _ in range(3000)]
        found: list[list[object]] = []
        begin = threading.Barrier(2)

        def look() -> None:
            begin.wait()
            found.append([leaf.gradient_edge()[0] for leaf in leaves])

        threads = [threading.Thread(target=look) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert all(one is other for one, other in zip(*found, strict=True))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_forked_while_another_thread_first_uses_a_leaf_records_operations():
    held, forked = threading.Event(), threading.Event()

    def use() -> None:
        with node.accumulator_lock:
            held.set()
            forked.wait()

    thread = threading.Thread(target=use)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # what hangs must die
        x = sg.ones(2, requires_grad=True)
        (x * x).sum().backward()
        os._exit(0 if x.grad.tolist() == [2, 2] else 1)
    forked.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
