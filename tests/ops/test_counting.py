"""Values, how often and where, against NumPy."""

import math

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import ArgumentError, DtypeError, ShapeError
from tests.ops.checks import check_gradients

RNG = np.random.default_rng(3)
WHOLE = RNG.integers(-2, 3, (4, 5))
REAL = RNG.normal(size=(4, 5))


def test_complex_numbers_are_told_apart():
    z = np.array([[1 + 2j, 1 + 1j, 0], [1 + 2j, -2j, 1 + 1j]])
    values, inverse, counts = sg.unique(sg.tensor(z), return_inverse=True, return_counts=True)
    assert values.tolist() == [-2j, 0, 1 + 1j, 1 + 2j]
    assert counts.tolist() == [1, 1, 2, 2]
    assert values[inverse].tolist() == z.tolist()
    assert sg.isin(sg.tensor(z), sg.tensor([1 + 1j, 2j])).tolist() == np.isin(z, [1 + 1j, 2j]).tolist()


@pytest.mark.parametrize("dtype", ["int64", "uint8", "float32", "bfloat16"])
def test_unique_gives_values_in_order_places_and_counts(dtype):
    a = sg.tensor(WHOLE + 2).to(dtype)
    values, inverse, counts = sg.unique(a, return_inverse=True, return_counts=True)
    assert values.dtype == a.dtype
    assert values.tolist() == np.unique(WHOLE + 2).tolist()
    np.testing.assert_array_equal(values[inverse].numpy(), a.numpy())
    assert counts.sum().item() == a.numel()
    assert a.unique().tolist() == values.tolist()


@pytest.mark.parametrize("dim", [0, 1])
def test_unique_along_a_dimension_tells_slices_apart(dim):
    rows = np.array([[1, 2], [0, 5], [1, 2]])
    a = rows if dim == 0 else rows.T
    values, inverse, counts = sg.unique(sg.tensor(a), return_inverse=True, return_counts=True, dim=dim)
    wanted = np.unique(a, axis=dim)
    np.testing.assert_array_equal(values.numpy(), wanted)
    assert inverse.tolist() == [1, 0, 1]
    assert counts.tolist() == [1, 2]


def test_every_nan_is_one_of_its_own():
    assert sg.unique(sg.tensor([math.nan, 1.0, math.nan])).shape == (3,)


def test_unique_consecutive_joins_neighbours():
    values, inverse, counts = sg.unique_consecutive(sg.tensor([1, 1, 2, 1]), return_inverse=True, return_counts=True)
    assert (values.tolist(), inverse.tolist(), counts.tolist()) == ([1, 2, 1], [0, 0, 1, 2], [2, 1, 1])
    rows = sg.tensor([[1, 1, 2], [3, 3, 3]])
    assert rows.unique_consecutive(dim=1).tolist() == [[1, 2], [3, 3]]
    assert sg.unique_consecutive(sg.zeros(0)).shape == (0,)


def test_bincount_counts_or_adds_weights_which_get_their_gradient():
    index = np.array([0, 3, 3, 1])
    assert sg.bincount(sg.tensor(index), minlength=6).tolist() == [1, 1, 0, 2, 0, 0]
    assert sg.bincount(sg.tensor(index), sg.tensor([1.0, 2.0, 4.0, 8.0])).tolist() == [1, 8, 0, 6]
    assert sg.bincount(sg.zeros(0, dtype="int64"), minlength=2).tolist() == [0, 0]
    check_gradients(lambda w: sg.bincount(sg.tensor(index), w) ** 2, REAL[0, :4])


@pytest.mark.parametrize(("low", "high"), [(-1, 1), (0, 0)])
def test_histc_agrees_with_numpy(low, high):
    wanted, _ = np.histogram(REAL, 6, (low, high) if low < high else None)
    assert sg.histc(sg.tensor(REAL), 6, low, high).tolist() == wanted.tolist()
    assert sg.histc(sg.ones(3), 2).tolist() == [0, 3]


@pytest.mark.parametrize("right", [False, True])
def test_places_among_sorted_values_agree_with_numpy(right):
    rows, sought = np.sort(WHOLE, 1), WHOLE[:, :3]
    side = "right" if right else "left"
    wanted = np.stack([np.searchsorted(r, s, side) for r, s in zip(rows, sought, strict=True)])
    np.testing.assert_array_equal(sg.searchsorted(sg.tensor(rows), sg.tensor(sought), right=right).numpy(), wanted)
    got = sg.searchsorted(sg.tensor(rows), sg.tensor(sought), side=side, out_int32=True)
    assert got.dtype == sg.int32
    edges = sg.tensor([-1.0, 0.0, 1.0])
    np.testing.assert_array_equal(
        sg.bucketize(sg.tensor(WHOLE), edges, right=right).numpy(), np.searchsorted([-1.0, 0.0, 1.0], WHOLE, side)
    )
    assert sg.bucketize(0.5, edges).item() == 2
    order = np.argsort(WHOLE[0], kind="stable")
    unsorted = sg.searchsorted(sg.tensor(WHOLE[0]), sg.tensor(sought[0]), right=right, sorter=sg.tensor(order))
    np.testing.assert_array_equal(unsorted.numpy(), wanted[0])


def test_isin_agrees_with_numpy():
    np.testing.assert_array_equal(sg.isin(sg.tensor(WHOLE), sg.tensor([0, 2])).numpy(), np.isin(WHOLE, [0, 2]))
    np.testing.assert_array_equal(sg.isin(sg.tensor(WHOLE), 1, invert=True).numpy(), WHOLE != 1)
    assert sg.argwhere(sg.tensor([[0, 3], [4, 0]])).tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: sg.bincount(sg.tensor([-1])), ArgumentError, "bincount: got -1"),
        (lambda: sg.bincount(sg.tensor([1.0])), DtypeError, "bincount: got a tensor of float32"),
        (lambda: sg.bincount(sg.tensor([1]), sg.ones(2)), ShapeError, r"weights of \(2,\)"),
        (lambda: sg.histc(sg.ones(3), 0), ArgumentError, "histc: got bins=0"),
        (lambda: sg.histc(sg.ones(3), 2, 2, 1), ArgumentError, "the lower bound comes first"),
        (lambda: sg.histc(sg.tensor([math.inf])), ArgumentError, "wanted finite numbers"),
        (lambda: sg.searchsorted(sg.ones(2, 3), sg.ones(3)), ShapeError, "the same leading dimensions"),
        (lambda: sg.searchsorted(sg.ones(3), 1, side="up"), ArgumentError, "got side='up'"),
        (lambda: sg.bucketize(sg.ones(3), sg.ones(1, 2)), ShapeError, "use searchsorted"),
    ],
)
def test_errors_say_what_was_given_and_what_is_wanted(call, error, message):
    with pytest.raises(error, match=message):
        call()
