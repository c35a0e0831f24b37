"""Kernel launches on a team of threads: every element once, whoever launches, and through forks and exits."""

import gc
import os
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from spillgrad_kernels.jit.compile import DISABLE_JIT, intrinsic, jit, types
from spillgrad_kernels.threads import dispatch
from spillgrad_kernels.threads.dispatch import parallel_for


@jit
def _increment(start, stop, out):
    for i in range(start, stop):
        out[i] += 1


@jit
def _note_worker(start, stop, worker, out):
    for i in range(start, stop):
        out[i] = worker


@jit
def _allocate(start, stop, sizes, out):
    out[0] = np.empty(sizes[0], np.float64).size


@pytest.fixture
def threads():
    before = dispatch.get_num_threads()
    yield dispatch.set_num_threads
    dispatch.set_num_threads(before)


@pytest.mark.skipif(DISABLE_JIT, reason="there are no launchers")
def test_a_launcher_goes_with_its_kernel():
    def fill(start, stop, out):
        out[start:stop] = 1

    kernel, out = jit(fill), np.zeros(9)
    parallel_for(kernel, out.size, 1, out)
    assert out.all()
    launcher = weakref.ref(kernel.launcher)
    del kernel
    gc.collect()
    assert launcher() is None


@pytest.mark.skipif(DISABLE_JIT, reason="nothing is compiled")
def test_a_launcher_finds_its_kernel_for_each_type_of_operands_and_in_many_threads_at_once():
    def scale(start, stop, out, factor):
        for i in range(start, stop):
            out[i] = factor * i

    kernel = jit(scale)
    outs = [np.zeros(1000, dtype) for dtype in (np.float32, np.float64, np.int32, np.complex64)] * 3
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda out: parallel_for(kernel, out.size, 1, out, out.dtype.type(3)), outs))
    for out in outs:
        np.testing.assert_array_equal(out, np.arange(1000) * 3)
    assert len(kernel.overloads) == len(kernel.launcher.overloads) == 4


@pytest.mark.skipif(DISABLE_JIT, reason="there are no launchers")
def test_threads_that_launch_a_new_kernel_at_once_share_a_launcher():
    """Otherwise a thread could set the word of a launcher that another thread has replaced, and that is gone."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(10):

            def double(start, stop, out):
                for i in range(start, stop):
                    out[i] *= 2

            kernel, ready, outs = jit(double), threading.Barrier(6), [np.ones(50) for _ in range(6)]

            def work(out, kernel=kernel, ready=ready):
                ready.wait()
                parallel_for(kernel, out.size, 1, out)

            with ThreadPoolExecutor(6) as pool:
                list(pool.map(work, outs))
            assert all((out == 2).all() for out in outs)
    finally:
        sys.setswitchinterval(before)


@pytest.mark.skipif(DISABLE_JIT, reason="nothing is compiled")
def test_a_kernel_with_a_result_is_refused():
    def count(start, stop, out):
        return stop

    with pytest.raises(TypeError, match="got a result; a kernel that threads share returns none"):
        parallel_for(jit(count), 5, 1, np.zeros(5))


@pytest.mark.parametrize("grain", [1, 3, 1000, 10_000])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 1000, 4097])
@pytest.mark.parametrize("number", [1, 2, 5])
def test_every_element_is_worked_on_once(threads, number, count, grain):
    threads(number)
    out = np.zeros(count + 1, np.int64)
    parallel_for(_increment, count, grain, out)
    np.testing.assert_array_equal(out, [1] * count + [0])


@intrinsic
def _is_counted(typing_context, array):
    def codegen(context, builder, signature, arguments):
        counter = context.make_array(array)(context, builder, arguments[0]).meminfo
        return builder.icmp_unsigned("!=", counter, counter.type(None))

    return types.boolean(array), codegen


@jit
def _note_counted(start, stop, a, b, out):
    for i in range(start, stop):
        out[i] = _is_counted(a) or _is_counted(b) or _is_counted(out)


@pytest.mark.skipif(DISABLE_JIT, reason="what is not compiled counts no references")
@pytest.mark.parametrize("number", [1, 2])
def test_a_kernel_counts_no_references_to_its_operands_as_threads_would_wait_for_the_counter(threads, number):
    threads(number)
    out = np.ones(100, np.int64)
    parallel_for(_note_counted, out.size, 1, np.zeros(3), np.zeros((2, 2), np.float32), out)
    assert not out.any()


def test_workers_are_no_more_than_there_is_scratch_for(threads):
    threads(4)
    out = np.full(4000, 9)
    parallel_for(_note_worker, out.size, 1, out, most=1)
    assert set(out) == {0}


def test_a_worker_is_numbered_below_the_number_of_threads(threads):
    for number in (5, 2, 1, 3):
        threads(number)
        out = np.full(10_000, -1)
        parallel_for(_note_worker, out.size, 1, out)
        assert out.min() >= 0
        assert out.max() < number


def test_launches_from_several_threads_at_once_are_all_complete(threads):
    threads(3)
    outs = [np.zeros(5000, np.int64) for _ in range(4)]

    def launch(out):
        for _ in range(300):
            parallel_for(_increment, out.size, 16, out)

    launchers = [threading.Thread(target=launch, args=(out,)) for out in outs]
    for launcher in launchers:
        launcher.start()
    for launcher in launchers:
        launcher.join()
    for out in outs:
        assert np.all(out == 300)


def test_helpers_that_fell_asleep_wake_up_for_the_next_launch(threads):
    threads(2)
    out = np.zeros(1000, np.int64)
    for pause in (0.0, 0.001, 0.01):
        for _ in range(20):
            threading.Event().wait(pause)
            parallel_for(_increment, out.size, 1, out)
    assert np.all(out == 60)


@pytest.mark.skipif(not hasattr(_allocate, "py_func"), reason="without compilation NumPy raises for itself")
@pytest.mark.parametrize("number", [1, 2])
def test_a_kernel_without_memory_raises_and_the_next_launch_works(threads, number):
    threads(number)
    out = np.zeros(64, np.int64)
    with pytest.raises(MemoryError, match="scratch"):
        parallel_for(_allocate, 8, 1, np.array([1 << 58]), out)
    parallel_for(_increment, out.size, 1, out)
    assert out[1] == 1


def test_a_forked_child_has_a_team_of_its_own(threads):
    threads(2)
    out = np.zeros(1000, np.int64)
    parallel_for(_increment, out.size, 1, out)
    child = os.fork()
    if child == 0:
        parallel_for(_increment, out.size, 1, out)
        os._exit(0 if np.all(out == 2) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    parallel_for(_increment, out.size, 1, out)
    assert np.all(out == 2)


FORKED_WHILE_COMPILING = """
import os, signal, threading, time, warnings
import numpy as np
from spillgrad_kernels.jit.compile import jit

