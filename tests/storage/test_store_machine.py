"""Random interleavings of everything a store does, against a dictionary in RAM."""

import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from spillgrad.errors import SpillError
from spillgrad.storage.disk.spans import digest_bytes
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.memory_store import MemoryStore
from spillgrad.storage.store import Handle

Stored = tuple[Handle, Handle]  # in the disk store, and in the memory store
BUDGETS = [0, 5_000, 60_000, 1_000_000]
LARGEST = 40_000


class StoreMachine(RuleBasedStateMachine):
    """Every rule does the same to a disk store and to a memory store, and compares."""

    directory: Path
    stored = Bundle("stored")
    held = Bundle("held")
    persistent = Bundle("persistent")
    changing = Bundle("changing")

    @initialize(budget=st.sampled_from(BUDGETS), codec=st.sampled_from([None, "lossless"]), encrypt=st.booleans())
    def make(self, budget: int, codec: str | None, encrypt: bool) -> None:
        self.disk = DiskStore(
            self.directory, ram_budget=budget, segment_bytes=100_000, codec=codec, encrypt=encrypt,
            keep_journal=self.directory.with_name("run.jsonl"),
        )  # fmt: skip
        self.memory = MemoryStore()
        self.made = self.largest_held = 0
        self.borrowed: list[np.ndarray] = []
        self.changing_bytes = self.digests_bytes = 0

    @rule(target=stored, nbytes=st.integers(0, LARGEST), key=st.none() | st.integers(0, 3))
    def put(self, nbytes: int, key: int | None) -> Stored:
        self.made += 1
        # What has the same key must have the same bytes.
        array = np.full(nbytes if key is None else 1000 * key, self.made if key is None else key, np.uint8)
        return self.disk.put(array, key=key), self.memory.put(array, key=key)

    @rule(target=held, pair=stored)
    def get(self, pair: Stored) -> tuple[np.ndarray | None, np.ndarray | None]:
        try:
            wanted = self.memory.get(pair[1])
        except SpillError:
            with pytest.raises(SpillError, match="not in this store"):
                self.disk.get(pair[0])
            return None, None
        got = self.disk.get(pair[0])
        np.testing.assert_array_equal(got, wanted)
        self.borrowed.append(got)
        return got, wanted.copy()

    @rule(pair=held)
    def what_was_got_stays_the_same(self, pair: tuple[np.ndarray, np.ndarray]) -> None:
        if pair[0] is not None:
            np.testing.assert_array_equal(*pair)

    @rule(pair=stored)
    def drop_one_of_several(self, pair: Stored) -> None:
        """The handle stays known here: later rules use it after its end."""
        self.disk.drop(pair[0])
        self.memory.drop(pair[1])

    @rule(pair=consumes(stored))
    def drop(self, pair: Stored) -> None:
        self.drop_one_of_several(pair)

    @rule(pairs=st.lists(stored, max_size=4))
    def prefetch(self, pairs: list[Stored]) -> None:
        try:
            for pair in pairs:
                self.memory.get(pair[1])
        except SpillError:
            with pytest.raises(SpillError, match="not in this store"):
                self.disk.prefetch([pair[0] for pair in pairs])
        else:
            self.disk.prefetch([pair[0] for pair in pairs])

    @rule(target=persistent, nbytes=st.integers(0, LARGEST))
    def put_persistent(self, nbytes: int) -> Stored:
        self.made += 1
        array = np.full(nbytes, self.made % 251, np.uint8)
        return self.disk.put(array, persistent=True), self.memory.put(array.copy(), persistent=True)

    @rule(pair=persistent)
    def get_persistent(self, pair: Stored) -> None:
        np.testing.assert_array_equal(self.disk.get(pair[0]), self.memory.get(pair[1]))

    @rule(pair=persistent, edges=st.lists(st.integers(0, LARGEST), max_size=8, unique=True))
    def get_parts_of_persistent(self, pair: Stored, edges: list[int]) -> None:
        wanted = self.memory.get(pair[1])
        cut = sorted(edge for edge in edges if edge <= wanted.size)
        spans = np.array(cut[: len(cut) // 2 * 2], np.int64).reshape(-1, 2)
        got = np.empty(int((spans[:, 1] - spans[:, 0]).sum()), np.uint8)
        self.disk.read_spans(pair[0], spans, got)
        parts = [wanted[first:last] for first, last in spans]
        np.testing.assert_array_equal(got, np.concatenate([wanted[:0], *parts]))
        self.digests_bytes += digest_bytes(LARGEST)

    @rule(target=changing, pair=consumes(persistent))
    def begin_change(self, pair: Stored) -> tuple[Stored, np.ndarray]:
        self.made += 1
        arrays = []
        for store, handle in zip((self.disk, self.memory), pair, strict=True):
            array = store.get(handle)
            store.begin_change(handle, array)
            array[: self.made] = self.made % 251
            arrays.append(array)
        self.changing_bytes += arrays[0].nbytes
        return pair, arrays[0]

    @rule(target=persistent, changed=consumes(changing))
    def end_change(self, changed: tuple[Stored, np.ndarray]) -> Stored:
        pair, array = changed
        assert self.disk.get(pair[0]) is array
        self.disk.end_change(pair[0])
        self.memory.end_change(pair[1])
        self.changing_bytes -= array.nbytes
        self.borrowed.append(array)  # this test's bundles hold it
        return pair

    @rule(pair=consumes(persistent))
    def drop_persistent(self, pair: Stored) -> None:
        self.drop_one_of_several(pair)

    @rule()
    def begin_step(self) -> None:
        self.disk.begin_step()

    @rule()
    def flush(self) -> None:
        self.disk.flush()

    @rule()
    def check(self) -> None:
        assert self.disk.check() == []

    @invariant()
    def the_accounts_agree(self) -> None:
        if hasattr(self, "disk"):
            disk, memory = self.disk.stats(), self.memory.stats()
            for name in ("packed_bytes", "deduplicated_bytes", "live_bytes"):
                assert getattr(disk, name) == getattr(memory, name)
            borrowed = sum(array.nbytes for array in self.borrowed)
            beside = borrowed + self.changing_bytes + self.digests_bytes
            assert disk.ram_bytes <= self.disk.ram_budget + beside + LARGEST
            with self.disk._state.lock:
                in_ram = self.disk._state.counters._ram
                assert in_ram is not None
                assert sum(in_ram.values()) == self.disk._state.tier.used_bytes
                assert min(in_ram.values(), default=1) > 0

    def teardown(self) -> None:
        if hasattr(self, "disk"):
            self.disk.close()
            assert self.disk.stats().live_bytes == 0


def test_a_disk_store_does_what_a_memory_store_does(directory: Path):
    StoreMachine.directory = directory
    run_state_machine_as_test(
        StoreMachine,
        settings=settings(
            max_examples=150,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("budget", BUDGETS)
def test_threads_that_do_anything_to_a_store_leave_its_account_at_zero(
    make_store: Callable[..., DiskStore], budget: int, tmp_path: Path
):
    store = make_store(budget, segment_bytes=300_000, keep_journal=tmp_path / "run.jsonl")
    failures: list[BaseException] = []
    shared = [store.put(np.full(5000, i, np.uint8), key=("shared", i)) for i in range(4)]

    def work(seed: int) -> None:
        rng = random.Random(seed)
        mine: list[tuple[Handle, int, int]] = []
        held: list[np.ndarray] = []
        for i in range(600):
            choice = rng.random()
            if choice < 0.35 or not mine:
                nbytes = rng.choice([0, 10, 4096, rng.randrange(LARGEST)])
                mine.append((store.put(np.full(nbytes, i % 251, np.uint8)), i % 251, nbytes))
            elif choice < 0.6:
                handle, value, nbytes = rng.choice(mine)
                part = np.empty(nbytes // 2, np.uint8)
                store.read_spans(handle, np.array([[nbytes - part.size, nbytes]]), part)
                assert (part == value).all()
                held.append(store.get(handle))
                assert held[-1].shape == (nbytes,)
                assert (held[-1] == value).all()
            elif choice < 0.8:
                store.drop(mine.pop(rng.randrange(len(mine)))[0])
            elif choice < 0.9:
                store.prefetch([handle for handle, _, _ in rng.choices(mine, k=3)])
                store.drop(mine.pop()[0])
            elif choice < 0.96:
                k = rng.randrange(4)
                again = store.put(np.full(5000, k, np.uint8), key=("shared", k))
                assert again is shared[k]
                assert (store.get(shared[k]) == k).all()
                store.drop(again)
            elif choice < 0.98:
                store.flush()
            else:
                assert store.check() == []
            while len(held) > rng.randrange(4):
                held.pop(0)
        for handle, _, _ in mine:
            store.drop(handle)

    def report(seed: int) -> None:
        try:
            work(seed)
        except BaseException as error:
            failures.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # threads meet more often in the middle of things
    try:
        threads = [threading.Thread(target=report, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    for handle in shared:
        store.drop(handle)
    assert failures == []
    deadline = time.monotonic() + 10
    while (
        store.stats().ram_bytes or store._state.readers
    ) and time.monotonic() < deadline:  # one may be on its way to or from the disk
        time.sleep(0.002)
    assert_everything_is_back(store)


def assert_everything_is_back(store: DiskStore) -> None:
    stats, state = store.stats(), store._state
    tier = state.tier
    assert (stats.live_bytes, stats.ram_bytes) == (0, 0)
    assert (tier.pinned_bytes, tier.dirty.nbytes, state.readers, store._room.waiting_puts) == (0, 0, 0, 0)
    assert [len(entries) for entries in (tier.dirty, tier.clean, tier.absent)] == [0, 0, 0]
    assert (state.entries, state.counters._ram) == ({}, {})
