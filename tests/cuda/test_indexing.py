"""Indexed reads and sums on a device, against the CPU's kernels."""

import ml_dtypes
import numpy as np
import pytest

from spillgrad_kernels.cpu import indexing as host
from spillgrad_kernels.cuda import indexing
from spillgrad_kernels.cuda.array import to_device
from spillgrad_kernels.cuda.index_sums import PART_VALUES

HALF = (np.float16, ml_dtypes.bfloat16)
# Shape of the array, axis, shape of the index: equal, longer along the axis, shorter elsewhere, empty, or long.
CASES = [
    ((5,), 0, (9,)), ((4, 6), 0, (4, 6)), ((4, 6), 1, (4, 11)), ((4, 6), 0, (7, 3)), ((4, 6), 1, (2, 5)),
    ((3, 5, 4), 1, (2, 8, 3)), ((4, 6), 0, (0, 6)), ((4, 6), 1, (4, 0)), ((1, 3), 1, (1, 150)),
    ((2, 3, 1), 1, (2, 5, 1)), ((5, 3), 0, (70, 2)),
]  # fmt: skip


def draw(shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def as_on_host(function, dtype, *operands):
    """Return the result of the host, which computes half precision in float32."""
    wide = np.float32 if dtype in HALF else dtype
    operands = [x.astype(wide) if isinstance(x, np.ndarray) and x.dtype == dtype else x for x in operands]
    return function(*operands).astype(dtype)


def tolerance(dtype):
    return {np.dtype(np.float16): 2e-3, np.dtype(ml_dtypes.bfloat16): 2e-2, np.dtype(np.float32): 1e-5}.get(
        np.dtype(dtype), 1e-13
    )


def assert_close(found, wanted):
    assert found.dtype == wanted.dtype
    near = tolerance(wanted.dtype)
    np.testing.assert_allclose(found.to_host().astype(np.float64), wanted.astype(np.float64), rtol=near, atol=near)


@pytest.mark.parametrize("index_dtype", [np.int64, np.int32, np.int16, np.int8, np.uint8])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, *HALF, np.int32, np.uint64, bool])
@pytest.mark.parametrize(
    "shape, width", [((), 5), ((5,), 4), ((2, 3), 8), ((0,), 3), ((4, 0), 1), ((9,), 1), ((3,), 0)]
)
def test_an_embedding_is_rows_of_its_weight(shape, width, dtype, index_dtype):
    weight = np.random.default_rng(0).integers(0, 2, (7, width)).astype(dtype)
    index = np.random.default_rng(1).integers(0, 7, shape).astype(index_dtype)
    found = indexing.embedding(to_device(weight), to_device(index))
    assert found.dtype == weight.dtype
    np.testing.assert_array_equal(found.to_host(), weight[index])


def test_an_embedding_takes_any_layout():
    weight, index = draw((9, 40)), np.arange(20).reshape(4, 5) % 9
    for view in (lambda a: a[:, 1:33], lambda a: a[::-2, 4:8], lambda a: a.T[:9, :4]):
        found = indexing.embedding(view(to_device(weight)), to_device(index % len(view(weight))).T)
        assert np.array_equal(found.to_host(), view(weight)[index.T % len(view(weight))])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, *HALF, np.int64])
@pytest.mark.parametrize("width", [1, 3, 4, 8])
def test_nothing_is_read_where_an_index_is_out_of_range(width, dtype):
    weight, index = np.ones((4, width), dtype), np.array([0, -1, 4, 3, 1 << 40])
    missing = np.array([0, 1, 1, 0, 1], bool)
    found = indexing.embedding(to_device(weight), to_device(index)).to_host()
    assert np.array_equal(found[~missing], weight[[0, 3]])
    nothing = 0 if dtype == np.int64 else np.nan
    np.testing.assert_array_equal(found[missing].astype(np.float64), np.full((3, width), nothing))
    found = indexing.gather(to_device(weight[:, 0]), 0, to_device(index)).to_host()
    np.testing.assert_array_equal(found.astype(np.float64), np.where(missing, nothing, 1.0))


def test_nothing_is_added_where_an_index_is_out_of_range():
    index, values = np.array([3, -1, 4, 1 << 40, 3]), draw((5, 3))
    wanted = np.zeros((4, 3), np.float32)
    wanted[3] = values[0] + values[4]
    assert np.array_equal(indexing.embedding_backward(to_device(values), to_device(index), 4).to_host(), wanted)
    assert np.array_equal(
        indexing.index_add(to_device(np.zeros_like(wanted)), to_device(index), to_device(values)).to_host(), wanted
    )
    column, columns = np.broadcast_to(index[:, None], (5, 3)).copy(), np.zeros((4, 3), np.float32)
    assert np.array_equal(
        indexing.scatter_add(to_device(columns), 0, to_device(column), to_device(values)).to_host(), wanted
    )
    flat = to_device(np.zeros(4, np.float32))
    indexing.index_add_flat(flat, to_device(index), to_device(values[:, 0].copy()))
    assert np.array_equal(flat.to_host(), wanted[:, 0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, *HALF])