def kernel(name):
    @jit(name=name)
    def total(values):
        return np.sort(values).sum() + np.median(values)
    return total

values = np.arange(5.0)
others = [threading.Thread(target=kernel(f"other{i}"), args=[values]) for i in range(4)]
for other in others:
    other.start()
    time.sleep(0.3)
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of forks beside threads
        child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(kernel("mine")(values) != 12)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
for other in others:
    other.join()
"""


@pytest.mark.exhaustive
@pytest.mark.skipif(DISABLE_JIT, reason="nothing is compiled")
def test_a_child_forked_while_another_thread_compiles_can_compile(tmp_path):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", FORKED_WHILE_COMPILING], env=environment, check=True, timeout=200)


BESIDE_NUMBA_S_THREADS = """
import os, signal, warnings
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from numba import njit, prange, threading_layer
from spillgrad_kernels.threads import dispatch
from spillgrad_kernels.cpu.matmul import matmul

@njit(parallel=True)
def total(values):
    result = 0.0
    for i in prange(values.size):
        result += values[i]
    return result

def multiply():
    return all(np.all(matmul(ones, ones) == 300) for _ in range(50))

dispatch.set_num_threads(2)
ones, values = np.ones((300, 300), np.float32), np.ones(100_000)
assert total(values) == values.size
with ThreadPoolExecutor(3) as callers:
    calls = [callers.submit(multiply) for _ in range(3)]
    assert all(total(values) == values.size for _ in range(50))
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of forks beside threads
        child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(not multiply())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert all(call.result() for call in calls)
print(threading_layer(), end="")
"""


@pytest.mark.skipif(DISABLE_JIT, reason="nothing is compiled")
@pytest.mark.parametrize("layer", ["workqueue", "omp", "tbb"])
def test_kernels_run_beside_every_threading_layer_of_numba_s_and_in_its_forks(layer):
    libraries = f"{sys.prefix}/lib"  # where the package of TBB puts it, and its loader does not look
    environment = {**os.environ, "NUMBA_THREADING_LAYER": layer, "PYTHONPATH": os.pathsep.join(sys.path),
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, [libraries, os.environ.get("LD_LIBRARY_PATH")]))}  # fmt: skip
    ended = subprocess.run(
        [sys.executable, "-c", BESIDE_NUMBA_S_THREADS], env=environment, capture_output=True, text=True, timeout=200
    )
    assert (ended.stdout, ended.returncode) == (layer, 0), ended.stderr


@pytest.mark.parametrize("ending", ["", "import time; time.sleep(0.05)", "import sys; sys.exit(0)"])
def test_a_process_ends_whether_its_helpers_spin_or_sleep(ending):
    program = (
        "import numpy as np\n"
        "from spillgrad_kernels.threads import dispatch\n"
        "from spillgrad_kernels.cpu.matmul import matmul\n"
        "dispatch.set_num_threads(4)\n"
        "a = np.ones((300, 300), np.float32)\n"
        "assert matmul(a, a)[0, 0] == 300\n" + ending
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env={
        **os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")


def test_set_num_threads_refuses_fewer_than_one():
    with pytest.raises(ValueError, match="got 0"):
        dispatch.set_num_threads(0)
