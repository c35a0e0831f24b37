"""Codecs: what comes back, how exact it is, what plain h5py reads, and what it costs in RAM."""

import functools
import json
import shutil
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import h5py
import hdf5plugin  # noqa: F401 - registers the filters
import ml_dtypes
import numpy as np
import pytest
import xxhash
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

import spillgrad as sg
from spillgrad.errors import ArgumentError, SpillCorruptionError, SpillError
from spillgrad.storage import codecs
from spillgrad.storage.codecs import MIN_BYTES, Codec, Encoded, Lossless, codec_named
from spillgrad.storage.disk.segment import Segment
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.store import Handle, Label
from tests.storage.test_disk_store import SPILL_UNTIL_FULL, in_own_mounts, run_script

RNG = np.random.default_rng(0)
MakeStore = Callable[..., DiskStore]


def relu(*shape: int) -> np.ndarray:
    return np.maximum(RNG.standard_normal(shape).astype(np.float32), 0)


COMPRESSIBLE: dict[str, Callable[[], np.ndarray]] = {
    "a dropout mask": lambda: RNG.random((50, 7, 401)) < 0.9,
    "ReLU's output": lambda: relu(300, 1000),
    "of one dimension, not in whole chunks": lambda: relu(1_000_003),
    "with rows longer than a chunk": lambda: relu(3, 2, 70_001),
    "with chunks that are whole images": lambda: relu(5, 3, 224, 224),
    "with an axis of one": lambda: relu(1, 90_000, 1),
    "indices": lambda: RNG.integers(0, 50257, (64, 512)),
    "float64 of float32": lambda: RNG.standard_normal((300, 400)).astype(np.float32).astype(np.float64),
    "bfloat16 zeros": lambda: np.zeros((500, 300), ml_dtypes.bfloat16),
    "big-endian": lambda: RNG.integers(0, 9, 100_000).astype(">i4"),
    "complex": lambda: (np.arange(50_000) % 7).astype(np.complex128),
    "dates": lambda: (np.arange(30_000) % 7).astype("M8[s]"),
}
INCOMPRESSIBLE: dict[str, Callable[[], np.ndarray]] = {
    "normal floats": lambda: RNG.standard_normal((300, 1000)).astype(np.float32),
    "random bytes": lambda: RNG.integers(0, 256, 300_000, np.uint8),
    "a small array": lambda: np.zeros(MIN_BYTES - 1, np.uint8),
    "a long item without dimensions": lambda: np.zeros((), "V100000"),
    "long items": lambda: np.zeros(3, "V400000"),
    "no elements": lambda: np.zeros((0, 5)),
}


def opened(store: DiskStore, tmp_path: Path) -> h5py.Dataset:
    """The only dataset of a store, read from a copy: HDF5 would share its state with the store otherwise."""
    store.flush()
    (path,) = store.directory.glob("*.h5")
    (dataset,) = h5py.File(shutil.copy(path, tmp_path / "copy.h5"), "r").values()
    return dataset


@pytest.mark.parametrize("direct_io", [False, True])
@pytest.mark.parametrize("case", COMPRESSIBLE)
def test_what_shrinks_is_compressed_and_plain_h5py_reads_it(
    make_store: MakeStore, tmp_path: Path, case: str, direct_io: bool
):
    array = COMPRESSIBLE[case]()
    store = make_store(0, codec="lossless", direct_io=direct_io)
    handle = store.put(array, label=Label("mul", "self"))
    got = store.get(handle)
    assert (got.shape, got.dtype, got.tobytes()) == (array.shape, array.dtype, array.tobytes())
    assert store.check() == []
    stats = store.stats()
    assert stats.written_bytes == array.nbytes
    assert stats.stored_bytes < 0.8 * array.nbytes
    dataset = opened(store, tmp_path)
    with dataset.file:
        assert dataset.shape == array.shape
        assert dataset.id.get_storage_size() == stats.stored_bytes
        filters = dataset.id.get_create_plist()
        assert [filters.get_filter(i)[0] for i in range(filters.get_nfilters())] == [2, 32015]
        if array.dtype == ml_dtypes.bfloat16:
            np.testing.assert_array_equal(dataset[()], array.astype(np.float32))
        elif array.dtype.kind != "M":  # of opaque types h5py shows no values
            assert dataset[()].tobytes() == array.tobytes()
        described = json.loads(dataset.attrs["spillgrad"])
        assert (described["codec"], described["op"], described["shape"]) == ("lossless", "mul", list(array.shape))
        stored = b"".join(dataset.id.read_direct_chunk(info.chunk_offset)[1] for info in chunks(dataset))
        assert described["xxh3_64"] == xxhash.xxh3_64_hexdigest(stored)


