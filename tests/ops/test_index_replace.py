"""Writes by index: dtypes, ties, zeros among factors, and errors; values and derivatives are in test_composed."""

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import ArgumentError, DimensionError, DtypeError, OperandError, ShapeError
from spillgrad.ops import index_replace
from tests.ops.checks import check_gradients, leaf

A = np.random.default_rng(5).normal(size=(3, 4))


@pytest.mark.parametrize("dtype", ["int64", "bool", "bfloat16"])
def test_writes_take_any_dtype(dtype):
    x, y, index = sg.tensor([[0, 1], [2, 3]]).to(dtype), sg.tensor([[1, 0]]).to(dtype), sg.tensor([1])
    assert x.index_copy(0, index, y).tolist()[1] == y.tolist()[0]
    assert x.index_fill(1, index, 1).to("int64").tolist()[0][1] == 1
    assert x.index_put((index, index), y[0, 0]).dtype == x.dtype
    assert x.masked_scatter(x == x, sg.cat([y, y])).tolist() == [y.tolist()[0]] * 2
    places = sg.tensor([[0, 0]])
    assert x.scatter_reduce(0, places, y, "amax").to("int64").tolist()[0] == [1, 1]
    assert x.index_copy_(0, index, y) is x


def test_integers_add_up_and_average():
    x, index = sg.tensor([10, 20]), sg.tensor([0, 0])
    assert x.index_put((index,), sg.tensor([1, 2]), accumulate=True).tolist() == [13, 20]
    assert x.scatter_reduce(0, index, sg.tensor([1, 3]), "mean").tolist() == [4, 20]
    assert x.scatter_reduce(0, index, sg.tensor([1, 3]), "prod", include_self=False).tolist() == [3, 20]
    assert x.put(index[:1], sg.tensor([5]), accumulate=True).tolist() == [15, 20]


def test_equal_extremes_share_the_gradient():
    x, y = leaf([3.0, 1.0]), leaf([3.0, 2.0, 3.0])
    x.scatter_reduce(0, sg.tensor([0, 0, 0]), y, "amax").sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [1 / 3, 1])
    np.testing.assert_allclose(y.grad.numpy(), [1 / 3, 0, 1 / 3])


@pytest.mark.parametrize("zeros", [[], [0], [2], [0, 2], [0, 1, 2, 3]], ids=str)
def test_products_with_zeros_have_exact_gradients_and_second_ones(zeros):
    factors = np.array([2.0, -3.0, 0.5, 1.5])
    factors[zeros] = 0
    index = sg.tensor([0, 0, 0])

    def product(x, src):
        return x.scatter_reduce(0, index, src, "prod")

    x, src = leaf(factors[:1]), leaf(factors[1:])
    got = sg.grad(product(x, src).sum(), (x, src))
    wanted = [np.prod(np.delete(factors, i)) for i in range(4)]
    np.testing.assert_allclose(np.concatenate([g.numpy() for g in got]), wanted, 1e-15)
    check_gradients(product, factors[:1], factors[1:])


def test_long_products_of_several_places_have_the_gradients_of_each():
    rng = np.random.default_rng(0)
    x, src, index = rng.normal(size=(3, 2)), rng.normal(size=(17, 2)), rng.integers(0, 3, (17, 2))
    check_gradients(lambda x, src: x.scatter_reduce(0, sg.tensor(index), src, "prod"), x, src)


def test_diagonals_are_filled_in_place_and_wrap():
    x = sg.zeros(5, 2)
    assert x.fill_diagonal_(3.0) is x
    assert x.tolist() == [[3, 0], [0, 3], [0, 0], [0, 0], [0, 0]]
    assert sg.zeros(7, 2).fill_diagonal_(1, wrap=True).sum(1).tolist() == [1, 1, 0, 1, 1, 0, 1]
    assert sg.zeros(2, 2, 2).fill_diagonal_(1).sum().item() == 2


X, I64 = sg.zeros(2, 3), sg.tensor([0])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: X.index_copy(0, I64, X), ShapeError, r"index_copy: got a source of shape \(2, 3\)"),
        (lambda: X.index_copy(0, I64, X[:1].double()), DtypeError, "got input float32 and source float64"),
        (lambda: X.index_copy(0, sg.tensor([2]), X[:1]), DimensionError, "index_copy: got index 2"),
        (lambda: X.index_fill(0, I64, sg.ones(2)), ShapeError, "wanted one number"),
        (lambda: X.index_put(I64, 1.0), OperandError, "wanted a tuple of index tensors"),
        (lambda: X.index_put((sg.tensor([5]),), 1.0), DimensionError, "index 5 is out of bounds"),
        (lambda: X.index_put((I64,), sg.ones(2)), ShapeError, r"got \(2,\), wanted \(1, 3\)"),
        (lambda: X.put(sg.tensor([6]), sg.ones(1)), DimensionError, "put: got index 6"),
        (lambda: X.masked_scatter(X == 0, sg.ones(5)), ShapeError, "got 5 elements in source, and 6 places"),
        (lambda: X.scatter_reduce(0, I64[None], X, "max"), ArgumentError, "got reduce='max'; accepted are"),
        (lambda: X.select_scatter(sg.ones(2), 0, 0), ShapeError, r"its place has \(3,\)"),
        (lambda: sg.zeros(2).fill_diagonal_(1), ShapeError, "wanted a matrix"),
        (lambda: index_replace.index_reduce(X, 0, I64, X, "amax"), ShapeError, "index_reduce: got a source"),
    ],
)
def test_errors_say_what_was_given_and_what_is_wanted(call, error, message):
    with pytest.raises(error, match=message):
        call()
