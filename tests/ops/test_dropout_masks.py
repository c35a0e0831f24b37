"""Dropout: its distribution, and that its mask is drawn again rather than saved."""

import os
import signal
import threading

import numpy as np
import pytest

import spillgrad as sg
from spillgrad import generator
from spillgrad.autograd.differentiate import grad
from spillgrad.errors import ArgumentError, DtypeError, GraphError
from spillgrad.generator import default_generator
from spillgrad.ops.dropout_masks import dropout, dropout_add
from tests.ops.checks import check_gradients, leaf


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_zeroes_its_share_and_scales_the_rest(dtype, p):
    sg.manual_seed(1)
    result = dropout(sg.ones(100_000, dtype=dtype), p).numpy().astype(np.float64)
    assert np.mean(result == 0) == pytest.approx(p, abs=0.01)
    np.testing.assert_allclose(result[result != 0], 1 / (1 - p), 1e-2)


def test_each_call_draws_anew_and_a_seed_repeats_it():
    x = sg.ones(1000)
    sg.manual_seed(7)
    first, second = dropout(x), dropout(x)
    assert (first.numpy() != second.numpy()).any()
    sg.manual_seed(7)
    np.testing.assert_array_equal(dropout(x).numpy(), first.numpy())


def test_the_gradient_passes_the_same_mask():
    x = leaf(np.ones((40, 50)))
    result = dropout(x.transpose(0, 1), 0.3)
    result.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy().T, result.numpy())


def test_both_derivatives_agree_with_differences():
    def function(x):
        sg.manual_seed(3)
        return dropout(x, 0.4) ** 3

    check_gradients(function, np.random.default_rng(0).normal(size=(4, 5)))


def test_no_tensor_is_saved():
    packed = []
    x = leaf(np.ones(8))
    with sg.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        result = dropout(x, 0.5)
    assert packed == []
    (gradient,) = grad(result, x, sg.ones(8, dtype="float64").requires_grad_(), create_graph=True)
    assert gradient.requires_grad


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_dropout_with_a_residual_is_their_sum(dtype):
    values = np.random.default_rng(0).normal(size=(2, 40, 50))
    x, residual = (sg.tensor(v).to(dtype).requires_grad_() for v in values)
    for p, training in [(0.3, True), (0.3, False), (0.0, True), (1.0, True)]:
        sg.manual_seed(5)
        wanted = residual + dropout(x, p, training)
        sg.manual_seed(5)
        got = dropout_add(x, residual, p, training)
        assert got.dtype == x.dtype
        tolerance = 1e-2 if dtype == "bfloat16" else 1e-6
        np.testing.assert_allclose(got.numpy().astype(float), wanted.numpy().astype(float), tolerance, tolerance)
        for first, second in zip(grad(got.sum(), [x, residual]), grad(wanted.sum(), [x, residual]), strict=True):
            np.testing.assert_array_equal(first.numpy(), second.numpy())


def test_dropout_with_a_residual_broadcasts_it_and_saves_nothing():
    packed = []
    x, residual = leaf(np.ones((3, 8))), leaf(np.ones((3, 8)))
    assert dropout_add(x, leaf(np.ones(8)), 0.5).shape == (3, 8)
    with sg.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        dropout_add(x, residual, 0.5)
    assert packed == []

    def function(x, residual):
        sg.manual_seed(3)
        return dropout_add(x, residual, 0.4) ** 3

    check_gradients(function, *np.random.default_rng(0).normal(size=(2, 4, 5)))


def test_outside_training_and_with_probability_zero_the_input_comes_back():
    x = sg.ones(4)
    assert dropout(x, 0.5, training=False) is x
    assert dropout(x, 0.0) is x
    assert dropout(x, 1.0).tolist() == [0, 0, 0, 0]
    assert dropout(sg.zeros(0, 3), 0.5).shape == (0, 3)


def test_in_place_dropout_changes_the_tensor_and_its_graph():
    x = leaf(np.ones(100))
    y = x * 2
    assert dropout(y, 0.5, inplace=True) is y
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), y.numpy())
    with pytest.raises(GraphError, match="dropout: a leaf Variable that requires grad"):
        dropout(x, 0.5, inplace=True)


def test_errors_say_what_was_given_and_what_is_wanted():
    with pytest.raises(ArgumentError, match=r"dropout: got p=1\.5; wanted a probability from 0 to 1"):
        dropout(sg.ones(3), 1.5)
    with pytest.raises(ArgumentError, match=r"dropout: got p=2; wanted a probability"):
        dropout_add(sg.ones(3), sg.ones(3), 2)
    with pytest.raises(DtypeError, match="dropout_add: got a tensor of int64"):
        dropout_add(sg.tensor([1]), sg.tensor([2]), 0.5)
    with pytest.raises(DtypeError, match="dropout: got a tensor of int64"):
        dropout(sg.tensor([1, 2]))


def test_draws_are_replayed_in_one_thread_and_the_stream_goes_on_as_it_was():
    sg.manual_seed(1)
    state = sg.get_rng_state()
    first, second = sg.rand(3).tolist(), sg.rand(3).tolist()
    sg.set_rng_state(state)
    assert sg.rand(3).tolist() == first
    with default_generator.replay(state):
        assert sg.rand(3).tolist() == first
        inner = sg.get_rng_state()
        with default_generator.replay(state):
            assert sg.rand(3).tolist() == first
            sg.manual_seed(9)
        assert sg.get_rng_state() == inner and sg.initial_seed() == 1
    assert sg.rand(3).tolist() == second
    again = default_generator.replay(state)
    for drawn in (first, second):
        with again:
            assert sg.rand(3).tolist() == drawn


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_forked_while_another_thread_draws_draws_what_comes_next():
    sg.manual_seed(7)
    held, forked = threading.Event(), threading.Event()

    def draw() -> None:
        with generator._lock:
            held.set()
            forked.wait()

    thread = threading.Thread(target=draw)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # what hangs must die
        os._exit(0 if default_generator.take(3) == (7, 0) and default_generator.take(1) == (7, 3) else 1)
    forked.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
