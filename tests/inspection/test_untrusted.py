"""Files that mean harm: bounded memory and time, nothing followed, and a clear message."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from spillgrad.errors import ArgumentError, SpillError
from spillgrad.inspection import untrusted
from spillgrad.inspection.arrays import Segment
from spillgrad.inspection.segments import inspect_segment
from spillgrad.inspection.untrusted import UntrustedReader
from spillgrad.inspection.values import StoredValues
from tests.inspection.segments import NORMAL, stored
from tests.waiting import wait_until

MEMORY_BYTES = 200 << 20
NOTHING = {"op": None, "slot": None, "module": None, "step": None, "views": [], "xxh3_64": None}


@pytest.fixture(scope="module")
def reader() -> Iterator[UntrustedReader]:
    with UntrustedReader() as one:
        yield one


def described(dataset: h5py.Dataset, **about: Any) -> None:
    text = {"format": 1, "sequence": 0, **NOTHING, "dtype": dataset.dtype.name, "shape": dataset.shape, **about}
    dataset.attrs["spillgrad"] = np.bytes_(json.dumps(text))


def ours(file: h5py.File, **about: Any) -> h5py.Dataset:
    dataset = file.create_dataset("00000000", data=np.arange(12.0).reshape(3, 4), chunks=(3, 4))
    described(dataset, **about)
    return dataset


def external_storage(file: h5py.File) -> None:
    file.create_dataset("00000000", (4096,), "u1", external=[("/etc/passwd", 0, 4096)])


def virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((100,), "u1")
    layout[:] = h5py.VirtualSource("/etc/passwd", "x", (100,))
    file.create_virtual_dataset("00000000", layout)


def virtual_without_end(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((100,), "u1", maxshape=(None,))
    layout[:] = h5py.VirtualSource("/dev/zero", "x", (100,), maxshape=(None,))
    file.create_virtual_dataset("00000000", layout)


def deflate_bomb(file: h5py.File) -> None:
    data = file.create_dataset("00000000", (1 << 28,), "u1", chunks=(1 << 28,), compression="gzip", compression_opts=9)
    data[:] = 0


def filter_by_number(file: h5py.File) -> None:
    layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    layout.set_chunk((4,))
    layout.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, (1,))
    space = h5py.h5s.create_simple((4,))
    h5py.h5d.create(file.id, b"00000000", h5py.h5t.STD_U8LE, space, dcpl=layout)


def overlapping_zstd(file: h5py.File) -> None:
    layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    layout.set_chunk((1 << 40,))
    for number in (2, 32015):
        layout.set_filter(number, h5py.h5z.FLAG_OPTIONAL, (1,))
    space = h5py.h5s.create_simple((1 << 40,))
    found = h5py.h5d.create(file.id, b"00000000", h5py.h5t.STD_U8LE, space, dcpl=layout)
    found.write_direct_chunk((0,), bytes(4096))
    described(file["00000000"], codec="lossless")


def huge_attribute(file: h5py.File) -> None:
    dataset = ours(file)
    dataset.attrs.create("large", np.zeros(32 << 20, "u1"))


def huge_text(file: h5py.File) -> None:
    dataset = ours(file)
    del dataset.attrs["spillgrad"]
    dataset.attrs["spillgrad"] = np.bytes_(b"[" * (1 << 20))


def long_names(file: h5py.File) -> None:
    for number in range(400):
        file.create_dataset(f"{number:08d}" + "x" * 60_000, data=1)


def references(file: h5py.File) -> None:
    file.create_dataset("00000000", (2,), h5py.ref_dtype)


def loop(file: h5py.File) -> None:
    group = file.create_group("group")
    group["up"] = file["/"]
    group["self"] = group
    group["soft"] = h5py.SoftLink("/group/soft")


def deep(file: h5py.File) -> None:
    file.create_group("/".join(["d"] * 500))


HOSTILE: dict[str, tuple[Callable[[h5py.File], Any], list[str]]] = {
    # what is in the file, and words of what is said of it
    "an external link": (lambda f: f.update(x=h5py.ExternalLink("/etc/passwd", "/")), ["/x", "external link"]),
    "a soft link in a loop": (lambda f: f.update(x=h5py.SoftLink("/x")), ["/x", "soft link"]),
    "groups in a loop": (loop, ["/group", "is of a kind that no store makes: group"]),
    "500 groups in each other": (deep, ["/d/d", "is of a kind that no store makes: group"]),
    "values in another file": (external_storage, ["other files", "not opened"]),
    "a virtual dataset": (virtual, ["virtual", "not followed"]),
    "a virtual dataset without end": (virtual_without_end, ["virtual", "not followed"]),
    "an exabyte declared": (
        lambda f: f.create_dataset("00000000", (1 << 60,), "u1", chunks=(1 << 20,)), [str(1 << 60), "declared"]
    ),
    "an exabyte declared without chunks": (lambda f: f.create_dataset("00000000", (1 << 60,), "u1"), [str(1 << 60)]),
    "a deflate bomb": (deflate_bomb, ["filters 1"]),
    "a filter and no codec": (filter_by_number, ["filters 32015"]),
    "a zstd bomb": (overlapping_zstd, ["chunks are (1099511627776,)"]),
    "text of variable length": (
        lambda f: f.create_dataset("00000000", (2,), h5py.string_dtype()), ["type is none"]
    ),
    "arrays of variable length": (
        lambda f: f.create_dataset("00000000", (2,), h5py.vlen_dtype("i4")), ["type is none"]
    ),
    "references": (references, ["type is none"]),
    "a type with a name": (lambda f: f.update(x=np.dtype("f4")), ["/x", "is of a kind that no store makes: type"]),
    "an empty dataset": (lambda f: f.create_dataset("00000000", data=h5py.Empty("f4")), ["no shape"]),
    "an attribute of 32 MiB": (huge_attribute, []),
    "our attribute with a MiB": (huge_text, ["attributes cannot be read", "65536 bytes at most"]),
    "JSON of no end of depth": (lambda f: ours(f, views=json.loads("[" * 900 + "]" * 900)), ["attribute is damaged"]),
    "numbers that are none": (lambda f: ours(f, sequence=float("nan")), ["attribute is damaged", "sequence"]),
    "a negative shape": (lambda f: ours(f, shape=[-1, 4]), ["attribute is damaged", "shape"]),
    "a shape of another array": (lambda f: ours(f, shape=[4, 3]), ["(3, 4)", "(4, 3)"]),
    "a codec nobody knows": (lambda f: ours(f, codec="rot13"), ["attribute is damaged", "codec"]),
    "a codec that did nothing": (lambda f: ours(f, codec="bf16"), ["no row of bytes"]),
    "a checksum that is none": (lambda f: ours(f, xxh3_64="x" * 16), ["attribute is damaged", "xxh3_64"]),
    "a view of nonsense": (lambda f: ours(f, views=[{"op": 1}]), ["attribute is damaged", "views[0].op"]),
    "a format before the first": (lambda f: ours(f, format=0), ["format is 0"]),
    "no format": (lambda f: ours(f, format=None), ["format is None"]),
    "names of 60,000 characters": (long_names, ["more objects", "left out"]),
    "chunks of some columns": (
        lambda f: f.create_dataset("00000000", data=np.ones((40, 40)), chunks=(10, 10)), ["not whole rows"]
    ),
    "chunks that are missing": (
        lambda f: f.create_dataset("00000000", (40,), "f8", chunks=(10,)), ["chunks are missing"]
    ),
}  # fmt: skip


def said(segment: Segment) -> str:
    left_out = [f"{segment.left_out} more objects are left out"] if segment.left_out else []
    return "\n".join([*segment.problems, *(f"{array.problem}" for array in segment.arrays), *left_out])


# Older files cannot hold such attributes.
TOO_LARGE = ("an attribute of 32 MiB", "our attribute with a MiB")


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (version, name)
        for version in ("earliest", "latest")
        for name in HOSTILE
        if version == "latest" or name not in TOO_LARGE
    ],
)
def test_a_hostile_file_is_told_and_nothing_in_it_is_followed(
    version: str, name: str, tmp_path: Path, reader: UntrustedReader
):
    make, words = HOSTILE[name]
    path = tmp_path / "hostile.h5"
    with h5py.File(path, "w", libver=version) as file:
        make(file)
    reader.peak_bytes = 0
    began = time.monotonic()
    segment = inspect_segment(path, reader)
    assert time.monotonic() - began < 20
    assert 0 < reader.peak_bytes < MEMORY_BYTES
    for word in words:
        assert word in said(segment)
    for array in segment.arrays:
        if array.problem is not None:
            with pytest.raises(ArgumentError, match="no values that can be read"):
                StoredValues(path, array)


def test_what_is_not_followed_could_not_be_opened(tmp_path: Path, reader: UntrustedReader):
    """The values of a virtual dataset's source, and another HDF5 file behind a link, are there to be found."""
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["secret"] = np.arange(8)
    with h5py.File(tmp_path / "hostile.h5", "w") as file:
        file["link"] = h5py.ExternalLink(str(tmp_path / "secret.h5"), "/secret")
        layout = h5py.VirtualLayout((8,), "i8")
        layout[:] = h5py.VirtualSource(str(tmp_path / "secret.h5"), "secret", (8,))
        file.create_virtual_dataset("00000000", layout)
    with h5py.File(tmp_path / "hostile.h5") as file:
        assert file["link"].shape == (8,)
    accessed = os.stat(tmp_path / "secret.h5").st_atime_ns
    found = inspect_segment(tmp_path / "hostile.h5", reader)
    assert [item.kind for item in found.items] == ["dataset", "external link"]
    assert found.items[1].target == f"{tmp_path / 'secret.h5'}:/secret"
    assert found.arrays[0].shape == ()
    assert os.stat(tmp_path / "secret.h5").st_atime_ns == accessed


