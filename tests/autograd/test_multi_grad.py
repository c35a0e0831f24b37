"""`register_multi_grad_hook`: one call for the gradients of several tensors."""

import gc
import threading
import weakref
from typing import Any

import pytest

import spillgrad as sg
from spillgrad.autograd.graph import register_multi_grad_hook
from tests.ops.checks import leaf


def values(grads: Any) -> list[Any]:
    return [None if grad is None else grad.tolist() for grad in grads]


def test_all_is_called_once_when_the_last_gradient_is_there_with_none_for_what_is_not_reached():
    a, b = leaf([2.0]), leaf([3.0])
    c, d = a * b, a * b
    calls: list[Any] = []
    register_multi_grad_hook((a, b, c, d), lambda grads: calls.append(values(grads)))
    c.sum().backward(retain_graph=True)
    c.sum().backward(inputs=(a,), retain_graph=True)
    (c + d).sum().backward()
    assert calls == [
        [[3.0], [2.0], [1.0], None],
        [[3.0], None, [1.0], None],
        [[6.0], [4.0], [1.0], [1.0]],
    ]


def test_all_is_called_before_backward_goes_on():
    x = leaf([2.0])
    y = x * 3
    first, second = y * 1, y * 2
    order: list[str] = []
    register_multi_grad_hook((first, second), lambda grads: order.append("both"))
    y.register_hook(lambda grad: order.append("behind"))
    (first + second).backward()
    assert order == ["both", "behind"]


def test_any_is_called_once_with_the_first_gradient():
    x = leaf([2.0])
    y = x * 3
    frozen = sg.ones(1)
    calls: list[float] = []
    register_multi_grad_hook((x, y, frozen), lambda grad: calls.append(grad.item()), mode="any")
    (y * 5).backward(retain_graph=True)
    assert calls == [5.0]
    (y * 5).backward()
    assert calls == [5.0, 5.0]


def test_a_gradient_that_never_comes_does_not_hold_the_others_back():
    class Stop(sg.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return None

    x = leaf([1.0])
    before = x * 1
    after = Stop.apply(before)
    calls: list[Any] = []
    register_multi_grad_hook((before, after), lambda grads: calls.append(values(grads)))
    after.backward()
    assert calls == [[None, [1.0]]]


def test_handles_remove_also_during_backward():
    x = leaf([2.0])
    y = x * 3
    calls: list[Any] = []
    handle = register_multi_grad_hook((x, y), calls.append)
    y.register_hook(lambda grad: handle.remove())
    y.backward(retain_graph=True)
    y.backward()
    assert calls == []


def test_one_backward_inside_another_counts_for_itself():
    x, w = leaf([2.0]), leaf([3.0])
    y = x * 2
    calls: list[Any] = []
    register_multi_grad_hook((x, w), lambda grads: calls.append(values(grads)))

    def inner(grad: sg.Tensor) -> None:
        with sg.enable_grad():
            (w * 5).backward()

    y.register_hook(inner)
    (y * w).backward()
    assert calls == [[None, [5.0]], [[6.0], [4.0]]]


def test_threads_count_for_themselves():
    x, w = leaf([2.0]), leaf([3.0])
    calls: list[Any] = []
    register_multi_grad_hook((x, w), lambda grads: calls.append(values(grads)))
    threads = [threading.Thread(target=lambda: (x * w).backward()) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls == [[[3.0], [2.0]]] * 8


def test_the_hooks_exception_passes_through_and_the_next_backward_works():
    x, w = leaf([2.0]), leaf([3.0])
    calls: list[int] = []

    def fail_once(grads: Any) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise KeyError("mine")

    register_multi_grad_hook((x, w), fail_once)
    with pytest.raises(KeyError, match="mine"):
        (x * w).backward()
    (x * w).backward()
    assert len(calls) == 2


def test_it_keeps_neither_tensors_nor_nodes_alive():
    gc.disable()
    try:
        x = leaf([2.0])
        y = x * 3
        z = y * y
        handle = register_multi_grad_hook((x, y, z), lambda grads: None)
        z.backward(retain_graph=True)
        watched = [weakref.ref(thing) for thing in (x, y, z, y.grad_fn, z.grad_fn)]
        del x, y, z
        assert [watch() for watch in watched] == [None] * 5
        handle.remove()
    finally:
        gc.enable()


def test_another_mode_and_a_tensor_without_gradient_are_refused():
    with pytest.raises(ValueError, match="got mode='some'; accepted are 'all' and 'any'"):
        register_multi_grad_hook((leaf([1.0]),), print, mode="some")
    with pytest.raises(RuntimeError, match="doesn't require gradient"):
        register_multi_grad_hook((sg.ones(1),), print)
