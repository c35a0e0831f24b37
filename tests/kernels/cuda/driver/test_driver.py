"""Everything between the kernels and NVIDIA's driver, over a pretended one, whose streams are as late as can be.

Each program runs in a process of its own, which finds that driver in place of NVIDIA's.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

COMPILER = shutil.which("cc")

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the pretended driver is written in C: there is no compiler")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("driver")
    source = Path(__file__).parent / "pretended_libcuda.c"
    made = folder / "libcuda.so.1"
    subprocess.run([COMPILER, "-O1", "-shared", "-fPIC", "-pthread", "-o", made, source, "-ldl"], check=True)
    return folder


@pytest.fixture
def run(library):
    def run(program: str, **variables: str) -> list[str]:
        """The lines that a program prints."""
        environment = {
            **os.environ, "NUMBA_ENABLE_CUDASIM": "0", "LD_LIBRARY_PATH": str(library),
            "PYTHONPATH": os.pathsep.join(sys.path), **variables,
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", PREPARED + program], env=environment, capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    return run


PREPARED = """
import ctypes, gc, struct, threading
import numpy as np
from spillgrad_kernels.cuda.driver import driver, failures
from spillgrad_kernels.cuda.array import empty, to_device, zeros
from spillgrad_kernels.cuda.driver.memory import OutOfMemory

MIB = 1 << 20

def kernel(name, parameters=("int64", "int64")):
    from numba.cuda import types
    from spillgrad_kernels.cuda.jit.compile import Kernel
    numbers = ", ".join(f"p{i}" for i in range(len(parameters)))
    namespace = {}
    exec(f"def {name}({numbers}): pass", namespace)
    return Kernel(namespace[name], name, [getattr(types, "boolean" if p == "bool" else p) for p in parameters])
"""


def test_what_is_copied_is_there_whatever_becomes_of_the_host_s_array(run):
    program = """
rng = np.random.default_rng(0)
for nbytes in (1, 100, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 33 * MIB + 5):
    host = rng.integers(0, 256, nbytes, dtype=np.uint8)
    kept = host.copy()
    there = to_device(host)
    host[:] = 0
    assert np.array_equal(there.to_host(), kept), nbytes
there = zeros((3 * MIB,), np.float32)
assert not there.to_host().any()
gc.collect()
print(driver.allocator().stats().live_bytes - there.nbytes)
"""
    assert run(program) == ["0"]


def test_arrays_that_die_as_they_are_copied_lie_in_nobody_else_s_memory(run):
    program = """
stream = driver.Stream()
for turn in range(20):
    first = to_device(np.full(MIB, turn, np.uint8))
    pinned = driver.pinned(MIB)
    driver.Event().record(driver.compute()).wait(stream)
    done = stream.copy_to_host_async(pinned, first.address, MIB, keep=first)
    view = pinned[:]
    del first, pinned
    second = to_device(np.full(MIB, 100, np.uint8))  # takes what is free
    driver.compute().synchronize()
    done.synchronize()
    assert (view == turn).all(), turn
    back = empty((MIB,), np.uint8)
    loaded = stream.copy_to_device_async(back.address, view, MIB, keep=back)
    del view
    other = driver.pinned(MIB)
    other[:] = 77
    loaded.wait(driver.compute())
    assert (back.to_host() == turn).all(), turn
    del second, back, other
stream.synchronize()
print(driver.allocator().stats().live_bytes)
"""
    assert run(program) == ["0"]


def test_threads_copy_beside_each_other(run):
    program = """
wrong = []
def work(seed):
    rng, stream = np.random.default_rng(seed), driver.Stream()
    for turn in range(60):
        host = rng.integers(0, 256, int(rng.integers(1, 9 * MIB if turn % 20 == 0 else 100_000)), dtype=np.uint8)
        there, pinned = to_device(host), driver.pinned(host.nbytes)
        driver.Event().record(driver.compute()).wait(stream)
        done = stream.copy_to_host_async(pinned, there.address, host.nbytes, keep=there)
        if turn % 2 and not np.array_equal(there.to_host(), host):
            wrong.append(turn)
        del there
        done.synchronize()
        if not np.array_equal(pinned, host):
            wrong.append(turn)
threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
driver.synchronize()
gc.collect()
print(wrong, driver.allocator().stats().live_bytes)
"""
    assert run(program) == ["[] 0"]


def test_offloaded_arrays_come_and_go_beside_all_that_uses_the_device(run, tmp_path):
    program = """
