"""What is said of the arrays that a store wrote: their places, values and contents, whatever dtype and codec."""

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from spillgrad.errors import ArgumentError, SpillCorruptionError, SpillFormatError
from spillgrad.inspection import values as values_module
from spillgrad.inspection.arrays import Segment
from spillgrad.inspection.contents import ArrayContents, array_contents
from spillgrad.inspection.segments import inspect_segment
from spillgrad.inspection.values import StoredValues
from spillgrad.storage.store import Label, View
from tests.inspection.segments import ARRAYS, NORMAL, stored

CODECS = [None, "lossless", "bf16", "int8"]
NAMES = list(ARRAYS)


@pytest.fixture(scope="module", params=CODECS, ids=str)
def segment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Segment:
    return inspect_segment(stored(tmp_path_factory.mktemp("segment"), codec=request.param))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Segment:
    return inspect_segment(stored(tmp_path_factory.mktemp("segment")))


@pytest.fixture(params=[values_module.PIECE_BYTES, 1 << 10], ids=["whole", "in pieces"])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values_module, "PIECE_BYTES", request.param)


def values_of(segment: Segment, number: int) -> np.ndarray:
    array = segment.arrays[number]
    with StoredValues(segment.path, array) as values:
        found = list(values.pieces())
    assert array.dtype is not None
    assert {piece.dtype for piece in found} <= {array.dtype}
    return np.frombuffer(b"".join(piece.tobytes() for piece in found), array.dtype).reshape(array.shape)


def contents_of(segment: Segment, name: str) -> ArrayContents:
    return array_contents(segment.path, segment.arrays[NAMES.index(name)])


def test_every_array_is_found_with_its_label_dtype_shape_views_and_place(segment: Segment):
    assert segment.problems == ()
    assert segment.left_out == 0
    for number, (found, array) in enumerate(zip(segment.arrays, ARRAYS.values(), strict=True)):
        assert found.problem is None
        assert (found.key, found.sequence) == (f"{number:08d}", number)
        assert found.label == Label("mul", "self", f"net.{number}", 3)
        assert found.views == (View("mul", "self", array.dtype.name, (1,), (array.itemsize,), 0),)
        assert found.dtype is not None
        assert (found.dtype.name, found.shape) == (array.dtype.name, array.shape)
        assert (found.nbytes, found.size) == (array.nbytes, array.size)
        assert found.stored_bytes == sum(chunk.nbytes for chunk in found.chunks)
        assert found.codec or found.stored_bytes == array.nbytes
    assert {found.codec for found in segment.arrays} <= {None, segment.arrays[0].codec}


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("number", range(len(NAMES)), ids=NAMES)
def test_values_come_back_as_they_were_put(segment: Segment, number: int):
    array, found = ARRAYS[NAMES[number]], segment.arrays[number]
    values = values_of(segment, number)
    if found.codec in ("bf16", "int8"):
        within = {"bf16": 1 / 256, "int8": 1 / 127}[found.codec]
        np.testing.assert_allclose(values, array, rtol=0, atol=within * float(np.abs(array).max()))
    else:
        assert values.tobytes() == array.tobytes()


def test_every_codec_was_used_where_the_tests_above_say_so(segment: Segment, request: pytest.FixtureRequest):
    assert segment.arrays[0].codec == request.node.callspec.params["segment"]


def test_a_compressed_array_has_several_chunks(tmp_path: Path):
    segment = inspect_segment(stored(tmp_path, codec="lossless"))
    assert len(segment.arrays[0].chunks) > 2


@pytest.mark.parametrize("start, stop", [(0, 1), (127, 129), (131_071, 131_073), (149_999, 150_000), (7, 7)])
def test_a_part_is_the_same_as_that_part_of_the_whole(segment: Segment, start: int, stop: int):
    whole = values_of(segment, 0).reshape(-1)
    with StoredValues(segment.path, segment.arrays[0]) as values:
        np.testing.assert_array_equal(values.elements(start, stop), whole[start:stop])