@pytest.mark.exhaustive
def test_100_000_datasets_are_listed_and_more_are_counted(tmp_path: Path, reader: UntrustedReader):
    path = tmp_path / "many.h5"
    with h5py.File(path, "w") as file:
        h5py.h5d.create(file.id, b"00000000", h5py.h5t.STD_U8LE, h5py.h5s.create(h5py.h5s.SCALAR))
        for number in range(1, 100_010):  # all of them are the same: that is as much to look at, and soon made
            file.id.links.create_hard(f"{number:08d}".encode(), file.id, b"00000000")
    reader.peak_bytes = 0
    found = inspect_segment(path, reader)
    assert (len(found.items), found.left_out) == (100_000, 10)
    assert 0 < reader.peak_bytes < MEMORY_BYTES


def test_names_and_labels_are_kept_as_they_are_and_printed_elsewhere(tmp_path: Path, reader: UntrustedReader):
    path = tmp_path / "hostile.h5"
    name = "\x1b[2J<script>\u202e"
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset(name, data=np.arange(3), chunks=(3,))
        described(dataset, op=name, module="\udcff\n")
        file[b"\xff\xfe"] = h5py.SoftLink("/x")
    found = inspect_segment(path, reader)
    (array,) = found.arrays
    assert (array.key, array.label.op, array.label.module) == (name, name, "\udcff\n")
    assert {item.path for item in found.items} == {f"/{name}", "/\udcff\udcfe"}


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


