"""float32 arrays of bfloat16 numbers take half the bytes on disk, and come back bit for bit."""

from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import ml_dtypes
import numpy as np
import pytest

from spillgrad.errors import SpillCorruptionError
from spillgrad.inspection.segments import inspect_segment
from spillgrad.inspection.values import StoredValues
from spillgrad.inspection.verify import verify
from spillgrad.storage.codecs import MIN_BYTES
from spillgrad.storage.disk import halves, payload
from spillgrad.storage.disk.segment_reader import read_segment
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.store import Handle, Label

RNG = np.random.default_rng(0)
LABEL = Label("gradient", None, "net.0")
# A multiple of pages, sizes whose second half begins within a page or between two elements' pages, and several pieces.
SHAPES = [(1 << 14,), (4095, 3), (3, 5, 7919), (1000, 1001), (5 << 20,)]
# Zeros, numbers that are not finite or not normal, and NaN that has digits of its own.
SPECIAL = np.array([0, 0x8000, 0x7F80, 0xFF80, 0x7FC1, 0xFFFF, 0x0001, 0x807F, 0x7F7F], np.uint32) << 16


def numbers(shape: tuple[int, ...]) -> np.ndarray:
    """Random float32 numbers that are bfloat16 numbers, special ones among them."""
    words = RNG.integers(0, 1 << 16, shape, np.uint32) << 16
    words.reshape(-1)[: SPECIAL.size] = SPECIAL
    words.reshape(-1)[-SPECIAL.size :] = SPECIAL
    return words.view(np.float32)


