"""Graphs die with the last tensor that needs them: reference counts alone free them, the collector is off."""

import gc
import os
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.autograd import Function, PyLayer
from spillgrad.autograd.graph import (
    allow_mutation_on_saved_tensors,
    compose,
    get_gradient_edge,
    register_multi_grad_hook,
    save_on_cpu,
    saved_tensors_hooks,
)
from tests.ops.checks import leaf


@pytest.fixture(autouse=True)
def collector_off() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


class SavesItsOutput(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.tanh()
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, g):
        return g * (1 - ctx.saved_tensors[1] ** 2)


class ChangesItsInput(PyLayer):
    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g * 2


class MarksItsInputDirty(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, g):
        return g * 2


class ReturnsItsInput(PyLayer):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_not_inplace(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g


class MarksAnOutput(Function):
    @staticmethod
    def forward(ctx, x):
        a, b = x * 2, x * 3
        ctx.mark_non_differentiable(a)
        ctx.save_for_backward(a, b)
        return a, b

    @staticmethod
    def backward(ctx, ga, gb):
        return gb


def changed_in_place(x: sg.Tensor) -> sg.Tensor:
    y = x * 1
    y.tanh_()
    y.mul_(x)
    return y


def changed_through_a_view(x: sg.Tensor) -> sg.Tensor:
    y = x * 1
    view = y[0]
    view.mul_(x[1])
    return y * view


def watched(x: sg.Tensor) -> sg.Tensor:
    y = x * x
    y.retain_grad()
    y.register_hook(lambda g: g * 2)
    y.grad_fn.register_prehook(lambda grads: None)
    y.grad_fn.register_hook(lambda inputs, outputs: None)
    register_multi_grad_hook((x, y), lambda grads: None)
    get_gradient_edge(y)
    return y.tanh()


def with_a_graph_in_the_gradient(x: sg.Tensor) -> sg.Tensor:
    (gradient,) = sg.grad(x.tanh().sum(), x, create_graph=True)
    return gradient * x


GRAPHS: dict[str, Callable[[sg.Tensor], sg.Tensor]] = {
    "a saved leaf": lambda x: x * x,
    "a saved input": lambda x: (x + 1) * (x + 2),
    "a saved output": lambda x: x.tanh().exp(),
    "a sum after views": lambda x: x.reshape(2, 1).t()[0].sum(),
    "an in-place change": changed_in_place,
    "a change of a view": changed_through_a_view,
    "hooks of every kind": watched,
    "a double backward": with_a_graph_in_the_gradient,
    "a function that saves its output": lambda x: SavesItsOutput.apply(x),
    "a layer that changes its input": lambda x: ChangesItsInput.apply(x * 1),
    "a function with a dirty input": lambda x: MarksItsInputDirty.apply(x * 1),
    "a layer that returns its input": lambda x: ReturnsItsInput.apply(x * 1),
    "a function with a marked output": lambda x: MarksAnOutput.apply(x)[1],
}
kept: list[Any] = []


def keep(tensor: sg.Tensor) -> sg.Tensor:
    kept.append(tensor)
    return tensor


HOOKS: dict[str, Callable[[], Any]] = {
    "no hooks": sg.enable_grad,
    "hooks that pass on": lambda: saved_tensors_hooks(lambda t: t, lambda t: t),
    "a pack hook that keeps what it got": lambda: saved_tensors_hooks(keep, lambda t: t),
    "hooks through NumPy": lambda: saved_tensors_hooks(lambda t: t.numpy(), lambda a: sg.tensor(a)),
    "hooks that select": lambda: saved_tensors_hooks(lambda t: t, lambda t: t, only=lambda saved: saved.slot == "self"),
    "composed hooks": lambda: compose(save_on_cpu(), (lambda t: t, lambda t: t)),
    "allowed changes": allow_mutation_on_saved_tensors,
    "anomaly detection": sg.autograd.detect_anomaly,
}


def nodes(tensor: sg.Tensor) -> list[Any]:
    """Return weak references to every node behind a tensor."""
    found, stack = {}, [tensor.grad_fn]
    while stack:
        node = stack.pop()
        if node is not None and id(node) not in found:
            found[id(node)] = weakref.ref(node)
            stack.extend(n for n, _ in node.next_functions)
    return list(found.values())


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.parametrize("run_backward", [False, True])
@pytest.mark.parametrize("hooks", HOOKS)
@pytest.mark.parametrize("graph", GRAPHS)
def test_a_graph_dies_with_its_last_tensor(graph, hooks, run_backward):
    x = leaf([0.5, 1.5])
    with HOOKS[hooks]():
        y = GRAPHS[graph](x)
    watchers = [weakref.ref(y), weakref.ref(y.storage), *nodes(y)]
    if run_backward:
        y.sum().backward(retain_graph=True)
        x.grad = None
    storage = watchers.pop(1)
    del y
    assert [w() for w in watchers] == [None] * len(watchers)
    kept.clear()
    assert storage() is None


def test_a_leaf_dies_though_its_gradient_was_accumulated_and_hooked():
    x = leaf([1.0])
    x.register_hook(lambda g: g)
    x.register_post_accumulate_grad_hook(lambda leaf: None)
    (x * x).backward()
    watcher = weakref.ref(x)
    del x
    assert watcher() is None


def test_a_handle_keeps_no_node_alive():
    y = leaf([1.0]) * 2
    handle = y.register_hook(lambda g: g)
    node = weakref.ref(y.grad_fn)
    del y
    assert node() is None
    handle.remove()


def test_saved_values_die_in_backward_though_the_graph_lives():
    x = leaf([0.5])
    middle = x.tanh() * 1
    y = middle * middle
    storage = weakref.ref(middle.storage)
    del middle
    assert storage() is not None
    y.backward()
    assert storage() is None


def test_each_value_is_freed_as_soon_as_its_node_has_run():
    x = leaf([0.5])
    alive_when_the_first_node_runs: list[bool] = []
    first = x * 1
    last = first.tanh().exp()
    watcher = weakref.ref(last.grad_fn._raw_saved_result._value.storage)
    first.grad_fn.register_prehook(lambda grads: alive_when_the_first_node_runs.append(watcher() is not None))
    total = last.sum()
    del last
    total.backward()
    assert alive_when_the_first_node_runs == [False]


def test_what_a_pack_hook_returned_dies_in_backward():
    class Packed:
        def __init__(self, tensor: sg.Tensor) -> None:
            self.tensor = tensor

    packed: list[Any] = []

    def pack(tensor: sg.Tensor) -> Packed:
        box = Packed(tensor)
        packed.append(weakref.ref(box))
        return box

    x = leaf([0.5])
    with saved_tensors_hooks(pack, lambda box: box.tensor):
        y = x * x
    y.backward()
    assert [box() for box in packed] == [None, None]


def test_a_value_packed_elsewhere_does_not_stay_in_memory():
    x = leaf([0.5])
    with saved_tensors_hooks(lambda t: t.tolist(), lambda v: sg.tensor(np.array(v))):
        y = (x * 1).tanh() * 2
    saved = y.grad_fn.next_functions[0][0]._raw_saved_result
    np.testing.assert_allclose(saved.data, [np.tanh(0.5)], rtol=1e-12)
    assert saved._storage() is None
    y.backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * (1 - np.tanh(0.5) ** 2), rtol=1e-12)


