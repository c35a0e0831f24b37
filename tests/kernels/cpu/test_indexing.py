"""Indexed reads and sums against NumPy."""

import numpy as np
import pytest

from spillgrad_kernels.cpu import indexing

DTYPES = (np.float32, np.float64)
INDEX_DTYPES = (np.int8, np.int32, np.int64, np.uint8)
# Shape of the array, axis, shape of the index: equal, longer along the axis, shorter elsewhere, empty, many blocks.
CASES = [
    ((5,), 0, (9,)),
    ((4, 6), 0, (4, 6)),
    ((4, 6), 1, (4, 11)),
    ((4, 6), 0, (7, 3)),
    ((4, 6), 1, (2, 5)),
    ((3, 5, 4), 1, (2, 8, 3)),
    ((4, 6), 0, (0, 6)),
    ((4, 6), 1, (4, 0)),
    ((50, 130), 0, (300, 130)),
    ((3, 50), 1, (3, 700)),
]


def draw(shape, dtype=np.float64, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def positions(shape, axis, index):
    """The full index of every element that `index` names along `axis`."""
    grid = list(np.indices(index.shape))
    grid[axis] = index
    return tuple(grid)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("index_dtype", INDEX_DTYPES)
@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (0,), (4, 0)])
def test_an_embedding_is_rows_of_its_weight(shape, index_dtype, dtype):
    weight, index = draw((7, 5), dtype), np.random.default_rng(1).integers(0, 7, shape).astype(index_dtype)
    result = indexing.embedding(weight, index)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, weight[index])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 5, 64, 200])
def test_the_gradient_of_an_embedding_adds_up_repeated_rows(width, dtype):
    index = np.random.default_rng(1).integers(0, 7, (30, 20))
    grad = draw((30, 20, width), dtype)
    expected = np.zeros((9, width))
    np.add.at(expected, index, grad.astype(np.float64))
    np.testing.assert_allclose(indexing.embedding_backward(grad, index, 9), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(7, 5), (300, 130), (4, 0)])
def test_index_add_adds_rows_to_a_copy(shape, dtype):
    a, index = draw(shape[::-1], dtype).T, np.random.default_rng(1).integers(0, shape[0], 500)
    values, before = draw((500, shape[1]), dtype, 2), a.copy()
    expected = a.astype(np.float64)
    np.add.at(expected, index, values)
    np.testing.assert_allclose(indexing.index_add(a, index, values), expected, rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(a, before)


def test_scatter_add_into_a_leading_part_leaves_its_operand_alone():
    a = np.zeros((6, 4))
    result = indexing.scatter_add(a, 1, np.zeros((2, 1), int), np.ones((2, 1)))
    assert result.sum() == 2
    assert not a.any()


def test_embedding_takes_any_strides():
    weight, index = draw((8, 6)), np.arange(12).reshape(3, 4)[:, ::-1] // 2
    np.testing.assert_array_equal(indexing.embedding(weight.T[:6], index), weight.T[:6][index])
    grad = draw((4, 8, 3)).transpose(2, 0, 1)
    expected = np.zeros((6, 8))
    np.add.at(expected, index, grad)
    np.testing.assert_allclose(indexing.embedding_backward(grad, index, 6), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "axis", "index_shape"), CASES)
def test_gather_and_scatter_add_agree_with_numpy(shape, axis, index_shape, dtype):
    a, index = draw(shape, dtype), np.random.default_rng(1).integers(0, shape[axis], index_shape)
    source = draw(tuple(size + 1 for size in index_shape), dtype, 2)
    where = positions(shape, axis, index)
    gathered = indexing.gather(a, axis, index)
    assert gathered.dtype == dtype
    np.testing.assert_array_equal(gathered, a[where])
    expected, before = a.astype(np.float64), a.copy()
    np.add.at(expected, where, source[tuple(slice(size) for size in index_shape)])
    result = indexing.scatter_add(a, axis, index, source)
    assert result.dtype == dtype
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(a, before)


def test_gather_takes_any_strides():
    a, index = draw((6, 8)).T, np.arange(48).reshape(6, 8).T[::-1] % 8
    np.testing.assert_array_equal(indexing.gather(a, 0, index), np.take_along_axis(a, index, 0))


def test_index_add_flat_adds_repeated_indices_in_place():
    out, index, values = draw(10), np.array([[3, 3], [9, 0]]), np.array([[1.0, 2.0], [4.0, 8.0]])
    expected = out + np.array([8.0, 0, 0, 3, 0, 0, 0, 0, 0, 4])
    indexing.index_add_flat(out, index, values)
    np.testing.assert_array_equal(out, expected)


def test_index_add_flat_refuses_memory_that_is_not_contiguous():
    with pytest.raises(ValueError, match=r"index_add_flat: .* must be contiguous"):
        indexing.index_add_flat(draw(10)[::2], np.array([0]), np.array([1.0]))


@pytest.mark.parametrize("wrong", [-1, 4, 1 << 40])
@pytest.mark.parametrize(
    "call",
    [
        lambda a, index: indexing.embedding(a, index[0]),
        lambda a, index: indexing.embedding_backward(a[:3], index[0], 4),
        lambda a, index: indexing.index_add(a, index[0], a[:3]),
        lambda a, index: indexing.gather(a, 0, index),
        lambda a, index: indexing.scatter_add(a, 0, index, a),
        lambda a, index: indexing.index_add_flat(a.reshape(-1)[:4], index, a[0, :3]),
    ],
    ids=["embedding", "embedding_backward", "index_add", "gather", "scatter_add", "index_add_flat"],
)
def test_an_index_out_of_range_is_named(call, wrong):
    with pytest.raises(IndexError, match=f"got index {wrong}; a dimension of size 4 takes 0 to 3"):
        call(draw((4, 5)), np.array([[0, wrong, 1]]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a: indexing.gather(a, 0, np.zeros((2, 6), int)), "gather: got an index of shape"),
        (lambda a: indexing.gather(a, 0, np.zeros(2, int)), "gather: got an index of shape"),
        (lambda a: indexing.scatter_add(a, 0, np.zeros((2, 6), int), a), "scatter_add: got an index of shape"),
        (
            lambda a: indexing.scatter_add(a, 0, np.zeros((3, 5), int), a[:2]),
            "the source needs a value for every index",
        ),
    ],
)
def test_shapes_that_do_not_fit_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(draw((4, 5)))


def test_threads_change_no_bit(assert_same_on_any_number_of_threads):
    rng = np.random.default_rng(0)
    weight, index = draw((50, 300), np.float32), rng.integers(0, 50, 4000)
    wide = rng.integers(0, 50, (400, 300))
    grad, source = draw((4000, 300), np.float32), draw((400, 300), np.float32)
    assert_same_on_any_number_of_threads(
        lambda: (
            indexing.embedding(weight, index),
            indexing.embedding_backward(grad, index, 50),
            indexing.index_add(weight, index, grad),
            indexing.gather(weight, 0, wide),
            indexing.scatter_add(weight, 0, wide, source),
        )
    )
