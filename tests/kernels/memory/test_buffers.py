"""The buffer pool: aligned, reused, never lent twice, given back on request."""

import faulthandler
import mmap
import os
import platform
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from spillgrad.storage.counters import rss_bytes
from spillgrad_kernels.memory import buffers
from spillgrad_kernels.memory.buffers import PAGE_BYTES, POOLED_MIN_BYTES, BufferPool, pool
from spillgrad_kernels.memory.system_memory import SystemMemory

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


@pytest.mark.parametrize("nbytes", [POOLED_MIN_BYTES, 100_001, 1 << 20, (1 << 20) + 1, 3_000_000, (1 << 27) + 1])
def test_at_most_an_eighth_is_wasted_or_a_huge_page(nbytes):
    pool = BufferPool()
    array = pool.empty((nbytes,), np.uint8)
    assert nbytes <= pool.stats().live_bytes <= nbytes + min(nbytes // 8 + PAGE_BYTES, 2 << 20)
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


MIB = 1 << 20


def the_pool_works() -> bool:
    """Return whether memory that is lent counts, in any thread, and no longer once it came back."""
    pool.release_idle()  # a larger buffer, which an earlier test left, would count as what it is
    before = pool.stats().live_bytes
    counted = []

    def lend() -> None:
        array = pool.empty((MIB,), np.uint8)
        array.fill(1)
        counted.append(pool.stats().live_bytes - before)

    thread = threading.Thread(target=lend)
    thread.start()
    thread.join()
    return counted == [MIB] and pool.stats().live_bytes == before


def exit_status_of_a_child(check: Callable[[], bool]) -> int:
    """Return 0 where a forked child finds that something holds."""
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # ends a child that hangs
        os._exit(0 if check() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_forked_while_another_thread_allocates_gets_memory():
    stopped = threading.Event()

    def allocate() -> None:
        while not stopped.is_set():
            pool.empty(LARGE, np.uint8)

    thread = threading.Thread(target=allocate)
    thread.start()
    try:
        for _ in range(20):
            assert exit_status_of_a_child(the_pool_works) == 0
    finally:
        stopped.set()
        thread.join()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_beside_a_thread_that_stays_in_the_middle_of_a_section_hangs_nobody():
    faulthandler.dump_traceback_later(60, exit=True, file=sys.__stderr__)
    held, forked = threading.Event(), threading.Event()
    lent = [buffers.copy(np.full(MIB, 7, np.uint8))]

    def stay() -> None:  # as a finalizer that the collector reaches there, and that waits for the thread that forks
        with pool._lock:
            held.set()
            forked.wait()

    thread = threading.Thread(target=stay)
    thread.start()
    held.wait()
    try:
        assert exit_status_of_a_child(lambda: bool((lent.pop() == 7).all()) and the_pool_works()) == 0
    finally:
        forked.set()
        thread.join()
        faulthandler.cancel_dump_traceback_later()
    assert the_pool_works()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_in_the_middle_of_the_threads_own_section_hangs_nobody():
    def leave_and_lend() -> bool:
        pool._lock.release()
        return the_pool_works()

    pool._lock.acquire()  # as where a finalizer or a signal handler forks
    assert exit_status_of_a_child(leave_and_lend) == 0
    assert leave_and_lend()


def leave_idle(pool: BufferPool, count: int) -> None:
    """Fill `count` MiB of the pool, in buffers of one, and let go of them."""
    arrays = [pool.empty((MIB,), np.uint8) for _ in range(count)]
    del arrays
    assert pool.stats().idle_bytes == count * MIB


def test_a_copy_is_dense_and_of_the_pool():
    source = np.arange(60_000, dtype=np.float32).reshape(200, 300).T
    copied = buffers.copy(source)
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
    monkeypatch.setattr(buffers, "_PRESSURE_EVERY_S", 0.0)
    total = 1 << 40
    monkeypatch.setattr(buffers, "system_memory", lambda: SystemMemory(int(total * available_share), total))
    new = pool.empty((2 * MIB,), np.uint8)
    assert pool.stats().idle_bytes == idle_after
    assert new.nbytes == 2 * MIB


def test_of_idle_memory_no_more_goes_back_than_the_system_is_short_of(monkeypatch: pytest.MonkeyPatch):
    pool = BufferPool()
    leave_idle(pool, 16)
    monkeypatch.setattr(buffers, "_PRESSURE_EVERY_S", 0.0)
    total = 160 * MIB  # of which 10 are to be left
    monkeypatch.setattr(buffers, "system_memory", lambda: SystemMemory(5 * MIB, total))
    new = pool.empty((2 * MIB,), np.uint8)
    assert pool.stats().idle_bytes == 9 * MIB
    assert new.nbytes == 2 * MIB


def test_the_system_is_asked_before_much_new_memory_is_taken_however_soon(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(buffers, "_PRESSURE_EVERY_S", 1e9)
    pool = BufferPool()
    leave_idle(pool, 8)
    monkeypatch.setattr(buffers, "system_memory", lambda: SystemMemory(0, 1 << 40))
    small = pool.empty((16 * MIB,), np.uint8)
    assert pool.stats().idle_bytes > 0
    large = pool.empty((buffers._PRESSURE_EVERY_BYTES,), np.uint8)
    assert pool.stats().idle_bytes == 0
    assert small.nbytes < large.nbytes


def test_a_pool_that_maps_nothing_new_looks_at_the_system_too(monkeypatch: pytest.MonkeyPatch):
    pool = BufferPool()
    leave_idle(pool, 8)
    monkeypatch.setattr(buffers, "_PRESSURE_EVERY_S", 0.0)
    monkeypatch.setattr(buffers, "system_memory", lambda: SystemMemory(0, 1 << 40))
    for _ in range(buffers._LENT_PER_LOOK):
        pool.empty((MIB,), np.uint8)
    assert pool.stats().idle_bytes <= MIB


def test_memory_that_recent_use_does_not_explain_goes_back(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(buffers, "_IDLE_FLOOR_BYTES", 2 * MIB)
    monkeypatch.setattr(buffers, "_PERIOD_S", 0.0)
    pool = BufferPool()
    leave_idle(pool, 32)

    def period_of_small_use() -> None:
        for _ in range(20 * buffers._LENT_PER_PERIOD):
            pool.empty((2 * MIB,), np.uint8)
        time.sleep(0.001)
        pool._give_back_unneeded()

    period_of_small_use()  # ends the period of the large use
    assert pool.stats().idle_bytes > 30 * MIB
    period_of_small_use()
    assert pool.stats().idle_bytes <= 4 * MIB
    assert pool.stats().peak_live_bytes == 32 * MIB


def test_a_process_that_waits_keeps_what_it_will_need_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(buffers, "_IDLE_FLOOR_BYTES", 2 * MIB)
    monkeypatch.setattr(buffers, "_PERIOD_S", 0.0)
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
from spillgrad_kernels.memory.buffers import BufferPool
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
from spillgrad_kernels.memory import buffers

def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * buffers.PAGE_BYTES

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
buffers.empty_cache()
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
    monkeypatch.setattr(buffers, "system_memory", lambda: SystemMemory(int(1000 * available_share), 1000))
    monkeypatch.setattr(buffers, "_maps_large", False)
    small = [np.ones(32 * 1024, np.uint8) for _ in range(2000)]
    small[1::2] = [None] * 1000  # holes, which glibc keeps
    before = rss_bytes()
    buffers.trim_malloc_if_scarce()
    given_back = before - rss_bytes()
    assert small[0] is not None
    assert given_back > 16 * MIB if trims else given_back < 8 * MIB


def test_once_memory_was_scarce_large_arrays_and_what_malloc_has_free_go_back_at_once(monkeypatch: pytest.MonkeyPatch):
    told: list[tuple[int, int]] = []
    trimmed: list[int] = []
    monkeypatch.setattr(buffers, "_maps_large", False)
    monkeypatch.setattr(buffers, "_mallopt", lambda option, value: told.append((option, value)) or 1)
    monkeypatch.setattr(buffers, "_malloc_trim", lambda pad: trimmed.append(1) or 1)
    left = {"bytes": 900}
    monkeypatch.setattr(buffers, "system_memory", lambda: SystemMemory(left["bytes"], 1000))
    buffers.trim_malloc_if_scarce()
    assert (told, trimmed) == ([], [])
    buffers.trim_malloc_if_scarce(needed_bytes=901)
    assert (told, len(trimmed)) == ([(-3, 1 << 20)], 1)
    for _ in range(2):
        buffers.trim_malloc_if_scarce()
        buffers.release_if_scarce()
    assert (len(told), len(trimmed)) == (1, 5)


def test_idle_memory_is_kept_within_a_limit():
    pool = BufferPool()
    arrays = [pool.empty((MIB,), np.uint8) for _ in range(8)]
    pool.keep_idle_within(0)
    assert pool.stats().mapped_bytes == 8 * MIB  # none is idle
    del arrays[:6]
    pool.keep_idle_within(4 * MIB)
    assert pool.stats().idle_bytes == 4 * MIB
    pool.keep_idle_within(5 * MIB)
    assert pool.stats().idle_bytes == 4 * MIB
    pool.keep_idle_within(0)
    assert pool.stats().mapped_bytes == 2 * MIB
