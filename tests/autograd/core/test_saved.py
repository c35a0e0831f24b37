"""Saved values without hooks: which object comes back, and what a change, a free or a second look does."""

import contextlib

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.autograd.graph import saved_tensors_hooks
from spillgrad.errors import SavedTensorError
from tests.ops.checks import leaf


def test_without_hooks_a_saved_input_is_the_object_itself():
    x = leaf([1.0])
    y = x + 0
    frozen = sg.tensor(np.ones(1))
    assert (x * y).grad_fn._saved_self is x
    assert (x * y).grad_fn._saved_other is y
    assert (x * frozen).grad_fn._saved_other is frozen


def test_a_saved_input_is_found_again_when_its_object_is_gone():
    x = leaf([3.0])
    z = x * (x + 1)
    saved = z.grad_fn._saved_other
    assert saved.item() == 4.0 and saved.grad_fn is z.grad_fn.next_functions[1][0]


def test_a_saved_output_equals_the_output_and_shares_its_node():
    y = leaf([1.0]).tanh()
    saved = y.grad_fn._saved_result
    assert saved is not y and saved.grad_fn is y.grad_fn and saved.item() == y.item()


@pytest.mark.parametrize("hooked", [False, True])
def test_a_saved_value_keeps_its_place_in_the_graph(hooked):
    x = leaf([1.0])
    y = x * 2
    with saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        z = y * x if hooked else None
    z = z if hooked else y * x
    assert z.grad_fn._saved_self.grad_fn is y.grad_fn
    assert z.grad_fn._saved_other.is_leaf and z.grad_fn._saved_other.requires_grad
    (gradient,) = sg.grad(z, x, create_graph=True)
    assert sg.grad(gradient, x)[0].item() == 4.0


def test_a_value_that_needs_no_gradient_comes_back_without_graph():
    x, frozen = leaf([1.0]), sg.tensor(np.ones(1))
    with saved_tensors_hooks(lambda t: t, lambda t: t):
        y = x * frozen
    assert not y.grad_fn._saved_other.requires_grad


# Versions


def test_a_changed_input_names_the_operation_the_slot_and_both_versions():
    x = leaf([1.0, 2.0])
    y = x * 2
    z = y * y
    y.add_(1)
    with pytest.raises(
        RuntimeError,
        match=r"modified by an inplace operation: float64 \(2,\), saved by mul as 'self', is at version 1; "
        "expected version 0",
    ):
        z.sum().backward()


CHANGES = {
    "itself": lambda y: y.mul_(2),
    "through a view": lambda y: y[0].zero_(),
    "through a reshaped view": lambda y: y.reshape(2, 1).add_(1),
    "through item assignment": lambda y: y.__setitem__(0, 3.0),
    "through a mask": lambda y: y.__setitem__(y.detach() > 0, 3.0),
    "through detach": lambda y: y.detach().fill_(1.0),
    "without recording": lambda y: sg.no_grad()(y.mul_)(2),
}


@pytest.mark.parametrize("change", CHANGES)
def test_any_change_of_the_memory_counts(change):
    x = leaf([1.0, 2.0])
    y = x * 2
    z = y.detach() * x
    CHANGES[change](y)
    with pytest.raises(SavedTensorError, match="saved by mul as 'self'"):
        z.sum().backward()


def test_a_change_of_the_base_is_seen_by_a_saved_view():
    x = leaf([1.0, 2.0])
    y = x * 2
    z = y[0] * x[1]
    y.add_(1)
    with pytest.raises(SavedTensorError, match="mul as 'self'"):
        z.backward()


def test_a_changed_output_is_an_error():
    y = leaf([1.0]).tanh()
    with sg.no_grad():
        y.zero_()
    with pytest.raises(SavedTensorError, match="tanh as 'result'"):
        y.backward()


def test_only_operations_that_saved_the_changed_value_complain():
    x = leaf([1.0, 2.0])
    y = x * 2
    total = y + 3  # saves nothing
    y.mul_(5)
    total.sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]