from spillgrad.spill.offload.tensors import TensorResidents
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.store import Label
from spillgrad.tensor import Tensor

rng = np.random.default_rng(0)
store = DiskStore(FOLDER, ram_budget=200_000)
residents = TensorResidents(store)
residents.allow_on_device(100_000)
values = [rng.integers(0, 256, nbytes, dtype=np.uint8) for nbytes in (*rng.integers(1, 40_000, 20), 0, 5 * MIB)]
tensors = [Tensor.wrap(to_device(value)) for value in values]
for number, tensor in enumerate(tensors):
    residents.offload(tensor, Label("parameter", None, str(number)))
    residents.return_changed()
wrong = []

def use(number):
    to_device(np.full(rng.integers(1, 40_000), 7, np.uint8))  # whose memory is handed out again at once
    if not np.array_equal(tensors[number].array.to_host(), values[number]):
        wrong.append(number)

def change(number):
    array, values[number] = tensors[number].array, rng.integers(0, 256, values[number].size, dtype=np.uint8)
    tensors[number].storage.begin_change()
    driver.copy_to_device(array.address, values[number])

for step in range(10):
    residents.enter(-1, begins_step=True)
    for number in (*range(len(tensors)), *rng.permutation(len(tensors))):
        residents.enter(number)
        use(number)
        if rng.random() < 0.3:
            change(number)
        residents.leave(number)
    residents.leave(-1)
driver.synchronize()
print(wrong, residents.device_stats()["device_bytes"] <= 100_000, store.stats().read_bytes > 0, store.check())
del tensor, tensors
gc.collect()
driver.synchronize()
print(residents.device_stats()["device_bytes"], store.stats().live_bytes, driver.allocator().stats().live_bytes)
""".replace("FOLDER", repr(str(tmp_path)))
    assert run(program) == ["[] True True []", "0 0 0"]


def test_what_copies_still_hold_makes_no_other_array_leave(run, tmp_path):
    program = """
from spillgrad.spill.offload.tensors import TensorResidents
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.store import Label
from spillgrad.tensor import Tensor

store = DiskStore(FOLDER, ram_budget="1MiB")
residents = TensorResidents(store)
residents.allow_on_device(16 * 1000)
tensors = [Tensor.wrap(to_device(np.zeros(1000, np.uint8))) for _ in range(24)]
for number, tensor in enumerate(tensors):
    residents.offload(tensor, Label("parameter", None, str(number)))
for step in range(2):
    before = store.stats().cache_hits
    residents.enter(-1, begins_step=True)
    for number in (*range(24), *reversed(range(24))):
        residents.enter(number)
        tensors[number].array
        tensors[number].storage.begin_change()
        residents.leave(number)
    residents.leave(-1)
print(store.stats().cache_hits - before)
""".replace("FOLDER", repr(str(tmp_path)))
    assert run(program) == ["16"]  # of 24 in each direction, 16 fit: 8 come back


def test_memory_that_copies_hold_is_waited_for_before_there_is_none(run):
    program = """
stream = driver.Stream()
first = empty((30 * MIB,), np.uint8)
stream.copy_to_host_async(driver.pinned(30 * MIB), first.address, 30 * MIB, keep=first)
del first, stream
second = empty((40 * MIB,), np.uint8)
print(driver.allocator().stats().retries)
try:
    empty((100 * MIB,), np.uint8)
except OutOfMemory as error:
    print(error)
print(to_device(np.arange(3)).to_host().tolist(), driver.allocator().stats().failures)
"""
    assert run(program, PRETEND_BYTES=str(64 << 20)) == [
        "1",
        "cuda: asked for 100.0 MiB of device memory; 24.0 MiB are free, 40.0 MiB held by live arrays, 0 bytes cached "
        "between them; let go of arrays, take a smaller batch, or keep saved tensors elsewhere (save_on_disk, "
        "checkpoint); a CUDA device's memory is shared with other processes",
        "[0, 1, 2] 1",
    ]


def test_pinned_memory_is_used_again_and_goes_back_on_request(run):
    program = """
library = ctypes.CDLL("libcuda.so.1")
count = lambda: ctypes.c_long.in_dll(library, "pretended_host_bytes").value
for _ in range(5):
    assert driver.pinned(3 * MIB).nbytes == 3 * MIB
