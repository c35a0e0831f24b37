"""`grad` in PyTorch's and Paddle's dialects."""

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import GraphError, ShapeError
from tests.ops.checks import leaf


def test_a_dict_of_inputs_gives_a_dict_of_gradients():
    x, y = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    found = sg.grad((x * y).sum(), {"x": x, "y": y})
    assert {name: g.tolist() for name, g in found.items()} == {"x": [3.0, 4.0], "y": [1.0, 2.0]}
    assert sg.grad(x.sum(), {"y": y}, allow_unused=True) == {"y": None}
    assert sg.grad((x * 2).sum(), x)[0].tolist() == [2.0, 2.0]


def test_the_arguments_stand_in_the_order_of_both_libraries():
    x, unused = leaf([1.0]), leaf([1.0])
    y = (x * x).sum()
    # outputs, inputs, grad_outputs, retain_graph, create_graph, only_inputs, allow_unused
    found = sg.grad([y], [x, unused], None, True, True, True, True)
    assert found[0].requires_grad and found[1] is None


def test_gradients_of_other_leaves_are_not_asked_of_grad():
    x = leaf([1.0])
    with pytest.raises(ValueError, match=r"only_inputs=False; use backward\(\)"):
        sg.grad(x.sum(), x, only_inputs=False)


def test_no_gradient_flows_through_no_grad_vars():
    x = leaf([2.0])
    y = x * x
    z = y * x
    assert sg.grad(z, x, retain_graph=True)[0].item() == 12.0
    assert sg.grad(z, x, retain_graph=True, no_grad_vars=[y])[0].item() == 4.0
    assert sg.grad(z, x, retain_graph=True, no_grad_vars=y)[0].item() == 4.0
    assert sg.grad(z, x, no_grad_vars=[leaf([1.0]), sg.ones(1)])[0].item() == 12.0


def test_a_leaf_among_no_grad_vars_is_a_constant():
    x, w = leaf([2.0]), leaf([3.0])
    y = (x * w) * w
    assert sg.grad(y, x, retain_graph=True, no_grad_vars=w)[0].item() == 9.0
    with pytest.raises(RuntimeError, match="index 0 appears to not have been used"):
        sg.grad(y, w, retain_graph=True, no_grad_vars=[w])
    assert sg.grad(y, [x, w], retain_graph=True, no_grad_vars=[w], allow_unused=True)[1] is None
    assert sg.grad(y, x, retain_graph=True, no_grad_vars=[y], allow_unused=True) == (None,)
    assert sg.grad(y, w)[0].item() == 12.0


def test_what_only_no_grad_vars_lead_to_is_not_computed():
    ran = []
    x = leaf([2.0])
    y = x * x
    y.grad_fn.register_hook(lambda inputs, outputs: ran.append("square"))
    z = y * 3
    sg.grad(z, x, retain_graph=True, no_grad_vars=[y], allow_unused=True)
    assert ran == []
    sg.grad(z, x)
    assert ran == ["square"]


def test_what_is_no_tensor_among_no_grad_vars_is_named():
    x = leaf([1.0])
    with pytest.raises(
        TypeError, match="grad: no_grad_vars: all inputs have to be Tensors or GradientEdges, but got str"
    ):
        sg.grad(x.sum(), x, no_grad_vars=["x"])
    with pytest.raises(ValueError, match=r"got is_grads_batched of list; .* pass no_grad_vars by name"):
        sg.grad(x.sum(), x, None, None, False, True, False, [x])


def test_batched_gradients_are_those_of_each_row():
    x = leaf([1.0, 2.0, 3.0])
    y = x * x
    rows = sg.tensor(np.arange(12.0).reshape(4, 3))
    (found,) = sg.grad(y, x, rows, is_grads_batched=True)
    assert found.tolist() == (rows.numpy() * 2 * x.numpy()).tolist()
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        sg.grad(y, x, rows, is_grads_batched=True)


