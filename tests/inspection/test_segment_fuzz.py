"""Segments with bytes flipped, cut, zeroed and inserted: an answer or a clear error, soon, and in little memory.

`make fuzz` tries many more, others each time.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spillgrad.errors import SpillError
from spillgrad.inspection.contents import array_contents
from spillgrad.inspection.segments import inspect_segment
from spillgrad.inspection.slices import Selection, read_shown
from spillgrad.inspection.untrusted import UntrustedReader
from spillgrad.inspection.values import StoredValues
from tests.inspection.segments import ARRAYS, stored

EXAMPLES = int(os.environ.get("SPILLGRAD_FUZZ_EXAMPLES", "400"))
MEMORY_BYTES = 200 << 20
FUZZ = settings(
    max_examples=EXAMPLES,
    derandomize="SPILLGRAD_FUZZ_EXAMPLES" not in os.environ,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

Change = tuple[str, float, int, bytes]  # what, where as a part of the file, how many bytes, and which
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["flip", "write", "zero", "fill", "cut", "insert", "copy"]),
        st.floats(0, 1, exclude_max=True),
        st.integers(1, 64),
        st.binary(min_size=1, max_size=16) | st.sampled_from([b"\xff" * 8, b"\0" * 8, b"\x7f" + b"\xff" * 7, b"\x80"]),
    ),
    min_size=1,
    max_size=6,
)


def changed(data: bytes, structure: list[int], changes: list[Change]) -> bytes:
    """Return `data` changed at places of `structure`, where most of what HDF5 looks at is."""
    found = bytearray(data)
    for what, where, count, content in changes:
        place = min(structure[int(where * len(structure))], len(found))
        if what == "flip" and place < len(found):
            found[place] ^= 1 << count % 8
        elif what == "write":
            found[place : place + len(content)] = content
        elif what == "zero":
            found[place : place + count] = bytes(min(count, len(found) - place))
        elif what == "fill":
            found[place : place + count] = b"\xff" * min(count, len(found) - place)
        elif what == "cut":
            del found[place : place + count]
        elif what == "insert":
            found[place:place] = content
        elif what == "copy":
            found[place : place + count] = found[:count]
    return bytes(found)


def foreign(path: Path, version: str) -> None:
    """Make a file with what no store makes, of which HDF5 knows much more."""
    with h5py.File(path, "w", libver=version) as file:
        file["a/b/c"] = np.arange(10)
        file["soft"], file["external"] = h5py.SoftLink("/a"), h5py.ExternalLink("x.h5", "/")
        file.create_dataset("00000000", data=np.ones((40, 40)), chunks=(7, 9), compression="gzip", shuffle=True)
        file.create_dataset("00000001", (20,), "i8", chunks=(3,), maxshape=(None,), fletcher32=True)[:10] = 3
        file.create_dataset("00000002", (3,), h5py.string_dtype())[:] = ["a", "b", "c"]
        file.create_dataset("00000003", data=np.zeros(3, "i4,f8,S3"))
        file.create_dataset("00000004", (3,), h5py.ref_dtype)[0] = file["a"].ref
        for number in range(30):  # beyond 8, of another structure
            file["a"].attrs[f"attribute {number}"] = np.arange(number)


@pytest.fixture(
    scope="module",
    params=[
        "plain",
        "earliest",
        *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("lossless", "int8", "encrypted", "latest")),
    ],
)
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, list[int]]:
    """Return a file, and the places in it that are not some array's values."""
    place = tmp_path_factory.mktemp("base")
    if request.param in ("earliest", "latest"):
        foreign(place / "file.h5", request.param)
        data = (place / "file.h5").read_bytes()
        return data, list(range(len(data)))
    names = ("float32", "bfloat16", "dates", "text", "0-d", "empty", "records", "complex64")
    arrays = [ARRAYS[name] if name == "float32" else ARRAYS[name][..., :50] for name in names if name != "0-d"]
    options = {"encrypt": True} if request.param == "encrypted" else {}
    if request.param in ("lossless", "int8"):
        options["codec"] = request.param
    path = stored(place, [*arrays, ARRAYS["0-d"]], **options)
    data = path.read_bytes()
    payload = {
        place
        for array in inspect_segment(path).arrays
        for chunk in array.chunks
        for place in range(chunk.offset + 16, chunk.offset + chunk.nbytes - 16)
    }
    return data, [place for place in range(len(data)) if place not in payload]


@pytest.fixture(scope="module")
def reader() -> Iterator[UntrustedReader]:
    with UntrustedReader() as one:
        yield one


def look(path: Path, reader: UntrustedReader) -> str:
    """Do all that a user may ask of a segment, and return how far that came."""
    try:
        segment = inspect_segment(path, reader)
    except SpillError as error:
        assert str(path) in str(error)
        return "refused"
    for array in segment.arrays:
        if array.problem is not None:
            continue
        try:
            array_contents(path, array)
            if not array.encrypted:
                with StoredValues(path, array) as values:
                    read_shown(values, Selection((...,), array.shape))
        except SpillError as error:
            assert array.key.isprintable() is False or array.key in str(error)
    return "read" if not segment.problems else "read in part"


@FUZZ
@given(changes=CHANGES)
def test_a_changed_segment_is_read_or_refused(
    changes: list[Change],
    base: tuple[bytes, list[int]],
    reader: UntrustedReader,
    tmp_path_factory: pytest.TempPathFactory,
):
    path = tmp_path_factory.getbasetemp() / "fuzzed.h5"
    path.write_bytes(changed(*base, changes))
    reader.peak_bytes = 0
    began = time.monotonic()
    look(path, reader)
    assert time.monotonic() - began < 60
    assert reader.peak_bytes < MEMORY_BYTES


def test_what_is_changed_is_mostly_still_looked_into(
    base: tuple[bytes, list[int]], reader: UntrustedReader, tmp_path: Path
):
    """A fuzzer whose files are all refused at once would show nothing."""
    random = np.random.default_rng(0)
    found = []
    for _ in range(60):
        path = tmp_path / "fuzzed.h5"
        path.write_bytes(changed(*base, [("flip", float(random.random()), int(random.integers(8)), b"")]))
        found.append(look(path, reader))
    assert found.count("refused") < 50


def test_a_segment_cut_off_anywhere_is_read_or_refused(
    base: tuple[bytes, list[int]], reader: UntrustedReader, tmp_path: Path
):
    data, structure = base
    path = tmp_path / "cut.h5"
    found = set()
    for place in [*range(0, 200, 7), *structure[200 :: max(1, len(structure) // 60)]]:
        path.write_bytes(data[:place])
        found.add(look(path, reader))
    assert "refused" in found
