"""Signal handlers and finalizers that come in the middle of anything, and use the library there."""

import faulthandler
import gc
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

import spillgrad as sg
from spillgrad import storage
from spillgrad.errors import SpillError
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.threads import loader
from spillgrad_kernels.memory import buffers
from tests.interrupting import Stop, between_lines, handled, lines_of_python

ARRAY = np.random.default_rng(0).normal(size=(64, 512)).astype(np.float32)  # of a size that the pool lends
WANTED = np.tanh(ARRAY) * ARRAY


@pytest.fixture(autouse=True)
def a_deadlock_ends_the_run() -> Iterator[None]:
    faulthandler.dump_traceback_later(100, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


def step(spill: sg.save_on_disk) -> np.ndarray:
    """Return the gradient of a small step; whoever calls may be in the middle of a backward, without grad mode."""
    with sg.enable_grad():
        w, x = sg.from_numpy(np.ones_like(ARRAY)).requires_grad_(), sg.from_numpy(ARRAY.copy())
        with spill:
            loss = (w * (x.tanh() * x)).sum() + (w.exp() - w.exp()).sum()
        loss.backward()
    assert w.grad is not None
    return w.grad.numpy()


@pytest.mark.parametrize("budget", [0, ARRAY.nbytes, "1MiB"])
def test_what_a_signal_handler_raises_always_arrives_and_the_next_step_is_right(tmp_path: Path, budget: int | str):
    rng = random.Random(0)
    raised, caught = [], []

    def handler(number: int, frame: FrameType | None) -> None:
        raised.append(number)
        raise Stop

    spill = sg.save_on_disk(tmp_path, ram_budget=budget)
    np.testing.assert_allclose(step(spill), WANTED, rtol=1e-5)
    with handled(handler):
        for _ in range(150):
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 6e-3))
                step(spill)
                while len(raised) == len(caught):
                    time.sleep(1e-3)
                pytest.fail("what the handler raised was lost")
            except Stop as stop:
                caught.append(stop.with_traceback(None))
    np.testing.assert_allclose(step(spill), WANTED, rtol=1e-5)
    gc.collect()
    stats = spill.stats()
    assert (stats.live_bytes, stats.kept_bytes) == (0, 0)


def test_a_signal_handler_may_use_the_library_at_any_moment(tmp_path: Path):
    spill, other = (sg.save_on_disk(tmp_path, ram_budget="200KiB") for _ in range(2))
    found: list[np.ndarray] = []

    running = []

    def handler(number: int, frame: FrameType | None) -> None:
        if len(running) < 4:  # where steps take longer than the time between signals, handlers interrupt each other
            running.append(number)
            found.append(step(spill if len(found) % 2 else other))
            running.pop()

    with handled(handler):
        signal.setitimer(signal.ITIMER_REAL, 1e-3, 11e-3)
        deadline_s = time.monotonic() + 4
        while time.monotonic() < deadline_s:
            np.testing.assert_allclose(step(spill), WANTED, rtol=1e-5)
    assert len(found) > 10
    for gradient in found:
        np.testing.assert_allclose(gradient, WANTED, rtol=1e-5)


IN_THE_MIDDLE = (str(Path(storage.__file__).parent), buffers.__file__)


def test_a_finalizer_that_the_collector_reaches_may_use_the_library_at_any_moment(tmp_path: Path):
    spill, other = (sg.save_on_disk(tmp_path, ram_budget="200KiB") for _ in range(2))
    done: list[np.ndarray] = []
    refused: list[str] = []

    class Computing:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            try:
                done.append(step(spill if len(done) % 2 else other))
            except SpillError as error:
                refused.append(str(error))

    def collect() -> None:
        Computing()
        gc.collect(0)

    with between_lines(collect, 0.01, IN_THE_MIDDLE):
        for _ in range(5):
            np.testing.assert_allclose(step(spill), WANTED, rtol=1e-5)
    assert len(done) > 10
    for gradient in done:
        np.testing.assert_allclose(gradient, WANTED, rtol=1e-5)
    # Where the collector came in the middle of a store, and the finalizer would have read from that one.
    assert all("in the middle of" in reason for reason in refused)


def test_what_dies_runs_no_python_that_a_signal_handler_could_interrupt(tmp_path: Path):
    spill = sg.save_on_disk(tmp_path, ram_budget=0)
    x = sg.tensor(ARRAY)
    packed = [spill.pack_hook(x)]
    store = DiskStore(tmp_path, ram_budget=0)
    read = [store.get(store.put(ARRAY.copy()))]
    lent = [buffers.empty((1 << 20,), np.uint8)]
    owner = [sg.save_on_disk(tmp_path, ram_budget=0)]
    for dying in (packed, read, lent):
        assert lines_of_python(dying.clear) == []
    assert lines_of_python(owner.clear) == []
    assert spill.stats().live_bytes == 0
    store.close()


def test_a_store_used_in_the_middle_of_its_own_call_raises_instead_of_waiting_for_itself(tmp_path: Path):
    store = DiskStore(tmp_path, ram_budget="1MiB")
    handle = store.put(ARRAY.copy())
    with store._state.lock:
        for call in (store.stats, store.flush, lambda: store.get(handle), lambda: store.put(ARRAY)):
            with pytest.raises(SpillError, match="in the middle of what its thread did"):
                call()
        store.drop(handle)
        assert buffers.empty((1 << 20,), np.uint8).nbytes == 1 << 20
    assert store.stats().live_bytes == 0
    store.close()


def test_an_array_asked_for_in_the_middle_of_its_own_read_raises_instead_of_waiting_for_itself(tmp_path: Path):
    store = DiskStore(tmp_path, ram_budget=0)
    handle = store.put(np.arange(1000.0))
    refused: list[str] = []

    def get_again() -> None:
        try:
            np.testing.assert_array_equal(store.get(handle), np.arange(1000.0))
        except SpillError as error:
            refused.append(str(error))

    for _ in range(5):
        with between_lines(get_again, 0.5, (loader.__file__,)):
            found = store.get(handle)
        np.testing.assert_array_equal(found, np.arange(1000.0))
        del found
    assert len(refused) > 5
    assert all("in the middle of" in reason for reason in refused)
    store.close()


def test_memory_asked_for_in_the_middle_of_the_pools_own_work_is_not_the_pools():
    before = buffers.memory_stats().live_bytes
    with buffers.pool._lock:
        array = buffers.empty((1 << 20,), np.uint8)
        array.fill(1)
        assert buffers.empty_cache() == 0
    assert buffers.memory_stats().live_bytes == before
    assert array.ctypes.data % buffers.PAGE_BYTES == 0
