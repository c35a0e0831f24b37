"""Whoever waits for a store is woken, in whatever order its threads go on."""

import gc
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from spillgrad.storage.disk.entry import DiskEntry
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.store import Handle
from spillgrad.storage.threads.loader import Loader
from tests.storage.interleaving import Interleaving
from tests.waiting import wait_until

BUDGET = 1000
LARGEST = 700


@pytest.fixture(autouse=True)
def no_collection_comes_at_a_moment_of_its_own() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def run_beside_each_other(
    directory: Path, monkeypatch: pytest.MonkeyPatch, seed: int, *works: Callable[[DiskStore, Interleaving], None]
) -> None:
    """Have threads work with one store, and the last of them close it."""
    run = Interleaving(seed)
    left = list(works)

    def main(work: Callable[[DiskStore, Interleaving], None]) -> None:
        work(store, run)
        left.remove(work)
        if not left:
            store.close()

    with run.patch(monkeypatch):
        store = DiskStore(directory, ram_budget=BUDGET, direct_io=False)
        run.run(*(lambda work=work: main(work) for work in works))


class DoAnything:
    """Do random things to a store, and check what it gives back."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def __call__(self, store: DiskStore, run: Interleaving) -> None:
        rng = self._random
        mine: list[tuple[Handle, int]] = []
        held: list[np.ndarray] = []
        for i in range(rng.randrange(3, 15)):
            choice = rng.random()
            if choice < 0.45 or not mine:
                mine.append((store.put(np.full(rng.randrange(LARGEST), i, np.uint8)), i))
            elif choice < 0.7:
                handle, value = rng.choice(mine)
                held.append(store.get(handle))
                assert (held[-1] == value).all()
            elif choice < 0.85:
                store.drop(mine.pop(rng.randrange(len(mine)))[0])
            elif choice < 0.93:
                store.prefetch([handle for handle, _ in rng.choices(mine, k=2)])
            elif choice < 0.97:
                store.flush()
            else:
                with store.room(rng.randrange(LARGEST)):
                    run.switch()
            while len(held) > rng.randrange(3):
                run.switch()
                held.pop(0)
            run.progressed()
        for handle, _ in mine:
            store.drop(handle)
        run.switch()
        held.clear()


@pytest.mark.parametrize("seed", range(40))
def test_threads_that_do_anything_to_a_store_all_come_to_their_end(
    directory: Path, monkeypatch: pytest.MonkeyPatch, seed: int
):
    run_beside_each_other(directory, monkeypatch, seed, DoAnything(2 * seed), DoAnything(2 * seed + 1))


@pytest.mark.parametrize("seed", range(10))
def test_after_a_change_only_what_callers_hold_exceeds_the_budget(
    directory: Path, monkeypatch: pytest.MonkeyPatch, seed: int
):
    def change(store: DiskStore, run: Interleaving) -> None:
        handles = [store.put(np.zeros(2 * BUDGET, np.uint8), persistent=True) for _ in range(2)]
        first, second = arrays = [store.get(handle) for handle in handles]
        for handle, array in zip(handles, arrays, strict=True):
            store.begin_change(handle, array)
        del first, array, arrays[:]
        for handle in handles:
            store.end_change(handle)
            assert store.ram_bytes == second.nbytes
            run.progressed()
        del second
        assert store.stats().ram_bytes == 0

    run_beside_each_other(directory, monkeypatch, seed, change)


@pytest.mark.parametrize("seed", range(40))
def test_an_array_may_be_got_while_a_watched_change_begins_and_ends(
    directory: Path, monkeypatch: pytest.MonkeyPatch, seed: int
):
    handles: list[Handle] = []
    version = [0]

    def change(store: DiskStore, run: Interleaving) -> None:
        array = np.zeros(LARGEST, np.uint8)
        handle = store.put(array, unchanged=lambda: version == [0], persistent=True)
        if seed % 2:
            store.flush()
        handles.append(handle)
        store.begin_change(handle, array)
        array[:] = version[0] = 1
        run.switch()
        store.end_change(handle)
        assert (store.get(handle) == 1).all()
        version[0] = 2

    def get(store: DiskStore, run: Interleaving) -> None:
        while version[0] < 2:
            array = store.get(handles[0]) if handles else np.zeros(1)
            assert array.min() == array.max() <= version[0]
            run.progressed()
            run.switch()

    run_beside_each_other(directory, monkeypatch, seed, change, get)


@pytest.mark.parametrize("seed", range(40))
def test_whoever_waits_for_room_is_woken_when_an_array_that_was_read_back_dies(
    directory: Path, monkeypatch: pytest.MonkeyPatch, seed: int
):
    borrowed: list[np.ndarray] = []
    has_room: list[bool] = []

    def wait_for_room(store: DiskStore, run: Interleaving) -> None:
        handles = [store.put(np.zeros(400, np.uint8))]
        store.flush()
        store.drop(store.put(np.zeros(900, np.uint8)))  # which evicts it
        borrowed.append(store.get(handles[0]))
        handles += [store.put(np.zeros(500, np.uint8)) for _ in range(2)]
        has_room.append(True)
        for handle in handles:
            store.drop(handle)

    def let_it_die(store: DiskStore, run: Interleaving) -> None:
        while not (has_room or (borrowed and store._room.waiting_puts)):
            run.switch()
        for _ in range(random.Random(seed).randrange(60)):
            run.switch()
        borrowed.clear()

    run_beside_each_other(directory, monkeypatch, seed, wait_for_room, let_it_die)


def test_an_array_that_left_while_a_caller_slept_is_not_read_by_two_threads(
    make_store: Callable[..., DiskStore], monkeypatch: pytest.MonkeyPatch
):
    """Before the caller that waited for a prefetch has the lock again, the array is evicted and prefetched anew."""
    store = make_store(100_000)
    state = store._state
    handle = store.put(np.arange(5_000))
    store.flush()
    with state.lock:
        state.tier.make_room(100_000)
    read, wait, may_read = Loader.read, DiskStore._wait_for_load, threading.Event()

    def read_later(loader: Loader, entry: DiskEntry) -> np.ndarray:
        assert may_read.wait(60)
        return read(loader, entry)

    def wait_and_sleep(store: DiskStore, entry: DiskEntry) -> None:
        wait(store, entry)
        monkeypatch.setattr(DiskStore, "_wait_for_load", wait)
        assert state.tier.make_room(100_000)
        store._prefetcher._requested[entry] = None
        state.load_waits = True  # so the next thread that takes the lock begins to load it

    monkeypatch.setattr(Loader, "read", read_later)
    monkeypatch.setattr(DiskStore, "_wait_for_load", wait_and_sleep)
    store.prefetch([handle])
    got: list[np.ndarray] = []
    caller = threading.Thread(target=lambda: got.append(store.get(handle)))
    caller.start()
    wait_until(lambda: len(state.changed._waiters) == 1)  # type: ignore[attr-defined]
    may_read.set()
    caller.join()
    np.testing.assert_array_equal(got[0], np.arange(5_000))
    assert store.stats().read_bytes == 2 * handle.nbytes
    got.clear()
    assert store.stats().ram_bytes <= handle.nbytes
