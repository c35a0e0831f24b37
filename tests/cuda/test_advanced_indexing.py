"""Reads, writes and folds at index arrays and masks on a device, against NumPy."""

import ml_dtypes
import numpy as np
import pytest

from spillgrad_kernels.cuda.array import to_device
from spillgrad_kernels.device_array import DeviceArray

RNG = np.random.default_rng(0)
MASK = np.array([[1, 0, 1, 1, 0], [0, 0, 1, 0, 0], [1, 1, 0, 0, 1], [0, 0, 0, 0, 1]], bool)
KEYS = {
    "rows": (np.array([2, 0, 2, -1]),),
    "rows of a matrix": (np.array([[1, 3], [3, 1]]),),
    "columns": (slice(None), np.array([4, 4, -5])),
    "columns of the last dimension": (Ellipsis, np.array([1, 0, 1])),
    "elements": (np.array([0, 3, 0]), np.array([1, -1, 1])),
    "broadcast": (np.array([[0], [3]]), np.array([1, 1, 2])),
    "apart": (np.array([0, 3, 0]), slice(None), np.array([0, 1, 0])),
    "beside a slice": (slice(1, 3), np.array([0, 2]), np.array([1, 1])),
    "a new dimension": (None, np.array([1, 1, 0])),
    "a number between": (np.array([0, 3]), 2),
    "a mask of all": (MASK[:, :, None] & np.array([True, False]),),
    "a mask": (MASK,),
    "a mask of rows": (MASK[:, 0],),
    "a mask of columns": (slice(None), MASK[1]),
    "a mask of nothing": (np.zeros(4, bool),),
    "a mask and indices": (MASK, np.array([1, 0, 1, 1, 0, 1, 1, 0])),
    "a mask without dimensions": (np.array(True),),
    "no rows": (np.zeros(0, int),),
    "small indices": (np.array([3, 3, 1], np.uint8),),
    "large indices": (np.array([3, 3, 1], np.uint64),),
}  # fmt: skip


def there(key):
    return tuple([to_device(part) if isinstance(part, np.ndarray) else part for part in key])


def drawn(shape, dtype):
    values = RNG.integers(0, 100, shape)
    return (values % 2 == 0) if dtype == np.bool_ else values.astype(dtype)


@pytest.mark.parametrize("name", KEYS)
def test_elements_are_read_written_and_folded_as_by_numpy(name):
    key, a = KEYS[name], drawn((4, 5, 2), np.float32)
    on_device, values = to_device(a), drawn(a[key].shape, np.float32)
    np.testing.assert_array_equal(on_device[there(key)].to_host(), a[key])
    for value in (values, values[:1], np.float32(7), 3):
        on_device[there(key)] = to_device(value) if isinstance(value, np.ndarray) else value
        a[key] = value
        np.testing.assert_array_equal(on_device.to_host(), a)
    np.add.at(on_device, there(key), to_device(values))
    np.add.at(a, key, values)
    np.testing.assert_array_equal(on_device.to_host(), a)


@pytest.mark.parametrize("dtype", [
    np.float64, np.float16, ml_dtypes.bfloat16, np.int64, np.int16, np.uint8, np.bool_, np.complex64, np.complex128,
])  # fmt: skip
def test_every_dtype_is_written_by_index(dtype):
    a, index = drawn((6, 3), dtype), np.array([5, 1, 5, -6])
    on_device, values = to_device(a), drawn((4, 3), dtype)
    on_device[to_device(index)] = to_device(values)
    a[index] = values
    np.testing.assert_array_equal(on_device.to_host(), a)
    mask = drawn((6, 3), np.bool_)
    on_device[to_device(mask)] = 1
    a[mask] = 1
    np.testing.assert_array_equal(on_device.to_host(), a)


