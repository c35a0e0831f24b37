"""The reentrant form of recomputation, beyond what `tests/peers/programs/reentrant_checkpoint.py` compares."""

import functools

import numpy as np
import pytest

import spillgrad as sg
from spillgrad import nn
from spillgrad.errors import GraphError
from spillgrad.utils.checkpoint import checkpoint, checkpoint_sequential

reentrant = functools.partial(checkpoint, use_reentrant=True)


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
def test_second_derivatives_are_refused_instead_of_wrong():
    x = sg.tensor([1.0, 2.0], requires_grad=True)
    y = reentrant(lambda x: x.sin(), x)
    grads = []
    x.register_hook(grads.append)
    y.sum().backward(create_graph=True)
    with pytest.raises(GraphError, match="differentiate twice"):
        grads[0].sum().backward()


def test_the_warning_is_at_the_users_line_also_in_a_sequence():
    for call in (
        lambda: reentrant(lambda x: x, sg.ones(2)),
        lambda: checkpoint_sequential([nn.Tanh(), nn.Tanh()], 2, sg.ones(2), use_reentrant=True),
    ):
        with pytest.warns(UserWarning, match="None of the inputs have requires_grad=True") as warned:
            call()
        assert warned[0].filename == __file__


def test_arguments_are_spilled(tmp_path):
    x = sg.rand(2000, requires_grad=True)
    with sg.save_on_disk(tmp_path, ram_budget=0) as spill:
        y = reentrant(lambda x: (x.exp() * x.sin()).tanh(), x * 1)
    assert spill.stats().packed_bytes == 8000
    y.sum().backward()
    other = x.detach().clone().requires_grad_()
    (other.exp() * other.sin()).tanh().sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), other.grad.numpy(), rtol=1e-6)


def test_running_statistics_are_updated_once():
    norm = nn.BatchNorm1d(2)
    reentrant(norm, sg.rand(4, 2, requires_grad=True)).sum().backward()
    assert norm.num_batches_tracked.item() == 1


def test_the_recomputation_runs_in_the_forwards_autocast():
    seen = []

    def function(x):
        seen.append((x @ x).dtype)
        return x @ x

    x = sg.rand(2, 2, requires_grad=True)
    with sg.autocast("cpu"):
        y = reentrant(function, x)
    y.float().sum().backward()
    assert seen == [sg.bfloat16, sg.bfloat16]
