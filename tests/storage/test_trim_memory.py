"""Memory that malloc has free goes back between the phases of a step, where the system has little left."""

import contextlib
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from spillgrad.storage import trim_memory
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.threads import io_threads
from spillgrad_kernels.memory import buffers


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> "queue.SimpleQueue[Callable[[], None]]":
    """What I/O threads were to do about scarce memory."""
    found: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    submit = io_threads.submit

    def watched(work: Callable[[], None], ended: Callable[..., None]) -> None:
        (found.put if work is trim_memory._trim else lambda work: submit(work, ended))(work)

    monkeypatch.setattr(io_threads, "submit", watched)
    monkeypatch.setattr(trim_memory, "_next_trim_s", 0.0)
    return found


def step(store: DiskStore) -> None:
    handles = [store.put(np.ones(100)) for _ in range(2)]
    assert all(store.get(handle).all() for handle in handles)
    for handle in handles:
        store.drop(handle)
    assert store.stats().live_bytes == 0


def test_a_step_looks_as_it_goes_forward_as_it_goes_backward_and_as_it_ends(
    tmp_path: Path, looks: "queue.SimpleQueue[Callable[[], None]]", monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(trim_memory, "_EVERY_S", 0.0)
    with contextlib.closing(DiskStore(tmp_path, ram_budget=0)) as store:
        for expected in (2, 5):  # nothing was written as the first began
            step(store)
            assert looks.qsize() == expected


def test_short_steps_look_once(
    tmp_path: Path, looks: "queue.SimpleQueue[Callable[[], None]]", monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(trim_memory, "_EVERY_S", 1e6)
    with contextlib.closing(DiskStore(tmp_path, ram_budget=0)) as store:
        step(store)
        step(store)
    assert looks.qsize() == 1


def test_what_stays_in_ram_needs_no_relief(
    tmp_path: Path, looks: "queue.SimpleQueue[Callable[[], None]]", monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(trim_memory, "_EVERY_S", 0.0)
    with contextlib.closing(DiskStore(tmp_path, ram_budget="1MiB")) as store:
        step(store)
    assert looks.empty()


def test_the_longer_relief_took_the_later_comes_the_next(
    looks: "queue.SimpleQueue[Callable[[], None]]", monkeypatch: pytest.MonkeyPatch
):
    times = iter([100.0, 200.0, 200.5, 210.4, 210.6])  # a look, relief from 200 to 200.5, two looks
    monkeypatch.setattr(trim_memory, "time", SimpleNamespace(monotonic=lambda: next(times)))
    monkeypatch.setattr(buffers, "trim_malloc_if_scarce", lambda: None)
    trim_memory.trim_soon()
    looks.get()()
    trim_memory.trim_soon()
    assert looks.empty()
    trim_memory.trim_soon()
    assert not looks.empty()


def test_a_store_goes_on_when_relief_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tried, told = threading.Event(), threading.Event()

    def fail() -> None:
        tried.set()
        raise MemoryError

    monkeypatch.setattr(buffers, "trim_malloc_if_scarce", fail)
    monkeypatch.setattr(threading, "excepthook", lambda failed: told.set())
    monkeypatch.setattr(trim_memory, "_next_trim_s", 0.0)
    with contextlib.closing(DiskStore(tmp_path, ram_budget=0)) as store:
        step(store)
        assert tried.wait(30)
        assert told.wait(30)
        step(store)
