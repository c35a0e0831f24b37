"""Signal handlers and finalizers that interrupt the use of a device, and use the library themselves."""

import faulthandler
import gc
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import SpillError
from spillgrad.spill import device_store
from spillgrad.storage import tiered_store
from spillgrad.storage.residency import tier_state
from spillgrad_kernels.cuda import array as cuda_array
from spillgrad_kernels.cuda.driver import driver
from spillgrad_kernels.cuda.jit.compile import SIMULATED
from tests.interrupting import Stop, between_lines, lines_of_python

simulated_only = pytest.mark.skipif(not SIMULATED, reason="the test's own memory is the host's")
ARRAY = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)


@pytest.fixture(autouse=True)
def a_deadlock_ends_the_run() -> Iterator[None]:
    faulthandler.dump_traceback_later(100, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


def test_a_finalizer_that_comes_in_the_middle_of_a_devices_cache_may_use_it(tmp_path: Path):
    values = [sg.tensor(ARRAY + n, device="cuda") for n in range(4)]
    spill = sg.save_on_disk(tmp_path, ram_budget=0, device_budget=2 * ARRAY.nbytes, min_bytes=0)
    done: list[np.ndarray] = []
    refused: list[str] = []

    def save_and_get(n: int) -> np.ndarray:
        return spill.unpack_hook(spill.pack_hook(values[n])).numpy(force=True)

    class Saving:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            try:
                done.append(save_and_get(0))
            except SpillError as error:
                refused.append(str(error))

    def collect() -> None:
        Saving()
        gc.collect(0)

    packed = []
    with between_lines(collect, 0.2, (device_store.__file__, tiered_store.__file__, tier_state.__file__)):
        for _ in range(5):
            packed = [spill.pack_hook(value) for value in values]
            for value, one in reversed(list(zip(values, packed, strict=True))):
                np.testing.assert_array_equal(spill.unpack_hook(one).numpy(force=True), value.numpy(force=True))
    assert len(done) > 10
    for found in done:
        np.testing.assert_array_equal(found, ARRAY)
    assert all("in the middle of" in reason for reason in refused)
    packed.clear()
    del one
    assert spill.stats().live_bytes == 0
    assert spill.stats().device_bytes == 0


def test_what_dies_runs_no_python_that_a_signal_handler_could_interrupt(tmp_path: Path):
    layer = sg.nn.Linear(8, 8).to("cuda")
    offload = sg.disk_offload(
        layer, lambda params: sg.optim.SGD(params, lr=0.1), tmp_path, ram_budget="1MiB", device_budget="1MiB"
    )
    store = layer.weight.storage._store
    counted = [cuda_array.to_device(ARRAY)]
    handle = store.put(counted[0], persistent=True)
    store.begin_change(handle, counted[0])
    store.allow(0)
    store.end_change(handle)  # from here on only this test holds the array
    before = store.stats()["device_bytes"]
    dying: list[list[Any]] = [
        [driver.Event(), driver.Event(timed=True)],
        [driver.Stream()],
        [driver.pinned(1 << 16)],
        [cuda_array.to_device(ARRAY)],
        counted,
    ]
    for one in dying:
        assert lines_of_python(one.clear) == []
    assert store.stats()["device_bytes"] == before - ARRAY.nbytes
    store.drop(handle)
    del offload


class OfAnotherLibrary:
    def __init__(self) -> None:
        self.memory = np.ones(4, np.float32)  # the simulator's device is host memory
        self.__cuda_array_interface__ = {**self.memory.__array_interface__, "version": 2}


@simulated_only
def test_what_a_handler_raises_while_another_library_gives_memory_back_arrives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """This finalizer must run Python code: afterwards, the memory's owner may reuse it at once."""
    arrived = []

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stop

    record = driver.Event.record

    def record_and_interrupt(event: driver.Event, stream: driver.Stream) -> driver.Event:
        signal.raise_signal(signal.SIGUSR1)
        arrived.append(record(event, stream))
        return event

    before = signal.signal(signal.SIGUSR1, stop)
    try:
        with sg.save_on_disk(tmp_path, ram_budget=0):
            memory = [sg.as_tensor(OfAnotherLibrary())]
        monkeypatch.setattr(driver.Event, "record", record_and_interrupt)
        with pytest.raises(Stop):
            memory.clear()
            time.sleep(10)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(arrived) == 1
