"""Segments and journals read back: what there was, and nothing of a version that is not known."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import ml_dtypes
import numpy as np
import pytest

from spillgrad.errors import SpillFormatError
from spillgrad.storage.disk.segment_reader import read_segment
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.journal.files import JOURNAL_NAME
from spillgrad.storage.journal.reader import read_journal
from spillgrad.storage.store import Label

RNG = np.random.default_rng(0)
MakeStore = Callable[..., DiskStore]


def segment_of(store: DiskStore, tmp_path: Path) -> Path:
    store.flush()
    (path,) = store.directory.glob("*.h5")
    return Path(shutil.copy(path, tmp_path / "copy.h5"))  # HDF5 would share its state with the store


@pytest.mark.parametrize(
    ("codec", "within"), [(None, 0), ("lossless", 0), ("bf16", 1 / 256), ("int8", 0.004 * 5)], ids=str
)
def test_a_segment_gives_its_arrays_decoded(make_store: MakeStore, tmp_path: Path, codec: str | None, within: float):
    arrays = [np.maximum(RNG.standard_normal((130, 401)), 0).astype(np.float32), np.arange(30_000).reshape(3, -1)]
    store = make_store(0, codec=codec)
    handles = [store.put(array, label=Label("mul", "self", "net.0", 3)) for array in arrays]
    found = list(read_segment(segment_of(store, tmp_path)))
    assert [stored.about["sequence"] for stored in found] == [handle.sequence for handle in handles]
    for stored, array in zip(found, arrays, strict=True):
        assert (stored.about["op"], stored.about["step"]) == ("mul", 3)
        assert stored.array is not None
        assert (stored.array.shape, stored.array.dtype) == (array.shape, array.dtype)
        np.testing.assert_allclose(stored.array, array, rtol=0, atol=within * float(np.abs(array).max()))


def test_a_codec_was_used_where_the_test_above_says_so(make_store: MakeStore, tmp_path: Path):
    for codec in ("lossless", "bf16", "int8"):
        store = make_store(0, codec=codec)
        store.put(np.maximum(RNG.standard_normal((130, 401)), 0).astype(np.float32))
        (stored,) = read_segment(segment_of(store, tmp_path))
        assert stored.about["codec"] == codec


def test_what_only_the_key_could_read_gives_no_array(make_store: MakeStore, tmp_path: Path):
    store = make_store(0, encrypt=True)
    store.put(np.ones((50, 50)))
    (stored,) = read_segment(segment_of(store, tmp_path))
    assert stored.array is None
    assert stored.about["shape"] == [50, 50]


def test_arrays_that_hdf5_has_no_word_for_are_as_h5py_reads_them(make_store: MakeStore, tmp_path: Path):
    array = RNG.standard_normal((30, 70)).astype(ml_dtypes.bfloat16)
    store = make_store(0)
    store.put(array)
    (stored,) = read_segment(segment_of(store, tmp_path))
    np.testing.assert_array_equal(stored.array, array.astype(np.float32))


@pytest.mark.parametrize("version", [2, 0, None, "1", True])
def test_a_segment_of_another_version_is_refused(make_store: MakeStore, tmp_path: Path, version: object):
    store = make_store(0)
    store.put(np.ones(5000))
    path = segment_of(store, tmp_path)
    with h5py.File(path, "r+") as file:
        (dataset,) = file.values()
        dataset.attrs["spillgrad"] = json.dumps({**json.loads(dataset.attrs["spillgrad"]), "format": version})
    with pytest.raises(SpillFormatError) as caught:
        list(read_segment(path))
    for named in (str(path), f"format {version!r}", "reads 1;", "the version that wrote it"):
        assert named in str(caught.value)


def test_a_journal_of_a_newer_version_is_refused(tmp_path: Path):
    path = tmp_path / JOURNAL_NAME
    path.write_text('{"format": 3, "began": "2026-01-01T00:00:00+00:00", "process": 1}\n{"t": 0.1, "event": "pack"}\n')
    with pytest.raises(SpillFormatError) as caught:
        list(read_journal(tmp_path))
    for named in (str(path), "format 3", "reads 1 to 2;"):
        assert named in str(caught.value)


def test_what_is_no_segment_raises(tmp_path: Path):
    (tmp_path / "segment-0.h5").write_bytes(os.urandom(5000))
    with pytest.raises(OSError, match="file signature not found"):
        list(read_segment(tmp_path / "segment-0.h5"))