def chunks(dataset: h5py.Dataset) -> list[h5py.h5d.StoreInfo]:
    found: list[h5py.h5d.StoreInfo] = []
    dataset.id.chunk_iter(found.append)
    return sorted(found, key=lambda info: info.chunk_offset)


@pytest.mark.parametrize("case", INCOMPRESSIBLE)
def test_what_does_not_shrink_is_stored_as_without_codec(make_store: MakeStore, tmp_path: Path, case: str):
    array = INCOMPRESSIBLE[case]()
    store = make_store(0, codec="lossless")
    assert store.get(store.put(array)).tobytes() == array.tobytes()
    assert store.stats().stored_bytes == store.stats().written_bytes == array.nbytes
    dataset = opened(store, tmp_path)
    with dataset.file:
        assert dataset.compression is None
        assert "codec" not in json.loads(dataset.attrs["spillgrad"])


def test_an_array_that_shrinks_only_where_it_is_looked_at_comes_back(make_store: MakeStore):
    array = RNG.integers(0, 256, 4 << 20, np.uint8)
    for i in range(codecs._SAMPLES):
        start = (array.size - codecs._SAMPLE_BYTES) * i // (codecs._SAMPLES - 1)
        array[start : start + codecs._SAMPLE_BYTES] = 0
    store = make_store(0, codec="lossless")
    assert store.get(store.put(array)).tobytes() == array.tobytes()
    assert store.stats().stored_bytes == array.nbytes


