"""The buffer pool: aligned, reused, never lent twice, given back on request."""

import mmap
import os
import platform
import resource
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from spillgrad.storage.process_memory import rss_bytes
from spillgrad_kernels import memory
from spillgrad_kernels.memory import PAGE_BYTES, POOLED_MIN_BYTES, BufferPool, pool
from spillgrad_kernels.system_memory import SystemMemory

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
    assert pool.stats().mapped_bytes == pool.stats().peak_live_bytes == 3 * POOLED_MIN_BYTES
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


MIB = 1 << 20


def leave_idle(pool: BufferPool, count: int) -> None:
    """Fill `count` MiB of the pool, in buffers of one, and let go of them."""
    arrays = [pool.empty((MIB,), np.uint8) for _ in range(count)]
    del arrays
    assert pool.stats().idle_bytes == count * MIB


def test_a_copy_is_dense_and_of_the_pool():
    source = np.arange(60_000, dtype=np.float32).reshape(200, 300).T
    copied = memory.copy(source)
    assert copied.flags.c_contiguous
    assert copied.__array_interface__["data"][0] % PAGE_BYTES == 0
    np.testing.assert_array_equal(copied, source)


def test_memory_that_is_lent_again_faults_no_page():
    pool = BufferPool()
    pool.empty((64 * MIB,), np.uint8).fill(1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        pool.empty((64 * MIB,), np.uint8).fill(1)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 64 * MIB // mmap.PAGESIZE


@pytest.mark.parametrize(("available_share", "idle_after"), [(0.5, 8 * MIB), (0.01, 0)])
def test_idle_memory_goes_back_when_the_system_has_little_left(
    available_share: float, idle_after: int, monkeypatch: pytest.MonkeyPatch
):
    pool = BufferPool()
    leave_idle(pool, 8)
    monkeypatch.setattr(memory, "_PRESSURE_EVERY_S", 0.0)
    total = 1 << 40
    monkeypatch.setattr(memory, "system_memory", lambda: SystemMemory(int(total * available_share), total))
    new = pool.empty((2 * MIB,), np.uint8)
    assert pool.stats().idle_bytes == idle_after
    assert new.nbytes == 2 * MIB


def test_of_idle_memory_no_more_goes_back_than_the_system_is_short_of(monkeypatch: pytest.MonkeyPatch):
    pool = BufferPool()
    leave_idle(pool, 16)
    monkeypatch.setattr(memory, "_PRESSURE_EVERY_S", 0.0)
    total = 160 * MIB  # of which 10 are to be left
    monkeypatch.setattr(memory, "system_memory", lambda: SystemMemory(5 * MIB, total))
    new = pool.empty((2 * MIB,), np.uint8)
    assert pool.stats().idle_bytes == 9 * MIB
    assert new.nbytes == 2 * MIB


def test_the_system_is_asked_before_much_new_memory_is_taken_however_soon(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory, "_PRESSURE_EVERY_S", 1e9)
    pool = BufferPool()
    leave_idle(pool, 8)
    monkeypatch.setattr(memory, "system_memory", lambda: SystemMemory(0, 1 << 40))
    small = pool.empty((16 * MIB,), np.uint8)
    assert pool.stats().idle_bytes > 0
    large = pool.empty((memory._PRESSURE_EVERY_BYTES,), np.uint8)
    assert pool.stats().idle_bytes == 0
    assert small.nbytes < large.nbytes


def test_a_pool_that_maps_nothing_new_looks_at_the_system_too(monkeypatch: pytest.MonkeyPatch):
    pool = BufferPool()
    leave_idle(pool, 8)
    monkeypatch.setattr(memory, "_PRESSURE_EVERY_S", 0.0)
    monkeypatch.setattr(memory, "system_memory", lambda: SystemMemory(0, 1 << 40))
    for _ in range(memory._LENT_PER_LOOK):
        pool.empty((MIB,), np.uint8)
    assert pool.stats().idle_bytes <= MIB


def test_memory_that_recent_use_does_not_explain_goes_back(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory, "_IDLE_FLOOR_BYTES", 2 * MIB)
    monkeypatch.setattr(memory, "_PERIOD_S", 0.0)
    pool = BufferPool()
    leave_idle(pool, 32)

    def period_of_small_use() -> None:
        for _ in range(20 * memory._LENT_PER_PERIOD):
            pool.empty((2 * MIB,), np.uint8)
        time.sleep(0.001)
        pool._give_back_unneeded()

    period_of_small_use()  # ends the period of the large use
    assert pool.stats().idle_bytes > 30 * MIB
    period_of_small_use()
    assert pool.stats().idle_bytes <= 4 * MIB
    assert pool.stats().peak_live_bytes == 32 * MIB


def test_a_process_that_waits_keeps_what_it_will_need_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory, "_IDLE_FLOOR_BYTES", 2 * MIB)
    monkeypatch.setattr(memory, "_PERIOD_S", 0.0)
    pool = BufferPool()
    leave_idle(pool, 32)
    for _ in range(5):
        time.sleep(0.001)
        pool.empty((2 * MIB,), np.uint8)
        pool._give_back_unneeded()
    assert pool.stats().idle_bytes > 30 * MIB