def test_a_batch_of_unit_vectors_gives_the_jacobian_of_several_outputs():
    x = leaf([1.0, 2.0])
    outputs = [x * x, x.sum()]
    units = np.eye(3)
    seeds = [sg.tensor(units[:, :2].copy()), sg.tensor(units[:, 2].copy())]
    (found,) = sg.grad(outputs, x, seeds, is_grads_batched=True)
    assert found.tolist() == [[2.0, 0.0], [0.0, 4.0], [1.0, 1.0]]


def test_batched_gradients_can_be_differentiated_and_kept():
    x = leaf([1.0, 2.0])
    y = x * x * x
    (found,) = sg.grad(y, x, sg.tensor(np.eye(2)), create_graph=True, is_grads_batched=True)
    assert sg.grad(found.sum(), x, retain_graph=True)[0].tolist() == [6.0, 12.0]
    assert sg.grad(y.sum(), x, retain_graph=True)[0].tolist() == [3.0, 12.0]


def test_batched_gradients_of_what_was_not_used():
    x, unused = leaf([1.0, 2.0]), leaf([1.0])
    y = x * x
    batch = sg.ones(3, 2, dtype=sg.float64)
    options = {"is_grads_batched": True, "retain_graph": True}
    assert sg.grad(y, [x, unused], batch, allow_unused=True, **options)[1] is None
    assert sg.grad(y, [x, unused], batch, materialize_grads=True, **options)[1].shape == (3, 1)
    with pytest.raises(RuntimeError, match="index 1 appears to not have been used"):
        sg.grad(y, [x, unused], batch, **options)


def test_batched_gradients_need_a_common_first_dimension():
    x = leaf([1.0, 2.0])
    y = x * x
    for given in (None, [sg.ones(())]):
        with pytest.raises(ValueError, match="no grad_outputs that share a first dimension"):
            sg.grad(y, x, given, is_grads_batched=True)
    with pytest.raises(ValueError, match="share a first dimension"):
        sg.grad([y, y], x, [sg.ones(2, 2), sg.ones(3, 2)], is_grads_batched=True)
    with pytest.raises(RuntimeError, match=r"Mismatch in shape: grad_output\[0\] has a shape of \(3,\)"):
        sg.grad(y, x, sg.ones(2, 3), is_grads_batched=True)


def test_a_leaf_is_found_in_a_graph_from_before_its_data_was_replaced():
    x = sg.tensor([2.0, 3.0], requires_grad=True)
    y = (x * x).sum()
    x.data = sg.tensor([7.0, 8.0])
    z = (x * x).sum()
    assert sg.autograd.grad(y, x, materialize_grads=True)[0].tolist() == [4, 6]
    assert sg.autograd.grad(z, x)[0].tolist() == [14, 16]


def test_a_gradient_is_for_what_was_computed_whatever_its_data_is_now():
    x = sg.tensor([2.0, 3.0], requires_grad=True)
    y = x * x
    y.data = sg.ones(1)
    with pytest.raises(GraphError, match=r"got shape \(2,\)"):
        y.backward()
    with pytest.raises(ShapeError, match=r"a shape of \(1,\) and output\[0\] has a shape of \(2,\)"):
        y.backward(sg.ones(1))
    y.backward(sg.ones(2))
    assert x.grad.tolist() == [4, 6]


@pytest.mark.parametrize("batched", [False, True])
def test_zeros_for_what_was_not_used_can_be_differentiated_again(batched):
    x, unused = leaf([2.0]), leaf([3.0, 1.0])
    weights = sg.ones(3, 1, dtype="float64") if batched else sg.ones(1, dtype="float64")
    first, zeros = sg.grad(
        x * x, [x, unused], weights, create_graph=True, materialize_grads=True, is_grads_batched=batched
    )
    assert zeros.requires_grad and zeros.tolist() == ([[0, 0]] * 3 if batched else [0, 0])
    again = sg.grad(zeros.sum(), [x, unused], materialize_grads=True)
    assert [g.tolist() for g in again] == [[0], [0, 0]] and not again[0].requires_grad
    with pytest.raises(GraphError, match="appears to not have been used"):
        sg.grad(zeros.sum(), x)
    (first.sum() + zeros.sum()).backward()
    assert x.grad.tolist() == [6.0 if batched else 2.0]
