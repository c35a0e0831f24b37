"""A device store keeps its arrays on the device, in the host's RAM or on disk, and gives each back as it is."""

import random
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spillgrad.errors import SpillError
from spillgrad.spill import device_store
from spillgrad.spill.device_store import DeviceEntry, DeviceStore
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.residency.residence import WRITING
from spillgrad.storage.store import Label
from spillgrad_kernels.cuda.array import to_device
from spillgrad_kernels.cuda.driver import driver
from tests.cuda.late_copies import LateCopies
from tests.storage.conftest import arrays_go_only_where_they_may
from tests.storage.interleaving import Interleaving
from tests.waiting import wait_until

__all__ = ["arrays_go_only_where_they_may"]  # a fixture that every test uses

NBYTES = 1000


@pytest.fixture
def host(tmp_path: Path) -> Iterator[DiskStore]:
    store = DiskStore(tmp_path, ram_budget=4 * NBYTES)
    yield store
    store.close()


def values(number: int, nbytes: int = NBYTES) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, nbytes, np.uint8)


class Random:
    """Do random things to a device store, and compare what it gives back with copies on the host."""

    def __init__(self, seed: int, store: DeviceStore) -> None:
        self.rng, self.store, self.number = random.Random(seed), store, seed * 1000
        self.known: dict[DeviceEntry, np.ndarray] = {}
        self.held: list[np.ndarray] = []  # what was got, and is dropped later

    def act(self) -> None:
        choice = self.rng.random()
        del self.held[self.rng.randrange(3) :]
        if choice < 0.3 or not self.known:
            self.put()
        elif choice < 0.6:
            self.check(self.rng.choice(list(self.known)))
        elif choice < 0.75:
            self.change(self.rng.choice([one for one in self.known if one.persistent] or list(self.known)))
        elif choice < 0.9:
            self.drop(self.rng.choice(list(self.known)))
        elif choice < 0.95:
            self.store.begin_step()
        else:
            self.store.flush()

    def put(self) -> None:
        self.number += 1
        array = values(self.number, self.rng.choice([0, 1, NBYTES // 2, NBYTES, 2 * NBYTES]))
        label = Label(str(array.size))
        entry = self.store.put(to_device(array), label=label, persistent=self.rng.random() < 0.5)
        self.known[entry] = array

    def check(self, entry: DeviceEntry) -> None:
        array = self.store.get(entry)
        np.testing.assert_array_equal(array.to_host(), self.known[entry])
        self.held.append(array)

    def change(self, entry: DeviceEntry) -> None:
        if not entry.persistent:
            return
        self.number += 1
        array = self.store.get(entry) if self.rng.random() < 0.5 else self.store.empty(entry.shape, entry.dtype)
        self.store.begin_change(entry, array)
        self.known[entry] = values(self.number, entry.nbytes)
        driver.copy_to_device(array.address, self.known[entry])
        self.store.end_change(entry)

    def drop(self, entry: DeviceEntry) -> None:
        del self.known[entry]
        self.store.drop(entry)

    def end(self) -> None:
        for entry in list(self.known):
            self.drop(entry)
        self.held.clear()


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("device_budget", [0, 3 * NBYTES, 1 << 20])
@pytest.mark.parametrize("ram_budget", [0, 4 * NBYTES, 1 << 20])
@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_done_every_array_is_as_it_was_left(
    tmp_path: Path, ram_budget: int, device_budget: int, seed: int, late: bool, monkeypatch: pytest.MonkeyPatch
):
    if late:
        LateCopies(seed, monkeypatch)
    below = DiskStore(tmp_path, ram_budget=ram_budget)
    store = DeviceStore(below, device_budget)
    doing = Random(seed, store)
    for _ in range(150):
        doing.act()
        held_bytes = sum(array.nbytes for array in doing.held)
        assert late or store.stats()["device_bytes"] <= device_budget + 2 * NBYTES + held_bytes
    for entry in list(doing.known):
        doing.check(entry)
    store.flush()
    assert below.stats().live_bytes == sum(array.nbytes for array in doing.known.values())
    assert below.check() == []
    doing.end()
    driver.synchronize()
    wait_until(lambda: store.stats()["device_bytes"] == below.stats().live_bytes == below.stats().ram_bytes == 0)
    below.close()


@pytest.mark.parametrize(("device_budget", "ram_budget"), [(0, 0), (3 * NBYTES, 4 * NBYTES), (3 * NBYTES, 1 << 20)])
@pytest.mark.parametrize("seed", range(6))
def test_threads_that_do_anything_to_a_device_store_leave_nothing_behind(
    tmp_path: Path, ram_budget: int, device_budget: int, seed: int, monkeypatch: pytest.MonkeyPatch
):
    LateCopies(seed, monkeypatch)
    run = Interleaving(seed, also_traced=[device_store.__file__])

    def work(doing: Random) -> None:
        for _ in range(20):
            doing.act()
            run.progressed()
        doing.end()
        working.remove(doing)
        if not working:
            for _ in range(3):  # what one drop lets go may hold the next
                driver.synchronize()
                stats = store.stats()
            assert (stats["device_bytes"], below.stats().live_bytes) == (0, 0)
            below.close()

    with run.patch(monkeypatch):
        below = DiskStore(tmp_path, ram_budget=ram_budget, direct_io=False)
        store = DeviceStore(below, device_budget)
        working = [Random(seed * 10 + number, store) for number in range(3)]
        run.run(*(partial(work, doing) for doing in list(working)))


def test_what_fits_is_not_copied_to_the_host_before_it_must(host: DiskStore):
    store = DeviceStore(host, 4 * NBYTES)
    entries = [store.put(to_device(values(number))) for number in range(4)]
    assert host.stats().packed_bytes == 0
    entries.append(store.put(to_device(values(4))))
    assert host.stats().packed_bytes == NBYTES  # the one that is needed last
    assert [store.is_here(entry) for entry in entries] == [False, True, True, True, True]


def test_a_persistent_array_goes_to_the_host_once_it_has_new_values(host: DiskStore):
    store = DeviceStore(host, 4 * NBYTES)
    entry = store.put(to_device(values(0)), persistent=True)
    np.testing.assert_array_equal(host.get(entry.below), values(0))
    array = store.get(entry)
    store.begin_change(entry, array)
    driver.copy_to_device(array.address, values(1))
    store.end_change(entry)
    np.testing.assert_array_equal(host.get(entry.below), values(1))
    assert store.get(entry) is array


def test_a_change_that_the_store_is_told_of_is_none_that_a_watcher_finds(
    host: DiskStore, monkeypatch: pytest.MonkeyPatch
):
    class Changed:
        def is_unchanged(self) -> bool:
            return False

    store, watcher = DeviceStore(host, 4 * NBYTES), Changed()
    entry = store.put(to_device(values(0)), persistent=True)
    array = store.get(entry)
    store.watch(entry, array, watcher, instead_of=None)
    store.begin_change(entry, array)
    driver.copy_to_device(array.address, values(1))
    with monkeypatch.context() as patch:
        patch.setattr(DiskStore, "replace", lambda *arguments: (_ for _ in ()).throw(SpillError("full")))
        with pytest.raises(SpillError, match="full"):
            store.end_change(entry)
    np.testing.assert_array_equal(store.get(entry).to_host(), values(1))


def test_backward_finds_the_next_arrays_on_the_device(host: DiskStore):
    store = DeviceStore(host, 2 * NBYTES)
    entries = [store.put(to_device(values(number))) for number in range(6)]
    for number in reversed(range(6)):
        assert store.is_here(entries[number])
        np.testing.assert_array_equal(store.get(entries[number]).to_host(), values(number))
        store.drop(entries[number])
    assert store.stats()["peak_device_bytes"] <= 3 * NBYTES


def test_a_step_like_the_last_keeps_what_is_needed_soonest(host: DiskStore):
    store = DeviceStore(host, 3 * NBYTES)
    entries = [store.put(to_device(values(number)), persistent=True) for number in range(4)]
    copied = []
    for _ in range(4):
        store.begin_step()
        before = host.stats().cache_hits + host.stats().cache_misses
        for entry in (*entries, *reversed(entries)):
            store.get(entry)
        copied.append(host.stats().cache_hits + host.stats().cache_misses - before)
    assert copied[-1] == copied[-2] <= 2  # one array too many, and it is used at the end and the beginning


def test_an_array_changed_while_it_is_copied_to_the_host_is_lost_not_wrong(host: DiskStore):
    store = DeviceStore(host, 0)
    changed: list[int] = []
    entry = store.put(to_device(values(0)), label=Label("exp", "result"), unchanged=lambda: not changed)
    store._state.watch_copy(entry)  # as if that copy were not done
    entry.unchanged_when_sent = lambda: not changed
    changed.append(1)
    with pytest.raises(SpillError, match=r"exp\.result was modified in place"):
        store.get(entry)
    store.drop(entry)


def test_what_the_host_refuses_stays_and_is_sent_later(host: DiskStore, monkeypatch: pytest.MonkeyPatch):
    store = DeviceStore(host, NBYTES)
    first = store.put(to_device(values(0)))
    with monkeypatch.context() as patch:
        patch.setattr(DiskStore, "put", lambda *arguments, **options: (_ for _ in ()).throw(SpillError("full")))
        for _ in range(2):
            with pytest.raises(SpillError, match="full"):
                store.put(to_device(values(1)))
    assert len(store._state.entries) == 1
    second = store.put(to_device(values(2)))
    for entry, number in ((first, 0), (second, 2)):
        np.testing.assert_array_equal(store.get(entry).to_host(), values(number))


def test_an_array_is_not_with_the_host_until_its_sending_has_ended(host: DiskStore, monkeypatch: pytest.MonkeyPatch):
    store, found = DeviceStore(host, 0), []
    put, threads = DiskStore.put, []

    def look(holds: threading.Event) -> None:
        with store._state.lock:
            holds.set()
            time.sleep(0.05)  # the sender waits for the lock
            found.extend((entry.residence, entry.has_copy_below) for entry in store._state.entries.values())

    def put_and_look(*arguments: Any, **options: Any) -> Any:
        handle, holds = put(*arguments, **options), threading.Event()
        threads.append(threading.Thread(target=look, args=(holds,)))
        threads[0].start()
        holds.wait()
        return handle

    monkeypatch.setattr(DiskStore, "put", put_and_look)
    store.put(to_device(values(0)), unchanged=lambda: True)
    threads[0].join()
    assert found == [(WRITING, False)]


def test_a_change_of_an_array_with_gaps_is_none_of_its_copy(host: DiskStore):
    store, changed = DeviceStore(host, 4 * NBYTES), []
    array = to_device(values(0, 2 * NBYTES))[::2]
    entry = store.put(array, unchanged=lambda: not changed)
    del array
    changed.append(1)
    np.testing.assert_array_equal(store.get(entry).to_host(), values(0, 2 * NBYTES)[::2])
    held = store.get(entry)
    store.drop(entry)
    assert store.stats()["device_bytes"] == NBYTES  # the store made it
    del held
    assert store.stats()["device_bytes"] == 0


def test_what_changes_a_copy_that_only_the_store_had_waits_until_the_host_has_it(
    host: DiskStore, monkeypatch: pytest.MonkeyPatch
):
    store, waited_for = DeviceStore(host, 4 * NBYTES), []
    entry = store.put(to_device(values(0, 2 * NBYTES))[::2])
    with monkeypatch.context() as patch:
        patch.setattr(driver.calls, "is_done", lambda event: False)
        patch.setattr(driver.calls, "hold", lambda stream, event: waited_for.append((stream, event)))
        store.flush()
        waited_for.clear()
        store.get(entry)
        assert waited_for == [(driver.compute().handle, entry.sent.done._handle)]


def test_what_is_copied_ahead_waits_for_no_copy_to_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    host = DiskStore(tmp_path, ram_budget="1MiB")
    store, waits = DeviceStore(host, 2 * NBYTES), []
    with monkeypatch.context() as patch:
        patch.setattr(driver.calls, "is_done", lambda event: False)
        patch.setattr(driver.calls, "wait_for", waits.append)
        entries = [store.put(to_device(values(number))) for number in range(4)]
        for entry in (entries[3], entries[2]):
            store.get(entry)
            store.drop(entry)
        found = list(waits)
    store.get(entries[1])
    assert store.is_here(entries[0])
    host.close()
    assert found == []


def test_a_device_that_fails_leaves_no_array_in_between(host: DiskStore, monkeypatch: pytest.MonkeyPatch):
    store = DeviceStore(host, NBYTES)
    entries = [store.put(to_device(values(number))) for number in range(2)]
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="the device failed"):
        patch.setattr(store._state.copies, "let_go", lambda: (_ for _ in ()).throw(RuntimeError("the device failed")))
        store.get(entries[0])
    np.testing.assert_array_equal(store.get(entries[0]).to_host(), values(0))
