"""Small saved tensors share arrays of the store, and come back as they were."""

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import SpillError
from spillgrad.spill.tensor_memory import SpilledSmall
from tests.storage.test_disk_store import in_own_mounts
from tests.waiting import wait_until

DTYPES = ["float32", "float64", "bfloat16", "int64", "bool", "uint8"]


def of(dtype: str, shape: tuple[int, ...], seed: int) -> sg.Tensor:
    return sg.tensor(np.random.default_rng(seed).integers(0, 2, shape), dtype=dtype)


@pytest.mark.parametrize("budget", ["32KiB", "1MiB"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_small_tensors_of_any_kind_come_back_exactly(tmp_path: Path, dtype: str, budget: str):
    spill = sg.save_on_disk(tmp_path, ram_budget=budget, min_bytes=0)
    shapes = [(), (1,), (3, 5), (7, 2, 2), (1, 1, 0), (100,)]
    tensors = [of(dtype, shapes[i % len(shapes)], i) for i in range(600)]
    packed = [spill.pack_hook(tensor) for tensor in tensors]
    assert sum(isinstance(one, SpilledSmall) for one in packed) == 500  # all but those without elements
    for tensor, one in zip(reversed(tensors), reversed(packed), strict=True):
        got = spill.unpack_hook(one)
        assert (got.shape, got.dtype) == (tensor.shape, tensor.dtype)
        np.testing.assert_array_equal(got.numpy(), tensor.numpy())


@pytest.mark.parametrize("codec", [None, "lossless", "bf16", "int8"])
def test_views_come_back_as_they_lie_and_no_codec_alters_small_tensors(tmp_path: Path, codec: str | None):
    spill = sg.save_on_disk(tmp_path, ram_budget="1MiB", min_bytes=0, codec=codec)
    base = sg.tensor(np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32))
    views = [base, base.T, base[1:4, ::2], base.flatten()[5:], base[2], base[:, 3].unsqueeze(0).expand(4, 6)]
    packed = [spill.pack_hook(view) for view in views]
    spill.flush()
    for view, one in zip(views, packed, strict=True):
        np.testing.assert_array_equal(spill.unpack_hook(one).numpy(), view.numpy())


def test_a_storage_is_in_a_batch_once_until_it_changes(tmp_path: Path):
    spill = sg.save_on_disk(tmp_path, ram_budget="1MiB", min_bytes=0)
    x = sg.tensor(np.arange(10.0))
    first, again = spill.pack_hook(x), spill.pack_hook(x[2:])
    assert first._place is again._place
    x.add_(1)
    changed = spill.pack_hook(x)
    assert changed._place is not first._place
    np.testing.assert_array_equal(spill.unpack_hook(first).numpy(), np.arange(10.0))
    np.testing.assert_array_equal(spill.unpack_hook(again).numpy(), np.arange(2.0, 10.0))
    np.testing.assert_array_equal(spill.unpack_hook(changed).numpy(), np.arange(10.0) + 1)


def test_a_backward_that_changes_a_small_tensor_spoils_no_other(tmp_path: Path):
    spill = sg.save_on_disk(tmp_path, ram_budget="1MiB", min_bytes=0)
    packed = spill.pack_hook(sg.tensor(np.ones(10)))
    spill.unpack_hook(packed).mul_(2)
    np.testing.assert_array_equal(spill.unpack_hook(packed).numpy(), np.ones(10))


@pytest.mark.parametrize("budget", [0, "32KiB", "1MiB"])
def test_gradients_of_small_tensors_are_the_same_twice_over(tmp_path: Path, budget: int | str):
    def loss(w: sg.Tensor) -> sg.Tensor:
        y = w
        for i in range(300):
            y = (y * (1 + i % 3)).tanh() + w.exp()
        return (y * y).sum()

    values = np.random.default_rng(0).normal(size=20)
    plain, spilled = (sg.tensor(values, requires_grad=True) for _ in range(2))
    loss(plain).backward()
    spill = sg.save_on_disk(tmp_path, ram_budget=budget, min_bytes=0)
    for _ in range(2):
        spilled.grad = None
        with spill:
            found = loss(spilled)
        found.backward(retain_graph=True)
        found.backward()
        np.testing.assert_array_equal(spilled.grad.numpy(), (plain.grad + plain.grad).numpy())
        del found
        gc.collect()
        assert (spill.stats().live_bytes, spill.stats().ram_bytes) == (0, 0)


def test_what_is_held_for_small_tensors_counts_in_the_budget_until_they_go(tmp_path: Path):
    spill = sg.save_on_disk(tmp_path, ram_budget="1MiB", min_bytes=0)
    packed = [spill.pack_hook(sg.tensor(np.full(16, i, np.float64))) for i in range(1000)]
    spill.flush()
    stats = spill.stats()
    assert stats.live_bytes >= 128 * 1000
    assert stats.ram_bytes >= 200 * 1000
    packed.clear()
    assert (spill.stats().live_bytes, spill.stats().ram_bytes) == (0, 0)


def test_files_go_with_the_last_small_tensor(tmp_path: Path):
    spill = sg.save_on_disk(tmp_path, ram_budget="1MiB", min_bytes=0)
    packed = [spill.pack_hook(sg.tensor(np.ones(5)))]
    del spill
    assert list(tmp_path.iterdir())
    packed.clear()
    wait_until(lambda: list(tmp_path.iterdir()) == [])


COUNTS = """
import subprocess, sys
import numpy as np
import spillgrad as sg

def rss() -> int:
    return int(open("/proc/self/statm").read().split()[1]) * 4096

count, directory = int(sys.argv[1]), sys.argv[2]
spill = sg.save_on_disk(directory, ram_budget="1MiB", min_bytes=0)
packed = [None] * count
packed[0] = spill.pack_hook(sg.from_numpy(np.zeros(32, np.float32)))
spill.flush()
before = rss()
for i in range(count):
    packed[i] = spill.pack_hook(sg.from_numpy(np.full(32, i, np.float32)))
spill.flush()
used = int(subprocess.run(["du", "-sB1", directory], capture_output=True, text=True).stdout.split()[0])
print((rss() - before) / count, used / count)
for i in reversed(range(count)):
    assert (spill.unpack_hook(packed[i]).numpy() == np.float32(i)).all()
    packed[i] = None
"""


@pytest.mark.exhaustive
def test_a_small_tensor_takes_few_bytes_beside_its_own(tmp_path: Path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", COUNTS, "100000", str(tmp_path)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=True)
    in_ram, on_disk = map(float, ran.stdout.split())
    assert in_ram <= 300
    assert on_disk <= 1.3 * 128


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_forked_child_is_refused_and_the_parent_goes_on(tmp_path: Path):
    """Also what is in RAM still, as the batch that is being filled is, which another thread is in the middle of."""
    spill = sg.save_on_disk(tmp_path, ram_budget="1MiB", min_bytes=0)
    tensors = [sg.tensor(np.full(50, i)) for i in range(300)]
    packed = [spill.pack_hook(tensor) for tensor in tensors]
    assert packed[0]._place.batch.array is None
    assert packed[-1]._place.batch.array is not None
    refused: list[Callable[[], object]] = [
        lambda: spill.unpack_hook(packed[0]),
        lambda: spill.unpack_hook(packed[-1]),
        lambda: spill.pack_hook(tensors[-1]),
        lambda: spill.pack_hook(sg.tensor([1.0])),
        spill.flush,
    ]
    fills, forked = threading.Event(), threading.Event()

    def fill() -> None:
        with spill._small._lock:
            fills.set()
            forked.wait()

    thread = threading.Thread(target=fill)
    thread.start()
    fills.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends a child that waits
        status = 1
        try:
            for call in refused:
                with pytest.raises(SpillError, match="belongs to process"):
                    call()
            own = sg.save_on_disk(tmp_path, ram_budget="1MiB", min_bytes=0)
            np.testing.assert_array_equal(own.unpack_hook(own.pack_hook(tensors[7])).numpy(), tensors[7].numpy())
            status = 7
        finally:
            os._exit(status)
    forked.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    for tensor, one in zip(tensors, packed, strict=True):
        np.testing.assert_array_equal(spill.unpack_hook(one).numpy(), tensor.numpy())


@pytest.mark.parametrize("budget", ["32KiB", "1MiB"])
def test_threads_share_batches(tmp_path: Path, budget: str):
    spill = sg.save_on_disk(tmp_path, ram_budget=budget, min_bytes=0)
    shared = [sg.tensor(np.full(30, -i)) for i in range(50)]
    wrong: list[object] = []
    start = threading.Barrier(4)

    def check(value: int, one: SpilledSmall) -> None:
        if (spill.unpack_hook(one).numpy() != value).any():
            wrong.append(value)

    def work(number: int) -> None:
        start.wait()
        try:
            for _ in range(3):
                packed = {}
                for i in range(400):
                    own = number * 1000 + i
                    packed[own] = spill.pack_hook(sg.tensor(np.full(1 + i % 90, own)))
                    packed[-(i % 50)] = spill.pack_hook(shared[i % 50])
                    if i % 3 == 0:
                        check(*packed.popitem())
                for value, one in packed.items():
                    check(value, one)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []
    assert spill.stats().live_bytes == 0
    wait_until(lambda: spill.stats().ram_bytes == 0)  # one may be on its way to the disk


def test_where_what_is_held_exceeds_the_budget_full_batches_leave_ram_before_the_next(tmp_path: Path):
    spill = sg.save_on_disk(tmp_path, ram_budget="256KiB", min_bytes=0)
    cache, x = spill._store._state.tier, np.zeros(250, np.float32)
    kept, interval = [], sys.getswitchinterval()
    sys.setswitchinterval(10)  # the writer gets no processor but where this thread waits
    try:
        for _ in range(4000):
            kept.append(spill.pack_hook(sg.tensor(x)))
            assert cache.used_bytes - cache.pinned_bytes <= spill._store.ram_budget
    finally:
        sys.setswitchinterval(interval)
    assert cache.pinned_bytes > spill._store.ram_budget


FILL = """
import sys, warnings
import numpy as np
import spillgrad as sg
from spillgrad.errors import SpillError

def tensor(i):
    return sg.tensor(np.full(250, i, np.float32))

def all_are_right(packed):
    return all((spill.unpack_hook(one).numpy() == i).all() for i, one in enumerate(packed))

spill = sg.save_on_disk(sys.argv[1], ram_budget="256KiB", min_bytes=0, on_full=sys.argv[2])
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for step in range(2):
        packed = []
        try:
            while len(packed) < 4000:
                packed.append(spill.pack_hook(tensor(len(packed))))
        except SpillError as error:
            print(error)
        assert all_are_right(packed)
        packed.clear()  # which frees the disk
        packed = [spill.pack_hook(tensor(i)) for i in range(500)]
        assert all_are_right(packed)
print(*(each.message for each in caught), sep="\\n")
"""


@pytest.mark.parametrize(("on_full", "told"), [("raise", 2), ("ram", 1)])
def test_a_full_disk_is_told_and_loses_none(tmp_path: Path, on_full: str, told: int):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [*in_own_mounts(tmp_path, 2000), sys.executable, "-c", FILL, str(tmp_path), on_full]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert (ran.returncode, ran.stderr) == (0, "")
    lines = ran.stdout.split("\n")
    assert len([line for line in lines if "could not write" in line and "No space left on device" in line]) == told, (
        ran.stdout
    )
    assert ("arrays stay in RAM beyond ram_budget" in ran.stdout) == (on_full == "ram")
