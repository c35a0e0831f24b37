"""The stable sort of a device, against NumPy's."""

import ml_dtypes
import numpy as np
import pytest

from spillgrad_kernels.cuda.array import to_device
from spillgrad_kernels.cuda.sorting import _TILE, in_order, places_among

FLOATS = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]
INTEGERS = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64, np.bool_]


def order_of(a, axis, descending):
    """Return NumPy's positions in stable order; descending order begins with NaN."""
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


@pytest.mark.parametrize("dtype, descending", [
    *[(dtype, False) for dtype in FLOATS + INTEGERS],
    *[(dtype, True) for dtype in (np.float32, np.float16, np.uint8, np.int64, np.bool_)],
])  # fmt: skip
def test_every_dtype_is_sorted_and_equal_elements_keep_their_order(dtype, descending):
    rng = np.random.default_rng(0)
    if dtype in FLOATS:
        a = rng.choice(np.array([0.0, -0.0, 1, -1, 0.5, np.nan, np.inf, -np.inf, 3, -7]), _TILE + 9).astype(dtype)
    elif dtype is np.bool_:
        a = rng.random(_TILE + 9) < 0.5
    else:
        limits = np.iinfo(dtype)
        a = rng.choice(np.array([limits.min, limits.max, 0, 1, limits.max // 2 + 1], dtype), _TILE + 9)
    assert_in_order(a, 0, descending)


@pytest.mark.parametrize("shape, axis", [
    ((0,), 0), ((1,), 0), ((3, 0), 1), ((0, 3), 1), ((3, 1), 1), ((8,), 0), ((_TILE,), 0), ((5 * _TILE + 3,), 0),
    ((40, 5), 1), ((2, 2 * _TILE + 1), 1), ((5, 40), 0), ((2, 17, 3), 1), ((1, _TILE + 5, 2), 1), ((2, 1, 3), 1),
])  # fmt: skip
def test_rows_of_any_length_along_any_axis_are_sorted(shape, axis):
    a = np.random.default_rng(1).integers(0, 50, shape).astype(np.float32)
    assert_in_order(a, axis, descending=len(shape) > 1)


@pytest.mark.parametrize("shape, axis, count", [
    ((2, 20), 1, 0), ((2, 20), 1, 3), ((2, 20), 1, 20), ((3 * _TILE + 3,), 0, 1), ((3 * _TILE + 3,), 0, 20),
    ((3 * _TILE + 3,), 0, _TILE + 1), ((3 * _TILE + 3,), 0, 2 * _TILE), ((2 * _TILE, 2), 0, 5),
])  # fmt: skip
@pytest.mark.parametrize("descending", [False, True])
def test_the_first_few_in_order_are_found(shape, axis, count, descending):
    assert_in_order(np.random.default_rng(2).integers(0, 30, shape).astype(np.int32), axis, descending, count)


def test_views_are_sorted_as_they_are():
    a = np.random.default_rng(3).normal(size=(6, 9)).astype(np.float32)
    for view in (lambda x: x.T, lambda x: x[::-1, 1::3], lambda x: np.broadcast_to(x[:1], (4, 9))):
        values, positions = in_order(view(to_device(a)), 0, False, len(view(a)))
        np.testing.assert_array_equal(values.to_host(), np.sort(view(a), 0))
        np.testing.assert_array_equal(positions.to_host(), np.argsort(view(a), 0, kind="stable"))


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("dtype, other", [
    (np.float32, np.float32), (np.int64, np.float64), (np.uint8, np.int16), (np.bool_, np.bool_),
])  # fmt: skip
def test_places_among_sorted_elements_are_numpy_s(dtype, other, after):
    rng, side = np.random.default_rng(4), "right" if after else "left"
    keys, sought = (rng.integers(0, 9, (3, 7)).astype(kind) for kind in (dtype, other))
    if dtype is np.float32:
        keys[0, :2], sought[0, :3], sought[1, 0] = np.nan, (np.nan, np.inf, -np.inf), np.nan
    keys.sort(1)
    found = places_among(to_device(keys), to_device(sought), after).to_host()
    np.testing.assert_array_equal(found, [np.searchsorted(k, s, side) for k, s in zip(keys, sought, strict=True)])
    found = places_among(to_device(keys[0]), to_device(sought), after).to_host()
    np.testing.assert_array_equal(found, np.searchsorted(keys[0], sought, side))
