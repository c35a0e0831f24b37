"""Indexing with brackets against NumPy: reading, writing, gradients."""

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import DimensionError, GraphError, OperandError, ShapeError
from tests.ops.checks import check_gradients, leaf

A = np.arange(24.0).reshape(2, 3, 4) / 7
MASK = A > 1.5

BASIC = [
    np.s_[0], np.s_[-1], np.s_[0, 1], np.s_[0, 1, 2], np.s_[:], np.s_[...], np.s_[()], np.s_[None], np.s_[:, None],
    np.s_[..., None], np.s_[..., 1], np.s_[1, ...], np.s_[:, 1], np.s_[0:1], np.s_[:, ::2], np.s_[:, ::-1],
    np.s_[::-1, :, 3:0:-2], np.s_[1:100], np.s_[-1:], np.s_[2:1], np.s_[:, 1:2, -2:], np.s_[None, 0, None, 1:],
    np.s_[np.int64(1)], np.s_[slice(np.int64(1), None)],
]  # fmt: skip
ADVANCED = [
    np.s_[[0, 1, 0]], np.s_[:, [2, 0]], np.s_[..., [0, 3, 3]], np.s_[[0, -1]], np.s_[[[0, 1], [1, 0]]],
    np.s_[:, [[0, 1], [1, 0]]], np.s_[[0, 1], [1, 2]], np.s_[[[0], [1]], [1, 2]], np.s_[[0, 1], :, [0, 1]],
    np.s_[:, [0, 1], [1, 1]], np.s_[:, [0, 1], 1:3], np.s_[[0, 1], None], np.s_[None, [0, 1]], np.s_[::-1, [0, 2]],
    np.s_[[0, 1], 1], np.s_[1, [0, 1]], np.s_[:, 1, [0, 1]], np.s_[[]], np.s_[MASK], np.s_[MASK[:, :, 0]],
    np.s_[[True, False]], np.s_[:, [True, False, True]], np.s_[[True, True], [1, 2]], np.s_[1, MASK[0]],
    np.s_[np.zeros(2, bool)], np.s_[..., MASK[0, 0]], np.s_[True], np.s_[False], np.s_[np.array([0, 1], np.uint8)],
    np.s_[[1, 1], :, :], np.s_[[1, 0], ..., :], np.s_[..., [0, 2, 2], :], np.s_[:, [2, 2], ...],
    np.s_[[0, 1], None, :, 1:],
]  # fmt: skip


def as_tensors(index):
    """The same index with tensors in place of lists and arrays."""
    parts = index if isinstance(index, tuple) else (index,)
    made = tuple(sg.tensor(p) if isinstance(p, np.ndarray) or (isinstance(p, list) and p) else p for p in parts)
    return made if isinstance(index, tuple) else made[0]


@pytest.mark.parametrize("index", BASIC, ids=repr)
def test_basic_indices_give_views(index):
    x = sg.tensor(A)
    got = x[index]
    np.testing.assert_array_equal(got.numpy(), A[index])
    if got.numel():
        assert got.storage is x.storage
        got[...] = -1
        assert (x.numpy() == -1).sum() == got.numel()


@pytest.mark.parametrize("index", ADVANCED, ids=repr)
def test_index_tensors_lists_arrays_and_masks_give_copies(index):
    x = sg.tensor(A)
    for spelled in (index, as_tensors(index)):
        got = x[spelled]
        np.testing.assert_array_equal(got.numpy(), A[index])
        assert not np.shares_memory(got.numpy(), x.numpy())


@pytest.mark.parametrize("index", [*BASIC, *ADVANCED], ids=repr)
def test_both_derivatives_of_indexing_agree_with_differences(index):
    check_gradients(lambda x: x[as_tensors(index)] ** 2, A[:, :, :4])


@pytest.mark.parametrize("index", [*BASIC, *ADVANCED], ids=repr)
@pytest.mark.parametrize("scalar", [True, False])
def test_assignment_writes_what_numpy_writes_and_passes_gradients_to_both_sides(index, scalar):
    wanted = A.copy()
    writes = np.zeros(A.shape)
    np.add.at(writes, index, 1)
    once = writes.max() <= 1  # which of several values at one place remains is not promised
    shape = () if scalar else wanted[index].shape
    values = np.random.default_rng(1).normal(size=shape) if once else np.full(shape, 5.0)
    wanted[index] = values
    x = sg.tensor(A)
    x[as_tensors(index)] = sg.tensor(values)
    np.testing.assert_array_equal(x.numpy(), wanted)

    def assigned(source, value):
        changed = source * 1
        changed[as_tensors(index)] = value
        return changed * changed

    if once:
        check_gradients(assigned, A, values)


def test_integers_are_applied_before_index_tensors():
    """NumPy would move the indexed dimension to the front; PyTorch leaves it where it is."""
    x, index = sg.tensor(A), sg.tensor([0, 1])
    np.testing.assert_array_equal(x[0, :, index].numpy(), A[0][:, [0, 1]])
    np.testing.assert_array_equal(x[index, :, 1].numpy(), A[[0, 1], :, 1])
    np.testing.assert_array_equal(x[0, None, :, index].numpy(), A[0][None][:, :, [0, 1]])
    np.testing.assert_array_equal(x[0, ..., index].numpy(), A[0][:, [0, 1]])
    x[0, :, index] = sg.tensor(-A[0][:, :2])
    np.testing.assert_array_equal(x.numpy()[0, :, :2], -A[0][:, :2])
    check_gradients(lambda t: t[1, :, index] ** 2, A)


