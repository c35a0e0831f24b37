"""What a sparse tensor refuses and saves, and its second derivatives; peers compare its products with PyTorch."""

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.autograd.graph import saved_tensors_hooks
from spillgrad.errors import ArgumentError, DimensionError, DtypeError, GraphError, OperandError, ShapeError

PLACES = [[0, 1, 1, 0], [2, 0, 0, 1]]


def matrix(dtype="float64", requires_grad=True):
    values = sg.tensor([3.0, 4.0, 5.0, 1.0], dtype=dtype, requires_grad=requires_grad)
    return sg.sparse_coo_tensor(PLACES, values, (2, 3)), values


def test_first_and_second_derivatives_of_a_product_equal_central_differences():
    dense = sg.tensor(np.random.default_rng(0).normal(size=(3, 2)), requires_grad=True)
    _, values = matrix()

    def product(values, dense):
        return sg.spmm(sg.sparse_coo_tensor(PLACES, values, (2, 3)), dense)

    assert sg.autograd.gradcheck(product, (values, dense))
    assert sg.autograd.gradgradcheck(product, (values, dense))
    assert sg.autograd.gradcheck(lambda v: sg.sparse_coo_tensor(PLACES, v, (2, 3)).to_dense(), values)
    assert sg.autograd.gradcheck(lambda v: sg.sparse_coo_tensor(PLACES, v, (2, 3)).coalesce().values(), values)


@pytest.mark.parametrize("columns", [(), (2,)])
def test_the_gradients_of_a_complex_product_are_those_of_the_dense_one(columns):
    random = np.random.default_rng(0)

    def draw(*shape):
        return sg.tensor(random.normal(size=shape) + 1j * random.normal(size=shape), requires_grad=True)

    values, dense, g = draw(4), draw(3, *columns), draw(2, *columns)

    def product(values, dense):
        return sg.sparse_coo_tensor(PLACES, values, (2, 3)) @ dense

    assert sg.autograd.gradcheck(product, (values, dense))
    assert sg.autograd.gradgradcheck(product, (values, dense))
    by_sparse = sg.autograd.grad(product(values, dense), (values, dense), g)
    as_dense = sg.sparse_coo_tensor(PLACES, values, (2, 3)).to_dense() @ dense
    for got, wanted in zip(by_sparse, sg.autograd.grad(as_dense, (values, dense), g), strict=True):
        np.testing.assert_allclose(got.numpy(), wanted.numpy())


def test_indices_that_change_in_place_later_change_no_gradient():
    indices, values = sg.tensor(PLACES), sg.tensor([3.0, 4.0, 5.0, 1.0], requires_grad=True)
    sparse = sg.sparse_coo_tensor(indices, values, (2, 3))
    products = sparse @ sg.tensor([1.0, 2.0, 3.0]), sparse.to_dense() * sg.tensor([1.0, 2.0, 3.0])
    indices.zero_()
    for product in products:
        (gradient,) = sg.autograd.grad(product.sum(), values)
        assert gradient.tolist() == [3, 1, 1, 2]
    assert (sparse @ sg.ones(3)).tolist() == [4, 9]


def test_a_product_saves_the_values_and_the_dense_matrix_and_no_terms():
    sparse, _ = matrix()
    packed = []
    with saved_tensors_hooks(lambda t: packed.append(t.shape) or t, lambda t: t):
        sg.spmm(sparse, sg.ones(3, 50, dtype="float64", requires_grad=True))
    assert sorted(packed) == [(3, 50), (4,)]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int64"])
def test_a_product_has_the_dtype_of_its_operands(dtype):
    sparse = sg.sparse_coo_tensor(PLACES, sg.tensor([3, 4, 5, 1], dtype=dtype), (2, 3))
    product = sparse @ sg.ones(3, 2, dtype=dtype)
    assert (product.dtype, product.tolist()) == (sg.dtypes.as_dtype(dtype), [[4, 4], [9, 9]])
    assert sparse.to_dense().tolist() == [[0, 1, 3], [9, 0, 0]]


def test_a_matrix_without_values_is_zeros():
    empty = sg.sparse_coo_tensor(sg.zeros(2, 0, dtype="int64"), sg.zeros(0), (2, 3))
    assert (empty @ sg.ones(3, 2)).tolist() == [[0, 0], [0, 0]]
    assert empty.coalesce().to_dense().tolist() == [[0, 0, 0], [0, 0, 0]]
    assert sg.zeros(2, 3).to_sparse()._nnz() == 0


def test_a_large_product_equals_the_dense_one():
    random = np.random.default_rng(0)
    places, values = random.integers(0, 300, (2, 5000)), random.normal(size=5000).astype(np.float32)
    dense = sg.randn(300, 64)
    sparse = sg.sparse_coo_tensor(sg.tensor(places), sg.tensor(values), (300, 300))
    assert np.allclose((sparse @ dense).numpy(), (sparse.to_dense() @ dense).numpy(), atol=1e-4)
    assert np.allclose((sparse.coalesce() @ dense).numpy(), (sparse @ dense).numpy(), atol=1e-4)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda s: s.relu(), AttributeError, r"a sparse tensor has no 'relu'.*use .to_dense\(\) first"),
        (lambda s: sg.relu(s), OperandError, "got SparseTensor"),
        (lambda s: s @ s, OperandError, r"use .to_dense\(\) on it"),
        (lambda s: sg.spmm(sg.ones(2, 3), s), OperandError, "wanted a sparse one"),
        (lambda s: s @ sg.ones(3, 2), DtypeError, "expected m1 and m2 to have the same dtype"),
        (lambda s: s @ sg.ones(2, 2), ShapeError, r"got \(2, 3\) and \(2, 2\)"),
        (lambda s: s * sg.ones(2, 3), TypeError, "unsupported operand"),
        (lambda s: s + 1, TypeError, "unsupported operand"),
        (lambda s: s.values(), ArgumentError, r"please call .coalesce\(\) first"),
        (
            lambda s: sg.sparse_coo_tensor(PLACES, sg.ones(4), (2, 2)),
            DimensionError,
            "size is inconsistent with indices",
        ),
        (lambda s: sg.sparse_coo_tensor([[-1], [0]], sg.ones(1), (2, 2)), DimensionError, "size is inconsistent"),
        (lambda s: sg.sparse_coo_tensor(PLACES, sg.ones(4), (2, 3, 1)), ShapeError, "indices of 2 dimensions"),
        (lambda s: sg.sparse_coo_tensor(PLACES, sg.ones(4, 2), (2, 3, 2)), ShapeError, r"wanted \(dimensions, count\)"),
        (
            lambda s: sg.sparse_coo_tensor(PLACES, sg.ones(4), requires_grad=True),
            ArgumentError,
            "give values that require",
        ),
        (lambda s: sg.ones(2, requires_grad=True).to_sparse(), GraphError, "that by the zeros would be lost"),
        (lambda s: sg.tensor(1.0).to_sparse(), ShapeError, "got a 0-d tensor"),
        (lambda s: sg.sparse_coo_tensor([[0], [0], [0]], [1.0]).t(), ShapeError, "wanted a matrix"),
    ],
)
def test_what_is_refused_says_what_to_do(call, error, message):
    with pytest.raises(error, match=message):
        call(matrix()[0])