def test_a_leaf_may_be_changed_without_recording_where_nothing_saved_it():
    x = leaf([1.0])
    y = x * 2
    with sg.no_grad():
        x.sub_(0.5)
    y.backward()
    assert x.item() == 0.5 and x.grad.item() == 2.0


def test_changing_a_saved_leaf_is_an_error():
    x = leaf([1.0])
    y = x * x
    with sg.no_grad():
        x.sub_(0.5)
    with pytest.raises(SavedTensorError, match="is at version 1; expected version 0"):
        y.backward()


def test_a_changed_value_takes_no_hooks():
    x = leaf([1.0])
    y = x * 2
    z = y * y
    y.add_(1)
    with pytest.raises(SavedTensorError, match="mul as 'self', is at version 1"):
        z.grad_fn._raw_saved_self.register_hooks(lambda t: t.clone(), lambda t: t)


def test_a_pack_hook_may_not_change_what_is_packed_next():
    x, y = leaf([1.0]) * 1, leaf([2.0]) * 1
    hooks = saved_tensors_hooks(lambda t: [t.clone(), y.detach().add_(1)][0], lambda t: t)
    with hooks, pytest.raises(SavedTensorError, match="mul as 'other', is at version 1"):
        x * y


def test_a_leaf_whose_data_was_replaced_was_saved_as_it_was():
    x = leaf([3.0])
    y = x * x
    x.data = sg.tensor(np.array([100.0]))
    assert y.grad_fn._raw_saved_self.data.tolist() == [3.0] and y.grad_fn._saved_self.requires_grad
    y.backward()
    assert x.grad.tolist() == [6.0]


def data_of_a_result(x: sg.Tensor) -> tuple[sg.Tensor, sg.Tensor]:
    h = x * 1
    y = h * h
    h.data = sg.tensor([7.0, 8.0])
    return y, h


def data_of_a_leaf(x: sg.Tensor) -> tuple[sg.Tensor, sg.Tensor]:
    y = x * x
    x.data = sg.tensor([7.0, 8.0])
    return y, x


def data_of_what_needs_no_gradient(x: sg.Tensor) -> tuple[sg.Tensor, sg.Tensor]:
    scale = sg.tensor([4.0, 6.0])
    y = x * scale
    scale.data = sg.tensor([7.0, 8.0])
    return y, scale


def data_of_a_view(x: sg.Tensor) -> tuple[sg.Tensor, sg.Tensor]:
    h = (x * 1)[:]
    y = h * h
    h.data = sg.tensor([7.0, 8.0])
    return y, h


def data_of_what_a_view_looks_at(x: sg.Tensor) -> tuple[sg.Tensor, sg.Tensor]:
    h = x * 1
    view = h[:]
    y = view * view
    h.data = sg.tensor([7.0, 8.0])
    h.add_(1)
    return y, view


def data_of_what_a_checkpoint_was_given(x: sg.Tensor) -> tuple[sg.Tensor, sg.Tensor]:
    h = x * 1
    y = sg.utils.checkpoint.checkpoint(lambda value: value * value, h)
    h.data = sg.tensor([7.0, 8.0])
    return y, h


REPLACED = {function.__name__: function for function in (
    data_of_a_result, data_of_a_leaf, data_of_what_needs_no_gradient, data_of_a_view, data_of_what_a_view_looks_at,
    data_of_what_a_checkpoint_was_given,
)}  # fmt: skip


@pytest.mark.parametrize("where", ["in RAM", "on disk"])
@pytest.mark.parametrize("case", REPLACED)
def test_what_was_saved_before_data_was_replaced_is_the_former_values(tmp_path, where, case):
    x = sg.tensor([2.0, 3.0], requires_grad=True)
    with sg.save_on_disk(tmp_path, ram_budget=0) if where == "on disk" else contextlib.nullcontext():
        y, _changed = REPLACED[case](x)
    y.sum().backward()
    assert x.grad.tolist() == [4, 6]


