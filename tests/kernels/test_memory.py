"""The buffer pool: aligned, reused, never lent twice, given back on request."""

import os
import signal
import threading
import time

import numpy as np
import pytest

from spillgrad_kernels.memory import PAGE_BYTES, POOLED_MIN_BYTES, BufferPool, pool

LARGE = (POOLED_MIN_BYTES,)


def test_large_arrays_begin_on_a_page():
    array = BufferPool().empty(LARGE, np.uint8)
    assert array.__array_interface__["data"][0] % PAGE_BYTES == 0


def test_memory_of_a_dead_array_is_lent_again():
    pool = BufferPool()
    first = pool.empty(LARGE, np.uint8)
    address = first.__array_interface__["data"][0]
    del first
    assert pool.empty(LARGE, np.uint8).__array_interface__["data"][0] == address


def test_memory_stays_lent_while_a_view_lives():
    pool = BufferPool()
    array = pool.empty(LARGE, np.uint8)
    view = array[10:20]
    address = array.__array_interface__["data"][0]
    del array
    assert pool.empty(LARGE, np.uint8).__array_interface__["data"][0] != address
    assert view.size == 10


def test_stats_count_live_idle_and_peak_bytes():
    pool = BufferPool()
    arrays = [pool.empty(LARGE, np.uint8) for _ in range(3)]
    assert pool.stats().live_bytes == pool.stats().peak_live_bytes == 3 * POOLED_MIN_BYTES
    del arrays
    assert (pool.stats().live_bytes, pool.stats().idle_bytes) == (0, 3 * POOLED_MIN_BYTES)
    assert pool.release_idle() == 3 * POOLED_MIN_BYTES
    assert pool.stats().idle_bytes == 0


def test_small_and_empty_arrays_come_from_malloc():
    pool = BufferPool()
    assert pool.empty((3, 4), np.float32).shape == (3, 4)
    assert pool.empty((0, 4), np.float32).shape == (0, 4)
    assert pool.stats().live_bytes == 0


@pytest.mark.parametrize("nbytes", [POOLED_MIN_BYTES, 100_001, 1 << 20, (1 << 20) + 1, 3_000_000])
def test_at_most_an_eighth_is_wasted(nbytes):
    pool = BufferPool()
    array = pool.empty((nbytes,), np.uint8)
    assert nbytes <= pool.stats().live_bytes <= nbytes * 1.125 + PAGE_BYTES
    assert array.nbytes == nbytes


def test_threads_never_share_a_buffer():
    pool = BufferPool()
    wrong = []

    def work(value):
        for _ in range(200):
            array = pool.empty(LARGE, np.uint8)
            array.fill(value)
            if not (array == value).all():
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(value,)) for value in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_forked_while_another_thread_allocates_gets_memory():
    held = threading.Event()

    def hold_the_lock():
        with pool._lock:
            held.set()
            time.sleep(0.2)

    holder = threading.Thread(target=hold_the_lock)
    holder.start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(5)  # what hangs must die
        pool.empty(LARGE, np.uint8)
        os._exit(0)
    holder.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
