"""One call to the system fails, whichever it is: a gradient is right or refused, and the next step is right."""

import errno
import functools
import gc
import itertools
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import SpillError
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.runs.sweep import sweep
from spillgrad.storage.threads import store_lock
from tests.failing_calls import FAULTS, FailingCall, Fault, refuse
from tests.waiting import wait_until

# Large enough to go past the page cache, but for its last page.
ARRAY = np.maximum(np.random.default_rng(0).standard_normal((150, 130)).astype(np.float32), 0)
OPTIONS: dict[str, dict[str, Any]] = {
    "through the page cache": {"ram_budget": 0, "direct_io": False},
    "past the page cache": {"ram_budget": 2 * ARRAY.nbytes, "direct_io": True},
    "compressed and encrypted": {"ram_budget": ARRAY.nbytes, "codec": "lossless", "encrypt": True},
    "nothing is written but on request": {"ram_budget": "1GiB"},
}

REFUSED_STAT = Fault(refuse(errno.EIO), ("stat",))


def weight() -> sg.Tensor:
    return sg.tensor(ARRAY, requires_grad=True)


def graph(w: sg.Tensor) -> sg.Tensor:
    """A graph that saves seven arrays."""
    return (w.exp().sin() * (w * 0.5).tanh().exp()).cos().sum()


@pytest.fixture(scope="module")
def wanted() -> np.ndarray:
    w = weight()
    graph(w).backward()
    return w.grad.numpy()


def step(spill: sg.save_on_disk, wanted: np.ndarray) -> None:
    w = weight()
    with spill:
        loss = graph(w)
    loss.backward()
    np.testing.assert_array_equal(w.grad.numpy(), wanted)


def is_empty(spill: sg.save_on_disk) -> bool:
    stats = spill.stats()
    return stats.live_bytes == stats.ram_bytes == 0


def no_store_is_closing() -> bool:
    return not any(thread.name.startswith("spillgrad-writer") for thread in threading.enumerate())


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_gradient_is_right_or_refused_and_the_next_step_is_right(
    directory: Path, wanted: np.ndarray, fault: Fault, options: dict[str, Any]
):
    step(sg.save_on_disk(directory, **options), wanted)  # loads what is loaded once
    wait_until(no_store_is_closing)
    for number in itertools.count(1):
        with FailingCall(fault, number) as call:
            spill = None
            try:
                spill = sg.save_on_disk(directory, **options)
                step(spill, wanted)
                spill.flush()
            except SpillError:
                assert call.happened
            call.relent()
            if call.happened:  # else it may when the store closes
                spill = spill or sg.save_on_disk(directory, **options)
                step(spill, wanted)
            wait_until(functools.partial(is_empty, spill))
            del spill
            wait_until(no_store_is_closing)
        sweep(directory)  # a file that could not be removed goes with the next run
        assert os.listdir(directory) == []
        if not call.happened:
            break


def test_signals_at_any_moment_disturb_no_step(directory: Path, wanted: np.ndarray):
    """They interrupt calls to the system, which Python then makes again."""
    came: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: came.append(number))
    signal.setitimer(signal.ITIMER_REAL, 1e-3, 2e-4)
    try:
        for options in list(OPTIONS.values()) * 5:
            spill = sg.save_on_disk(directory, **options)
            step(spill, wanted)
            spill.flush()
            del spill
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    wait_until(no_store_is_closing)
    assert len(came) > 20


def test_a_store_that_cannot_be_made_leaves_nothing_behind(directory: Path):
    refused = 0
    for number in itertools.count(1):
        with FailingCall(REFUSED_STAT, number) as call:
            try:
                DiskStore(directory, ram_budget=0).close()
            except SpillError:
                refused += 1
        gc.collect()
        sweep(directory)
        assert os.listdir(directory) == []
        assert [lock for reference in store_lock._locks if (lock := reference()) is not None] == []
        if not call.happened:
            break
    assert refused > 1


def test_a_caller_that_needs_room_after_a_write_failed_is_told_so_and_does_not_wait(directory: Path):
    """The writer rests after a failure: it would wake nobody."""
    store = DiskStore(directory, ram_budget=ARRAY.nbytes, direct_io=False)
    first = store.put(ARRAY.copy(), persistent=True)
    store.flush()
    with FailingCall(FAULTS["disk full"], 1):
        second = store.put(ARRAY + 1, persistent=True)  # which takes the place of the first one
        store._state.bell.ring()
        wait_until(lambda: bool(store._state.failures))
        answers = list[object]()

        def read() -> None:
            try:
                answers.append(store.get(first))
            except SpillError as error:
                answers.append(error)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        reader.join(30)
        assert [type(answer) for answer in answers] == [SpillError]
    np.testing.assert_array_equal(store.get(second), ARRAY + 1)
    np.testing.assert_array_equal(store.get(first), ARRAY)
    store.close()