def test_hundreds_of_steps_leave_memory_as_it_was():
    x = leaf(np.linspace(-1, 1, 100))

    def steps(count: int) -> None:
        for _ in range(count):
            with save_on_cpu():
                y = x * 3
                y.mul_(x)
                y = y.tanh()
            y.sum().backward()
            x.grad = None

    tracemalloc.start()
    try:
        steps(2500)  # fills caches, the buffer pool and Python's lists of up to 2,000 free tuples of each length
        before = tracemalloc.get_traced_memory()[0]
        steps(500)
        assert tracemalloc.get_traced_memory()[0] - before < 500 * 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "hooks",
    [
        "no hooks",
        *(pytest.param(how, marks=pytest.mark.exhaustive) for how in ("hooks that pass on", "allowed changes")),
    ],
)
def test_ten_thousand_small_graphs_leave_the_resident_memory_flat(hooks):
    x = leaf(np.linspace(-1, 1, 100))
    page = os.sysconf("SC_PAGE_SIZE")

    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * page

    def run(count: int) -> None:
        for _ in range(count):
            with HOOKS[hooks]():
                y = x * 3
                z = y * y
                y.mul_(x) if hooks == "allowed changes" else y.tanh()
            with register_multi_grad_hook((x, z), lambda grads: None):
                z.sum().backward()
            x.grad = None

    run(2_000)
    before = resident_bytes()
    run(10_000)
    assert resident_bytes() - before < 10_000 * 100  # less than 100 bytes a graph


def test_a_graph_that_is_dropped_without_backward_is_freed_though_a_hook_was_removed_or_left():
    x = leaf([0.5, 1.5])
    watchers = []
    for _ in range(3):
        y = x * x
        handle = y.register_hook(lambda g: g)
        y.tanh().register_hook(lambda g: g)
        handle.remove()
        watchers.append(weakref.ref(y.grad_fn))
    del y
    assert [watch() for watch in watchers] == [None] * 3
