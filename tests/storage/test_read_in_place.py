"""Arrays that a store reads in files of others: the same values, nothing written, and an error if the file changes."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from spillgrad.errors import SpillCorruptionError, SpillError
from spillgrad.storage.disk.file_part import FilePart, FileState
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.store import Handle, Label
from tests.open_files import open_files_below
from tests.waiting import wait_until

RNG = np.random.default_rng(0)
LABEL = Label("parameter", None, "layer.weight")
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
# Beside small ones, sizes around the buffer of 2 MiB and the pieces of 8 MiB.
SHAPES = [(), (0,), (3, 0, 2), (1,), (1000, 7), (2 << 20,), (3 << 20) + 5, (9 << 20) + 1]
OFFSETS = [0, 1, 8, 4095, 4096, 5000, (2 << 20) - 3]


@pytest.fixture(params=[True, False, None], ids=["direct", "buffered", "measured"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DiskStore]:
    made = DiskStore(tmp_path / "store", ram_budget=0, direct_io=request.param)
    yield made
    made.close()


def file_of(folder: Path, values: np.ndarray, offset: int, behind: int = 9) -> FilePart:
    path = folder / "weights"
    path.write_bytes(RNG.bytes(offset) + values.tobytes() + RNG.bytes(behind))
    return part_of(path, values, offset)


def part_of(path: Path, values: np.ndarray, offset: int) -> FilePart:
    descriptor = os.open(path, os.O_RDONLY)
    state = FileState.of(descriptor)
    os.close(descriptor)
    return FilePart(str(path), state, offset, values.dtype, values.shape)


def read_in_place(store: DiskStore, part: FilePart, dtype: Any = None) -> Handle:
    handle = store.put_unset(part.shape, np.dtype(dtype or part.dtype), LABEL)
    store.read_from(handle, part)
    return handle


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_values_are_those_in_the_file(store: DiskStore, tmp_path: Path, shape: Any, offset: int):
    values = np.asarray(RNG.integers(0, 256, shape), np.uint8)
    handle = read_in_place(store, file_of(tmp_path, values, offset, behind=offset % 7))
    for _ in range(2):  # the second time, the checksum is compared
        assert np.array_equal(store.get(handle), values)
    assert store.is_read_in_place(handle)
    assert store.check() == []
    assert store.stats().written_bytes == store.stats().disk_bytes == 0


@pytest.mark.parametrize("dtype", ["float16", "float64", "int64", BFLOAT16, "bool", "complex64"], ids=str)
def test_any_dtype_and_any_offset_will_do(store: DiskStore, tmp_path: Path, dtype: Any):
    values = (RNG.standard_normal((100, 333)) * 100).astype(dtype)
    handle = read_in_place(store, file_of(tmp_path, values, 13))
    assert store.get(handle).tobytes() == values.tobytes()


@pytest.mark.parametrize("dtype", ["float16", BFLOAT16], ids=str)
def test_float32_arrays_are_read_from_files_of_half_the_bits(store: DiskStore, tmp_path: Path, dtype: Any):
    every = np.arange(1 << 16, dtype=np.uint16)
    values = np.tile(every, 70).view(dtype)  # over 8 MiB, with denormal numbers, infinities and NaN
    handle = read_in_place(store, file_of(tmp_path, values, 4098), np.float32)
    with np.errstate(invalid="ignore"):
        wanted = values.astype(np.float32)
    assert np.array_equal(store.get(handle), wanted, equal_nan=True)
    assert np.array_equal(np.signbit(store.get(handle)), np.signbit(wanted))


REFUSED = {
    "another shape": (np.zeros(6, np.float32), 0, np.float32),
    "fewer bits than in the file": (np.zeros(5, np.float32), 0, BFLOAT16),
    "other numbers": (np.zeros(5, np.int32), 0, np.float32),
    "numbers of two bytes at an odd offset": (np.zeros(5, BFLOAT16), 3, np.float32),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_array_is_not_read_from_elements_that_are_not_its_own(store: DiskStore, tmp_path: Path, case: str):
    values, offset, dtype = REFUSED[case]
    handle = store.put_unset((5,), np.dtype(dtype), LABEL)
    with pytest.raises(SpillError, match=r"read_from: got .* in .*weights for parameter in layer\.weight"):
        store.read_from(handle, file_of(tmp_path, values, offset))
    assert not open_files_below(tmp_path / "weights")
    assert not np.any(store.get(handle))


def test_arrays_are_evicted_without_a_write_and_within_the_budget(tmp_path: Path):
    values = [RNG.standard_normal(50_000) for _ in range(8)]
    (tmp_path / "weights").write_bytes(b"1234567" + b"".join(each.tobytes() for each in values))
    with_room = DiskStore(tmp_path / "store", ram_budget=3 * values[0].nbytes)
    handles = [
        read_in_place(with_room, part_of(tmp_path / "weights", each, 7 + number * each.nbytes))
        for number, each in enumerate(values)
    ]
    for _ in range(3):
        with_room.begin_step()
        for handle, each in zip(handles, values, strict=True):
            assert np.array_equal(with_room.get(handle), each)
    stats = with_room.stats()
    assert stats.peak_ram_bytes <= 3 * values[0].nbytes
    assert stats.written_bytes == stats.peak_disk_bytes == 0
    with_room.flush()
    with_room.close()


def test_a_changed_array_goes_to_the_store_and_the_file_stays(store: DiskStore, tmp_path: Path):
    values = RNG.standard_normal(30_000)
    part = file_of(tmp_path, values, 24)
    before = Path(part.path).read_bytes()
    handle = read_in_place(store, part)
    array = store.get(handle)
    store.begin_change(handle, array)
    array *= 2
    del array
    store.end_change(handle)
    store.flush()
    assert not store.is_read_in_place(handle)
    assert np.array_equal(store.get(handle), 2 * values)
    assert store.stats().written_bytes == values.nbytes
    assert Path(part.path).read_bytes() == before
    wait_until(lambda: not open_files_below(Path(part.path)))


def test_an_array_that_was_lent_and_not_changed_is_read_on_in_the_file(store: DiskStore, tmp_path: Path):
    values = RNG.standard_normal(30_000)
    handle = read_in_place(store, file_of(tmp_path, values, 24))
    store.begin_change(handle, store.get(handle))
    store.end_change(handle, changed=False)
    assert store.is_read_in_place(handle)
    assert np.array_equal(store.get(handle), values)


def test_an_array_with_values_can_be_read_from_a_file_instead(store: DiskStore, tmp_path: Path):
    values = RNG.standard_normal(30_000)
    handle = store.put(np.zeros(30_000), label=LABEL, persistent=True)
    store.read_from(handle, file_of(tmp_path, values, 8))
    assert np.array_equal(store.get(handle), values)


def test_the_file_is_closed_with_its_last_array(store: DiskStore, tmp_path: Path):
    values = RNG.standard_normal(300)
    part = file_of(tmp_path, values, 0)
    handles = [read_in_place(store, part) for _ in range(2)]
    assert len(open_files_below(Path(part.path))) in (1, 2)  # one more for direct I/O
    store.drop(handles.pop())
    assert np.array_equal(store.get(handles[0]), values)
    assert open_files_below(Path(part.path))
    store.drop(handles.pop())
    wait_until(lambda: not open_files_below(Path(part.path)))


def test_a_closed_store_has_closed_the_files(tmp_path: Path):
    made = DiskStore(tmp_path / "store", ram_budget=0)
    handle = read_in_place(made, file_of(tmp_path, np.arange(9), 0))
    made.close()
    assert not open_files_below(tmp_path)
    del handle


def overwrite(path: Path, at: int) -> None:
    """Change one byte, and hide that by the former times."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def rewrite(path: Path) -> None:
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(1, 1))