@pytest.fixture(params=[True, False], ids=["direct", "buffered"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DiskStore]:
    made = DiskStore(tmp_path / "store", ram_budget=MIN_BYTES, direct_io=request.param)
    yield made
    made.close()


def put(store: DiskStore, array: np.ndarray) -> Handle:
    """Put a copy, which the store takes over; it is on disk when this returns."""
    handle = store.put(array.copy(), label=LABEL, persistent=True)
    store.flush()
    return handle


def change(store: DiskStore, handle: Handle, values: np.ndarray) -> None:
    """Give an array other values; they are on disk when this returns."""
    held = store.get(handle)
    store.begin_change(handle, held)
    held[...] = values
    store.end_change(handle)
    del held
    store.flush()


def stored_bytes(store: DiskStore, array: np.ndarray) -> int:
    before = store.stats().stored_bytes
    put(store, array)
    return store.stats().stored_bytes - before


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_they_take_half_the_bytes_and_come_back_bit_for_bit(store: DiskStore, shape: tuple[int, ...]):
    array = numbers(shape)
    handle = put(store, array)
    other = put(store, RNG.standard_normal(1 << 16).astype(np.float32))
    store.get(other)
    assert store.get(handle).tobytes() == array.tobytes()
    stats = store.stats()
    assert stats.written_bytes - stats.stored_bytes == array.nbytes // 2
    assert stats.read_bytes - stats.fetched_bytes in (0, array.nbytes // 2)  # 0 where it had not left the RAM
    assert store.check() == []


@pytest.mark.parametrize("shape", SHAPES[:4], ids=str)
def test_files_say_so_and_every_reader_gets_the_numbers(store: DiskStore, shape: tuple[int, ...]):
    array = numbers(shape)
    put(store, array)
    (path,) = store.directory.glob("*.h5")
    (found,) = read_segment(path)
    assert (found.about["codec"], found.about["dtype"], found.array.dtype) == ("exact-bf16", "float32", np.float32)
    assert found.array.tobytes() == array.tobytes()
    with h5py.File(path, "r", locking=False) as file:  # without spillgrad
        (dataset,) = file.values()
        np.testing.assert_array_equal(dataset[()], array)
    segment = inspect_segment(path)
    (told,) = segment.arrays
    assert (told.codec, told.nbytes, told.stored_bytes) == ("exact-bf16", array.nbytes, array.nbytes // 2)
    with StoredValues(path, told) as values:
        assert values.elements(0, told.size).tobytes() == array.tobytes()
        assert values.elements(7, 4001).tobytes() == array.reshape(-1)[7:4001].tobytes()
    assert verify(store.directory).problems == []


def not_quite(place: int) -> Callable[[np.ndarray], np.ndarray]:
    def changed(array: np.ndarray) -> np.ndarray:
        array.view(np.uint32).reshape(-1)[place] |= 1
        return array

    return changed


@pytest.mark.parametrize(
    "made",
    [
        *map(not_quite, (0, 70, 100_000, -1)),
        lambda array: array.astype(np.float64),
        lambda array: array.astype(">f4"),
        lambda array: array.astype(ml_dtypes.bfloat16),
        lambda array: array.reshape(-1)[: MIN_BYTES // 4 - 1],
    ],
    ids=["first", "early", "late", "last", "float64", "big-endian", "bfloat16", "small"],
)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_all_others_are_stored_whole(store: DiskStore, made: Callable[[np.ndarray], np.ndarray]):
    array = made(numbers((300, 701)))
    assert stored_bytes(store, array) == array.nbytes


def test_arrays_that_callers_may_change_are_stored_whole(store: DiskStore):
    array = numbers((300, 700))
    store.put(array)
    store.flush()
    assert store.stats().stored_bytes == array.nbytes


def test_changed_values_are_stored_as_they_are_then(store: DiskStore):
    other = put(store, RNG.standard_normal(1 << 16).astype(np.float32))
    array = numbers((300, 700))
    handle = put(store, array)
    for changed in (not_quite(5)(array.copy()), -array, array):
        change(store, handle, changed)
        store.get(other)
        assert store.get(handle).tobytes() == changed.tobytes()


@pytest.mark.parametrize("spans", [[], [[0, 1]], [[209_999, 210_000]], [[3, 900], [1024, 70_000], [200_001, 210_000]]])
def test_parts_are_read_alone(store: DiskStore, spans: list[list[int]]):
    array = numbers((300, 700))
    handle = put(store, array)
    other = put(store, RNG.standard_normal(1 << 16).astype(np.float32))
    places = np.array(spans, np.int64).reshape(-1, 2)
    for _ in range(2):  # the first read takes the checksums of pages
        store.get(other)
        into = np.empty(int((places[:, 1] - places[:, 0]).sum()), np.float32)
        store.read_spans(handle, places, into)
        flat = array.reshape(-1)
        assert into.tobytes() == b"".join(flat[first:last].tobytes() for first, last in spans)


def test_they_are_read_past_the_page_cache_wherever_their_middle_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = DiskStore(tmp_path, ram_budget=MIN_BYTES, direct_io=True)
    array = numbers((1001, 1003))  # its middle is within a page
    handle = put(store, array)
    store.get(put(store, RNG.standard_normal(1 << 16).astype(np.float32)))
    moved: list[int] = []
    move = payload._move_pages

    def watched(call: Callable[..., int], direct: int, view: memoryview, place: int) -> int:
        moved.append(move(call, direct, view, place))
        return moved[-1]

    monkeypatch.setattr(payload, "_move_pages", watched)
    assert store.get(handle).tobytes() == array.tobytes()
    assert sum(moved) in (0, array.nbytes // 2 // 4096 * 4096)  # 0 where the file system has no direct I/O
    assert moved
    store.close()


def test_a_gradient_to_which_a_step_adds_takes_a_place_that_is_kept_for_its_sum(tmp_path: Path):
    store = DiskStore(tmp_path, ram_budget=MIN_BYTES)
    segments, writer = store._segments, store._writer  # whose thread sleeps
    first, total = numbers((300, 700)), not_quite(5)(numbers((300, 700)))
    in_halves = writer._in_halves(first)
    assert in_halves is not None
    of_first = segments.place(halves.form_of(in_halves), 0, LABEL, [], in_halves)
    of_total = segments.place(total, 1, LABEL, [])
    segments.free(of_total)
    assert writer._in_halves(first) is None
    segments.free(of_first)  # now both forms have a place
    assert writer._in_halves(first) == in_halves
    store.close()


def test_damage_is_found(store: DiskStore):
    array = numbers((300, 700))
    handle = put(store, array)
    (path,) = store.directory.glob("*.h5")
    (told,) = inspect_segment(path).arrays
    with open(path, "r+b") as file:
        file.seek(told.chunks[0].offset + told.stored_bytes - 1)
        (last,) = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([last ^ 1]))
    assert len(store.check()) == 1
    store.get(put(store, RNG.standard_normal(1 << 16).astype(np.float32)))
    with pytest.raises(SpillCorruptionError, match="checksum"):
        store.get(handle)


def test_where_memory_is_out_they_are_written_through_a_small_buffer(monkeypatch: pytest.MonkeyPatch):
    def refuse(nbytes: int) -> np.ndarray:
        raise MemoryError

    monkeypatch.setattr(halves, "copy_buffer", refuse)
    array = numbers((300, 700))
    parts = [part.tobytes() for part in halves.halves_of(array, 4096, 40_000)]
    assert len(parts) == 10
    assert b"".join(parts) == array.reshape(-1).view(np.uint16)[1::2].tobytes()[4096:44_096]


@pytest.mark.parametrize("size", [1, 2, 65_535, 65_536, 65_537, 200_001])
def test_numbers_are_made_of_their_halves_in_their_own_memory(size: int):
    wanted = numbers((max(size, 2 * SPECIAL.size),))[:size]
    array = np.full(size, np.nan, np.float32)
    halves.room_for_halves(array)[:] = wanted.view(np.uint16)[1::2].copy().view(np.uint8)
    halves.spread(array)
    assert array.tobytes() == wanted.tobytes()