NO_FILES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "an empty file": (Path.touch, "file signature not found"),
    "a text": (lambda path: path.write_text("All work and no play makes a dull boy.\n" * 100), "signature not found"),
    "random bytes": (lambda path: path.write_bytes(np.random.default_rng(0).bytes(5000)), "signature not found"),
    "a folder": (Path.mkdir, "it is a folder"),
    "a pipe": (make_fifo, "no regular file"),
    "a socket": (make_socket, "no regular file"),
    "a link to a device": (lambda path: path.symlink_to("/dev/zero"), "no regular file"),
    "a signature alone": (lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n"), "open file"),
    "holes": (lambda path: path.touch() or os.truncate(path, 1 << 40), "signature not found"),
}


@pytest.mark.parametrize(("make", "words"), NO_FILES.values(), ids=list(NO_FILES))
def test_what_is_no_segment_is_refused_by_name(
    make: Callable[[Path], Any], words: str, tmp_path: Path, reader: UntrustedReader
):
    make(tmp_path / "file.h5")
    with pytest.raises(SpillError) as caught:
        inspect_segment(tmp_path / "file.h5", reader)
    for named in (str(tmp_path / "file.h5"), words, "check its disk, or name another file"):
        assert named in str(caught.value)


def test_what_is_not_there_or_may_not_be_read_is_the_systems_error(tmp_path: Path, reader: UntrustedReader):
    with pytest.raises(FileNotFoundError) as caught:
        inspect_segment(tmp_path / "missing.h5", reader)
    assert caught.value.filename == str(tmp_path / "missing.h5")


