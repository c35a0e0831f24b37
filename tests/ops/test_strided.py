"""Views at any strides, and shapes changed in place, against NumPy, PyTorch's rules and central differences."""

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import ArgumentError, DimensionError, GraphError, SavedTensorError, ShapeError
from tests.ops.checks import check_gradients, leaf

RNG = np.random.default_rng(0)
A = RNG.normal(size=(3, 4))
# Size, strides and offset: overlapping, repeating, of one element, of none, without dimensions.
PLACES = [
    ((2, 3), (4, 1), 2), ((5, 4), (1, 2), 0), ((3, 2), (0, 1), 5), ((2, 2, 2), (1, 1, 3), 4), ((1,), (7,), 11),
    ((0, 3), (1, 1), 0), ((), (), 6),
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_a_strided_view_is_numpys_and_its_gradients_are_differences(place):
    size, strides, offset = place
    expected = np.lib.stride_tricks.as_strided(A.reshape(-1)[offset:], size, [8 * s for s in strides])
    x = sg.tensor(A)
    view = x.as_strided(size, strides, offset)
    np.testing.assert_array_equal(view.numpy(), expected)
    assert view.storage is x.storage or not view.numel()
    check_gradients(lambda x: sg.as_strided(x * 1, size, strides, offset) ** 2, A)


def test_a_strided_view_of_a_part_counts_from_the_storages_begin():
    part = sg.tensor(A)[1:, 1:]
    np.testing.assert_array_equal(part.as_strided((2,), (4,)).numpy(), A[1:, 1])
    np.testing.assert_array_equal(part.as_strided((2, 2), (1, 4), 0).numpy(), A[:2, :2].T)
    check_gradients(lambda x: (x * 1)[1:, ::2].as_strided((3, 2), (0, 4), 6) ** 2, A)
    x = leaf(A)
    (x * 1)[0].as_strided((4,), (1,), 4).sum().backward()
    assert not x.grad.numpy().any()


def test_what_repeats_in_the_input_shares_the_gradient():
    x = leaf(A[0])
    x.expand(3, 4).as_strided((4,), (1,)).backward(sg.tensor([1.0, 2.0, 3.0, 4.0]).double())
    assert x.grad.tolist() == [1, 2, 3, 4]


def test_a_strided_view_sees_changes_and_makes_them():
    x = leaf(A)
    y = x * 1
    view = y.as_strided((2, 2), (5, 1), 1)
    view.mul_(3)
    expected = A.copy()
    expected.reshape(-1)[[1, 2, 6, 7]] *= 3
    np.testing.assert_array_equal(y.numpy(), expected)
    y.sum().backward()
    wanted = np.ones(12)
    wanted[[1, 2, 6, 7]] = 3
    np.testing.assert_array_equal(x.grad.numpy().reshape(-1), wanted)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (((2,), (1, 1)), ArgumentError, "mismatch in length"),
        (((2,), (-1,)), ArgumentError, "Negative strides"),
        (((2,), (1,), -1), ArgumentError, "Negative strides"),
        (((4, 4), (4, 1)), ArgumentError, "out of bounds for a storage of 12 elements"),
        (((2,), (1,), 11), ArgumentError, "out of bounds"),
    ],
)
def test_a_place_outside_the_storage_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        sg.tensor(A).as_strided(*arguments)
    with pytest.raises(RuntimeError):
        sg.tensor(A).as_strided(*arguments)


def test_a_storage_with_gaps_is_refused():
    with pytest.raises(GraphError, match="not dense"):
        sg.from_numpy(A[:, ::2]).as_strided((2,), (1,))


IN_PLACE = {
    "unsqueeze_": (lambda x: x.unsqueeze_(1), lambda a: a[:, None]),
    "squeeze_": (lambda x: x.unsqueeze_(0).squeeze_(), lambda a: a),
    "squeeze_ one": (lambda x: x.unsqueeze_(0).unsqueeze_(0).squeeze_(0), lambda a: a[None]),
    "squeeze_ several": (lambda x: x.unsqueeze_(0).unsqueeze_(0).squeeze_((0, 1)), lambda a: a),
    "t_": (lambda x: x.t_(), np.transpose),
    "transpose_": (lambda x: x.unsqueeze_(0).transpose_(0, -1), lambda a: a[None].swapaxes(0, 2)),
    "swapaxes_": (lambda x: x.swapaxes_(0, 1), np.transpose),
    "swapdims_": (lambda x: x.swapdims_(0, 1), np.transpose),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_shape_changes_in_place(name):
    function, oracle = IN_PLACE[name]
    x = sg.tensor(A)
    version, storage = x._version, x.storage
    assert function(x) is x
    np.testing.assert_array_equal(x.numpy(), oracle(A))
    assert x.storage is storage
    assert x._version > version
    check_gradients(lambda x: function(x * 1) ** 2, A)


def test_a_view_whose_shape_changes_still_changes_its_base():
    x = leaf(A)
    y = x * 1
    row = y[1]
    row.unsqueeze_(0)
    assert row.grad_fn.name() == "UnsqueezeBackward0"
    row.mul_(2)
    assert row.shape == (1, 4)
    assert y.shape == (3, 4)
    (y * y).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * A * np.array([1, 4, 1])[:, None])


def test_a_base_whose_shape_changes_still_changes_its_views():
    x = leaf(A)
    y = x * 1
    row = y[1]
    y.unsqueeze_(0)
    y.mul_(3)
    row.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [[0] * 4, [3] * 4, [0] * 4])


def test_a_kept_gradient_has_the_tensors_new_shape():
    x = leaf(A)
    y = x * 2
    y.retain_grad()
    y.t_()
    y.sum().backward()
    assert y.grad.shape == (4, 3)
    np.testing.assert_array_equal(x.grad.numpy(), np.full((3, 4), 2.0))


def test_a_leaf_is_refused_and_changes_where_nothing_is_recorded():
    x = leaf(A)
    for change in (x.t_, x.squeeze_, x[0].squeeze_):
        with pytest.raises(GraphError, match="leaf Variable that requires grad is being used in an in-place"):
            change()
    with sg.no_grad():
        x.t_()
    (x * x).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), 2 * A.T)


def test_a_saved_tensor_whose_shape_changes_is_noticed():
    y = leaf(A) * 1
    z = y * y
    y.unsqueeze_(0)
    with pytest.raises(SavedTensorError, match="modified by an inplace operation"):
        z.sum().backward()


def test_what_cannot_be_changed_is_named():
    with pytest.raises(ShapeError, match="at most 2"):
        sg.zeros(2, 2, 2).t_()
    with pytest.raises(DimensionError):
        sg.zeros(2).transpose_(0, 1)
