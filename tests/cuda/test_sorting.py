"""The stable sort of a device, against NumPy's."""

import ml_dtypes
import numpy as np
import pytest

from spillgrad_kernels.cuda.array import to_device
from spillgrad_kernels.cuda.sorting import _TILE, in_order

FLOATS = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]
INTEGERS = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64, np.bool_]


def order_of(a, axis, descending):
    """The positions in stable order of what NumPy sorts, largest first with NaN before."""
    a = a.astype(np.float64) if a.dtype in FLOATS else a
    if not descending:
        return np.argsort(a, axis, kind="stable")
    return a.shape[axis] - 1 - np.flip(np.argsort(np.flip(a, axis), axis, kind="stable"), axis)


def assert_in_order(a, axis, descending=False, count=None):
    count = a.shape[axis] if count is None else count
    values, positions = (found.to_host() for found in in_order(to_device(a), axis, descending, count))
    wanted = order_of(a, axis, descending).take(range(count), axis)
    np.testing.assert_array_equal(positions, wanted)
    assert (values.dtype, positions.dtype) == (a.dtype, np.int64)
    assert values.tobytes() == np.take_along_axis(a, wanted, axis).tobytes()  # -0 and 0 are equal, and both are kept


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_every_dtype_is_sorted_and_equal_elements_keep_their_order(dtype, descending):
    rng = np.random.default_rng(0)
    if dtype in FLOATS:
        a = rng.choice(np.array([0.0, -0.0, 1, -1, 0.5, np.nan, np.inf, -np.inf, 3, -7]), (2, _TILE + 9)).astype(dtype)
    elif dtype is np.bool_:
        a = rng.random((2, _TILE + 9)) < 0.5
    else:
        limits = np.iinfo(dtype)
        a = rng.choice(np.array([limits.min, limits.max, 0, 1, limits.max // 2 + 1], dtype), (2, _TILE + 9))
    assert_in_order(a, 1, descending)


@pytest.mark.parametrize("shape, axis", [
    ((0,), 0), ((1,), 0), ((3, 0), 1), ((0, 3), 1), ((3, 1), 1), ((7,), 0), ((8,), 0), ((_TILE,), 0), ((_TILE + 1,), 0),
    ((3 * _TILE,), 0), ((5 * _TILE + 3,), 0), ((40, 5), 1), ((7, 9), 1), ((3, 2 * _TILE + 1), 1), ((5, 40), 0),
    ((2, 17, 3), 1), ((2, _TILE + 5, 3), 1), ((2, 1, 3), 1), ((1, 9, 2), 0),
])  # fmt: skip
def test_rows_of_any_length_along_any_axis_are_sorted(shape, axis):
    a = np.random.default_rng(1).integers(0, 50, shape).astype(np.float32)
    assert_in_order(a, axis)
    assert_in_order(a, axis, True)


@pytest.mark.parametrize("shape, axis", [((2, 20), 1), ((5 * _TILE + 3,), 0), ((2 * _TILE, 2), 0)])
@pytest.mark.parametrize("count", [0, 1, 3, _TILE - 1, _TILE + 1, 2 * _TILE])
def test_the_first_few_in_order_are_found(shape, axis, count):
    if count <= shape[axis]:
        a = np.random.default_rng(2).integers(0, 30, shape).astype(np.int32)
        assert_in_order(a, axis, False, count)
        assert_in_order(a, axis, True, count)


def test_views_are_sorted_as_they_are():
    a = np.random.default_rng(3).normal(size=(6, 9)).astype(np.float32)
    for view in (lambda x: x.T, lambda x: x[::-1, 1::3], lambda x: np.broadcast_to(x[:1], (4, 9))):
        values, positions = in_order(view(to_device(a)), 0, False, len(view(a)))
        np.testing.assert_array_equal(values.to_host(), np.sort(view(a), 0))
        np.testing.assert_array_equal(positions.to_host(), np.argsort(view(a), 0, kind="stable"))