def test_compressed_arrays_of_all_sizes_come_and_go_and_the_files_stay_sound(make_store: MakeStore, tmp_path: Path):
    store = make_store(0, codec="lossless", segment_bytes=8 << 20)
    live: dict[Handle, np.ndarray] = {}
    live_bytes = most_live_bytes = 0
    for i in range(300):
        zeros = int(RNG.integers(30_000, 200_000))
        array = np.concatenate([np.full(zeros, i, np.int32), RNG.integers(0, 1 << 30, zeros // 4, np.int32)])
        before = store.stats().stored_bytes
        handle = store.put(array)
        live[handle] = array
        live_bytes += store.stats().stored_bytes - before
        most_live_bytes = max(most_live_bytes, live_bytes)
        while len(live) > 12:
            victim = list(live)[int(RNG.integers(len(live)))]
            np.testing.assert_array_equal(store.get(victim), live.pop(victim))
            extent = victim.extent  # type: ignore[attr-defined]
            live_bytes -= extent.stored_bytes
            store.drop(victim)
    assert store.stats().peak_disk_bytes <= 1.5 * most_live_bytes
    assert store.check() == []
    store.flush()
    for path in store.directory.glob("*.h5"):
        with h5py.File(shutil.copy(path, tmp_path / "copy.h5"), "r") as file:
            for name, dataset in file.items():
                (array,) = (array for handle, array in live.items() if handle.sequence == int(name))
                np.testing.assert_array_equal(dataset[()], array)


def test_hdf5_only_gives_compressed_chunks_their_places(tmp_path: Path):
    array = relu(300, 1000)
    handle = Handle(array, 0, None)
    codec = Lossless()
    encoded = codec.encode(array, handle)
    assert encoded is not None
    start = encoded.payload[:4096].tobytes()
    segment = Segment(str(tmp_path / "segment.h5"), 1 << 20, direct_io=False, checksums=True)
    extent = segment.place(encoded.payload, 0, handle.label, [], encoded.encoding)
    assert start not in Path(segment.path).read_bytes()
    extent.write(encoded.payload)
    assert start in Path(segment.path).read_bytes()
    segment.discard()


# Lossy

FLOATS: dict[str, Callable[[], np.ndarray]] = {
    "normal": lambda: RNG.standard_normal(100_003),
    "of every magnitude": lambda: RNG.standard_normal(100_003) * 10.0 ** RNG.integers(-44, 39, 100_003),
    "of every magnitude, sorted": lambda: 10.0 ** np.linspace(-46, 38.5, 100_003),
    "with the largest": lambda: np.full(9000, 3.4e38),
    "zeros": lambda: np.zeros(9000) * RNG.choice([-1, 1], 9000),
    "in three dimensions": lambda: RNG.standard_normal((7, 31, 129)),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", FLOATS)
def test_bf16_is_the_nearest_bfloat16(make_store: MakeStore, case: str, dtype: str):
    with np.errstate(over="ignore"):
        array = FLOATS[case]().astype(dtype)
    array = np.clip(array, -3.38e38, 3.38e38)  # bfloat16's own limit
    store = make_store(0, codec="bf16")
    got = store.get(store.put(array))
    assert (got.shape, got.dtype) == (array.shape, array.dtype)
    assert (np.abs(got - array) <= np.maximum(np.abs(array) / 256, 2.0**-134)).all()
    assert store.stats().stored_bytes == 2 * array.size
    if dtype == "float32":
        np.testing.assert_array_equal(got, array.astype(ml_dtypes.bfloat16).astype(np.float32))
    np.testing.assert_array_equal(np.signbit(got), np.signbit(array))


def test_bf16_rounds_float64_once_and_halves_to_even(make_store: MakeStore):
    # Halves between two bfloat16 values, and the least bit above and below: what float32 on the way would lose.
    halves = np.repeat(1 + (2 * np.arange(64) + 1) / 256, 256)
    arrays = {
        "exact": (halves, 1 + np.round((2 * np.arange(64) + 1) / 2) / 128),
        "above": (np.nextafter(halves, 9), 1 + (np.arange(64) + 1) / 128),
        "below": (np.nextafter(halves, 0), 1 + np.arange(64) / 128),
    }
    store = make_store(0, codec="bf16")
    for array, wanted in arrays.values():
        np.testing.assert_array_equal(store.get(store.put(array))[::256], wanted)


def test_bf16_keeps_what_is_not_finite(make_store: MakeStore):
    nans = np.array([0x7F800001, 0xFFFFFFFF, 0x7FC00000, 0xFF800001], np.uint32).view(np.float32)
    row = np.concatenate([nans, np.array([np.inf, -np.inf, 3.4028235e38, 1.0], np.float32)])
    store = make_store(0, codec="bf16")
    for dtype in ("float32", "float64"):
        with np.errstate(invalid="ignore"):
            array = np.tile(row, 1000).astype(dtype)
        got = store.get(store.put(array))[-8:]
        assert np.isnan(got[:4]).all()
        np.testing.assert_array_equal(got[4:], [np.inf, -np.inf, np.inf, 1.0])  # the largest float32 rounds up
        assert store.stats().stored_bytes in (16_000, 32_000)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", FLOATS)
def test_int8_is_within_its_bound_of_every_value(make_store: MakeStore, case: str, dtype: str):
    array = np.clip(FLOATS[case](), -3.4e38, 3.4e38).astype(dtype)
    store = make_store(0, codec="int8")
    got = store.get(store.put(array))
    assert (got.shape, got.dtype) == (array.shape, array.dtype)
    flat = array.reshape(-1).astype(np.float64)
    blocks = np.pad(np.abs(flat), (0, -flat.size % 128)).reshape(-1, 128)
    largest = blocks.max(1)
    assert (np.abs(got.reshape(-1) - flat) <= np.repeat(largest, 128)[: flat.size] * 0.004).all()
    has_scales = ((largest > 1.5e-36) | (largest == 0)).all()  # that are exact: not in float32's subnormal numbers
    assert store.stats().stored_bytes == (flat.size + 4 * len(blocks) if has_scales else array.nbytes)


def came_back(codec_name: str, array: np.ndarray) -> np.ndarray:
    codec = codec_named(codec_name)
    assert codec is not None
    encoded = encode(codec, array)
    if encoded is None:
        return array
    got = np.empty_like(array)
    codec.decode(encoded.payload, encoded.encoding, Handle(array, 0, None), got)
    return got


def within_int8s_bound(got: np.ndarray, array: np.ndarray) -> np.ndarray:
    """By exact arithmetic on what is left of the bound where values are subnormal: none."""
    blocks = np.pad(np.abs(array).astype(np.longdouble), (0, -array.size % 128)).reshape(-1, 128)
    bound = np.repeat(blocks.max(1), 128)[: array.size] * np.longdouble(0.004)
    return np.abs(got.astype(np.longdouble) - array) <= bound


def within_bf16s_bound(got: np.ndarray, array: np.ndarray) -> np.ndarray:
    wanted = array.astype(np.longdouble)
    close = np.abs(got - wanted) <= np.maximum(np.abs(wanted) / 256, np.longdouble(2.0) ** -134)
    return close | ((np.abs(wanted) > 3.39e38) & (got == np.copysign(np.inf, array)))


@settings(max_examples=300, deadline=None)
@given(
    dtype=st.sampled_from(["float32", "float64"]),
    seed=st.integers(0, 1 << 32),
    low=st.floats(-325, 308.2),
    spread=st.sampled_from([0.0, 0.01, 1.0, 5.0, 40.0, 634.0]),
    zeros=st.sampled_from([0.0, 0.5, 0.999]),
    mixed=st.booleans(),
)
@example(dtype="float32", seed=0, low=-42.0, spread=0.0, zeros=0.0, mixed=False)
@example(dtype="float64", seed=0, low=-50.0, spread=0.0, zeros=0.0, mixed=False)
@example(dtype="float32", seed=0, low=-36.2, spread=0.6, zeros=0.0, mixed=True)
@example(dtype="float64", seed=0, low=-325.0, spread=634.0, zeros=0.5, mixed=True)
def test_lossy_codecs_keep_their_bounds_for_finite_values_of_every_magnitude(
    dtype: str, seed: int, low: float, spread: float, zeros: float, mixed: bool
):
    rng = np.random.default_rng(seed)
    limits = np.finfo(dtype)
    exponents = low + spread * rng.random(5000)
    if mixed:  # each block of 128 has a magnitude of its own
        exponents = (low + spread * rng.random(40)).repeat(128)[:5000] + rng.random(5000)
    with np.errstate(over="ignore"):
        array = (10 ** exponents.astype(np.longdouble) * rng.choice([-1, 1], 5000)).astype(dtype)
    array = np.clip(array, limits.min, limits.max)
    array[rng.random(5000) < zeros] = 0
    assert within_int8s_bound(came_back("int8", array), array).all()
    assert within_bf16s_bound(came_back("bf16", array), array).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3.4028235e38, 1e300])
def test_int8_leaves_an_array_with_a_value_beyond_it_as_it_is(make_store: MakeStore, bad: float):
    array = RNG.standard_normal(100_000)
    array[77_777] = bad
    store = make_store(0, codec="int8")
    assert store.get(store.put(array)).tobytes() == array.tobytes()
    assert store.stats().stored_bytes == array.nbytes


@pytest.mark.parametrize("codec", ["bf16", "int8"])
@pytest.mark.parametrize(
    "array",
    [
        RNG.integers(-99, 99, 30_000),
        RNG.random(30_000) < 0.5,
        RNG.standard_normal(30_000).astype(np.float16),
        RNG.standard_normal(30_000).astype(ml_dtypes.bfloat16),
        RNG.standard_normal(30_000).astype(">f4"),
        RNG.standard_normal(30_000) * 1j,
        RNG.standard_normal(30_000).astype(np.longdouble),
        RNG.standard_normal(MIN_BYTES // 4 - 1).astype(np.float32),
        np.array(2.7),
        np.zeros((0, 3)),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_a_lossy_codec_leaves_everything_but_large_floats_exact(make_store: MakeStore, codec: str, array: np.ndarray):
    store = make_store(0, codec=codec)
    assert store.get(store.put(array)).tobytes() == array.tobytes()


@pytest.mark.parametrize("codec", ["bf16", "int8"])
def test_what_is_still_in_ram_is_exact(make_store: MakeStore, codec: str):
    array = RNG.standard_normal(30_000)
    store = make_store("1MiB", codec=codec)
    np.testing.assert_array_equal(store.get(store.put(array)), array)


@pytest.mark.parametrize(
    ("codec", "stored"), [("bf16", lambda array: array.astype(ml_dtypes.bfloat16).tobytes()), ("int8", None)]
)
def test_lossy_datasets_are_bytes_that_say_what_they_are(
    make_store: MakeStore, tmp_path: Path, codec: str, stored: Callable[[np.ndarray], bytes] | None
):
    array = RNG.standard_normal((300, 512)).astype(np.float32)
    store = make_store(0, codec=codec)
    got = store.get(store.put(array, label=Label("mul", "self")))
    dataset = opened(store, tmp_path)
    with dataset.file:
        described = json.loads(dataset.attrs["spillgrad"])
        assert [described[name] for name in ("codec", "dtype", "shape", "op")] == [codec, "float32", [300, 512], "mul"]
        assert dataset.dtype == np.uint8
        data = dataset[()].tobytes()
        assert described["xxh3_64"] == xxhash.xxh3_64_hexdigest(data)
        if stored is not None:
            assert data == stored(array)
        else:  # as the format says
            scales = np.frombuffer(data, "<f4", 300 * 512 // 128)
            levels = np.frombuffer(data, np.int8, offset=scales.nbytes)
            np.testing.assert_array_equal(got.reshape(-1), levels * scales.repeat(128))


@pytest.mark.parametrize("codec", ["lossless", "bf16", "int8"])
@pytest.mark.parametrize("checksums", [True, False])
def test_damage_in_encoded_bytes_never_gives_an_array_while_checksums_are_on(
    make_store: MakeStore, codec: str, checksums: bool
):
    array = relu(300, 1000)
    store = make_store(0, codec=codec, checksums=checksums)
    handle = store.put(array, label=Label("mul", "self", "net.0"))
    (path,) = store.directory.glob("*.h5")
    file_offset, _, nbytes = handle.extent.pieces[0]  # type: ignore[attr-defined]
    with path.open("r+b") as file:  # a whole page: zstd's headers are small
        file.seek(file_offset + nbytes // 8192 * 4096 if codec != "lossless" else file_offset)
        file.write(b"\xff" * 4096)
    if checksums or codec == "lossless":
        with pytest.raises(SpillCorruptionError, match=r"mul\.self in net\.0 came back damaged"):
            store.get(handle)
        (error,) = store.check()
        assert str(path) in str(error)
    else:
        assert store.get(handle).shape == array.shape
    assert store.stats().ram_bytes == 0


@pytest.mark.parametrize("codec", ["lossless", "bf16", "int8"])
@pytest.mark.parametrize("encrypt", [False, True])
def test_encoded_copies_are_counted(make_store: MakeStore, codec: str, encrypt: bool):
    budget = 2_000_000
    store = make_store(budget, codec=codec, encrypt=encrypt)
    arrays = [relu(50_000 + 1000 * i) for i in range(40)]
    largest = max(store._writer._codec.bound(array) for array in arrays)  # type: ignore[union-attr]
    handles = [store.put(array) for array in arrays]
    assert 1_000_000 < store.stats().peak_ram_bytes <= budget
    for handle, array in zip(reversed(handles), reversed(arrays), strict=True):
        np.testing.assert_allclose(store.get(handle), array, atol=0.05)
        store.drop(handle)
    stats = store.stats()
    assert stats.read_bytes > 5_000_000
    assert stats.peak_ram_bytes <= budget + largest + arrays[-1].nbytes
    store.close()
    assert store.stats().ram_bytes == 0


def test_with_no_budget_one_array_at_a_time_is_encoded(make_store: MakeStore):
    store = make_store(0, codec="bf16")
    threads = [
        threading.Thread(target=lambda: [store.drop(store.put(relu(100_000))) for _ in range(10)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.stats().peak_ram_bytes == 200_000


def test_a_store_closed_while_it_encodes_ends(directory: Path):
    for _ in range(20):
        store = DiskStore(directory, ram_budget=3_000_000, codec="lossless")
        for i in range(12):
            store.put(np.full(200_000, i, np.float32))
        store.close()
        assert store.stats().live_bytes == 0


def test_an_array_changed_while_it_waits_to_be_encoded_raises(make_store: MakeStore):
    store = make_store("1MiB", codec="bf16")
    version = [0]
    handle = store.put(relu(100_000), label=Label("exp", "result"), unchanged=lambda: version[0] == 0)
    version[0] = 1
    store.flush()
    with pytest.raises(SpillError, match=r"exp\.result was modified in place"):
        store.get(handle)


@pytest.mark.parametrize(("options", "size_kib"), [("codec='lossless'", 1000), ("encrypt=True", 4000)])
def test_a_full_file_system_raises_and_the_next_step_runs(directory: Path, options: str, size_kib: int):
    program = SPILL_UNTIL_FULL.replace("ram_budget=200_000", f"ram_budget=200_000, {options}")
    assert options in program
    ran = run_script(program, directory, *in_own_mounts(directory, size_kib))
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "No space left on device" in ran.stdout


def test_an_encoder_that_fails_loses_nothing(make_store: MakeStore, monkeypatch: pytest.MonkeyPatch):
    def fail(*arguments: object) -> None:
        raise MemoryError("no memory for the encoded copy")

    store = make_store(500_000, codec="bf16")
    kept = store.put(np.full(50_000, 7.0, np.float32))
    with monkeypatch.context() as patched:
        patched.setattr("spillgrad.storage.codecs.buffers.empty", fail)
        with pytest.raises(SpillError, match="no memory for the encoded copy"):
            store.flush()
    assert (store.get(kept) == 7).all()
    store.flush()
    assert store.stats().stored_bytes == 100_000
    store.drop(kept)


@pytest.mark.parametrize("claimed", [1 << 40, 4000 * 8 - 1, 0])
def test_a_frame_that_claims_another_size_takes_no_memory(claimed: int):
    frame = zstandard.ZstdCompressor().compress(bytes(4000 * 8))
    head = b"\x28\xb5\x2f\xfd" + b"\xe0" + claimed.to_bytes(8, "little")  # one segment, its size in 8 bytes
    bomb = np.frombuffer(head + frame[len(frame) - 20 :], np.uint8)
    tracemalloc.start()
    with pytest.raises(codecs.Undecodable, match="another size"):
        codecs.decompress(bomb, 4000, np.empty((4000, 8), np.uint8))
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_an_unknown_codec_is_refused(directory: Path):
    with pytest.raises(ArgumentError, match="codec='zip'; wanted None, 'lossless', 'bf16' or 'int8'"):
        DiskStore(directory, ram_budget=0, codec="zip")


def test_every_codec_keeps_to_its_bound():
    for name in ("lossless", "bf16", "int8"):
        codec = codec_named(name)
        assert codec is not None
        for case in (*COMPRESSIBLE.values(), *FLOATS.values()):
            array = np.clip(case(), -3e38, 3e38) if case in FLOATS.values() else case()
            encoded = encode(codec, array)
            assert encoded is None or 0 < encoded.payload.nbytes <= codec.bound(array)


def encode(codec: Codec, array: np.ndarray) -> Encoded | None:
    handle = Handle(array, 0, None)
    return codec.encode(array, handle) if codec.bound(handle) else None


# Training

TOKENS = np.random.default_rng(0).integers(0, 256, (8, 4, 33))


@functools.cache
def train(codec: str | None = None) -> list[float]:
    sg.manual_seed(0)
    model = sg.models.build("tiny")
    optimizer = sg.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(3):
        for batch in TOKENS:
            with sg.save_on_disk(ram_budget=0, codec=codec):
                _, loss = model(batch[:, :-1], batch[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


@pytest.mark.parametrize(("codec", "tolerance"), [("lossless", 0.0), ("bf16", 0.001), ("int8", 0.003)])
@pytest.mark.filterwarnings("ignore:save_on_disk. the temporary directory")
def test_training_stays_close(codec: str, tolerance: float):
    exact, got = train(), train(codec=codec)
    assert exact[-1] < exact[0] - 0.3
    differences = np.abs(np.subtract(got, exact))
    assert (differences <= tolerance * np.array(exact)).all()
    assert (differences.max() == 0) == (codec == "lossless")