def test_a_large_sparse_file_is_not_read_through(tmp_path: Path, reader: UntrustedReader):
    path = tmp_path / "sparse.h5"
    with h5py.File(path, "w") as file:
        layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        layout.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        layout.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        h5py.h5d.create(file.id, b"00000000", h5py.h5t.STD_U8LE, h5py.h5s.create_simple((1 << 42,)), dcpl=layout)
    assert path.stat().st_size > 1 << 42
    (array,) = inspect_segment(path, reader).arrays
    assert array.problem is not None
    assert str(1 << 42) in array.problem


def test_arrays_that_lie_over_each_other_are_not_read(tmp_path: Path, reader: UntrustedReader):
    path = tmp_path / "overlapping.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("00000000", data=np.ones(100_000))
        for number in range(1, 20):
            file[f"{number:08d}"] = file["00000000"]  # hard links to the same bytes
    found = inspect_segment(path, reader)
    assert "overlap" in found.problems[0]
    assert {array.problem for array in found.arrays} == {found.problems[0]}


def test_a_process_that_dies_is_told_and_the_next_question_has_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = stored(tmp_path, [NORMAL])
    with UntrustedReader() as reader:
        inspect_segment(path, reader)
        child = reader._child
        assert child is not None
        for ending, words in ((signal.SIGSEGV, "HDF5 crashed on it (SIGSEGV)"), (signal.SIGXCPU, "too much time")):
            child = reader._started()
            child.send_signal(ending)
            with pytest.raises(SpillError) as caught:
                inspect_segment(path, reader)
            assert words in str(caught.value)
            assert child.returncode == -ending
            assert len(inspect_segment(path, reader).arrays) == 1


def test_a_process_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = stored(tmp_path, [NORMAL])
    monkeypatch.setattr(untrusted, "_WALL_PER_CPU", 0.02)
    with UntrustedReader() as reader:
        child = reader._started()
        child.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(SpillError, match=r"HDF5 took more than 0\.6 s"):
            inspect_segment(path, reader)
        assert time.monotonic() - began < 5
        assert child.returncode == -signal.SIGKILL


def test_the_process_is_limited(tmp_path: Path):
    path = stored(tmp_path, [NORMAL])
    with UntrustedReader() as reader:
        inspect_segment(path, reader)
        assert reader._child is not None
        limits = {kind: resource.prlimit(reader._child.pid, kind)[0] for kind in (
            resource.RLIMIT_AS, resource.RLIMIT_CORE, resource.RLIMIT_FSIZE, resource.RLIMIT_CPU
        )}  # fmt: skip
        assert 0 < limits[resource.RLIMIT_AS] < 600 << 20
        assert limits[resource.RLIMIT_CORE] == limits[resource.RLIMIT_FSIZE] == 0
        assert 0 < limits[resource.RLIMIT_CPU] <= 40
        assert 0 < reader.peak_bytes < 100 << 20
        pid = reader._child.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def reads_hdf5(process: int) -> bool:
    try:
        return b"hdf5_child.py" in Path(f"/proc/{process}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_the_process_ends_with_the_one_that_asks_however_that_ends(tmp_path: Path):
    path = stored(tmp_path, [NORMAL])
    program = (
        "import time; from spillgrad.inspection.segments import inspect_segment;"
        "from spillgrad.inspection.untrusted import UntrustedReader; reader = UntrustedReader();"
        f"inspect_segment({str(path)!r}, reader); print(reader._child.pid, flush=True); time.sleep(60)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE) as asking:
        assert asking.stdout is not None
        child = int(asking.stdout.readline())
        assert reads_hdf5(child)
        asking.kill()
    wait_until(lambda: not reads_hdf5(child))


def test_an_answer_without_end_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = stored(tmp_path)
    monkeypatch.setattr(untrusted, "_MOST_ANSWER_BYTES", 1000)
    with pytest.raises(SpillError, match="its structure is more than"):
        inspect_segment(path)


def test_hdf5_is_never_loaded_by_the_process_that_asks(tmp_path: Path):
    path = stored(tmp_path, [NORMAL])
    program = (
        "import sys; from spillgrad.inspection.segments import inspect_segment;"
        "from spillgrad.inspection.contents import array_contents;"
        f"found = inspect_segment({str(path)!r}); print(array_contents(found.path, found.arrays[0]).checksum);"
        "print('h5py' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert ended.stdout == "verified\nFalse\n"


def test_several_threads_may_ask_at_once(tmp_path: Path):
    path = stored(tmp_path)
    found: list[Segment] = []
    threads = [threading.Thread(target=lambda: found.append(inspect_segment(path))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(one == found[0] for one in found)
