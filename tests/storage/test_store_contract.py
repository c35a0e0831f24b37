"""What every store must do, whatever it keeps its arrays in."""

import gc
import random
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from spillgrad.errors import SpillError
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.memory_store import MemoryStore
from spillgrad.storage.store import Label, Store
from tests.waiting import wait_until

STORES: dict[str, Callable[[Path], Store]] = {
    "memory": lambda directory: MemoryStore(),
    "disk, unchecked": lambda directory: DiskStore(directory, ram_budget=0, checksums=False),
    "disk, little in RAM": lambda directory: DiskStore(directory, ram_budget="100KiB"),
    "disk, past the page cache": lambda directory: DiskStore(directory, ram_budget=0, direct_io=True),
    "disk, through the page cache": lambda directory: DiskStore(directory, ram_budget=0, direct_io=False),
    "disk, compressed": lambda directory: DiskStore(directory, ram_budget=0, codec="lossless"),
    "disk, encrypted": lambda directory: DiskStore(directory, ram_budget="100KiB", encrypt=True),
    "disk, compressed and encrypted": lambda directory: DiskStore(
        directory, ram_budget=0, codec="lossless", encrypt=True
    ),
    "disk, all in RAM": lambda directory: DiskStore(directory, ram_budget="1GiB"),
}

RNG = np.random.default_rng(0)
DTYPES = [
    *("bool", "int8", "uint8", "int16", "int32", "int64", "uint64", "float16", "float32", "float64", "longdouble"),
    *("complex64", "complex128", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ">f4", "M8[s]", "U5", "V3"),
]
SHAPES = [
    (),
    (0,),
    (3, 0, 2),
    (1,),
    (1023,),
    (1025, 4),
    (3, 5, 7),
    (2, 300, 128),
    (7, 100_003),
    (1, 1, 1, 1),
    (1000, 41),
]
LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Fortran order": np.asfortranarray,
    "transposed": lambda a: a.T,
    "every second": lambda a: a[:, ::2],
    "backwards": lambda a: a[::-1, ::-1],
    "expanded": lambda a: np.broadcast_to(a, (3, *a.shape)),
    "read-only": lambda a: np.frombuffer(a.tobytes()),
    "a slice": lambda a: a[2:5],
}


