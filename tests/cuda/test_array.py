"""Arrays on a device: copies to the device and back, and views by NumPy's functions."""

import copy
import gc
import pickle

import numpy as np
import pytest

from spillgrad_kernels.cuda.array import empty, to_device
from spillgrad_kernels.cuda.driver import driver
from spillgrad_kernels.device_array import NotOnDevice


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "bool", "complex64"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 3), (4, 5)])
def test_what_goes_to_the_device_comes_back(shape, dtype):
    array = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    made = to_device(array)
    assert (made.shape, made.dtype, made.ndim, made.size, made.nbytes) == (
        array.shape, array.dtype, array.ndim, array.size, array.nbytes,
    )  # fmt: skip
    assert np.array_equal(made.to_host(), array)


def test_views_lie_as_numpy_s():
    host = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    array = to_device(host)
    for view in (
        lambda a: a.T, lambda a: a[1], lambda a: a[:, ::-2], lambda a: a[..., 1:4], lambda a: a[None, 2, 3, 4],
        lambda a: a.transpose(1, 0, 2), lambda a: a.reshape(12, 5), lambda a: a[:, :1].broadcast_to((3, 4, 5))
        if not isinstance(a, np.ndarray) else np.broadcast_to(a[:, :1], (3, 4, 5)),
    ):  # fmt: skip
        assert view(array).strides == view(host).strides
        assert np.array_equal(view(array).to_host(), view(host))


def test_a_view_that_takes_a_copy_is_refused():
    array = to_device(np.zeros((3, 4), np.float32))
    with pytest.raises(ValueError, match="copy"):
        array.T.reshape(12, copy=False)
    with pytest.raises(NotOnDevice, match="takes numbers, slices, None"):
        array[[0, 1]]


def test_a_shape_that_takes_a_copy_has_the_elements_in_order():
    host = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert np.array_equal(to_device(host).T.reshape(2, 6).to_host(), host.T.reshape(2, 6))


def test_numpy_reads_no_element():
    array = to_device(np.zeros(3, np.float32))
    with pytest.raises(NotOnDevice, match="to_host"):
        np.asarray(array)
    with pytest.raises(NotOnDevice, match="sin"):
        np.sinc(array)
    with pytest.raises(NotOnDevice, match="arctan2"):
        np.arctan2(array, array)


def test_memory_lives_as_long_as_the_last_view():
    gc.collect()
    before = driver.allocator().stats().live_bytes
    array = empty((1000,), np.float32)
    view = array[10:20]
    del array
    gc.collect()
    assert driver.allocator().stats().live_bytes == before + 4096
    del view
    gc.collect()
    assert driver.allocator().stats().live_bytes == before


def test_copies_and_pickles_have_memory_of_their_own():
    array = to_device(np.arange(6, dtype=np.float32).reshape(2, 3).T)
    for made in (copy.deepcopy(array), copy.deepcopy({"a": array})["a"], pickle.loads(pickle.dumps(array))):
        assert np.array_equal(made.to_host(), array.to_host())
        made += 1
    assert np.array_equal(array.to_host(), np.arange(6).reshape(2, 3).T)
    live = driver.allocator().stats().live_bytes
    kept = copy.deepcopy(array)
    assert driver.allocator().stats().live_bytes == live + 512
    del kept


def test_arrays_share_memory_where_numpy_s_may():
    def looks(a):
        return [
            a, a.T, a[1:3], a[::-1, 2:], a[:, :1], a[:, 1:2], a[0], a[3], a[2:2], a[1, 1, ...], a[1, 2, ...],
            a[::2], a[1::2],
            np.broadcast_to(a[:, :1], (4, 5)),
        ]  # fmt: skip

    host = np.arange(20, dtype=np.float32).reshape(4, 5)
    there = to_device(host)
    for a, x in zip(looks(host), looks(there), strict=True):
        for b, y in zip(looks(host), looks(there), strict=True):
            assert np.may_share_memory(x, y) == np.may_share_memory(a, b)
    assert not np.may_share_memory(there, to_device(host))
    assert not np.may_share_memory(there, host)
