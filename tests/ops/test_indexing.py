"""Indexing against NumPy, its gradients against central differences."""

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import ArgumentError, DimensionError, DtypeError, OperandError, ShapeError
from spillgrad.ops import embedding, indexing
from tests.ops.checks import check_gradients, check_half_precision, leaf

RNG = np.random.default_rng(4)
A = RNG.normal(size=(3, 4, 2))
PLACES = {0: RNG.integers(0, 3, (5, 3, 2)), 1: RNG.integers(0, 4, (3, 6, 1)), 2: RNG.integers(0, 2, (2, 4, 3))}
ROWS = np.array([2, 0, 2, 1, 2])
DTYPES = ["float64", "float32", "bfloat16", "int64", "bool"]


def corner(a, dim, shape):
    return a[tuple(slice(None) if i == dim else slice(size) for i, size in enumerate(shape))]


def scattered(a, dim, index, src, add):
    """Write or add element by element: the definition."""
    out = a.copy()
    for place in np.ndindex(index.shape):
        target = (*place[:dim], index[place], *place[dim + 1 :])
        out[target] = out[target] + src[place] if add else src[place]
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", PLACES)
def test_gather_agrees_with_numpy(dim, dtype):
    a = sg.tensor(A * 10).to(dtype)
    wanted = np.take_along_axis(corner(a.numpy(), dim, PLACES[dim].shape), PLACES[dim], dim)
    got = indexing.gather(a, dim, sg.tensor(PLACES[dim]))
    assert got.dtype == a.dtype
    np.testing.assert_array_equal(got.numpy(), wanted)


@pytest.mark.parametrize("dim", PLACES)
def test_gather_and_scatter_add_have_each_other_as_derivative(dim):
    index = sg.tensor(PLACES[dim])
    source = RNG.normal(size=PLACES[dim].shape)
    check_gradients(lambda x: indexing.gather(x, dim, index) ** 2, A)
    check_gradients(lambda x, src: indexing.scatter_add(x, dim, index, src) ** 2, A, source)
    check_gradients(lambda x: indexing.gather(x.transpose(0, 2), 2 - dim, index.transpose(0, 2)) ** 2, A, second=False)
    check_half_precision(lambda x: indexing.gather(x, dim, index), A)


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64"])
@pytest.mark.parametrize("dim", PLACES)
def test_scatter_add_agrees_with_its_definition(dim, dtype):
    a = sg.tensor(A * 10).to(dtype)
    source = sg.tensor(RNG.normal(size=[size + 1 for size in PLACES[dim].shape]) * 10).to(dtype)
    got = indexing.scatter_add(a, dim, sg.tensor(PLACES[dim]), source)
    np.testing.assert_allclose(got.numpy(), scattered(a.numpy(), dim, PLACES[dim], source.numpy(), True), 1e-5)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "int64"])
def test_scatter_writes_values(dtype):
    index = np.array([[1, 0], [3, 2]])
    a, source = sg.tensor(A[:, :, 0] * 10).to(dtype), sg.tensor(A[:2, :2, 1] * 10).to(dtype)
    got = indexing.scatter(a, 1, sg.tensor(index), source)
    np.testing.assert_array_equal(got.numpy(), scattered(a.numpy(), 1, index, source.numpy(), False))
    assert indexing.scatter(a, 1, sg.tensor(index), 7).numpy()[1, 2] == 7
    assert indexing.scatter(a, 1, sg.tensor(index), value=7).numpy()[0, 1] == 7


def test_index_add_takes_tensors_without_dimensions():
    x = sg.tensor(1.0, requires_grad=True)
    got = indexing.index_add(x, 0, sg.tensor([0]), sg.tensor(2.0), alpha=2)
    assert (got.shape, got.item()) == ((), 5.0)
    got.backward()
    assert x.grad.item() == 1.0
    assert indexing.index_add(sg.tensor([1.0, 3.0]), 0, sg.tensor(1), sg.tensor([2.0])).tolist() == [1.0, 5.0]
    with pytest.raises(ShapeError, match="for an input of"):
        indexing.index_add(x, 0, sg.tensor([0]), sg.tensor([2.0]))


