"""`allow_mutation_on_saved_tensors`: backward sees values as they were, at the price of one copy per version."""

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.autograd.graph import allow_mutation_on_saved_tensors, increment_version
from spillgrad.errors import GraphError, SavedTensorError
from tests.ops.checks import leaf

CHANGES: dict[str, Callable[[sg.Tensor], Any]] = {
    "itself": lambda y: y.mul_(7),
    "through a view": lambda y: y[0].zero_(),
    "through item assignment": lambda y: y.__setitem__(1, 3.0),
    "without recording": lambda y: sg.no_grad()(y.sin_)(),
    "through out=": lambda y: sg.exp(y.detach(), out=y.detach()),
    "twice": lambda y: y.mul_(7).add_(1),
}


@pytest.mark.parametrize("backward_inside", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_backward_sees_the_values_from_before_a_change(change, backward_inside):
    x = leaf([[1.0, 2.0], [3.0, 4.0]])
    with allow_mutation_on_saved_tensors():
        y = x * 1
        z = (y * y).sum()
        CHANGES[change](y)
        if backward_inside:
            z.backward()
    if not backward_inside:
        z.backward()
    assert x.grad.tolist() == [[2.0, 4.0], [6.0, 8.0]]


def test_a_change_after_the_context_is_seen_too():
    x = leaf([1.0, 2.0])
    with allow_mutation_on_saved_tensors():
        y = x * 1
        z = (y * y).sum()
    y.zero_()
    z.backward()
    assert x.grad.tolist() == [2.0, 4.0]


def test_an_optimizer_may_step_between_forward_and_backward():
    x, w = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    optimizer = sg.optim.SGD([w], lr=1.0)
    with allow_mutation_on_saved_tensors():
        loss = (x * w).sum()
    w.grad = sg.ones_like(w)
    optimizer.step()
    loss.backward()
    assert w.tolist() == [2.0, 3.0] and x.grad.tolist() == [3.0, 4.0]


def test_saved_outputs_and_views_of_every_layout_come_back():
    x = leaf(np.arange(12.0).reshape(3, 4))

    def loss(y: sg.Tensor) -> sg.Tensor:
        parts = [y, y[1], y.t(), y[:, ::2], y.flip(0), y[:1].expand(3, 4), y.tanh()]
        return sum([(part * part).sum() for part in parts], start=y.sum())

    (wanted,) = sg.grad(loss(x * 0.5), x)
    with allow_mutation_on_saved_tensors():
        y = x * 0.5
        z = loss(y)
        y.zero_()
    np.testing.assert_array_equal(sg.grad(z, x)[0].numpy(), wanted.numpy())


def test_memory_with_gaps_is_kept_too():
    x = leaf(np.ones(3))
    wide = np.arange(6.0)
    part = sg.from_numpy(wide[::2])
    with allow_mutation_on_saved_tensors():
        z = (x * part).sum()
    part.fill_(9.0)
    z.backward()
    assert x.grad.tolist() == [0.0, 2.0, 4.0] and wide.tolist() == [9.0, 1.0, 9.0, 3.0, 9.0, 5.0]


def test_one_copy_serves_all_that_saved_a_version_and_each_version_has_its_own():
    x = leaf([1.0, 2.0])
    with allow_mutation_on_saved_tensors():
        y = x * 1
        first = [y * y, y.reshape(2, 1) * 3.0 * y.reshape(2, 1)]
        y.add_(1)
        second = y * y
        y.add_(1)
    nodes = [first[0].grad_fn, second.grad_fn]
    copies = [node._raw_saved_self.data.storage for node in nodes]
    assert first[0].grad_fn._raw_saved_other.data.storage is copies[0]
    assert first[1].grad_fn._raw_saved_other.data.storage is copies[0]
    assert copies[0] is not copies[1] and y.storage not in copies
    (first[0] + first[1].reshape(2) + second).sum().backward()
    assert x.grad.tolist() == [2 * 1 + 6 * 1 + 2 * 2, 2 * 2 + 6 * 2 + 2 * 3]


def test_nothing_is_copied_without_a_change_and_nothing_after_the_graph_is_gone():
    x = leaf([1.0, 2.0])
    with allow_mutation_on_saved_tensors():
        y = x * 1
        z = y * y
        assert z.grad_fn._raw_saved_self.data.storage is y.storage
        z.sum().backward()
        y.mul_(2)
        assert y.storage.keeper is None


def test_a_copy_takes_what_is_looked_at_and_goes_with_the_graph():
    x = leaf([1.0])
    with allow_mutation_on_saved_tensors():
        big = sg.zeros(1000, dtype=sg.float64)
        z = x * big[10:13]
        big.add_(1)
    saved = z.grad_fn._raw_saved_other.data
    assert saved.storage.array.nbytes == 3 * 8
    copy = weakref.ref(saved.storage)
    del saved, z
    assert copy() is None


def test_a_change_that_nobody_told_of_is_still_an_error():
    x = leaf([1.0, 2.0])
    with allow_mutation_on_saved_tensors():
        y = x * 1
        z = y * y
        y.numpy()[:] = 0.0
        increment_version(y)
        y.add_(1)
    with pytest.raises(SavedTensorError, match="mul as 'self', is at version 2"):
        z.sum().backward()


def test_a_kept_value_that_was_itself_changed_is_an_error():
    x = leaf([1.0, 2.0])
    with allow_mutation_on_saved_tensors():
        y = x * 1
        z = y * y
        y.add_(1)
    z.grad_fn._saved_self.detach().zero_()
    with pytest.raises(SavedTensorError, match="modified in place after it was unpacked"):
        z.sum().backward()


def test_a_context_inside_another_is_an_error():
    x = leaf([1.0, 2.0])
    outer = allow_mutation_on_saved_tensors()
    with outer, sg.autograd.graph.save_on_cpu(only=lambda saved: False):
        for inner in (outer, allow_mutation_on_saved_tensors(only=lambda saved: saved.op == "mul")):
            with pytest.raises(GraphError, match="contexts cannot be nested"), inner:
                pass
        y = x * 1
        z = y * y
        y.zero_()
    with outer:
        u = (x * 1).square_()
    (z + u).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [4.0, 8.0], rtol=1e-12)


def test_a_context_takes_what_only_selects():
    x = leaf([1.0, 2.0])
    with allow_mutation_on_saved_tensors(only=lambda saved: saved.op == "exp"):
        y = x * 1
        z = y * y
        y.zero_()
    with pytest.raises(SavedTensorError, match="saved by mul"):
        z.sum().backward()


def test_second_derivatives_see_the_values_from_before():
    x = leaf([2.0])
    with allow_mutation_on_saved_tensors():
        y = x * 1
        z = y * y * y
        y.zero_()
        (gradient,) = sg.grad(z, x, create_graph=True)
        assert gradient.item() == 12.0 and sg.grad(gradient, x)[0].item() == 12.0
