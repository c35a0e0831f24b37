"""Memory that malloc has free goes back between the phases of a step, where the system has little left."""

import contextlib
import queue
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from spillgrad.storage import io_threads, relief
from spillgrad.storage.disk_store import DiskStore
from spillgrad_kernels import memory


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> "queue.SimpleQueue[Callable[[], None]]":
    """What I/O threads were to do about scarce memory."""
    found: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    submit = io_threads.submit

    def watched(failed: Callable[..., None], work: Callable[[], None]) -> None:
        (found.put if work is memory.trim_malloc_if_scarce else lambda work: submit(failed, work))(work)

    monkeypatch.setattr(io_threads, "submit", watched)
    monkeypatch.setattr(relief, "_looked_s", -1e9)
    return found


def step(store: DiskStore) -> None:
    handle = store.put(np.ones(10))
    assert store.get(handle).all()
    store.drop(handle)
    assert store.stats().live_bytes == 0


def test_a_step_looks_as_it_goes_forward_as_it_goes_backward_and_as_it_ends(
    tmp_path: Path, looks: "queue.SimpleQueue[Callable[[], None]]", monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(relief, "_EVERY_S", 0.0)
    with contextlib.closing(DiskStore(tmp_path, ram_budget=1000)) as store:
        for expected in (3, 6):
            step(store)
            assert looks.qsize() == expected


def test_short_steps_look_once(tmp_path: Path, looks: "queue.SimpleQueue[Callable[[], None]]"):
    with contextlib.closing(DiskStore(tmp_path, ram_budget=1000)) as store:
        step(store)
        step(store)
    assert looks.qsize() == 1