@pytest.mark.parametrize("where", ["in RAM", "on disk"])
def test_second_derivatives_of_what_data_replaced_are_those_of_the_former_values(tmp_path, where):
    x = sg.tensor([2.0, 3.0], requires_grad=True)
    with sg.save_on_disk(tmp_path, ram_budget=0) if where == "on disk" else contextlib.nullcontext():
        h = x * 1
        y = h * h * h
        h.data = sg.tensor([7.0, 8.0])
    (first,) = sg.autograd.grad(y.sum(), x, create_graph=True)
    first.sum().backward()
    assert (first.tolist(), x.grad.tolist()) == ([12, 27], [12, 18])


def step(layer: sg.nn.Linear) -> None:
    layer.weight.grad = sg.ones(2, 3)
    sg.optim.SGD(layer.parameters(), lr=0.5).step()
    layer.weight.grad = None


# What changes parameters between forward and backward, and whether backward has what it needs all the same.
PARAMETERS_CHANGE = {
    "data": (lambda layer: setattr(layer.weight, "data", sg.zeros(2, 3)), True),
    "converted data": (lambda layer: layer.double(), True),
    "no values": (lambda layer: layer.to_empty(device="cpu"), True),
    "an assigned state": (lambda layer: layer.load_state_dict({"weight": sg.zeros(2, 3)}, assign=True), True),
    "a vector": (lambda layer: sg.nn.utils.vector_to_parameters(sg.zeros(6), layer.parameters()), False),
    "a state": (lambda layer: layer.load_state_dict({"weight": sg.zeros(2, 3)}), False),
    "a step": (step, False),
    "values of data": (lambda layer: layer.weight.data.zero_(), False),
}


@pytest.mark.parametrize("where", ["in RAM", "on disk"])
@pytest.mark.parametrize("case", PARAMETERS_CHANGE)
def test_backward_is_right_or_refused_when_parameters_change_before_it(tmp_path, where, case):
    change, is_right = PARAMETERS_CHANGE[case]
    layer = sg.nn.Linear(3, 2, bias=False)
    weight, x = layer.weight, sg.ones(4, 3, requires_grad=True)
    wanted = weight.sum(0).tolist()
    with sg.save_on_disk(tmp_path, ram_budget=0) if where == "on disk" else contextlib.nullcontext():
        y = layer(x)
    change(layer)
    if is_right:
        y.sum().backward()
        assert x.grad.tolist() == [wanted] * 4 and weight.grad.tolist() == [[4.0] * 3] * 2
    else:
        with pytest.raises(SavedTensorError, match="modified by an inplace operation"):
            y.sum().backward()


def test_a_changed_value_is_an_error_though_its_tensor_has_other_data_by_now():
    x = sg.tensor([2.0, 3.0], requires_grad=True)
    h = x * 1
    y = h * h
    former = h.data
    h.data = sg.tensor([7.0, 8.0])
    former.add_(1)
    with pytest.raises(SavedTensorError, match="is at version 1; expected version 0"):
        y.sum().backward()


# Freeing


def test_saved_tensors_are_freed_by_backward_and_attributes_are_not():
    x = leaf([1.0, 2.0])
    y = x.tanh()
    z = y.sum(0)
    node = y.grad_fn
    z.backward()
    with pytest.raises(RuntimeError, match="after they have already been freed"):
        node._saved_result  # noqa: B018
    with pytest.raises(RuntimeError, match="freed"):
        node._raw_saved_result.data  # noqa: B018
    product = (x * 3).grad_fn
    assert product._saved_other == 3


def test_reading_a_saved_value_does_not_use_it_up():
    x = leaf([3.0])
    y = x * x.detach()
    assert y.grad_fn._saved_other.item() == y.grad_fn._raw_saved_other.unpack().item() == 3.0
    y.backward()
    assert x.grad.item() == 3.0