def test_0d_tensors_are_integers():
    x = sg.tensor(A)
    one = sg.tensor(1)
    assert x[one].storage is x.storage
    assert x[one, sg.tensor(2)].tolist() == A[1, 2].tolist()
    assert sg.arange(5)[one : sg.tensor(3)].tolist() == [1, 2]
    assert [10, 20][one] == 20
    assert sg.tensor(7.0)[()].item() == sg.tensor(7.0)[...].item() == sg.tensor(7.0)[sg.tensor(True)].item() == 7


def test_places_named_twice_add_their_gradients():
    x = leaf([1.0, 2.0, 3.0])
    x[sg.tensor([0, 0, 2])].sum().backward()
    assert x.grad.tolist() == [2, 0, 1]


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (2, 0, 3)])
def test_nothing_chosen_from_nothing_has_an_empty_gradient(shape):
    x = leaf(np.zeros(shape))
    x[np.zeros(min(2, shape[0]), int)].sum().backward()
    assert x.grad.shape == shape


def test_the_index_may_change_before_backward():
    x, index = leaf([1.0, 2.0, 3.0]), sg.tensor([0, 1])
    y = x[index].sum()
    index.zero_()
    y.backward()
    assert x.grad.tolist() == [1, 1, 0]


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (2.7, 2),
        (True, 1),
        (sg.tensor(2.7), 2),
        (sg.tensor([2.7]), 2),
        ([2], 2),
        (np.array([2]), 2),
        (np.float64(2.7), 2),
    ],
)
@pytest.mark.parametrize("index", [slice(0, 1), [0]], ids=["basic", "advanced"])
def test_assigned_values_become_the_tensors_dtype(index, value, wanted):
    x = sg.tensor([9, 9])
    x[index] = value
    assert (x.dtype, x.tolist()) == (sg.int64, [wanted, 9])


def test_an_assigned_value_broadcasts_and_may_have_more_leading_ones():
    for index in (np.s_[:, 1], np.s_[:, sg.tensor([1])]):
        x = sg.zeros(2, 3)
        x[index] = sg.tensor([[[7.0]]])
        assert x.tolist() == [[0, 7, 0]] * 2
    x = sg.zeros(3, 2)
    x[:] = sg.tensor([1.0, 2.0])
    assert x.tolist() == [[1, 2]] * 3


def test_overlapping_assignment_reads_before_it_writes():
    x = sg.arange(5)
    x[1:] = x[:-1]
    assert x.tolist() == [0, 0, 1, 2, 3]
    x[sg.tensor([0, 1])] = x[sg.tensor([4, 3])]
    assert x.tolist() == [3, 2, 1, 2, 3]


def test_augmented_assignment_changes_the_places():
    x = sg.arange(4)
    x[1:3] += 10
    x[sg.tensor([0, 3])] *= 2
    x[x > 10] -= 1
    assert x.tolist() == [0, 10, 11, 6]


def test_assignment_counts_as_one_change():
    x = sg.zeros(4)
    view = x[1:]
    x[0] = 1
    view[sg.tensor([0])] = 2
    x[x > 1] = 3
    assert x._version == view._version == 3
    assert x.tolist() == [1, 3, 0, 0]


@pytest.mark.parametrize(
    ("index", "name"), [(0, "Select"), (np.s_[:, 0], "Select"), (np.s_[1:], "Slice"), (np.s_[0, 1:], "Slice"),
                        (None, "Unsqueeze"), (np.s_[[0, 1]], "Index")],
)  # fmt: skip
def test_the_node_of_a_read_has_pytorchs_name(index, name):
    assert leaf(A)[index].grad_fn.name() == f"{name}Backward0"


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        (2, DimensionError, r"index: index 2 is out of bounds .*shape \(2, 3, 4\)"),
        ((0, 0, 0, 0), DimensionError, "too many indices"),
        (sg.tensor([0, 2]), DimensionError, "index: index 2 is out of bounds"),
        (sg.tensor([-3]), DimensionError, "out of bounds"),
        (sg.tensor([True, False, True]), DimensionError, "boolean"),
        (1.0, DimensionError, "index: got float; wanted integers, slices"),
        ("a", DimensionError, "index: got str"),
        (sg.tensor([0.5]), DimensionError, "got an index tensor of float32; wanted integers or bool"),
        ([0.5], DimensionError, "got an index tensor of float64"),
    ],
)
def test_an_index_that_is_none_is_refused_for_reading_and_writing(index, error, message):
    x = sg.tensor(A)
    with pytest.raises(error, match=message):
        x[index]
    with pytest.raises(error, match=message):
        x[index] = 0


@pytest.mark.parametrize(
    ("index", "value", "error", "message"),
    [
        (np.s_[0:1], sg.ones(5), ShapeError, r"got a source of shape \(5,\)"),
        (np.s_[[0]], sg.ones(5), ShapeError, r"setitem: got a value of shape \(5,\)"),
        (0, "abc", OperandError, "setitem: got str; wanted a tensor, a number, a list or a NumPy array"),
        (0, None, OperandError, "setitem: got NoneType"),
        (0, ["a"], TypeError, "dtype: got"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(index, value, error, message):
    x = sg.tensor(A)
    with pytest.raises(error, match=message):
        x[index] = value
    np.testing.assert_array_equal(x.numpy(), A)


def test_writing_into_a_leaf_or_an_expanded_tensor_is_refused():
    with pytest.raises(GraphError, match="leaf Variable that requires grad"):
        leaf(A)[0] = 1
    with pytest.raises(GraphError, match="leaf Variable that requires grad"):
        leaf(A)[[0]] = 1
    with pytest.raises(GraphError, match="refers to one memory location; clone"):
        sg.zeros(1).expand(3)[:] = 1