class Remote:
    """An array elsewhere, which comes a while after it was asked for."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values
        self.shape, self.dtype, self.nbytes = values.shape, values.dtype, values.nbytes
        self._host = np.zeros_like(values)
        self._arrived = threading.Event()

    def fetch(self) -> tuple[np.ndarray, Callable[[], None]]:
        threading.Timer(0.02, self._arrive).start()
        return self._host, self._wait

    def _arrive(self) -> None:
        self._host[:] = self.values
        self._arrived.set()

    def _wait(self) -> None:
        assert self._arrived.wait(60)


def some_array(dtype: object = "float32", shape: tuple[int, ...] = (1000,)) -> np.ndarray:
    dtype = np.dtype(dtype)  # type: ignore[call-overload]
    nbytes = int(np.prod(shape)) * dtype.itemsize
    if dtype.kind in "bU":
        return RNG.integers(0, 2, shape).astype(dtype)
    return np.frombuffer(bytearray(RNG.bytes(nbytes)), dtype).reshape(shape)


def assert_same_bytes(got: np.ndarray, wanted: np.ndarray) -> None:
    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
    assert got.tobytes() == wanted.tobytes()


@pytest.fixture
def store(kind: str, directory: Path) -> Iterator[Store]:
    store = STORES[kind](directory)
    yield store
    store.close()


@pytest.mark.parametrize("kind", STORES)
class TestEveryStore:
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_an_array_of_any_dtype_comes_back(self, store: Store, dtype: object):
        arrays = [some_array(dtype, shape) for shape in [(), (0,), (17, 5), (30_000,)]]
        handles = [store.put(array) for array in arrays]
        for handle, array in zip(handles, arrays, strict=True):
            assert_same_bytes(store.get(handle), array)

    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    def test_an_array_of_any_shape_comes_back(self, store: Store, shape: tuple[int, ...]):
        array = some_array("int16", shape)
        handle = store.put(array)
        store.flush()
        assert_same_bytes(store.get(handle), array)

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_an_array_of_any_layout_comes_back(self, store: Store, layout: str):
        array = LAYOUTS[layout](some_array("float64", (50, 400)))
        got = store.get(store.put(array))
        np.testing.assert_array_equal(got.view(np.uint64), np.ascontiguousarray(array).view(np.uint64))
        assert got.flags.writeable

    def test_arrays_come_back_in_any_order(self, store: Store):
        arrays = [some_array(shape=(n,)) for n in RNG.integers(1, 50_000, 30)]
        handles = [store.put(array, label=Label("mul", "self", "net.0", 3)) for array in arrays]
        for i in RNG.permutation(30):
            assert_same_bytes(store.get(handles[i]), arrays[i])
            store.drop(handles[i])

    def test_who_asks_twice_while_holding_the_array_shares_it(self, store: Store):
        handle = store.put(some_array(shape=(30_000,)))
        for _ in range(3):
            first = store.get(handle)
            assert np.shares_memory(first, store.get(handle))
            del first

    def test_a_dropped_handle_frees_its_bytes(self, store: Store):
        handles = [store.put(some_array(shape=(10_000,))) for _ in range(4)]
        store.flush()
        assert store.stats().live_bytes == 160_000
        for handle in handles:
            store.drop(handle)
        stats = store.stats()
        assert (stats.live_bytes, stats.ram_bytes, stats.packed_bytes) == (0, 0, 160_000)

    def test_a_key_is_stored_once_and_freed_after_its_last_reference(self, store: Store):
        array = some_array(shape=(10_000,))
        first, second = store.put(array, key=("storage", 1)), store.put(array, key=("storage", 1))
        other = store.put(array, key=("storage", 2))
        assert first is second
        assert other is not first
        stats = store.stats()
        assert (stats.packed_bytes, stats.deduplicated_bytes, stats.live_bytes) == (120_000, 40_000, 80_000)
        store.drop(first)
        assert_same_bytes(store.get(second), array)
        store.drop(second)
        assert store.stats().live_bytes == 40_000
        assert store.put(array, key=("storage", 1)) is not first

    def test_a_dropped_or_foreign_handle_is_refused(self, store: Store):
        handle = store.put(some_array(), label=Label("mul", "other"))
        store.drop(handle)
        store.drop(handle)
        kept = store.put(some_array())
        with pytest.raises(SpillError, match=r"get: mul\.other is not in this store"):
            store.get(handle)
        with MemoryStoreOf(some_array()) as (_, foreign), pytest.raises(SpillError, match="not in this store"):
            store.get(foreign)
        assert store.stats().live_bytes == kept.nbytes

    def test_an_array_changed_later_raises_or_comes_back_as_it_was(self, store: Store):
        for _ in range(20):
            array = some_array("int32", (30_000,))
            before, version = array.copy(), [0]
            handle = store.put(array, label=Label("exp", "result"), unchanged=lambda version=version: version[0] == 0)
            version[0] = 1
            array += 1
            try:
                assert_same_bytes(store.get(handle), before)
            except SpillError as error:
                assert "exp.result was modified in place" in str(error)
            store.drop(handle)

    def test_python_objects_are_refused(self, store: Store):
        with pytest.raises(SpillError, match="dtype object"):
            store.put(np.array([object()]))

    def test_finalizers_may_drop_handles_at_any_moment(self, store: Store):
        class Holder:
            def __init__(self) -> None:
                self.me = self  # only the collector frees it, in the middle of anything
                weakref.finalize(self, store.drop, store.put(some_array(shape=(5000,)))).atexit = False

        threshold = gc.get_threshold()
        gc.set_threshold(3)
        try:
            threads = [threading.Thread(target=lambda: [Holder() for _ in range(60)]) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            gc.set_threshold(*threshold)
        # A collection that another thread is in the middle of makes `gc.collect` return at once.
        wait_until(lambda: store.stats().live_bytes == 0)

    def test_threads_do_not_disturb_each_other(self, store: Store):
        failures: list[BaseException] = []

        def work(seed: int) -> None:
            rng = random.Random(seed)
            kept = []
            try:
                for i in range(60):
                    array = np.full(rng.randrange(1, 20_000), seed * 1000 + i, np.int32)
                    kept.append((store.put(array, key=(seed, i)), array))
                    if rng.random() < 0.5:
                        handle, array = kept.pop(rng.randrange(len(kept)))
                        assert_same_bytes(store.get(handle), array)
                        store.drop(handle)
                    store.prefetch([handle for handle, _ in kept[:2]])
                for handle, array in reversed(kept):
                    assert_same_bytes(store.get(handle), array)
                    store.drop(handle)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert store.stats().live_bytes == 0

    def test_a_sound_store_checks_clean(self, store: Store):
        for n in (0, 1, 70_000):
            store.put(some_array(shape=(n,)))
        store.flush()
        assert store.check() == []

    def test_a_closed_store_refuses_all_but_drop_and_close(self, store: Store):
        array = some_array(shape=(30_000,))
        handle = store.put(array)
        got = store.get(handle)
        store.close()
        store.close()
        store.drop(handle)
        for call in (lambda: store.put(array), lambda: store.get(handle)):
            with pytest.raises(SpillError, match="the store is closed"):
                call()
        assert_same_bytes(got, array)
        assert store.stats().live_bytes == 0

    def test_a_retired_store_closes_with_its_last_handle(self, store: Store):
        first, second = store.put(some_array()), store.put(some_array())
        store.retire()
        store.drop(first)
        store.get(second)
        store.drop(second)
        with pytest.raises(SpillError, match="the store is closed"):
            store.put(some_array())


class MemoryStoreOf:
    """Another store, with one array in it."""

    def __init__(self, array: np.ndarray) -> None:
        self.store = MemoryStore()
        self.handle = self.store.put(array)

    def __enter__(self) -> tuple[MemoryStore, object]:
        return self.store, self.handle

    def __exit__(self, *error: object) -> None:
        self.store.close()


@pytest.mark.parametrize("kind", STORES)
class TestLastingArrays:
    def test_a_changed_array_comes_back_as_it_is_now(self, store: Store):
        first, other = some_array(shape=(5000,)), some_array(shape=(5000,))
        handle, untouched = store.put(first, persistent=True), store.put(other, persistent=True)
        wanted, others = first.copy(), other.copy()
        del first, other
        for i in range(4):
            array = store.get(handle)
            store.begin_change(handle, array)
            array[i] = wanted[i] = i
            assert store.get(handle) is array
            store.end_change(handle)
            del array
            if i % 2:
                store.flush()
            assert_same_bytes(store.get(handle), wanted)
            assert_same_bytes(store.get(untouched), others)
        assert store.check() == []

    def test_an_array_that_did_not_change_after_all_is_not_written_again(self, store: Store):
        array = some_array(shape=(5000,))
        wanted = array.copy()
        handle = store.put(array, persistent=True)
        for was_written in (False, True):
            written_bytes = store.stats().written_bytes
            store.begin_change(handle, array)
            store.end_change(handle, changed=False)
            store.flush()
            assert store.stats().written_bytes == written_bytes or not was_written
            assert_same_bytes(store.get(handle), wanted)
        assert store.check() == []

    @pytest.mark.parametrize("read_ahead", [False, True])
    def test_an_array_that_is_overwritten_may_be_another_one(self, store: Store, read_ahead: bool):
        handle = store.put(some_array(shape=(5000,)), persistent=True)
        store.flush()
        if read_ahead:
            store.prefetch([handle])
        other = np.empty(handle.shape, handle.dtype)
        store.begin_change(handle, other)
        other[:] = 4
        store.end_change(handle)
        del other
        store.flush()
        assert (store.get(handle) == 4).all()
        assert store.check() == []

    @pytest.mark.parametrize("is_written", [False, True])
    def test_a_remote_array_is_there_when_it_has_arrived(self, store: Store, is_written: bool):
        first, second = Remote(some_array(shape=(5000,))), Remote(some_array(shape=(5000,)))
        handle = store.put(first, persistent=True)
        if is_written:
            store.flush()
        assert_same_bytes(store.get(handle), first.values)
        store.replace(handle, second)
        assert_same_bytes(store.get(handle), second.values)
        store.flush()
        assert_same_bytes(store.get(handle), second.values)
        assert store.check() == []

    @pytest.mark.parametrize("is_written", [False, True])
    @pytest.mark.parametrize("is_changed", [False, True])
    def test_an_announced_change_is_no_error_where_changes_are_watched(
        self, store: Store, is_written: bool, is_changed: bool
    ):
        array = some_array(shape=(5000,))
        wanted, version = array.copy(), [0]
        handle = store.put(array, unchanged=lambda: version == [0], persistent=True)
        if is_written:
            store.flush()
        store.begin_change(handle, array)
        version[0] += 1
        array[0] = 7
        assert store.get(handle) is array
        if is_changed:
            wanted[0] = 7
        else:
            array[0], version[0] = wanted[0], 0
        store.end_change(handle, is_changed)
        assert_same_bytes(store.get(handle), wanted)
        store.flush()
        assert_same_bytes(store.get(handle), wanted)
        assert store.check() == []

    def test_memory_of_the_caller_may_change_after_it_was_written(self, store: Store):
        array = some_array(shape=(5000,))
        handle = store.put(array, persistent=True)
        store.flush()
        store.begin_change(handle, array)
        array[:] = 3
        store.end_change(handle)
        assert (store.get(handle) == 3).all()

    def test_an_array_dropped_while_it_changes_is_gone(self, store: Store):
        array = some_array(shape=(5000,))
        handle = store.put(array, persistent=True)
        store.begin_change(handle, array)
        store.flush()  # does not wait for it
        store.drop(handle)
        del array
        with pytest.raises(SpillError, match="dropped"):
            store.get(handle)
        assert store.stats().live_bytes == 0

    def test_a_step_may_begin_whatever_is_there(self, store: Store):
        persistent = store.put(some_array(), persistent=True)
        passing = store.put(some_array())
        store.begin_step()
        store.use(persistent)
        store.drop(passing)
        store.begin_step()
        assert_same_bytes(store.get(persistent), store.get(persistent))

    def test_an_array_read_ahead_gives_way_to_the_memory_that_is_changed(self, store: Store):
        array = some_array(shape=(5000,))
        handle = store.put(array, persistent=True)
        store.flush()
        store.get(handle)
        store.prefetch([handle])
        store.begin_change(handle, array)
        array[:] = 5
        store.end_change(handle)
        store.prefetch([handle])
        assert (store.get(handle) == 5).all()
        store.begin_step()
        assert (store.get(handle) == 5).all()
        assert store.check() == []
