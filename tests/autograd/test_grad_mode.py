"""Recording on and off: per thread, nested, as a context manager and as a decorator."""

import threading

import numpy as np
import pytest

import spillgrad as sg
from tests.ops.checks import leaf


def test_nothing_is_recorded_inside_no_grad():
    x = leaf([1.0])
    with sg.no_grad():
        y = x * x
    assert not y.requires_grad and y.is_leaf and y.grad_fn is None


def test_contexts_nest_and_can_be_entered_again():
    outer = sg.no_grad()
    with outer:
        with sg.enable_grad():
            assert sg.is_grad_enabled()
            with outer:
                assert not sg.is_grad_enabled()
            assert sg.is_grad_enabled()
        assert not sg.is_grad_enabled()
    assert sg.is_grad_enabled()


def test_set_grad_enabled_acts_at_once_and_until_its_block_ends():
    sg.set_grad_enabled(False)
    assert not sg.is_grad_enabled()
    sg.set_grad_enabled(True)
    with sg.set_grad_enabled(False):
        assert not sg.is_grad_enabled()
    assert sg.is_grad_enabled()


@pytest.mark.parametrize("decorator", [lambda: sg.no_grad, sg.no_grad, lambda: sg.set_grad_enabled(False)])
def test_a_decorated_function_runs_without_recording_and_nothing_else_does(decorator):
    @decorator()
    def product(x: sg.Tensor, depth: int = 0) -> sg.Tensor:
        assert not sg.is_grad_enabled()
        return x * x if depth == 0 else product(x, depth - 1)

    assert product.__name__ == "product" and sg.is_grad_enabled()
    assert not product(leaf([1.0]), 2).requires_grad
    assert sg.is_grad_enabled()
    with sg.no_grad():
        product(leaf([1.0]))
        assert not sg.is_grad_enabled()


def test_a_mode_decorator_made_in_one_mode_restores_the_callers():
    sg.set_grad_enabled(True)

    @sg.set_grad_enabled(True)
    def recorded() -> bool:
        return sg.is_grad_enabled()

    with sg.no_grad():
        assert recorded() and not sg.is_grad_enabled()


def test_the_mode_survives_an_exception():
    with pytest.raises(ValueError, match="mine"), sg.no_grad():
        raise ValueError("mine")
    assert sg.is_grad_enabled()


def test_the_mode_is_the_threads_own():
    seen = []

    @sg.no_grad()
    def look(inside: threading.Barrier) -> None:
        inside.wait()
        seen.append(sg.is_grad_enabled())
        inside.wait()

    def work(inside: threading.Barrier) -> None:
        look(inside)
        seen.append(sg.is_grad_enabled())

    inside = threading.Barrier(3)
    threads = [threading.Thread(target=work, args=(inside,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    inside.wait()
    assert sg.is_grad_enabled()
    inside.wait()
    for thread in threads:
        thread.join()
    assert sorted(seen) == [False, False, True, True]


# detach, detach_, stop_gradient


def test_detach_shares_memory_and_version_but_no_graph():
    x = leaf([1.0, 2.0])
    y = x * 2
    cut = y.detach()
    assert not cut.requires_grad and cut.is_leaf and y.requires_grad
    cut.add_(1)
    assert np.array_equal(y.numpy(), [3.0, 5.0]) and y._version == cut._version == 1


def test_detach_in_place_makes_a_leaf():
    x = leaf([1.0])
    y = x * 2
    assert y.detach_() is y
    assert y.is_leaf and not y.requires_grad
    z = y.requires_grad_() * 3
    z.backward()
    assert x.grad is None and y.grad.item() == 3.0
    with pytest.raises(RuntimeError, match="use detach"):
        (x * 2)[0].detach_()


def test_stop_gradient_is_the_other_side_of_requires_grad():
    x = sg.Tensor(np.ones(1))
    assert x.stop_gradient
    x.stop_gradient = False
    assert x.requires_grad
    x.requires_grad = False
    assert x.stop_gradient


@pytest.mark.parametrize("view", [False, True])
def test_stop_gradient_on_a_non_leaf_cuts_the_graph_there(view):
    x = leaf([1.0, 2.0])
    y = (x * 2)[0] if view else x * 2
    y.stop_gradient = True
    assert y.is_leaf
    (y * x).sum().backward()
    assert np.array_equal(x.grad.numpy(), [2.0, 2.0] if view else [2.0, 4.0])


def test_requires_grad_of_a_non_leaf_cannot_be_cleared_and_integers_cannot_have_it():
    with pytest.raises(RuntimeError, match=r"leaf tensors.*detach"):
        (leaf([1.0]) * 2).requires_grad = False
    with pytest.raises(TypeError, match="floating-point"):
        sg.arange(3).requires_grad_()
