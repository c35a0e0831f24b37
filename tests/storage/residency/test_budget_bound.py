"""The budget at every moment: every byte alive on the store's behalf is counted, not believed."""

import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.store import Handle
from spillgrad_kernels.memory import buffers
from tests.waiting import wait_until

MakeStore = Callable[..., DiskStore]

SHAPES = [(40, 1000), (25, 1024), (120_001,), (3, 7, 1111)]
LARGEST = max(int(np.prod(shape)) for shape in SHAPES) * 4
ARRAYS = 24
SLOW_BYTES_PER_S = 100e6
LAYOUTS: dict[str, Callable[..., np.ndarray]] = {
    "kept as put": lambda empty, shape: empty(shape, np.float32),
    "kept as a copy": lambda empty, shape: empty(shape[::-1], np.float32).T,
}
NEED = sum(int(np.prod(SHAPES[i % len(SHAPES)])) * 4 for i in range(ARRAYS))


class CountingAllocator:
    """Makes the arrays of a test and of its store, and notes whenever too many bytes are alive.

    What a thread is making, putting or using at a moment is `in_hand`, and its own; all else that is alive is held by
    the store. Bytes begin to live only in an allocation and leave a hand only in `let_go`: looking then misses nothing.
    """

    def __init__(self) -> None:
        self.in_hand = self.most_held_bytes = 0
        self._arrays: list[tuple[weakref.ref[np.ndarray], int]] = []
        self._lock = threading.Lock()
        self._empty = buffers.empty

    def empty(self, shape: Any, dtype: Any) -> np.ndarray:
        with self._lock:
            array = self._empty(shape, dtype)
            self._arrays.append((weakref.ref(array), array.nbytes))
            self._look()
            return array

    def take(self, nbytes: int) -> None:
        with self._lock:
            self.in_hand += nbytes

    def let_go(self, nbytes: int) -> None:
        with self._lock:
            self.in_hand -= nbytes
            self._look()

    def _look(self) -> None:
        self._arrays = [(array, nbytes) for array, nbytes in self._arrays if array() is not None]
        held_bytes = sum(nbytes for _, nbytes in self._arrays) - self.in_hand
        self.most_held_bytes = max(self.most_held_bytes, held_bytes)


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def slow_down() -> None:
        for name in ("pwritev", "preadv"):
            call = getattr(os, name)

            def late(fd: int, buffers: list[Any], place: int, call: Callable[..., int] = call) -> int:
                time.sleep(sum(map(len, buffers)) / SLOW_BYTES_PER_S)
                return call(fd, buffers, place)

            monkeypatch.setattr(os, name, late)

    return slow_down


@pytest.mark.parametrize("disk", ["fast", "slow"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("budget", [0, LARGEST, NEED // 3])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_what_the_store_holds_never_exceeds_the_budget(
    make_store: MakeStore,
    monkeypatch: pytest.MonkeyPatch,
    slow_disk: Callable[[], None],
    budget: int,
    threads: int,
    disk: str,
    layout: Callable[..., np.ndarray],
):
    allocator = CountingAllocator()
    monkeypatch.setattr(buffers, "empty", allocator.empty)
    if disk == "slow":
        slow_disk()
    store = make_store(budget)
    failures: list[BaseException] = []
    wanted = [np.random.default_rng(i).random(SHAPES[i % len(SHAPES)], np.float32) for i in range(ARRAYS)]

    def forward(part: range) -> list[Handle]:
        handles = []
        for i in part:
            allocator.take(wanted[i].nbytes)
            array = layout(allocator.empty, wanted[i].shape)
            array[:] = wanted[i]
            handles.append(store.put(array))
            del array
            allocator.let_go(wanted[i].nbytes)
        return handles

    def backward(part: range, handles: list[Handle]) -> None:
        for i in reversed(part):
            allocator.take(wanted[i].nbytes)
            array = store.get(handles[-1])
            assert (array == wanted[i]).all()
            store.drop(handles.pop())
            del array
            allocator.let_go(wanted[i].nbytes)

    def work(part: range) -> None:
        try:
            for _ in range(3):
                backward(part, forward(part))
        except BaseException as error:
            failures.append(error)

    share = ARRAYS // threads
    workers = [threading.Thread(target=work, args=(range(i * share, (i + 1) * share),)) for i in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failures == []
    assert store.stats().read_bytes > 0
    assert allocator.most_held_bytes <= store.stats().peak_ram_bytes
    # Only what is copied, for which there is no room, may be more: as much as is put at once.
    copied_bytes = threads * LARGEST if LAYOUTS["kept as a copy"] is layout and budget <= LARGEST else 0
    assert allocator.most_held_bytes <= budget + copied_bytes
    # Not by keeping nothing: what was asked of the disk is less than all when there is room.
    assert (store.stats().cache_hits > 0) == (budget > 0)
    wait_until(lambda: store.stats().ram_bytes == 0)


@pytest.mark.exhaustive
def test_an_array_of_more_than_2_gib_comes_back(make_store: MakeStore):
    store = make_store(0)
    # Untouched pages cost no memory until they are read back.
    array = np.zeros((2101 << 20) // 8 + 5)
    places = [0, 1, (1 << 28) - 1, 1 << 28, (1 << 28) + 1, array.size - 1]  # around byte 2^31
    array[places] = values = np.arange(1.0, len(places) + 1)
    handle = store.put(array)
    del array
    back = store.get(handle)
    assert back.shape == ((2101 << 20) // 8 + 5,)
    np.testing.assert_array_equal(back[places], values)
    assert np.count_nonzero(back) == len(places)
    assert store.stats().ram_bytes == back.nbytes


def test_what_is_asked_for_against_the_plan_gets_its_room(make_store: MakeStore, slow_disk: Callable[[], None]):
    unit = 256 << 10
    store = make_store(ram_budget=17 * unit)
    first, large = (store.put(np.ones(nbytes, np.uint8), persistent=True) for nbytes in (4096, 16 * unit))
    others = [store.put(np.ones(unit, np.uint8), persistent=True) for _ in range(40)]
    store.flush()
    for _ in range(2):  # steps to learn from
        store.begin_step()
        for handle in (first, *others):
            store.get(handle)
    slow_disk()
    for _ in range(3):
        store.begin_step()
        store.get(first)  # from here on others are loaded ahead, two at a time, and fill the budget
        wait_until(lambda: store.stats().ram_bytes > 12 * unit)
        read_bytes = store.stats().read_bytes
        thread = threading.Thread(target=store.get, args=(large,), daemon=True)
        thread.start()
        thread.join(10)
        assert not thread.is_alive()
        # Those under way, the large one, and what has begun after it.
        assert store.stats().read_bytes - read_bytes <= large.nbytes + 8 * unit
