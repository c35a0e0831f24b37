"""The files: readable by plain h5py, private, checked, and no larger than they must be."""

import json
import os
import random
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import h5py
import ml_dtypes
import numpy as np
import pytest
import xxhash

from spillgrad.errors import SpillCorruptionError
from spillgrad.storage.disk.chunks import chunk_shape
from spillgrad.storage.disk.holes import hole_bytes, punch
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.store import Handle, Label

RNG = np.random.default_rng(0)
MakeStore = Callable[..., DiskStore]


def segments(store: DiskStore) -> list[Path]:
    return sorted(store.directory.glob("*.h5"))


def copy_of_segment(store: DiskStore, tmp_path: Path) -> Path:
    """Copy the only segment: HDF5 would share its state with the store if this process opened the file itself."""
    store.flush()
    (path,) = segments(store)
    return Path(shutil.copy(path, tmp_path / "copy.h5"))


@pytest.mark.parametrize(
    "array",
    [
        RNG.standard_normal((3, 5)),
        RNG.standard_normal((4, 300, 1024)).astype(np.float32),
        RNG.standard_normal((7, 100_003)).astype(np.float16),
        RNG.integers(0, 9, (1000, 41)),
        RNG.standard_normal((2, 3)) * 1j,
        RNG.random((500, 77)) < 0.5,
        RNG.integers(0, 1 << 40, (20, 3)).astype("M8[s]"),
        RNG.integers(0, 1 << 40, 5000).astype("m8[ns]"),
        np.array(2.5),
        np.zeros((3, 0, 2), np.int8),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_plain_h5py_reads_shape_dtype_and_values(make_store: MakeStore, tmp_path: Path, array: np.ndarray):
    store = make_store(0)
    handle = store.put(array, label=Label("mul", "self", "net.0", 3))
    with h5py.File(copy_of_segment(store, tmp_path), "r") as file:
        (dataset,) = file.values()
        assert (dataset.shape, dataset.dtype) == (array.shape, array.dtype)
        np.testing.assert_array_equal(dataset[()], array)
        assert json.loads(dataset.attrs["spillgrad"]) == {
            "format": 1,
            "sequence": handle.sequence,
            "views": [],
            "op": "mul",
            "slot": "self",
            "module": "net.0",
            "step": 3,
            "dtype": array.dtype.name,
            "shape": list(array.shape),
            "xxh3_64": xxhash.xxh3_64_hexdigest(array.tobytes()),
        }


def test_plain_h5py_reads_bfloat16_as_floating_point(make_store: MakeStore, tmp_path: Path):
    array = RNG.standard_normal((300, 7)).astype(ml_dtypes.bfloat16)
    store = make_store(0)
    store.put(array)
    with h5py.File(copy_of_segment(store, tmp_path), "r") as file:
        (dataset,) = file.values()
        assert dataset.id.get_type().get_class() == h5py.h5t.FLOAT
        assert dataset.id.get_type().get_size() == 2
        np.testing.assert_array_equal(dataset[()], array.astype(np.float32))


def test_what_is_live_after_many_puts_and_drops_is_what_the_file_holds(make_store: MakeStore, tmp_path: Path):
    store = make_store(0)
    rng = random.Random(0)
    live = {}
    for i in range(300):
        array = np.full(rng.randrange(1, 30_000), i, np.int32)
        handle = store.put(array)
        live[handle] = array
        while len(live) > 20:
            store.drop(victim := rng.choice(list(live)))
            del live[victim]
    with h5py.File(copy_of_segment(store, tmp_path), "r") as file:
        assert sorted(int(name) for name in file) == sorted(handle.sequence for handle in live)
        for handle, array in live.items():
            np.testing.assert_array_equal(file[f"{handle.sequence:08d}"][()], array)


def test_a_flush_describes_every_array_whether_it_was_written_before_or_meanwhile(
    make_store: MakeStore, tmp_path: Path
):
    store = make_store("8MiB")
    arrays = {store.put(array): array for array in (np.full((700, 333), i, np.float32) for i in range(24))}
    with h5py.File(copy_of_segment(store, tmp_path), "r") as file:
        for handle, array in arrays.items():
            dataset = file[f"{handle.sequence:08d}"]
            assert json.loads(dataset.attrs["spillgrad"])["xxh3_64"] == xxhash.xxh3_64_hexdigest(array)
            np.testing.assert_array_equal(dataset[()], array)


def test_only_the_owner_can_read_the_files(make_store: MakeStore):
    store = make_store(0)
    store.put(np.ones(10))
    assert stat.S_IMODE(store.directory.stat().st_mode) == 0o700
    for path in (*segments(store), store.directory / ".lock"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def damage_flip(path: Path, payload: bytes) -> None:
    place = path.read_bytes().index(payload) + len(payload) // 2
    with path.open("r+b") as file:
        file.seek(place)
        flipped = file.read(1)[0] ^ 4
        file.seek(place)
        file.write(bytes([flipped]))


def damage_truncate(path: Path, payload: bytes) -> None:
    os.truncate(path, path.read_bytes().index(payload) + len(payload) // 2)


@pytest.mark.parametrize("damage", [damage_flip, damage_truncate])
def test_damage_on_disk_raises_and_never_gives_an_array(make_store: MakeStore, damage: Callable[[Path, bytes], None]):
    store = make_store(0)
    array = RNG.standard_normal((50, 400))
    handle = store.put(array, label=Label("mul", "self", "net.0"))
    (path,) = segments(store)
    damage(path, array.tobytes()[:20_000])
    for _ in range(2):
        with pytest.raises(SpillCorruptionError) as caught:
            store.get(handle)
        for named in (str(path), f"dataset {handle.sequence:08d}", "mul.self in net.0"):
            assert named in str(caught.value)
    (found,) = store.check()
    assert "mul.self" in str(found)
    store.drop(handle)
    np.testing.assert_array_equal(store.get(store.put(array)), array)


@pytest.mark.parametrize(
    ("smallest", "largest", "segment_bytes"),
    [(64 << 10, 3 << 20, 64 << 20), (64 << 10, 3 << 20, 256 << 20), (64 << 10, 700 << 10, 16 << 20)],
)
def test_disk_use_stays_near_the_largest_live_set(
    make_store: MakeStore, smallest: int, largest: int, segment_bytes: int
):
    store = make_store(0, segment_bytes=segment_bytes)
    rng = random.Random(0)
    live = []
    most_live = live_bytes = 0
    memory = np.zeros(largest, np.uint8)
    count = (20 << 20) // largest * 3  # a step
    for _ in range(max(8, 600 // count)):
        for _ in range(count):
            nbytes = int(smallest * (largest / smallest) ** rng.random())
            live.append(store.put(memory[:nbytes]))
            live_bytes += nbytes
            most_live = max(most_live, live_bytes)
        rng.shuffle(live)
        while len(live) > count // 3:
            live_bytes -= live[-1].nbytes
            store.drop(live.pop())
    assert store.stats().peak_disk_bytes <= 1.1 * most_live


@pytest.mark.parametrize(
    ("shape", "itemsize", "chunk"),
    [
        ((1,), 1, (1,)),
        ((999, 1001), 4, (999, 1001)),
        ((4, 512, 768), 4, (4, 512, 768)),
        ((3, 0, 2), 1, (1, 1, 1)),
        ((65535, 65537), 1, (65535, 65537)),  # a byte less than 4 GiB
        ((65536, 65536), 1, (32768, 65536)),
        ((10, 365_000_000), 4, (2, 365_000_000)),
        ((2, 3, 1 << 30), 4, (1, 1, 536_870_912)),
    ],
)
def test_a_chunk_is_the_whole_array_or_rows_of_it(shape: tuple[int, ...], itemsize: int, chunk: tuple[int, ...]):
    assert chunk_shape(shape, itemsize) == chunk


def odd(rng: random.Random) -> tuple[int, ...]:
    return rng.randrange(1, 1025), rng.randrange(1, 1025)


def batches(rng: random.Random) -> tuple[int, ...]:
    return rng.choice((2, 4, 8)), rng.randrange(16, 257), rng.choice((64, 192, 384, 768))


@pytest.mark.parametrize("shapes", [odd, batches])
@pytest.mark.parametrize("direct_io", [False, True])
@pytest.mark.parametrize("flush_every", [7, None])
def test_files_of_any_mix_of_shapes_stay_small_and_whole(
    make_store: MakeStore,
    tmp_path: Path,
    shapes: Callable[[random.Random], tuple[int, ...]],
    direct_io: bool,
    flush_every: int | None,
):
    store = make_store(0, direct_io=direct_io)
    rng = random.Random(0)
    live: dict[Handle, np.ndarray] = {}
    live_bytes = most_live = 0
    for i in range(250):
        array = np.full(shapes(rng), i, np.float32)
        live[store.put(array)] = array
        live_bytes += array.nbytes
        most_live = max(most_live, live_bytes)
        while live_bytes > rng.choice((12 << 20, 20 << 20)):
            victim = rng.choice(list(live))
            live_bytes -= victim.nbytes
            store.drop(victim)
            del live[victim]
        if flush_every and i % flush_every == 0:
            store.flush()
    assert store.stats().peak_disk_bytes <= 1.1 * most_live
    with h5py.File(copy_of_segment(store, tmp_path), "r") as file:
        assert sorted(int(name) for name in file) == sorted(handle.sequence for handle in live)
        for handle, array in live.items():
            dataset = file[f"{handle.sequence:08d}"]
            assert (dataset.shape, dataset.dtype) == (array.shape, array.dtype)
            np.testing.assert_array_equal(dataset[()], array)
            np.testing.assert_array_equal(store.get(handle), array)


def test_holes_take_no_disk_and_their_neighbours_stay(tmp_path: Path):
    with (tmp_path / "file").open("w+b") as file:
        file.write(bytes(range(1, 9)) * 4096)
        file.flush()
        os.fsync(file.fileno())
        punch(file.fileno(), 4096, 3 * 4096)
        assert os.fstat(file.fileno()).st_size == 8 * 4096
        assert hole_bytes(file.fileno(), 0, 10 * 4096) == 4 * 4096  # two, and two behind the end
        assert hole_bytes(file.fileno(), 2 * 4096, 4 * 4096) == 4096
        assert hole_bytes(file.fileno(), 3 * 4096, 8 * 4096) == 0
        file.seek(0)
        assert file.read() == bytes(range(1, 9)) * 512 + bytes(2 * 4096) + bytes(range(1, 9)) * 5 * 512


def test_a_disk_that_refuses_to_punch_says_so(tmp_path: Path):
    (tmp_path / "file").write_bytes(bytes(8192))
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="Bad file descriptor"):
            punch(descriptor, 0, 4096)
    finally:
        os.close(descriptor)