def test_both_derivatives_of_scatter_agree_with_differences():
    index = sg.tensor([[1, 0], [3, 2]])
    check_gradients(lambda x, src: indexing.scatter(x, 1, index, src) ** 2, A[:, :, 0], A[:3, :2, 1])
    check_gradients(lambda x: indexing.scatter(x, 1, index, 0.5) ** 2, A[:, :, 0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_index_select_and_index_add_agree_with_numpy(dim, dtype):
    a = sg.tensor(A * 10).to(dtype)
    index = RNG.integers(0, A.shape[dim], 5)
    picked = indexing.index_select(a, dim, sg.tensor(index))
    np.testing.assert_array_equal(picked.numpy(), np.take(a.numpy(), index, dim))
    if dtype in ("float64", "int64"):
        wanted = np.moveaxis(a.numpy().copy(), dim, 0)
        np.add.at(wanted, index, 2 * np.moveaxis(picked.numpy(), dim, 0))
        got = indexing.index_add(a, dim, sg.tensor(index), picked, alpha=2)
        np.testing.assert_allclose(got.numpy(), np.moveaxis(wanted, 0, dim))


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_index_select_and_index_add_have_each_other_as_derivative(dim):
    index = RNG.integers(0, A.shape[dim], 3)
    source = np.take(A, index, dim)
    check_gradients(lambda x: indexing.index_select(x, dim, sg.tensor(index)) ** 2, A)
    check_gradients(lambda x, s: indexing.index_add(x, dim, sg.tensor(index), s, alpha=3) ** 2, A, source)
    check_half_precision(lambda x: indexing.index_select(x, dim, sg.tensor(index)), A)


def test_take_counts_through_the_flattened_tensor_and_from_its_end():
    index = np.array([[0, 23], [-1, 5]])
    np.testing.assert_array_equal(indexing.take(sg.tensor(A), sg.tensor(index)).numpy(), A.reshape(-1)[index])
    check_gradients(lambda x: indexing.take(x.transpose(0, 1), sg.tensor(index)) ** 2, A)


def test_take_along_dim_broadcasts():
    index = RNG.integers(0, 4, (1, 3, 2))
    got = indexing.take_along_dim(sg.tensor(A), sg.tensor(index), 1)
    np.testing.assert_array_equal(got.numpy(), np.take_along_axis(A, index, 1))
    flat = indexing.take_along_dim(sg.tensor(A), sg.tensor([5, 0]))
    np.testing.assert_array_equal(flat.numpy(), A.reshape(-1)[[5, 0]])
    check_gradients(lambda x: indexing.take_along_dim(x, sg.tensor(index), 1) ** 2, A)


@pytest.mark.parametrize("padding_idx", [None, 2, -1])
def test_embedding_and_its_gradient_agree_with_numpy(padding_idx):
    table, index = A[:, :, 0], ROWS.reshape(1, 5)
    weight = leaf(table)
    rows = embedding.embedding(sg.tensor(index), weight, padding_idx)
    np.testing.assert_array_equal(rows.numpy(), table[index])
    gradient = RNG.normal(size=rows.shape)
    rows.backward(sg.tensor(gradient))
    wanted = np.zeros_like(table)
    np.add.at(wanted, index, gradient)
    if padding_idx is not None:
        wanted[padding_idx] = 0
    np.testing.assert_allclose(weight.grad.numpy(), wanted)


def test_both_derivatives_of_embedding_agree_with_differences():
    check_gradients(lambda w: embedding.embedding(sg.tensor(ROWS), w) ** 2, A[:, :, 0])
    check_half_precision(lambda w: embedding.embedding(sg.tensor(ROWS), w), A[:, :, 0])


def test_the_padding_row_receives_no_second_derivative_either():
    weight = leaf(A[:, :, 0])
    rows = embedding.embedding(sg.tensor(ROWS), weight, 2)
    (first,) = sg.grad((rows**3).sum(), weight, create_graph=True)
    first.sum().backward()
    wanted = 6 * A[:, :, 0] * np.array([[1], [1], [0]])
    np.testing.assert_allclose(weight.grad.numpy(), wanted)


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8"])
def test_indices_may_be_of_any_integer_dtype(dtype):
    index = sg.tensor(ROWS, dtype=dtype)
    np.testing.assert_array_equal(embedding.embedding(index, sg.tensor(A[:, :, 0])).numpy(), A[ROWS, :, 0])
    np.testing.assert_array_equal(indexing.index_select(sg.tensor(A), 0, index).numpy(), A[ROWS])
    np.testing.assert_array_equal(indexing.gather(sg.tensor(A[:, 0, 0]), 0, index).numpy(), A[ROWS, 0, 0])


def test_masks_fill_and_select():
    mask = A > 0
    x = sg.tensor(A)
    np.testing.assert_array_equal(indexing.masked_fill(x, x > 0, -1).numpy(), np.where(mask, -1, A))
    np.testing.assert_array_equal(indexing.masked_select(x, x > 0).numpy(), A[mask])
    assert indexing.masked_fill(sg.tensor([1, 2]), sg.tensor([True, False]), 5).dtype == sg.int64
    assert indexing.masked_fill(sg.ones(2).bfloat16(), sg.tensor([True, False]), -np.inf).dtype == sg.bfloat16
    row = sg.tensor(mask[0, 0])
    np.testing.assert_array_equal(indexing.masked_select(x, row).numpy(), A[np.broadcast_to(mask[0, 0], A.shape)])
    check_gradients(lambda x, v: indexing.masked_fill(x, sg.tensor(mask), v) ** 2, A, 0.5)
    check_gradients(lambda x: indexing.masked_select(x, row) ** 2, A)


def test_one_hot_and_nonzero():
    assert embedding.one_hot(sg.tensor([2, 0])).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert embedding.one_hot(sg.tensor([[1]]), 4).tolist() == [[[0, 1, 0, 0]]]
    assert indexing.nonzero(sg.tensor([[0, 3], [4, 0]])).tolist() == [[0, 1], [1, 0]]
    assert [index.tolist() for index in indexing.nonzero(sg.tensor([0, 3]), as_tuple=True)] == [[1]]


@pytest.mark.parametrize("offset", [0, 1, -2])
def test_diagonals_are_views(offset):
    x = sg.tensor(A)
    got = indexing.diagonal(x, offset, 0, 1)
    np.testing.assert_array_equal(got.numpy(), np.diagonal(A, offset, 0, 1))
    got.zero_()
    assert not np.diagonal(x.numpy(), offset, 0, 1).any()
    check_gradients(lambda x: indexing.diagonal(x, offset, -3, 1) ** 2, A)
    check_gradients(lambda v: indexing.diag(v, offset) ** 2, A[:, 0, 0])
    np.testing.assert_array_equal(indexing.diag(sg.tensor(A[0]), offset).numpy(), np.diag(A[0], offset))
    matrix = sg.tensor(A[0])
    indexing.diag(matrix, offset).add_(1)
    np.testing.assert_array_equal(matrix.numpy(), A[0])


def test_zero_size_indices_give_zero_size_results():
    none = sg.zeros(0, dtype="int64")
    weight = sg.ones(3, 4).requires_grad_()
    rows = embedding.embedding(none, weight)
    assert rows.shape == (0, 4)
    rows.sum().backward()
    assert not weight.grad.numpy().any()
    assert indexing.index_select(sg.ones(3, 4), 1, none).shape == (3, 0)
    assert indexing.gather(sg.ones(3), 0, none).shape == (0,)
    x, source = leaf(A), leaf(A[:0])
    indexing.index_select(x, 0, none).sum().backward()
    indexing.index_add(x, 0, none, source).sum().backward()
    assert x.grad.tolist() == np.ones(A.shape).tolist()
    assert source.grad.shape == (0, 4, 2)
    nothing = leaf(A[:0])
    indexing.index_select(nothing, 0, none).sum().backward()
    indexing.index_add(nothing, 0, none, source.detach()).sum().backward()
    assert nothing.grad.shape == (0, 4, 2)


X, I64 = sg.zeros(2, 3), sg.tensor([[0, 1]])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: embedding.embedding(sg.tensor([0, 5]), X),
            DimensionError,
            r"got index 5; .* shape \(2, 3\) takes 0 to 1",
        ),
        (lambda: embedding.embedding(X, I64), DtypeError, "indices come first, then the table"),
        (lambda: embedding.embedding(X, X), DtypeError, "embedding: got an index of float32"),
        (lambda: embedding.embedding(I64, sg.zeros(3)), ShapeError, r"got a table float32 of shape \(3,\)"),
        (lambda: embedding.embedding(I64, X, 2), ArgumentError, "got padding_idx 2; the table has 2 rows"),
        (
            lambda: indexing.gather(X, 1, sg.tensor([0])),
            ShapeError,
            r"an index of shape \(1,\) for an input of \(2, 3\)",
        ),
        (lambda: indexing.gather(X, 0, sg.tensor([[-1]])), DimensionError, "gather: got index -1"),
        (lambda: indexing.gather(X, 2, I64), DimensionError, "gather: got dim 2"),
        (lambda: indexing.gather(X, 0, [0]), OperandError, "got an index of type list"),
        (lambda: indexing.scatter(X, 1, I64), ArgumentError, "got neither src nor value"),
        (lambda: indexing.scatter_add(X, 1, I64, sg.zeros(1, 1)), ShapeError, r"\(1, 2\) and a src of shape \(1, 1\)"),
        (lambda: indexing.scatter_add(X, 1, I64, sg.zeros(1, 2).double()), DtypeError, "input float32 and src float64"),
        (lambda: indexing.index_select(X, 0, I64), DimensionError, "Index is supposed to be a vector"),
        (lambda: indexing.index_add(X, 0, sg.tensor([0]), X), ShapeError, r"\(1,\) and a source of shape \(2, 3\)"),
        (lambda: indexing.take(X, sg.tensor([6])), DimensionError, "take: got index 6"),
        (lambda: indexing.masked_fill(X, I64, 0), DtypeError, "masked_fill: got a mask of int64; wanted a bool"),
        (lambda: indexing.masked_select(X, sg.ones(2).to("bool")), ShapeError, r"got \(2, 3\) and a mask of \(2,\)"),
        (lambda: indexing.diagonal(X, 0, 1, -1), DimensionError, "got dims 1 and -1"),
        (lambda: indexing.diag(sg.zeros(1, 1, 1)), ShapeError, "diag: got a tensor of 3 dimensions"),
    ],
)
def test_errors_say_what_was_given_and_what_is_wanted(call, error, message):
    with pytest.raises(error, match=message):
        call()