CHANGES: dict[str, Callable[[Path], None]] = {
    "one byte, at the former time": lambda path: overwrite(path, 5000),
    "cut off": lambda path: os.truncate(path, 6000),
    "emptied": lambda path: os.truncate(path, 0),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"1"),
    "written anew": rewrite,
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_file_that_changes_is_an_error_that_names_it_and_never_other_numbers(
    store: DiskStore, tmp_path: Path, case: str
):
    values = RNG.standard_normal(30_000)
    part = file_of(tmp_path, values, 24)
    handle = read_in_place(store, part)
    assert np.array_equal(store.get(handle), values)
    CHANGES[case](Path(part.path))
    with pytest.raises(SpillCorruptionError, match=r"get: .*weights.*; .*put the former file back, and run again"):
        store.get(handle)
    assert [part.path in str(error) for error in store.check()] == [True]


@pytest.mark.parametrize("case", [case for case in CHANGES if case != "one byte, at the former time"])
def test_a_file_that_changed_since_its_header_was_read_is_refused(store: DiskStore, tmp_path: Path, case: str):
    part = file_of(tmp_path, RNG.standard_normal(30_000), 24)
    CHANGES[case](Path(part.path))
    with pytest.raises(SpillCorruptionError, match="was changed"):
        read_in_place(store, part)
    assert not open_files_below(Path(part.path))


@pytest.mark.parametrize("replaces", [True, False], ids=["replaced", "removed"])
def test_a_file_that_is_gone_is_read_on(store: DiskStore, tmp_path: Path, replaces: bool):
    values = RNG.standard_normal(30_000)
    part = file_of(tmp_path, values, 24)
    handle = read_in_place(store, part)
    if replaces:
        (tmp_path / "new").write_bytes(bytes(part.state.size))
        (tmp_path / "new").replace(part.path)
    else:
        Path(part.path).unlink()
    assert np.array_equal(store.get(handle), values)


def test_a_file_that_is_not_there_is_named(store: DiskStore, tmp_path: Path):
    part = file_of(tmp_path, np.arange(9), 0)
    Path(part.path).unlink()
    with pytest.raises(SpillError, match=r"spill: could not open .*weights: No such file"):
        read_in_place(store, part)


def test_without_checksums_what_the_file_system_says_of_the_file_is_compared(tmp_path: Path):
    made = DiskStore(tmp_path / "store", ram_budget=0, checksums=False)
    part = file_of(tmp_path, RNG.standard_normal(30_000), 24)
    handle = read_in_place(made, part)
    rewrite(Path(part.path))
    with pytest.raises(SpillCorruptionError, match="its modification time is another"):
        made.get(handle)
    made.close()


def test_an_array_without_values_takes_no_memory_and_no_disk_until_it_gets_some(tmp_path: Path):
    made = DiskStore(tmp_path / "store", ram_budget="1MiB")
    handles = [made.put_unset((1000, 1000), np.dtype("float32"), LABEL) for _ in range(4)]
    made.flush()
    stats = made.stats()
    assert (stats.ram_bytes, stats.written_bytes, stats.disk_bytes) == (0, 0, 0)
    assert stats.live_bytes == 16_000_000
    array = made.empty((1000, 1000), np.dtype("float32"))
    made.begin_change(handles[0], array)
    array[:] = 3
    del array
    made.end_change(handles[0])
    assert np.all(made.get(handles[0]) == 3)
    assert not np.any(made.get(handles[1]))
    made.close()