@pytest.mark.parametrize("rows, count, width", [(9, 30, 1), (3, 210, 8), (1, 64, 3), (40, 20, 4)])
def test_the_gradient_of_an_embedding_adds_up_repeated_rows(rows, count, width, dtype):
    index = np.random.default_rng(1).integers(0, rows, (count // 10, 10) if count % 10 == 0 else count)
    grad = draw((*index.shape, width), dtype)
    wanted = as_on_host(host.embedding_backward, dtype, grad, index, rows)
    found = indexing.embedding_backward(to_device(grad), to_device(index), rows)
    assert_close(found, wanted)
    if count <= PART_VALUES:  # one thread adds up a row's values, in the CPU's order
        assert np.array_equal(found.to_host(), wanted)


def test_sums_of_a_row_that_most_indices_name_are_cut_into_parts():
    index = np.array([2] * 150 + [0] * 20 + [2] * 100 + [1, 0, 1])
    grad = np.arange(len(index) * 2, dtype=np.float64).reshape(-1, 2)  # whole numbers: every order gives this sum
    found = indexing.embedding_backward(to_device(grad), to_device(index), 4)
    assert np.array_equal(found.to_host(), host.embedding_backward(grad, index, 4))


def test_index_add_adds_rows_to_a_copy():
    a, index, values = draw((5, 7)).T, np.array([3, 3, 0, 6, 3]), draw((5, 5), np.float64, 2)
    on_device = to_device(np.ascontiguousarray(a.T)).T
    found = indexing.index_add(on_device, to_device(index), to_device(values))
    assert np.array_equal(found.to_host(), host.index_add(a, index, values))
    assert np.array_equal(on_device.to_host(), a)


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_index_add_flat_adds_repeated_indices_in_place(dtype):
    out, index, values = (10 * draw(10)).astype(dtype), np.array([[3, 3], [9, 0]]), np.array([[1, 2], [4, 8]], dtype)
    on_device = to_device(out)
    indexing.index_add_flat(on_device, to_device(index), to_device(values))
    host.index_add_flat(out, index, values)
    assert np.array_equal(on_device.to_host(), out)
    with pytest.raises(ValueError, match=r"index_add_flat: .* must be contiguous"):
        indexing.index_add_flat(on_device[::2], to_device(index), to_device(values))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, *HALF])
@pytest.mark.parametrize("shape, axis, index_shape", CASES)
def test_gather_and_scatter_add_are_the_cpu_s(shape, axis, index_shape, dtype):
    a, index = draw(shape, dtype), np.random.default_rng(1).integers(0, shape[axis], index_shape)
    source = draw(tuple(size + 1 for size in index_shape), dtype, 2)
    found = indexing.gather(to_device(a), axis, to_device(index))
    assert found.dtype == a.dtype
    np.testing.assert_array_equal(found.to_host(), as_on_host(host.gather, dtype, a, axis, index))
    on_device = to_device(a)
    found = indexing.scatter_add(on_device, axis, to_device(index), to_device(source))
    assert_close(found, as_on_host(host.scatter_add, dtype, a, axis, index, source))
    np.testing.assert_array_equal(on_device.to_host(), a)


def test_gather_and_scatter_add_take_any_strides():
    a, index = draw((6, 8)), np.arange(48).reshape(6, 8).T[::-1] % 8
    on_device = to_device(a).T
    memory = to_device(np.arange(48).reshape(6, 8) % 8)
    assert np.array_equal(indexing.gather(on_device, 0, memory.T[::-1]).to_host(), np.take_along_axis(a.T, index, 0))
    found = indexing.scatter_add(on_device, 0, memory.T[::-1], on_device)
    assert np.array_equal(found.to_host(), host.scatter_add(a.T, 0, index, a.T))


@pytest.mark.parametrize("call, message", [
    (lambda a: indexing.gather(a, 0, to_device(np.zeros((2, 6), int))), "gather: got an index of shape"),
    (lambda a: indexing.scatter_add(a, 0, to_device(np.zeros((2, 6), int)), a), "scatter_add: got an index of shape"),
    (lambda a: indexing.scatter_add(a, 0, to_device(np.zeros((3, 5), int)), a[:2]), "a value for every index"),
    (lambda a: indexing.embedding_backward(a, to_device(np.zeros(5, int)), 9), "embedding_backward: got values of"),
    (lambda a: indexing.index_add(a, to_device(np.zeros(3, int)), a), "index_add: got values of shape"),
])  # fmt: skip
def test_shapes_that_do_not_fit_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(to_device(draw((4, 5))))


def test_an_index_that_holds_no_integers_is_refused():
    with pytest.raises(TypeError, match="embedding: got an index of float32; wanted integers"):
        indexing.embedding(to_device(draw((4, 5))), to_device(draw(3)))
