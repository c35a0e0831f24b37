"""In-place changes: values and gradients of the tensor, its base, its other views; what is refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import DtypeError, GraphError, SavedTensorError, ShapeError
from spillgrad.ops import inplace
from tests.ops.checks import check_gradients, leaf

# Functions of x (2, 3) and w (3,) that change things in place and return everything there is to see. Central
# differences of what they really compute are the oracle for every alias at once.


def seen(*tensors: sg.Tensor) -> sg.Tensor:
    """Return all elements of all tensors, each tensor in its own measure."""
    return sg.cat([t.reshape(-1) * (i + 1) for i, t in enumerate(tensors)])


def product(x: sg.Tensor, w: sg.Tensor) -> sg.Tensor:
    y = x * 1
    y.mul_(w)
    return seen(y)


def product_with_itself(x: sg.Tensor, w: sg.Tensor) -> sg.Tensor:
    y = x * w
    y.mul_(y)
    return seen(y)


def needs_the_overwritten_value(x: sg.Tensor, w: sg.Tensor) -> sg.Tensor:
    y = x * w
    y.square_()
    y.tanh_()
    y.div_(x + 2)
    return seen(y)


def augmented_assignment(x: sg.Tensor, w: sg.Tensor) -> sg.Tensor:
    y = x * 1
    y += w
    y *= x
    y -= 1
    y /= w + 2
    return seen(y)


def view_changes_reach_the_base(x: sg.Tensor, w: sg.Tensor) -> sg.Tensor:
    base = x * 1
    row = base[1]
    row.mul_(w)
    return seen(base, row)


def base_changes_reach_views(x: sg.Tensor, w: sg.Tensor) -> sg.Tensor:
    base = x * 1
    row, column, flat = base[0], base.t()[1], base.reshape(6)
    base.mul_(w)
    return seen(base, row, column, flat)


def view_changes_reach_other_views(x: sg.Tensor, w: sg.Tensor) -> sg.Tensor:
    base = x * 1
    part, column, flat, apart = base[:, 1:], base[:, 1], base.reshape(6), base[:, 0]
    part.add_(w[0])
    column.mul_(w[1:2])
    return seen(base, part, column, flat, apart)


def views_of_views(x: sg.Tensor, w: sg.Tensor) -> sg.Tensor:
    base = x * 1
    inner = base.t()[1:].unsqueeze(0)
    innermost = inner[0, :, 1]
    innermost.tanh_()
    inner.mul_(w[2])
    return seen(base, inner, innermost)


def expanded_views_read_a_changed_base(x: sg.Tensor, w: sg.Tensor) -> sg.Tensor:
    base = w * 1
    wide = base.expand(2, 3)
    base.mul_(x[0])
    return seen(base, wide, wide * x)


def constants_become_trainable(x: sg.Tensor, w: sg.Tensor) -> sg.Tensor:
    base = sg.tensor(np.ones((2, 3)))
    row, other = base[0], base[1]
    row.mul_(w)
    before = row + x[1]
    base.add_(x)
    return seen(base, row, other, before)


def item_assignment(x: sg.Tensor, w: sg.Tensor) -> sg.Tensor:
    y = x * 2
    view = y[0]
    y[0, 1:] = w[:2]
    y[1] = 5.0
    y[:, 0] = x[:, 2]
    return seen(y, view)


def item_assignment_by_lists_and_masks(x: sg.Tensor, w: sg.Tensor) -> sg.Tensor:
    y = x * 2
    view = y.reshape(6)
    y[[1, 0], [0, 2]] = w[:2]
    y[sg.tensor(np.array([[True, False, False], [False, True, True]]))] = w
    return seen(y, view)


def overlapping_assignment(x: sg.Tensor, w: sg.Tensor) -> sg.Tensor:
    y = x * w
    flat = y.reshape(6)
    flat[1:] = flat[:-1]
    return seen(y, flat)


def copies(x: sg.Tensor, w: sg.Tensor) -> sg.Tensor:
    y, z = x * 2, sg.tensor(np.zeros((2, 3)))
    y.copy_(w)
    z.copy_(x * w)
    return seen(y, z)


def overwriting_cuts_the_past(x: sg.Tensor, w: sg.Tensor) -> sg.Tensor:
    y, z = x * w, x * w
    y.zero_()
    z[0].fill_(3.0)
    return seen(y, z)


def a_change_without_derivative(x: sg.Tensor, w: sg.Tensor) -> sg.Tensor:
    y, z = x * w, x * w
    inplace.change(y, "heaviside_", lambda t: t > 0)
    inplace.change(z[1], "ones_", lambda t: sg.tensor(np.ones(3)))
    return seen(y, z)


def keyword_operands(x: sg.Tensor, w: sg.Tensor) -> sg.Tensor:
    y = sg.tensor(np.full((2, 3), 0.5))
    y.clamp_(min=w)
    y.add_(x, alpha=3)
    return seen(y)


def pieces_of_a_split(x: sg.Tensor, w: sg.Tensor) -> sg.Tensor:
    base = x * 1
    first, second = base.split(1, 0)
    first.mul_(w)
    second.add_(first.detach() * 0 + w)
    return seen(base, first, second)


def used_before_and_after(x: sg.Tensor, w: sg.Tensor) -> sg.Tensor:
    y = x * 1
    before = y + w
    y.mul_(w)
    after = y * w
    return seen(before, y, after)


PROGRAMS: list[Callable[..., sg.Tensor]] = [
    product,
    product_with_itself,
    needs_the_overwritten_value,
    augmented_assignment,
    view_changes_reach_the_base,
    base_changes_reach_views,
    view_changes_reach_other_views,
    views_of_views,
    expanded_views_read_a_changed_base,
    constants_become_trainable,
    item_assignment,
    item_assignment_by_lists_and_masks,
    overlapping_assignment,
    copies,
    overwriting_cuts_the_past,
    a_change_without_derivative,
    keyword_operands,
    pieces_of_a_split,
    used_before_and_after,
]
X = np.array([[0.3, -0.8, 1.1], [0.7, 0.4, -0.6]])
W = np.array([0.9, 1.4, 0.6])


@pytest.mark.parametrize("program", PROGRAMS, ids=[program.__name__ for program in PROGRAMS])
def test_gradients_of_all_aliases_equal_central_differences(program):
    check_gradients(program, X, W)


@pytest.mark.parametrize("program", PROGRAMS, ids=[program.__name__ for program in PROGRAMS])
def test_recording_changes_no_value(program):
    with sg.no_grad():
        plain = program(sg.tensor(X.copy()), sg.tensor(W.copy()))
    np.testing.assert_array_equal(program(leaf(X), leaf(W)).numpy(), plain.numpy())


# What the tensor looks like afterwards


def test_an_in_place_method_returns_the_tensor_itself_with_its_memory_and_a_new_version():
    x = leaf([1.0, 2.0])
    y = x * 2
    address = y.data_ptr()
    assert y.add_(x) is y and y.data_ptr() == address and y._version == 1
    assert y.tolist() == [3.0, 6.0] and y.grad_fn.name() == "AddBackward0"


def test_views_share_version_and_values():
    base = sg.tensor(np.zeros((2, 2)))
    view = base[0]
    view.fill_(3.0)
    base.t().add_(1)
    assert base.tolist() == [[4.0, 4.0], [1.0, 1.0]] and view._version == base._version == 2


def test_a_view_of_a_base_that_became_trainable_requires_a_gradient():
    base = sg.tensor(np.zeros(3))
    view = base[:2]
    assert not view.requires_grad and view.stop_gradient
    base.add_(leaf([1.0, 2.0, 3.0]))
    assert view.requires_grad and not view.stop_gradient and not view.is_leaf and (view * 2).requires_grad
    view.retain_grad()
    view.register_hook(lambda g: g * 2)


def test_views_of_a_base_that_was_detached_in_place_have_no_graph():
    base = leaf([1.0, 2.0]) * 2
    view = base[0]
    base.detach_()
    assert view.is_leaf and not view.requires_grad


def test_without_recording_a_change_leaves_the_graph_alone():
    x = leaf([1.0, 2.0])
    y = x * 2
    node = y.grad_fn
    with sg.no_grad():
        y.mul_(10)
        x.mul_(10)
    assert y.grad_fn is node and x.is_leaf and x.tolist() == [10.0, 20.0]


@pytest.mark.parametrize("shape", [(5,), (300, 400)])
def test_without_recording_a_method_computes_in_the_tensors_own_memory(shape):
    x, y = sg.randn(shape), sg.randn(shape)
    before, address, version = x.numpy().copy(), x.data_ptr(), x._version
    x.add_(y, alpha=3)
    x *= 2
    x.mul_(x)
    x.t().sub_(y.t()) if x.ndim == 2 else x.sub_(y)
    x.sigmoid_()
    wanted = 1 / (1 + np.exp(y.numpy() - ((before + 3 * y.numpy()) * 2) ** 2))
    np.testing.assert_allclose(x.numpy(), wanted, atol=1e-4)
    assert (x.data_ptr(), x._version) == (address, version + 5)


def test_without_recording_an_operand_may_overlap_the_tensor():
    x = sg.arange(6.0)
    x[1:].add_(x[:-1])
    assert x.tolist() == [0, 1, 3, 5, 7, 9]


def test_without_recording_what_does_not_fit_still_says_why():
    x = sg.zeros(3)
    with pytest.raises(ShapeError, match=r"add_: the result has shape \(2, 3\)"):
        x.add_(sg.zeros(2, 3))
    with pytest.raises(ShapeError, match=r"copy_: got a source of shape \(2, 3\); it does not broadcast to \(3,\)"):
        x.copy_(sg.zeros(2, 3))
    with pytest.raises(GraphError, match=r"mul_: more than one element"):
        sg.zeros(1).expand(3).mul_(2)


def test_a_dtype_is_kept_and_gradients_take_each_tensors_own():
    x = leaf([1.0, 2.0])
    y = sg.zeros(2, dtype=sg.float32)
    y.copy_(x)
    y.mul_(x)
    assert y.dtype == sg.float32
    y.sum().backward()
    assert x.grad.tolist() == [2.0, 4.0] and x.grad.dtype == sg.float64


# What is refused


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.add_(1),
        lambda x: x.zero_(),
        lambda x: x[0].mul_(2),
        lambda x: x.reshape(2, 1).fill_(0.0),
        lambda x: x.__setitem__(0, 1.0),
        lambda x: x.__setitem__([0], 1.0),
        lambda x: x.copy_(sg.tensor(np.zeros(2))),
    ],
)
def test_a_leaf_that_requires_a_gradient_and_its_views_refuse(change):
    x = leaf([1.0, 2.0])
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad is being used in an in-place operation"):
        change(x)
    assert x.tolist() == [1.0, 2.0] and x._version == 0
    with sg.no_grad():
        change(x)
    assert x.is_leaf and x.requires_grad


def test_a_view_made_without_recording_refuses_a_recorded_change():
    x = leaf([1.0, 2.0])
    y = x * 1
    with sg.no_grad():
        of_leaf, of_result = x[0], y[0]
    for view in (of_leaf, of_result):
        with pytest.raises(GraphError, match="A view was created in no_grad mode and is being modified inplace"):
            view.fill_(0.0)
    with sg.no_grad():
        of_result.fill_(0.0)


def test_a_value_that_a_derivative_still_needs_is_an_error_at_backward():
    x = leaf([1.0, 2.0])
    y = x * 2
    z = y * y
    y.mul_(3)
    with pytest.raises(SavedTensorError, match="saved by mul as 'self'"):
        z.sum().backward()


def test_an_operand_that_is_a_view_of_the_changed_tensor_is_an_error_at_backward():
    x = leaf([1.0, 2.0])
    y = x * 2
    y.mul_(y[0])
    assert y.tolist() == [4.0, 8.0]
    with pytest.raises(SavedTensorError, match="saved by mul as 'other'"):
        y.sum().backward()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda t: t.add_(sg.tensor(np.ones((2, 2)))), ShapeError, r"add_: the result has shape \(2, 2\)"),
        (lambda t: t.copy_(sg.tensor(np.ones(3))), ShapeError, r"copy_: got a source of shape \(3,\)"),
        (lambda t: t.expand(2, 2).add_(1), GraphError, "add_: more than one element"),
        (lambda t: sg.ones(2, dtype=sg.int64).add_(t), DtypeError, "add_: result type float64 can't be cast"),
    ],
)
def test_changes_that_do_not_fit_say_why_and_change_nothing(change, error, message):
    t = sg.tensor(np.array([1.0, 2.0]))
    with pytest.raises(error, match=message):
        change(t)
    assert t.tolist() == [1.0, 2.0] and t._version == 0


def test_read_only_memory_refuses():
    array = np.ones(2)
    array.flags.writeable = False
    with pytest.raises(GraphError, match="read-only"):
        sg.from_numpy(array).add_(1)


def test_hooks_pack_what_was_there_before():
    packed: list[Any] = []

    def pack(tensor: sg.Tensor) -> sg.Tensor:
        packed.append(tensor.tolist())
        return tensor

    x = leaf([2.0, 3.0])
    y = x * 1
    with sg.autograd.saved_tensors_hooks(pack, lambda t: t):
        y.square_()
    assert packed == [[2.0, 3.0]]
    y.sum().backward()
    assert x.grad.tolist() == [4.0, 6.0]


def test_a_view_whose_memory_or_base_was_replaced_changes_nothing_else():
    weight = sg.ones(4, requires_grad=True)
    base = weight * 2
    view = base[1:3]
    view.data = sg.ones(2)
    view.mul_(weight[:2] * 3)
    assert (base.tolist(), view.tolist()) == ([2, 2, 2, 2], [3, 3])
    (base.sum() + view.sum()).backward()
    assert weight.grad.tolist() == [5, 11, 8, 2]

    base = weight * 2
    view = base[1:3]
    base.data = sg.ones(4)
    with pytest.raises(GraphError, match="base got other memory"):
        view.mul_(3)


def test_a_view_given_data_in_the_same_memory_is_a_view_still():
    weight = sg.ones(4, requires_grad=True)
    base = weight * 2
    view = base[1:3]
    view.data = view.data
    view.mul_(3)
    base.sum().backward()
    assert (base.tolist(), weight.grad.tolist()) == ([2, 6, 6, 2], [2, 6, 6, 2])


def beyond_its_base() -> tuple[sg.Tensor, sg.Tensor]:
    base = sg.ones(6)[2:4].detach()
    return base, sg.as_strided(base, (4,), (1,), 0)


def beyond_the_data_its_base_was_given() -> tuple[sg.Tensor, sg.Tensor]:
    memory = sg.ones(8)
    base = memory[4:].detach()
    view = base[:4]
    base.data = memory.data[:4]
    return base, view


@pytest.mark.parametrize("looks", [beyond_its_base, beyond_the_data_its_base_was_given])
def test_a_view_beyond_its_base_takes_no_recorded_change(looks):
    weight = sg.full((4,), 3.0, requires_grad=True)
    base, view = looks()
    with pytest.raises(GraphError, match="reaches beyond its base"):
        view.mul_(weight)
    assert base.tolist() == [1] * base.numel() and not base.requires_grad


def as_custom_function(w: sg.Tensor) -> sg.Tensor:
    class Changes(sg.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x

    return Changes.apply(w)


# Changes of a leaf `w` that is a view of `flat`, or of memory beside it.
CHANGES_AT_A_LEAF = {
    "the leaf": lambda flat, w: w.sub_(1),
    "an element of it": lambda flat, w: w.__setitem__(0, 1.0),
    "a view of it": lambda flat, w: w[:2].mul_(2),
    "its shape": lambda flat, w: w.unsqueeze_(0),
    "by a custom function": lambda flat, w: as_custom_function(w),
    "what it views": lambda flat, w: flat.mul_(leaf([2.0])),
    "another view": lambda flat, w: flat[:2].mul_(leaf([2.0])),
}


@pytest.mark.parametrize("case", CHANGES_AT_A_LEAF)
def test_a_leaf_that_is_a_view_takes_no_recorded_change(case):
    flat = sg.zeros(5, dtype="float64")
    w = flat[2:].requires_grad_()
    with pytest.raises(GraphError, match="a view of a leaf Variable that requires grad is being used in an in-place"):
        CHANGES_AT_A_LEAF[case](flat, w)
    assert w.is_leaf and w.requires_grad and not flat.requires_grad
    with sg.no_grad():
        w.add_(1)
    (w * w).sum().backward()
    assert w.grad.tolist() == [2.0] * 3
    del w
    flat.mul_(leaf([2.0]))
    assert flat.requires_grad


def test_a_leaf_that_views_a_result_is_one_still_when_that_is_detached():
    result = leaf([1.0, 2.0]) * 1
    with sg.no_grad():
        view = result[:1]
    view.requires_grad_()
    result.detach_()
    assert view.is_leaf and view.requires_grad
    (view * 3).sum().backward()
    assert view.grad.tolist() == [3.0]


REFUSALS = {
    "a leaf": lambda x: x.add_(1),
    "a view of a leaf": lambda x: x[0].add_(1),
    "a leaf's element": lambda x: x.__setitem__(0, 1.0),
    "a leaf as the target of a copy": lambda x: x.copy_(sg.ones(2)),
    "an expanded tensor": lambda x: sg.ones(1).expand(3).add_(1),
    "another shape": lambda x: sg.ones(2).add_(sg.ones(3, 2)),
    "another dtype": lambda x: sg.ones(2, dtype=sg.int64).mul_(0.5),
    "read-only memory": lambda x: sg.from_numpy(np.broadcast_to(np.ones(2), 2)).add_(1),
    "a source that does not broadcast": lambda x: sg.ones(2).copy_(sg.ones(3)),
    "a view detached in place": lambda x: (x * 1)[0].detach_(),
    "out= of what is recorded": lambda x: sg.exp(x, out=sg.empty(2, dtype=sg.float64)),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_every_refusal_of_an_in_place_change_is_a_runtime_error(case):
    x = leaf([1.0, 2.0])
    with pytest.raises(RuntimeError):
        REFUSALS[case](x)
    assert x.tolist() == [1.0, 2.0] and x._version == 0
