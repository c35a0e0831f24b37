"""Streams, events, copies and pinned memory, of the simulator's device or of a GPU."""

import gc

import numpy as np
import pytest

import spillgrad as sg
from spillgrad_kernels.cuda.array import empty, to_device, zeros
from spillgrad_kernels.cuda.driver import driver
from spillgrad_kernels.cuda.driver.availability import SIMULATED
from spillgrad_kernels.cuda.driver.memory import OutOfMemory
from spillgrad_kernels.cuda.jit.compile import Kernel, cuda
from spillgrad_kernels.cuda.pointers import loaders, storers

MIB = 1 << 20


@pytest.mark.parametrize("nbytes", [1, 4096, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 25 * MIB + 3])
def test_an_array_may_change_once_it_was_copied(nbytes):
    host = np.random.default_rng(0).integers(0, 256, nbytes, dtype=np.uint8)
    kept = host.copy()
    there = to_device(host)
    host[:] = 0
    assert np.array_equal(there.to_host(), kept)


def test_a_copy_on_another_stream_is_between_what_it_waits_for_and_what_waits_for_it():
    stream, nbytes = driver.Stream(), 8 * MIB
    for turn in range(10):
        written = to_device(np.full(nbytes, turn, np.uint8))
        pinned = driver.pinned(nbytes)
        driver.Event().record(driver.compute()).wait(stream)
        stream.copy_to_host_async(pinned, written.address, nbytes, keep=written)
        back = empty((nbytes,), np.uint8)
        driver.Event().record(driver.compute()).wait(stream)
        done = stream.copy_to_device_async(back.address, pinned, nbytes, keep=back)
        del written, pinned
        done.wait(driver.compute())
        assert (back.to_host() == turn).all()
        assert done.query()


def test_memory_is_a_copy_s_until_it_is_done_and_then_free():
    driver.synchronize()
    gc.collect()
    before = driver.allocator().stats().live_bytes
    stream = driver.Stream()
    array = zeros((MIB,), np.uint8)
    stream.copy_to_host_async(driver.pinned(MIB), array.address, MIB, keep=array)
    del array
    stream.synchronize()
    assert driver.allocator().stats().live_bytes == before


def test_a_copy_is_no_longer_than_the_host_s_array():
    stream, array, pinned = driver.Stream(), zeros((100,), np.uint8), driver.pinned(99)
    with pytest.raises(ValueError, match="got 100 bytes, for an array of 99"):
        stream.copy_to_host_async(pinned, array.address, 100)
    with pytest.raises(ValueError, match="got 100 bytes, of an array of 99"):
        stream.copy_to_device_async(array.address, pinned, 100)


def test_events_tell_the_time_between_them():
    begin, end = driver.Event(timed=True), driver.Event(timed=True)
    assert begin.query() and end.query()
    begin.record(driver.compute())
    array = zeros((MIB,), np.uint8)
    end.record(driver.compute()).synchronize()
    assert begin.query() and end.query()
    assert 0 <= begin.elapsed_ms(end) < 10_000
    assert not array.to_host().any()


def test_pinned_memory_is_written_like_any_and_lives_as_long_as_its_views():
    driver.empty_cache()
    pinned = driver.pinned(1000)
    address, view = pinned.ctypes.data, pinned[10:20]
    pinned[:] = 7
    del pinned
    other = driver.pinned(1000)
    other[:] = 0
    assert other.ctypes.data != address and (view == 7).all()
    del view
    assert driver.pinned(1000).ctypes.data == address
    assert driver.pinned(0).shape == (0,)


def test_kernels_run_after_what_was_copied_before_them():
    load, store = loaders["float32", 1], storers["float32", 1]

    def twice(n: int, a: int) -> None:
        i = cuda.grid(1)
        while i < n:
            store(a + 4 * i, load(a + 4 * i) * 2)
            i += cuda.gridsize(1)

    kernel = Kernel(twice)
    array = to_device(np.arange(1000, dtype=np.float32))
    for _ in range(3):
        kernel.run(1000, array.address)
    assert np.array_equal(array.to_host(), np.arange(1000) * 8)


def test_who_asks_for_too_much_hears_so_and_goes_on():
    free, total = sg.cuda.mem_get_info()
    assert 0 < free <= total
    failures = sg.cuda.memory_stats()["num_ooms"]
    with pytest.raises(OutOfMemory, match=r"cuda: asked for .* of device memory; .* are free, .* held") as caught:
        empty((2 * total,), np.uint8)
    assert caught.value.asked == 2 * total
    assert isinstance(caught.value, sg.cuda.OutOfMemoryError)
    assert sg.cuda.memory_stats()["num_ooms"] == failures + 1
    assert to_device(np.arange(3)).to_host().tolist() == [0, 1, 2]


def test_the_device_says_what_it_is_and_holds():
    driver.synchronize()
    gc.collect()
    assert sg.cuda.is_available() and sg.cuda.is_initialized() and sg.cuda.device_count() == 1
    assert sg.cuda.get_device_name("cuda") and sg.cuda.get_device_capability(0) >= (7, 5)
    assert sg.cuda.is_bf16_supported() and sg.cuda.current_device() == 0
    before = sg.cuda.memory_allocated()
    sg.cuda.reset_peak_memory_stats()
    array = empty((3 * MIB,), np.uint8)
    assert sg.cuda.memory_allocated() - before == 3 * MIB
    del array
    assert sg.cuda.memory_allocated() == before
    assert sg.cuda.max_memory_allocated() == before + 3 * MIB
    assert sg.cuda.memory_reserved() >= before + 3 * MIB
    stats = sg.cuda.memory_stats()
    assert stats["allocated_bytes.all.allocated"] - stats["allocated_bytes.all.freed"] == before
    reserved = sg.cuda.memory_reserved()
    sg.cuda.empty_cache()
    assert sg.cuda.memory_reserved() < reserved
    sg.cuda.synchronize()


@pytest.mark.skipif(SIMULATED, reason="the simulator does everything at once")
def test_the_host_does_not_wait_for_kernels():
    event = driver.Event()
    arrays = [zeros((256 * MIB,), np.uint8) for _ in range(4)]
    for array in arrays * 20:
        driver.fill_with_zeros(array.address, array.nbytes)
    assert not event.record(driver.compute()).query()
    event.synchronize()
