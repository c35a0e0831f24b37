"""Signal handlers and finalizers that come in the middle of what is done with a device, and use the library there."""

import faulthandler
import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import spillgrad as sg
from spillgrad import device_cache
from spillgrad.errors import SpillError
from tests.interrupting import between_lines

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
    with between_lines(collect, 0.2, (device_cache.__file__,)):
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