def test_a_name_that_was_not_saved_says_what_was():
    with pytest.raises(AttributeError, match="MulBackward0 has no attribute '_saved_nothing'; it saved self, other"):
        (leaf([1.0]) * leaf([1.0])).grad_fn._saved_nothing  # noqa: B018


def test_values_that_are_no_tensors_survive_freeing():
    x = leaf([[1.0, 2.0]])
    softmax = x.softmax(1)
    nodes = [x.sum(0).grad_fn, softmax.grad_fn, x.unbind(1)[0].grad_fn]
    softmax.sum().backward()
    assert (
        nodes[0]._saved_dim == (0,)
        and nodes[0]._saved_self_sym_sizes == (1, 2)
        and nodes[1]._saved_dim == 1
        and nodes[2]._saved_dim == 1
    )
    with pytest.raises(SavedTensorError, match="freed"):
        nodes[1]._saved_result  # noqa: B018


@pytest.mark.parametrize("kind", ["operation", "function"])
def test_a_freed_value_takes_no_hooks(kind):
    class Keep(sg.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return g

    x = leaf([1.0])
    y = x.exp() if kind == "operation" else Keep.apply(x)
    raw = y.grad_fn._raw_saved_result if kind == "operation" else y.grad_fn._raw_saved_tensors[0]
    y.backward()
    with pytest.raises(
        RuntimeError, match=r"register_hooks on a saved tensor after it has been freed.*already been free"
    ):
        raw.register_hooks(lambda t: t, lambda t: t)
    for look in (raw.unpack, lambda: raw.data):
        with pytest.raises(RuntimeError, match="after they have already been freed"):
            look()


def test_dir_of_a_node_lists_what_it_shows_under_pytorchs_names():
    node = leaf([[1.0, 2.0]]).sum(1).grad_fn
    names = [name for name in dir(node) if name.startswith("_saved_")]
    assert names == ["_saved_dim", "_saved_keepdim", "_saved_self_sym_sizes"]
    assert [getattr(node, name) for name in names] == [(1,), False, (1, 2)]
    product = (leaf([1.0]) * leaf([2.0])).grad_fn
    assert {"_saved_self", "_saved_other", "_raw_saved_self", "_raw_saved_other", "next_functions"} <= set(dir(product))


# None and detach_


def test_an_optional_tensor_that_was_not_given_is_none_and_takes_no_hooks():
    node = sg.nn.functional.layer_norm(leaf([[1.0, 2.0]]), (2,)).grad_fn
    raw = node._raw_saved_weight
    assert node._saved_weight is None and raw.data is None and raw.unpack() is None and raw.unpack_hook is None
    with pytest.raises(RuntimeError, match="register_hooks on a saved tensor with value None is forbidden"):
        raw.register_hooks(lambda t: t, lambda t: t)
    with pytest.raises(AttributeError, match="_raw_saved_eps"):
        node._raw_saved_eps  # noqa: B018


@pytest.mark.parametrize("then", ["nothing", "requires_grad_"])
def test_a_saved_input_that_was_detached_in_place_is_an_error(then):
    a = leaf(1.0).clone()
    b = a.sin()
    a.detach_()
    if then == "requires_grad_":
        a.requires_grad_()
    with pytest.raises(
        RuntimeError, match=r"Trying to use a saved tensor that has been detached.*sin saved it as 'sel"
    ):
        b.backward()


def test_a_saved_output_and_what_hooks_packed_do_not_mind_detaching():
    x = leaf(1.0)
    a = x.clone()
    b = a.exp()
    b.detach_()
    with saved_tensors_hooks(lambda t: t, lambda t: t):
        c = a.sin()
    a.detach_()
    c.backward()
    assert x.grad.item() == np.cos(1.0)


def test_stop_gradient_after_an_operation_leaves_the_operation_as_it_was():
    x = leaf(1.0)
    a = x.clone()
    b = a.sin()
    a.stop_gradient = True
    b.backward()
    assert x.grad.item() == np.cos(1.0)
