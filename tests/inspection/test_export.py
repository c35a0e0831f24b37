"""A copy as .npy: exact, whole or not at all, and over nothing that was there."""

import os
import resource
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from spillgrad.errors import ArgumentError, SpillCorruptionError, SpillError
from spillgrad.inspection import slices as slices_module
from spillgrad.inspection.arrays import Segment
from spillgrad.inspection.export import export_npy
from spillgrad.inspection.segments import inspect_segment
from spillgrad.inspection.slices import Selection, parse_index
from spillgrad.inspection.values import StoredValues
from tests.inspection.segments import ARRAYS, NORMAL, stored

NAMES = list(ARRAYS)


@pytest.fixture(scope="module")
def segment(tmp_path_factory: pytest.TempPathFactory) -> Segment:
    return inspect_segment(stored(tmp_path_factory.mktemp("segment"), codec="lossless"))


def export(segment: Segment, number: int, path: Path, index: str = "...", overwrite: bool = False) -> int:
    array = segment.arrays[number]
    with StoredValues(segment.path, array) as values:
        return export_npy(values, Selection(parse_index(index), array.shape), path, overwrite)


@pytest.mark.parametrize("number", range(len(NAMES)), ids=NAMES)
def test_numpy_loads_what_was_put(segment: Segment, tmp_path: Path, number: int):
    array = ARRAYS[NAMES[number]]
    assert export(segment, number, tmp_path / "out.npy") == array.nbytes
    found = np.load(tmp_path / "out.npy")
    if array.dtype.type.__module__ == "ml_dtypes":  # as `np.save` writes it
        np.save(tmp_path / "saved.npy", array)
        assert found.dtype == np.load(tmp_path / "saved.npy").dtype
        found = found.view(array.dtype)
    if array.dtype.names is not None:  # of records, the bytes
        found = found.view(array.dtype)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_bfloat16_array_is_read_as_its_docstring_says(segment: Segment, tmp_path: Path):
    export(segment, NAMES.index("bfloat16"), tmp_path / "out.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy").view(ml_dtypes.bfloat16), ARRAYS["bfloat16"])


def test_a_slice_is_written_as_numpy_takes_it(segment: Segment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(slices_module, "PIECE_BYTES", 4096)
    export(segment, 0, tmp_path / "out.npy", "::-2, 1:400:3")
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), ARRAYS["float32"][::-2, 1:400:3])


def test_a_file_that_is_there_stays_unless_told_otherwise(segment: Segment, tmp_path: Path):
    path = tmp_path / "out.npy"
    path.write_text("precious")
    with pytest.raises(ArgumentError, match=r"out\.npy exists; name another file, or overwrite it with --force"):
        export(segment, 0, path)
    assert path.read_text() == "precious"
    export(segment, 0, path, overwrite=True)
    assert np.load(path).shape == (300, 500)


@pytest.mark.parametrize("kind", ["folder", "pipe", "link to nowhere"])
def test_what_is_no_file_is_never_replaced(segment: Segment, tmp_path: Path, kind: str):
    path = tmp_path / "out.npy"
    {"folder": path.mkdir, "pipe": lambda: os.mkfifo(path), "link to nowhere": lambda: path.symlink_to("nowhere")}[
        kind
    ]()
    with pytest.raises(ArgumentError):
        export(segment, 0, path)
    if kind != "link to nowhere":
        with pytest.raises(ArgumentError, match="no regular file"):
            export(segment, 0, path, overwrite=True)
    assert [one.name for one in tmp_path.iterdir()] == ["out.npy"]


def test_a_disk_that_refuses_is_told_and_nothing_is_left(segment: Segment, tmp_path: Path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(SpillError) as caught:
            export(segment, 0, tmp_path / "out.npy")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    for named in ("out.npy", "585.9 KiB", "File too large", "free space, or name another place"):
        assert named in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_missing_is_told(segment: Segment, tmp_path: Path):
    with pytest.raises(SpillError, match=r"missing/out\.npy: No such file or directory"):
        export(segment, 0, tmp_path / "missing" / "out.npy")


def test_what_cannot_be_read_leaves_no_file(tmp_path: Path):
    path = stored(tmp_path, [ARRAYS["float32"]], codec="lossless")
    segment = inspect_segment(path)
    with open(path, "r+b") as file:
        file.seek(segment.arrays[0].chunks[1].offset)
        file.write(b"\xff" * 100)
    with pytest.raises(SpillCorruptionError, match="00000000 is damaged"):
        export(segment, 0, tmp_path / "out.npy")
    assert not [one for one in tmp_path.iterdir() if "out.npy" in one.name]


def test_an_encrypted_array_is_refused(tmp_path: Path):
    segment = inspect_segment(stored(tmp_path, [NORMAL], encrypt=True))
    with pytest.raises(ArgumentError, match="encrypted"):
        export(segment, 0, tmp_path / "out.npy")
    assert not (tmp_path / "out.npy").exists()
