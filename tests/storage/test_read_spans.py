"""Parts of stored arrays: the same values, few bytes read, and an error if what is on disk changes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from spillgrad.errors import SpillCorruptionError
from spillgrad.inspection.journal_reader import JournalReader
from spillgrad.storage.disk.spans import digest_bytes
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.store import Handle
from tests.storage.test_read_in_place import CHANGES, LABEL, file_of, overwrite, read_in_place

RNG = np.random.default_rng(0)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
ROWS, WIDTH = 5000, 700
# Row numbers; beside few and far ones, neighbours, gaps, and runs that are longer than the buffer of 2 MiB.
CASES: dict[str, Any] = {
    "none": [],
    "the first": [0],
    "the last": [ROWS - 1],
    "far from each other": [3, 900, 901, 2500, 4999],
    "with gaps": range(0, 400, 3),
    "many in a row": range(100, 3700),
    "all": range(ROWS),
    "at random": np.unique(RNG.integers(0, ROWS, 700)),
}
DIRECT = {"direct": True, "buffered": False}


@pytest.fixture(params=DIRECT)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DiskStore]:
    made = DiskStore(tmp_path / "store", ram_budget="64KiB", direct_io=DIRECT[request.param])
    yield made
    made.close()


def spans_of(rows: Any, width: int = WIDTH) -> np.ndarray:
    """Return the spans of rows, one for each; the store joins what lies together."""
    begins = np.asarray(list(rows), np.int64).reshape(-1, 1) * width
    return np.hstack([begins, begins + width])


def rows_of(store: DiskStore, handle: Handle, rows: Any, width: int = WIDTH) -> np.ndarray:
    spans = spans_of(rows, width)
    into = np.empty(len(spans) * width, handle.dtype)
    store.read_spans(handle, spans, into)
    return into.reshape(-1, width)


def bits(array: np.ndarray) -> bytes:
    return np.ascontiguousarray(array).tobytes()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("offset", [0, 8, 5000])
def test_rows_of_a_file_are_those_of_the_whole(store: DiskStore, tmp_path: Path, offset: int, case: str):
    values = RNG.standard_normal((ROWS, WIDTH)).astype("f")
    handle = read_in_place(store, file_of(tmp_path, values, offset))
    for _ in range(2):  # the second time, the checksums are compared
        assert bits(rows_of(store, handle, CASES[case])) == bits(values[list(CASES[case])])
    assert store.stats().written_bytes == store.stats().disk_bytes == 0


@pytest.mark.parametrize("case", CASES)
def test_rows_in_the_store_are_those_of_the_whole(store: DiskStore, case: str):
    values = RNG.standard_normal((ROWS, WIDTH)).astype("f")
    handle = store.put(values, label=LABEL, persistent=True)
    for _ in range(2):
        assert bits(rows_of(store, handle, CASES[case])) == bits(values[list(CASES[case])])


@pytest.mark.parametrize("dtype", ["float16", BFLOAT16], ids=str)
def test_rows_of_fewer_bits_become_float32(store: DiskStore, tmp_path: Path, dtype: Any):
    values = (RNG.standard_normal((ROWS, WIDTH)) * 100).astype(dtype)
    handle = read_in_place(store, file_of(tmp_path, values, 4098), np.float32)
    rows = CASES["at random"]
    assert bits(rows_of(store, handle, rows)) == bits(values[rows].astype(np.float32))


def test_parts_need_not_be_rows(store: DiskStore):
    values = RNG.integers(0, 256, 3 << 20).astype(np.uint8)
    handle = store.put(values, label=LABEL, persistent=True)
    edges = np.unique(RNG.integers(0, values.size, 400))[: 2 * 150].reshape(-1, 2)
    into = np.empty(int((edges[:, 1] - edges[:, 0]).sum()), np.uint8)
    store.read_spans(handle, edges, into)
    assert bits(into) == b"".join(bits(values[first:last]) for first, last in edges)


@pytest.mark.parametrize("in_place", [True, False], ids=["in a file", "in the store"])
def test_few_bytes_are_read_and_little_is_in_ram(tmp_path: Path, in_place: bool):
    values = RNG.standard_normal((ROWS, WIDTH)).astype("f")
    made = DiskStore(tmp_path / "store", ram_budget="64KiB", checksums=in_place)
    if in_place:
        handle = read_in_place(made, file_of(tmp_path, values, 24))
    else:
        handle = made.put(values, label=LABEL, persistent=True)
    before = made.stats()
    rows = [3, 1000, 2500, 4999]
    rows_of(made, handle, rows)
    found = made.stats()
    pages = 2  # a row has 2800 bytes, of one page or two
    assert 0 < found.read_bytes - before.read_bytes <= len(rows) * pages * 4096
    assert found.cache_misses == before.cache_misses + 1
    assert found.ram_bytes - before.ram_bytes == digest_bytes(values.nbytes)
    made.drop(handle)
    assert made.stats().ram_bytes == 0
    made.close()


def test_what_was_written_before_is_verified_whole_once_and_what_is_written_later_is_not(store: DiskStore):
    values = RNG.standard_normal((ROWS, WIDTH)).astype("f")
    handle = store.put(values, label=LABEL, persistent=True)
    read = []
    for number in range(4):
        if number == 2:
            array = store.get(handle)
            store.begin_change(handle, array)
            array += 1
            values = array.copy()
            del array
            store.end_change(handle)
            store.flush()
        before = store.stats().read_bytes
        assert bits(rows_of(store, handle, [7, 4000])) == bits(values[[7, 4000]])
        read.append(store.stats().read_bytes - before)
    assert read[0] >= values.nbytes > 500 * max(read[1:])


def test_an_array_in_ram_is_not_read(tmp_path: Path):
    made = DiskStore(tmp_path / "store", ram_budget="64MiB")
    values = RNG.standard_normal((ROWS, WIDTH)).astype("f")
    handle = made.put(values, label=LABEL, persistent=True)
    assert bits(rows_of(made, handle, [5, 6, 4000])) == bits(values[[5, 6, 4000]])
    array = made.get(handle)
    made.begin_change(handle, array)
    array[5] = 9
    assert bits(rows_of(made, handle, [5])) == bits(array[[5]])
    del array
    made.end_change(handle)
    assert np.all(rows_of(made, handle, [5]) == 9)
    assert made.stats().read_bytes == 0
    made.close()


def test_where_all_arrays_fit_the_whole_is_read_once_and_stays(tmp_path: Path):
    made = DiskStore(tmp_path / "store", ram_budget="64MiB")
    values = RNG.standard_normal((ROWS, WIDTH)).astype("f")
    handle = read_in_place(made, file_of(tmp_path, values, 24))
    made.expect(values.nbytes)
    for row in range(3):
        assert bits(rows_of(made, handle, [row])) == bits(values[[row]])
    assert made.stats().read_bytes == values.nbytes
    made.close()


@pytest.mark.parametrize("how", ["lossless", "bf16", "encrypt"])
def test_rows_of_an_encoded_array_are_those_of_the_whole(tmp_path: Path, how: str):
    options: dict[str, Any] = {"encrypt": True} if how == "encrypt" else {"codec": how}
    made = DiskStore(tmp_path / "store", ram_budget=0, **options)
    values = RNG.integers(0, 3, (ROWS, WIDTH)).astype("f")
    handle = made.put(values, label=LABEL, persistent=True)
    assert bits(rows_of(made, handle, [5, 4000])) == bits(values[[5, 4000]])
    made.close()


def test_an_array_without_values_has_rows_of_zeros(store: DiskStore):
    handle = store.put_unset((ROWS, WIDTH), np.dtype("f"), LABEL)
    assert not rows_of(store, handle, [5, 4000]).any()
    assert store.stats().read_bytes == 0


@pytest.mark.parametrize("first", ["rows", "the whole", "both"])
@pytest.mark.parametrize("case", CHANGES)
def test_a_file_that_changes_is_an_error_that_names_it(store: DiskStore, tmp_path: Path, case: str, first: str):
    values = RNG.standard_normal((ROWS, WIDTH)).astype("f")
    part = file_of(tmp_path, values, 24)
    handle = read_in_place(store, part)
    rows = [1, 2500]  # 5000, of which a change flips a bit, lies in row 1
    if first != "the whole":
        rows_of(store, handle, rows)
    if first != "rows":
        store.get(handle)
    CHANGES[case](Path(part.path))
    for _ in range(2):  # an error once is an error again
        with pytest.raises(SpillCorruptionError, match=r"get: .*weights.*; .*put the former file back, and run again"):
            rows_of(store, handle, rows)
    with pytest.raises(SpillCorruptionError, match=r"get: .*weights"):
        store.get(handle)


def test_a_page_in_the_store_that_changes_is_an_error(store: DiskStore):
    values = RNG.standard_normal((ROWS, WIDTH)).astype("f")
    handle = store.put(values, label=LABEL, persistent=True)
    rows_of(store, handle, [0])
    file = next(store.directory.glob("*.h5"))
    overwrite(file, file.read_bytes().index(bits(values[100])))
    assert bits(rows_of(store, handle, [0, 4000])) == bits(values[[0, 4000]])
    for _ in range(2):
        with pytest.raises(SpillCorruptionError, match=r"layer\.weight came back damaged .* are not those"):
            rows_of(store, handle, [0, 100])


def test_the_first_rows_of_an_array_that_changed_on_disk_are_an_error(store: DiskStore):
    values = RNG.standard_normal((ROWS, WIDTH)).astype("f")
    handle = store.put(values, label=LABEL, persistent=True)
    file = next(store.directory.glob("*.h5"))
    overwrite(file, file.read_bytes().index(bits(values[100])))
    for _ in range(2):
        with pytest.raises(SpillCorruptionError, match=r"came back damaged .* checksum"):
            rows_of(store, handle, [0])


def test_the_journal_has_the_bytes_of_the_parts(tmp_path: Path):
    values = RNG.standard_normal((ROWS, WIDTH)).astype("f")
    made = DiskStore(tmp_path / "store", ram_budget=0, keep_journal=tmp_path / "journal")
    handle = read_in_place(made, file_of(tmp_path, values, 24))
    rows_of(made, handle, [5, 4000])
    read = made.stats().read_bytes
    made.close()
    with JournalReader(tmp_path / "journal") as reader:
        reader.read()
        assert reader.state.moved.read_bytes == read < 5 * 4096


def test_rows_do_not_wait_for_the_whole_that_is_being_read(tmp_path: Path):
    values = RNG.standard_normal((ROWS, WIDTH)).astype("f")
    part = file_of(tmp_path, values, 24)
    made = DiskStore(tmp_path / "store", ram_budget="64MiB")
    handles = [read_in_place(made, part) for _ in range(4)]
    for _ in range(10):
        made.prefetch(handles)
        for handle in handles:
            assert bits(rows_of(made, handle, [5, 4000])) == bits(values[[5, 4000]])
        for handle in handles:
            assert bits(made.get(handle)) == bits(values)
        made.allow(0)
        made.allow(64 << 20)
    made.close()
