"""An index in text means what it means to NumPy, and reads the same."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.extra import numpy as hnp

from spillgrad.errors import ArgumentError, DimensionError
from spillgrad.inspection import slices as slices_module
from spillgrad.inspection.arrays import Segment
from spillgrad.inspection.segments import inspect_segment
from spillgrad.inspection.slices import Selection, parse_index, read_selection, read_shown
from spillgrad.inspection.values import StoredValues
from tests.inspection.segments import stored

GRID = np.maximum(np.random.default_rng(0).standard_normal((60, 7, 180)), 0).astype(np.float32)

PARSED = [
    ("0:4, :", (slice(0, 4), slice(None))),
    ("", ()),
    ("  ", ()),
    ("3", (3,)),
    ("-1,", (-1,)),
    ("+2, ::-3", (2, slice(None, None, -3))),
    ("..., 1", (..., 1)),
    (" 1 : 2 : 3 ", (slice(1, 2, 3),)),
    (":,:,:", (slice(None),) * 3),
]
MISTAKES = [
    # text, and where it ends to make sense
    ("a", 1),
    ("0, b:2", 4),
    ("1:2:3:4", 7),
    ("1::0", 4),
    (",", 1),
    ("1,,2", 3),
    ("..., ...", 5),
    ("1.5", 1),
    ("None", 1),
    ("[0]", 1),
    ("__import__('os')", 1),
    ("9" * 30, 1),
    ("\x1b[31m", 1),
    ("٣", 1),
    ("1_0", 1),
]


@pytest.mark.parametrize(("text", "index"), PARSED, ids=[repr(text) for text, _ in PARSED])
def test_an_index_is_parsed(text: str, index: tuple[Any, ...]):
    assert parse_index(text) == index


@pytest.mark.parametrize(("text", "place"), MISTAKES, ids=[ascii(text) for text, _ in MISTAKES])
def test_what_is_no_index_is_told_with_its_place(text: str, place: int):
    with pytest.raises(ArgumentError) as caught:
        parse_index(text)
    assert f"at character {place}, " in str(caught.value)
    assert "write it as '0:4, :, -1'" in str(caught.value)
    assert "\x1b" not in str(caught.value)


WRONG = [((0, 0), (3,), "too many indices"), ((3,), (3,), "index 3 is out of bounds for axis 0 with size 3"),
         ((0, -5), (3, 4), "index -5 is out of bounds for axis 1 with size 4"), ((0,), (0,), "no elements"),
         ((0,), (), "too many indices")]  # fmt: skip


@pytest.mark.parametrize(("index", "shape", "words"), WRONG, ids=[f"{index} of {shape}" for index, shape, _ in WRONG])
def test_an_index_out_of_range_is_refused_as_numpy_does(index: tuple[int, ...], shape: tuple[int, ...], words: str):
    with pytest.raises(IndexError):
        np.empty(shape)[index]
    with pytest.raises(DimensionError, match=words):
        Selection(index, shape)


@pytest.fixture(scope="module", params=[None, "lossless", "bf16", "int8"], ids=str)
def grid(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Segment:
    return inspect_segment(stored(tmp_path_factory.mktemp("grid"), [GRID], codec=request.param))


def whole(segment: Segment) -> np.ndarray:
    with StoredValues(segment.path, segment.arrays[0]) as values:
        return np.concatenate(list(values.pieces())).reshape(GRID.shape)


@settings(max_examples=150, derandomize=True, database=None, deadline=None)
@given(index=hnp.basic_indices(GRID.shape, allow_newaxis=False))
def test_a_selection_has_the_elements_that_numpy_takes(grid: Segment, index: Any):
    index = index if isinstance(index, tuple) else (index,)
    expected = whole(grid)[index]
    with StoredValues(grid.path, grid.arrays[0]) as values, pytest.MonkeyPatch.context() as patch:
        patch.setattr(slices_module, "PIECE_BYTES", 4096)
        patch.setattr(slices_module, "_GAP_BYTES", 1000)
        selection = Selection(index, GRID.shape)
        found = np.concatenate([np.empty(0, np.float32), *read_selection(values, selection)])
    assert selection.shape == expected.shape
    np.testing.assert_array_equal(found.reshape(selection.shape), expected)


@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (1000,), (1001,), (7, 7, 7, 7), (2,) * 11, (6, 200), (40, 0, 2)])
def test_values_print_as_numpy_prints_them(tmp_path: Path, shape: tuple[int, ...]):
    array = np.random.default_rng(0).standard_normal(shape)
    segment = inspect_segment(stored(tmp_path, [array]))
    with StoredValues(segment.path, segment.arrays[0]) as values:
        shown, cut = read_shown(values, Selection((...,), shape))
    with np.printoptions(threshold=0 if cut else 1001):
        assert str(shown) == str(array)


def test_of_a_large_array_only_the_corners_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    array = np.zeros((3000, 3000), np.float32)
    array[0, -1] = 7
    segment = inspect_segment(stored(tmp_path, [array]))
    read = []
    take = StoredValues._bytes
    monkeypatch.setattr(StoredValues, "_bytes", lambda self, at, n: (read.append(n), take(self, at, n))[1])
    with StoredValues(segment.path, segment.arrays[0]) as values:
        shown, cut = read_shown(values, Selection((...,), array.shape))
    assert (shown.shape, cut, shown[0, -1]) == ((7, 7), True, 7)
    assert sum(read) < array.nbytes / 100


def test_what_would_fill_the_terminal_is_refused(tmp_path: Path):
    array = np.zeros((2,) * 17, np.uint8)
    segment = inspect_segment(stored(tmp_path, [array]))
    with (
        StoredValues(segment.path, segment.arrays[0]) as values,
        pytest.raises(ArgumentError, match="131072 values to print"),
    ):
        read_shown(values, Selection((), array.shape))


def test_a_part_of_five_gigabytes_is_read_at_once(tmp_path: Path):
    """An array that is a hole but for its last page: reading it through would take seconds, and memory."""
    path = stored(tmp_path, [np.arange(64.0)])
    (array,) = inspect_segment(path).arrays
    rows = 1 << 20
    large = np.dtype(np.float64).itemsize * rows * 640
    chunk = array.chunks[0]._replace(length=rows * 640, nbytes=large)
    array = dataclasses.replace(array, shape=(rows, 640), chunks=(chunk,), nbytes=large)
    with open(path, "r+b") as file:
        file.truncate(chunk.offset + large)
        file.seek(chunk.offset + large - 8)
        file.write(np.float64(2.5).tobytes())
    with StoredValues(path, array) as values:
        shown, _ = read_shown(values, Selection((slice(-2, None), ...), array.shape))
        assert shown[-1, -1] == 2.5
        shown, _ = read_shown(values, Selection((slice(None), -1), array.shape))
        assert shown[-1] == 2.5