@pytest.mark.parametrize("fold, dtype", [
    (np.add, np.float32), (np.add, np.uint8), (np.add, np.bool_), (np.multiply, np.int64), (np.multiply, np.bool_),
    (np.maximum, np.uint8), (np.maximum, np.float32), (np.minimum, np.bool_), (np.minimum, np.int64),
])  # fmt: skip
def test_folds_of_many_at_one_place_are_numpy_s(fold, dtype):
    index = np.array([1] * 70 + [0, 2, 0] + [1] * 70 + [3])  # so many that several threads share an element
    a = np.ones(5, dtype)
    values = np.ones(len(index), dtype) if fold is np.multiply else drawn(len(index), dtype)
    values[3] = 1 if dtype == np.bool_ else 3
    on_device = to_device(a)
    fold.at(on_device, to_device(index), to_device(values))
    fold.at(a, index, values)
    np.testing.assert_array_equal(on_device.to_host(), a)


def test_a_view_is_written_where_it_lies():
    a = drawn((6, 8), np.float32)
    on_device = to_device(a)
    for view in (lambda x: x.T, lambda x: x[::-2, 1:5], lambda x: x[2]):
        index = np.array([1, 0, 1])
        view(on_device)[to_device(index)] = to_device(np.float32([[1], [2], [3]])) if view(a).ndim > 1 else 5
        view(a)[index] = np.float32([[1], [2], [3]]) if view(a).ndim > 1 else 5
        np.add.at(view(on_device), to_device(index), 10)
        np.add.at(view(a), index, 10)
        np.testing.assert_array_equal(on_device.to_host(), a)


def test_values_may_overlap_what_they_are_written_to():
    a, index = drawn((5, 4), np.float32), np.array([4, 3, 2, 1, 0])
    on_device = to_device(a)
    on_device[to_device(index)] = on_device
    a[index] = a.copy()
    np.testing.assert_array_equal(on_device.to_host(), a)
    on_device[to_device(a > 0)] = on_device[0, 0]
    a[a > 0] = a[0, 0]
    np.testing.assert_array_equal(on_device.to_host(), a)


def test_what_is_out_of_range_is_not_written_and_the_host_s_arrays_are_copied():
    a = drawn((4, 3), np.float32)
    on_device, index = to_device(a), np.array([1, 4, -5, 1 << 40, 2])
    on_device[index] = np.arange(5, dtype=np.float32)[:, None]
    a[[1, 2]] = np.float32([[0], [4]])
    np.testing.assert_array_equal(on_device.to_host(), a)
    np.maximum.at(on_device, index, 100)
    np.maximum.at(a, [1, 2], 100)
    np.testing.assert_array_equal(on_device.to_host(), a)


def test_an_index_or_a_value_that_does_not_fit_is_an_error():
    a: DeviceArray = to_device(drawn((4, 3), np.float32))
    with pytest.raises(ValueError, match="broadcast"):
        a[to_device(np.array([0, 1]))] = to_device(np.ones((3, 3), np.float32))
    for key in (np.ones(3, bool), (slice(None), np.ones(4, bool)), np.ones((4, 3, 1), bool)):
        with pytest.raises(IndexError):
            a[key]
        with pytest.raises(IndexError):
            a[key] = 1


@pytest.mark.parametrize("shape, axis", [((7,), 0), ((4, 6), 1), ((4, 6), 0), ((3, 4, 2), 1)])
def test_values_are_put_along_an_axis_and_the_last_of_several_stays(shape, axis):
    a = drawn(shape, np.float32)
    index = RNG.integers(0, shape[axis], tuple(5 if i == axis else size for i, size in enumerate(shape)))
    values, on_device = drawn(index.shape, np.float32), to_device(a)
    np.put_along_axis(on_device, to_device(index), to_device(values), axis)
    np.put_along_axis(a, index, values, axis)
    np.testing.assert_array_equal(on_device.to_host(), a)
    part = index[..., ::2] if axis < len(shape) - 1 else index % 2
    np.put_along_axis(on_device[..., ::2], to_device(part), 9, axis)
    np.put_along_axis(a[..., ::2], part, 9, axis)
    np.testing.assert_array_equal(on_device.to_host(), a)