REFUSED_ONCE = """
import resource
import numpy as np
from spillgrad_kernels.memory import BufferPool
pool = BufferPool()
arrays = [pool.empty((16 << 20,), np.uint8) for _ in range(16)]
del arrays
assert pool.stats().idle_bytes == 256 << 20
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (32 << 20), resource.RLIM_INFINITY))
large = pool.empty((200 << 20,), np.uint8)
assert pool.stats().idle_bytes == 0
try:
    pool.empty((200 << 20,), np.uint8)
except MemoryError as error:
    print(error)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads its own size from /proc")
def test_a_refused_mapping_gives_idle_memory_back_and_a_second_refusal_says_what_to_do():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", REFUSED_ONCE], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "smaller batch" in done.stdout


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another malloc")
def test_what_threads_freed_in_malloc_goes_back_on_request():
    script = """
import os, threading
from spillgrad_kernels import memory

def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * memory.PAGE_BYTES

kept = []

def work():
    blocks = [b"x" * 20_000 for _ in range(2_000)]
    kept.append(blocks[::50])  # the rest is free, but between them

threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
before_bytes = resident_bytes()
memory.empty_cache()
print(before_bytes - resident_bytes())
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert int(ran.stdout) > 50e6


def test_where_memory_is_short_idle_memory_stays_within_the_largest_recent_use():
    pool = BufferPool()
    owner = threading.Event()
    pool.keep_to_peak(owner)
    largest = [pool.empty((4 * MIB,), np.uint8) for _ in range(4)]
    del largest
    for nbytes in range(MIB, 9 * MIB, MIB // 2):  # a size class of its own each
        array = pool.empty((nbytes,), np.uint8)
        del array
        assert pool.stats().mapped_bytes <= 16 * MIB
    larger = pool.empty((20 * MIB,), np.uint8)
    assert pool.stats().mapped_bytes <= larger.nbytes + MIB
    del owner, larger
    pool.empty((40 * MIB,), np.uint8)
    other = pool.empty((MIB,), np.uint8)
    assert pool.stats().mapped_bytes >= other.nbytes + 40 * MIB  # idle memory is kept again


def test_memory_that_would_go_back_becomes_what_is_wanted_without_being_cleared():
    pool = BufferPool()
    owner = threading.Event()
    pool.keep_to_peak(owner)
    for nbytes in (4 * MIB, 2 * MIB, 6 * MIB):
        known = pool.empty((4 * MIB,), np.uint8)
        known.fill(7)
        del known
        array = pool.empty((nbytes,), np.uint8)
        assert (array[: 2 * MIB] == 7).all()
        array.fill(8)
        assert pool.stats().mapped_bytes <= 6.5 * MIB
        del array


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="others keep no holes, or have no malloc_trim")
@pytest.mark.parametrize(("available_share", "trims"), [(0.26, False), (0.24, True)])
def test_what_malloc_has_free_goes_back_where_memory_is_scarce(
    available_share: float, trims: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(memory, "system_memory", lambda: SystemMemory(int(1000 * available_share), 1000))
    small = [np.ones(32 * 1024, np.uint8) for _ in range(2000)]
    small[1::2] = [None] * 1000  # holes, which glibc keeps
    before = rss_bytes()
    memory.trim_malloc_if_scarce()
    given_back = before - rss_bytes()
    assert small[0] is not None
    assert given_back > 16 * MIB if trims else given_back < 8 * MIB