print(count() == 3 * MIB, driver.pinned(3 * MIB)[5:].base is not None)
driver.empty_cache()
print(count())
array = to_device(np.zeros(64 * MIB, np.uint8))
print(count() // MIB, array.to_host().nbytes // MIB, count() // MIB)
"""
    assert run(program) == ["True True", "0", "16 64 16"]


def test_a_launch_packs_every_kind_of_number_as_the_kernel_declares_it(run):
    program = """
kinds = dict(int64="q", float32="f", float64="d", bool="?", int8="b", uint8="B", int16="h", int32="i", uint64="Q")
values = [
    -5, np.float32(0.1), 1 / 3, np.True_, np.int8(-3), np.uint8(200), np.int16(-300), np.int32(1 << 30), (1 << 64) - 1,
]
library = ctypes.CDLL("libcuda.so.1")
count = ctypes.c_int.in_dll(library, "pretended_word_count")
count.value = len(kinds)
kernel("mixed", tuple(kinds)).launch(3, *values)
words = (ctypes.c_uint64 * 64).in_dll(library, "pretended_words")
for word, value, layout in zip(words, values, kinds.values()):
    assert struct.pack("<Q", word)[: struct.calcsize(layout)] == struct.pack("<" + layout, value), value
count.value = 0
print(len(kernel("none", ()).parameters), kernel("none", ()).launch(1))
"""
    assert run(program) == ["0 None"]


def test_threads_launch_a_kernel_together(run):
    program = """
library = ctypes.CDLL("libcuda.so.1")
ctypes.c_int.in_dll(library, "pretended_word_count").value = 2
both = kernel("both")
work = lambda start: [both.launch(1, i, i) for i in range(start, start + 3000)]
threads = [threading.Thread(target=work, args=(start,)) for start in range(0, 40000, 10000)]
[t.start() for t in threads]; [t.join() for t in threads]
print(ctypes.c_long.in_dll(library, "pretended_unequal").value, failures.launches.last)
"""
    assert run(program) == ["0 12000"]


FAILING = """
add, mul, sub = map(kernel, ("add", "mul", "sub"))
def attempt(*kernels):
    try:
        for kernel in kernels:
            kernel.launch(1, 0, 0)
        driver.synchronize()
    except failures.CudaError as error:
        print(error.status, error.kernels, error.is_sticky)
        return error
print(attempt(add))
error = attempt(mul, sub, sub)
print(error)
"""


def test_a_kernel_s_failure_names_those_that_were_not_known_to_be_done(run):
    lines = run(FAILING + "attempt()", PRETEND_FAILING_LAUNCH="2")
    assert lines == [
        "None",
        "CUDA_ERROR_ILLEGAL_ADDRESS ('sub', 'mul') True",
        "cuda: wait for the device: got CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered) from one "
        "of the kernels sub, mul (launched last first); the device's memory is lost: restart the process; with "
        "SPILLGRAD_CUDA_LAUNCH_BLOCKING=1, the failing kernel alone is named",
        "CUDA_ERROR_ILLEGAL_ADDRESS ('sub', 'mul') True",
    ]


@pytest.mark.parametrize("meets", ["there.to_host()", "driver.Event().record(driver.compute()).synchronize()"])
def test_whoever_waits_for_a_failed_kernel_hears_of_it(run, meets):
    program = f"""
there = to_device(np.ones(3))
there.to_host()
kernel("add").launch(1, 0, 0)
kernel("mul").launch(1, 0, 0)
try:
    {meets}
except failures.CudaError as error:
    print(error.kernels)
"""
    assert run(program, PRETEND_FAILING_LAUNCH="1") == ["('mul', 'add')"]


def test_a_failure_of_a_launch_that_is_waited_for_is_its_kernel_s(run):
    lines = run(FAILING, PRETEND_FAILING_LAUNCH="2", SPILLGRAD_CUDA_LAUNCH_BLOCKING="1")
    assert lines[1] == "CUDA_ERROR_ILLEGAL_ADDRESS ('mul',) True"
    assert lines[2].endswith("from the kernel mul; the device's memory is lost: restart the process")


def test_what_an_event_has_seen_done_is_not_named(run):
    program = """
add, mul = kernel("add"), kernel("mul")
add.launch(1, 0, 0)
event = driver.Event().record(driver.compute())
mul.launch(1, 0, 0)
print(failures.launches.unfinished(), event.query())
event.synchronize()
print(failures.launches.unfinished(), event.query())
to_device(np.ones(3)).to_host()
print(failures.launches.unfinished())
begin, end = driver.Event(timed=True), driver.Event(timed=True)
begin.record(driver.compute()), end.record(driver.compute()).synchronize()
print(begin.elapsed_ms(end))
"""
    assert run(program) == ["('mul', 'add') False", "('mul',) True", "()", "1.5"]


def test_a_launch_that_is_refused_names_its_kernel_and_the_process_goes_on(run):
    program = """
wide, add = kernel("wide"), kernel("add")
wide.threads = 2048
try:
    wide.launch(7, 0, 0)
except failures.CudaError as error:
    print(error)
print(add.launch(1, 0, 0), driver.synchronize())
"""
    assert run(program) == [
        "cuda: launch the kernel wide in 7 blocks of 2048 threads: got CUDA_ERROR_INVALID_VALUE (a pretended error)",
        "None None",
    ]


def test_sorts_and_sums_by_index_are_few_launches_however_many_rows_there_are(run):
    program = """
from spillgrad_kernels.cuda.indexing import embedding_backward
from spillgrad_kernels.cuda.sorting import in_order
def launches(function, *arguments):
    before = failures.launches.last
    function(*arguments)
    return failures.launches.last - before
for shape, axis, count in (
    ((1000, 8), 1, 8), ((3, 2048), 1, 2048), ((500, 3000), 1, 3000), ((3000, 7), 0, 3000), ((2, 50000), 1, 50000),
    ((2, 50000), 1, 40),
):
    print(launches(in_order, empty(shape, np.float32), axis, True, count))
for tokens in (40, 2048, 4096, 16384):
    print(launches(embedding_backward, empty((tokens, 8), np.float32), empty((tokens,), np.int64), 50257))
"""
    found = [int(line) for line in run(program)]
    assert found[:6] == [1, 1, 2, 2, 6, 6]
    assert found[6:] == [2, 3, 4, 6]


COMPILING = """
from spillgrad_kernels.cuda.jit import compile
from spillgrad_kernels.cuda import elementwise
from spillgrad_kernels.tables.elementwise_derivatives import ROWS
compiled, compile_cuda = [], compile.compile_cuda
compile.compile_cuda = lambda *a, **k: (compiled.append(a), compile_cuda(*a, **k))[1]
x = to_device(np.ones(8, np.float32))
for name in ("add", "mul"):
    elementwise.compute(ROWS[name].forward, name, [x, x], ("float32",))
print(len(compiled))
"""


def test_what_one_process_compiled_no_other_does(run, tmp_path):
    assert run(COMPILING, XDG_CACHE_HOME=str(tmp_path)) == ["2"]
    assert run(COMPILING, XDG_CACHE_HOME=str(tmp_path)) == ["0"]
    assert run(COMPILING, XDG_CACHE_HOME=str(tmp_path), PRETEND_CAPABILITY="90") == ["2"]
    (changed, _) = tmp_path.glob("spillgrad/kernels/*/cuda.add.*.code")
    changed.write_bytes(changed.read_bytes()[:-1])
    assert run(COMPILING, XDG_CACHE_HOME=str(tmp_path)) == (["1"] if ".sm_80." in changed.name else ["0"])


def test_the_names_of_pytorch_say_what_the_device_is_and_holds(run):
    program = """
import spillgrad as sg
cuda = sg.cuda
print(cuda.is_available(), cuda.device_count(), cuda.is_initialized(), cuda.memory_stats()["num_ooms"])
print(cuda.get_device_name(), cuda.get_device_capability("cuda:0"), cuda.current_device(), cuda.is_bf16_supported())
print(cuda.is_bf16_supported(including_emulation=False))
x = to_device(np.zeros(3 * MIB, np.uint8))
del x
gc.collect()
driver.synchronize()
print(cuda.is_initialized(), cuda.memory_allocated(), cuda.max_memory_allocated() // MIB, cuda.memory_reserved() // MIB)
cuda.reset_peak_memory_stats()
print(cuda.max_memory_allocated(), cuda.max_memory_reserved() // MIB)
cuda.empty_cache()
free, total = cuda.mem_get_info()
print(cuda.memory_reserved(), total - free, cuda.synchronize())
try: cuda.get_device_name(1)
except RuntimeError as error: print(error)
"""
    assert run(program, PRETEND_CAPABILITY="75") == [
        "True 1 False 0",
        "Pretended GPU (7, 5) 0 True",
        "False",
        "True 0 3 20",
        "0 20",
        "0 0 None",
        "cuda: got the device '1'; this version computes on the first, 'cuda:0'",
    ]