def test_items_are_what_the_file_names(plain: Segment):
    assert [item.path for item in plain.items] == [f"/{array.key}" for array in plain.arrays]
    first, scalar = plain.items[0], plain.items[NAMES.index("0-d")]
    assert (first.kind, first.layout, first.shape, first.chunk_shape) == ("dataset", "chunked", (300, 500), (300, 500))
    assert [name for name, _ in first.attributes] == ["spillgrad"]
    assert (scalar.layout, scalar.chunk_shape) == ("contiguous", None)


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize(
    "name", ["float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "int4", "big-endian", "int64", "uint8"]
)
def test_statistics_are_those_of_numpy(plain: Segment, name: str):
    array, found = ARRAYS[name].astype(np.float64), contents_of(plain, name)
    assert (found.checksum, found.nan_count, found.infinite_count) == ("verified", 0, 0)
    assert (found.min, found.max) == (array.min(), array.max())
    assert found.mean == pytest.approx(array.mean(), rel=1e-12)
    assert sum(one.count for one in found.histogram) == array.size
    edges = [one.low for one in found.histogram] + [found.histogram[-1].high]
    assert (edges[0], edges[-1]) == (found.min, found.max)
    # Which side of an edge a value falls on that lies on it, is rounding.
    expected = np.histogram(array, edges)[0]
    on_edges = int(np.isin(array, edges).sum())
    assert np.abs(expected - [one.count for one in found.histogram]).sum() <= 2 * on_edges


def test_complex_values_are_told_by_their_magnitude(plain: Segment):
    found, magnitudes = contents_of(plain, "complex64"), np.abs(ARRAYS["complex64"])
    assert (found.min, found.max) == (magnitudes.min(), magnitudes.max())
    assert found.mean == pytest.approx(magnitudes.mean(dtype=np.float64))


def test_truth_values_have_two_bins(plain: Segment):
    found, array = contents_of(plain, "bool"), ARRAYS["bool"]
    assert (found.min, found.max, found.mean) == (0, 1, array.mean())
    assert [one.count for one in found.histogram] == [array.size - array.sum(), array.sum()]


def test_what_is_not_finite_is_counted_and_left_out(plain: Segment):
    found = contents_of(plain, "not finite")
    assert (found.min, found.max, found.mean, found.nan_count, found.infinite_count) == (1.0, 2.0, 1.5, 2, 2)
    assert sum(one.count for one in found.histogram) == 2
    found = contents_of(plain, "nothing finite")
    assert (found.min, found.max, found.mean, found.nan_count, found.infinite_count) == (None, None, None, 1, 1)
    assert found.histogram == ()


def test_the_largest_floats_do_not_overflow(plain: Segment):
    found = contents_of(plain, "extremes")
    assert (found.min, found.max) == (-1.7e308, 1.7e308)
    assert found.mean == pytest.approx(1.6e308 / 3)
    assert [one.count for one in found.histogram] == [1] + [0] * 14 + [2]
    assert all(one.low < one.high for one in found.histogram)


def test_a_single_value_has_one_bin(plain: Segment):
    found = contents_of(plain, "one value")
    assert [(one.low, one.high, one.count) for one in found.histogram] == [(7.25, 7.25, 15)]
    assert [one.count for one in contents_of(plain, "0-d").histogram] == [1]


def test_nothing_has_no_statistics(plain: Segment):
    found = contents_of(plain, "empty")
    assert (found.checksum, found.min, found.nan_count, found.histogram) == ("verified", None, 0, ())


def test_dates_have_a_first_and_a_last(plain: Segment):
    found = contents_of(plain, "dates")
    assert (found.min, found.max) == ("1969-07-20T00:00:00", "2026-01-01T00:00:00")
    assert (found.mean, found.nan_count, found.histogram) == (None, 1, ())


@pytest.mark.parametrize("name", ["text", "bytes", "records"])
def test_what_has_no_order_has_a_checksum_alone(plain: Segment, name: str):
    assert contents_of(plain, name) == ArrayContents("verified")


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_of_an_encrypted_array_stored_bytes_and_structure_are_known(tmp_path: Path, codec: str | None):
    segment = inspect_segment(stored(tmp_path, codec=codec, encrypt=True))
    assert segment.problems == ()
    for found, array in zip(segment.arrays, ARRAYS.values(), strict=True):
        assert (found.encrypted, found.problem, found.shape, found.nbytes) == (True, None, array.shape, array.nbytes)
        assert found.label == Label()
        assert array_contents(segment.path, found) == ArrayContents("verified")
    with (
        StoredValues(segment.path, segment.arrays[0]) as values,
        pytest.raises(ArgumentError, match="00000000 is encrypted"),
    ):
        values.elements(0, 1)


def test_without_checksums_there_is_none_to_verify(tmp_path: Path):
    segment = inspect_segment(stored(tmp_path, [NORMAL], checksums=False))
    assert segment.arrays[0].checksum is None
    assert array_contents(segment.path, segment.arrays[0]).checksum == "none"


def test_a_flipped_byte_makes_the_checksum_wrong(tmp_path: Path):
    path = stored(tmp_path, [NORMAL])
    array = inspect_segment(path).arrays[0]
    with open(path, "r+b") as file:
        file.seek(array.chunks[0].offset + 1000)
        file.write(b"\xff")
    assert array_contents(path, array).checksum == "wrong"


def test_a_flipped_byte_in_a_compressed_array_is_no_frame(tmp_path: Path):
    path = stored(tmp_path, [ARRAYS["float32"]], codec="lossless", checksums=False)
    array = inspect_segment(path).arrays[0]
    with open(path, "r+b") as file:
        file.seek(array.chunks[1].offset)
        file.write(b"\xff\xff")
    with pytest.raises(SpillCorruptionError, match="00000000 is damaged"):
        array_contents(path, array)


def test_a_file_that_was_cut_off_since_says_how_much_is_missing(tmp_path: Path):
    path = stored(tmp_path, [NORMAL])
    array = inspect_segment(path).arrays[0]
    with open(path, "r+b") as file:
        file.truncate(array.chunks[0].offset + array.nbytes - 10)
    with pytest.raises(SpillCorruptionError, match="ends 10 bytes too early"):
        array_contents(path, array)


def test_a_segment_of_a_newer_version_is_refused_by_name(tmp_path: Path):
    path = stored(tmp_path, [NORMAL])
    with h5py.File(path, "r+") as file:
        attributes = file["00000000"].attrs
        attributes["spillgrad"] = np.bytes_(json.dumps({**json.loads(attributes["spillgrad"]), "format": 99}))
    with pytest.raises(SpillFormatError) as caught:
        inspect_segment(path)
    for named in (str(path), "format 99", "a newer one"):
        assert named in str(caught.value)


def test_an_array_is_found_by_its_key(plain: Segment):
    assert plain["00000002"] is plain.arrays[2]
    with pytest.raises(KeyError):
        plain["99"]
