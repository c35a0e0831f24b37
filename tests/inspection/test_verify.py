"""What was written is verified; what was damaged is named; what goes on meanwhile is no damage."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from spillgrad.errors import ArgumentError, SpillError, SpillFormatError
from spillgrad.inspection.segments import inspect_segment
from spillgrad.inspection.verify import Problem, Verification, verify
from spillgrad.storage.disk_store import DiskStore
from tests.inspection.segments import ARRAYS, NORMAL, stored
from tests.waiting import wait_until

# What a killed process left: some arrays, a flush, then some freed and their places used again.
DIES = """
import os, signal, sys, time
import numpy as np
from spillgrad.storage.disk_store import DiskStore
store = DiskStore(sys.argv[1], ram_budget=0)
first = [store.put(np.full(3000, float(i))) for i in range(20)]
if "flush" in sys.argv:
    store.flush()
for handle in first[:10]:
    if "free" in sys.argv:
        store.drop(handle)
again = [store.put(np.full(3000, -float(i))) for i in range(10)] if "free" in sys.argv else []
for handle in again:
    store.get(handle)
time.sleep(0.5)  # the journal's lines come
os.kill(os.getpid(), signal.SIGKILL)
"""


def died(place: Path, *what: str) -> Path:
    """Return the directory of a run whose process is dead."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", DIES, str(place), *what], env=environment, check=False, timeout=60)
    (run,) = place.glob("run-*")
    return run


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


@pytest.fixture(scope="module")
def dead_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return died(tmp_path_factory.mktemp("dead") / "spill", "flush")


@pytest.fixture
def run(dead_run: Path, tmp_path: Path) -> Path:
    """A dead run's directory with one segment of 20 arrays: a copy, to be damaged."""
    return shutil.copytree(dead_run, tmp_path / "spill" / dead_run.name)


def find_segment_arrays(store: DiskStore) -> list[str]:
    return [array.key for path in store.directory.glob("*.h5") for array in inspect_segment(path).arrays]


def whats(problems: list[Problem]) -> list[str]:
    return [f"{one.path.name}/{one.key}: {one.what}" for one in problems]


@pytest.mark.parametrize("options", [{}, {"codec": "lossless"}, {"codec": "int8"}, {"codec": "bf16"}], ids=str)
def test_what_a_store_wrote_is_all_right(tmp_path: Path, options: dict[str, str]):
    found = verify(stored(tmp_path, **options))
    assert (found.segments, found.arrays, found.verified) == (1, len(ARRAYS), len(ARRAYS))
    assert found.problems == found.changed == found.notes == []


def test_encrypted_arrays_are_verified_as_they_were_stored(tmp_path: Path):
    found = verify(stored(tmp_path, encrypt=True))
    assert (found.verified, found.encrypted, found.problems) == (0, len(ARRAYS), [])


def test_arrays_without_checksums_are_decoded_and_counted(tmp_path: Path):
    path = stored(tmp_path, [ARRAYS["float32"], NORMAL], codec="lossless", checksums=False)
    found = verify(path)
    assert (found.verified, found.unverified, found.problems) == (0, 2, [])
    overwrite(path, inspect_segment(path).arrays[0].chunks[1].offset, b"\xff\xff\xff")
    (problem,) = verify(path).problems
    assert problem.key == "00000000"
    assert "is damaged" in problem.what


def test_a_flipped_byte_is_found_and_its_array_named(tmp_path: Path):
    path = stored(tmp_path)
    array = inspect_segment(path).arrays[2]
    overwrite(path, array.chunks[0].offset + 5, b"\x55")
    found = verify(path)
    assert [(one.path, one.key) for one in found.problems] == [(path, "00000002")]
    assert f"{array.checksum} was written" in found.problems[0].what
    assert found.verified == len(ARRAYS) - 1


def test_the_first_and_the_last_byte_of_an_array_count(tmp_path: Path):
    path = stored(tmp_path, [np.arange(5000, dtype=np.uint8), np.array(2.5), NORMAL[0, :3]])
    whole = path.read_bytes()
    for array in inspect_segment(path).arrays:
        for offset in (array.chunks[0].offset, array.chunks[0].offset + array.nbytes - 1):
            path.write_bytes(whole)
            overwrite(path, offset, bytes([whole[offset] ^ 1]))
            assert [one.key for one in verify(path).problems] == [array.key]


@pytest.mark.parametrize("offset", [0, 3, 8, 12, 24, 40])
def test_a_damaged_superblock_is_damage_of_a_segment(run: Path, offset: int):
    path = run / "segment-00000.h5"
    overwrite(path, offset, bytes([path.read_bytes()[offset] ^ 0xFF]))
    for place in (path, run, run.parent):
        found = verify(place)
        assert [(one.path, one.key) for one in found.problems] == [(path, None)]
        assert "cannot be read as HDF5" in found.problems[0].what


@pytest.mark.parametrize("part", [0.0, 0.001, 0.01, 0.1, 0.5, 0.9, 0.99])
def test_a_segment_that_was_cut_off_is_damaged(run: Path, part: float):
    path = run / "segment-00000.h5"
    os.truncate(path, int(path.stat().st_size * part))
    found = verify(path)
    assert found.problems if part else found.problems + found.notes


def test_a_dead_runs_directory_is_verified_with_its_journal(run: Path):
    for place in (run, run.parent):
        found = verify(place)
        assert (found.segments, found.journals, found.arrays, found.verified) == (1, 1, 20, 20)
        assert found.journal_lines > 20
        assert found.problems == found.changed == found.notes == []


def test_every_run_in_a_folder_is_verified(tmp_path: Path):
    for number in range(2):
        died(tmp_path / f"{number}", "flush").rename(tmp_path / f"run-{number:016x}")
    overwrite(tmp_path / "run-0000000000000001" / "segment-00000.h5", 0, b"\0")
    heard: list[Path] = []
    found = verify(tmp_path, heard.append)
    assert (found.segments, found.journals, found.arrays) == (2, 2, 40)
    assert [one.path for one in found.problems] == [tmp_path / "run-0000000000000001" / "segment-00000.h5"]
    assert len(heard) == 4


def test_several_segments_are_verified(tmp_path: Path):
    store = DiskStore(tmp_path, ram_budget=0, segment_bytes=1 << 20)
    try:
        for _ in range(4):
            store.put(np.random.default_rng(0).standard_normal(100_000))
        store.flush()
        found = verify(tmp_path)
        assert (found.segments, found.arrays, found.verified) == (4, 4, 4)
        assert found.problems == []
    finally:
        store.close()


def test_a_live_run_is_verified_and_goes_on(tmp_path: Path):
    store = DiskStore(tmp_path, ram_budget=0)
    try:
        handles = [store.put(NORMAL + i) for i in range(5)]
        store.flush()
        found = verify(tmp_path)
        assert (found.verified, found.problems, found.notes) == (5, [], [])
        # Its lock is still its own: another process finds it taken.
        program = f"from spillgrad.storage.runs.sweep import sweep; print(sweep({str(tmp_path)!r}))"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        swept = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
        assert swept.stdout == "[]\n"
        np.testing.assert_array_equal(store.get(handles[3]), NORMAL + 3)
    finally:
        store.close()


def test_arrays_that_a_live_run_freed_since_its_flush_are_no_damage(tmp_path: Path):
    store = DiskStore(tmp_path, ram_budget=0)
    try:
        handles = [store.put(np.full(3000, float(i))) for i in range(10)]
        store.flush()
        for handle in handles[:5]:
            store.drop(handle)
        again = [store.put(np.full(3000, -float(i))) for i in range(5)]
        assert [store.get(handle)[0] for handle in again] == [0, -1, -2, -3, -4]
        wait_until(lambda: len(find_segment_arrays(store)) == 10)
        found = verify(tmp_path)
        assert (found.problems, found.changed, found.verified) == ([], [], 10)
    finally:
        store.close()


def test_a_run_that_goes_on_all_the_time_is_never_damaged(tmp_path: Path):
    store = DiskStore(tmp_path, ram_budget=0)
    stop = threading.Event()

    def work() -> None:
        step = 0
        while not stop.is_set():
            handles = [store.put(np.full(2000 + 100 * (i % 3), step + i * 0.5)) for i in range(30)]
            if step % 3 == 0:
                store.flush()
            for handle in reversed(handles):
                store.get(handle)
                store.drop(handle)
            step += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(5):
            found = verify(tmp_path)
            assert found.problems == []
    finally:
        stop.set()
        thread.join()
        store.close()


def test_a_place_that_a_dead_run_used_again_is_no_damage(tmp_path: Path):
    run = died(tmp_path / "spill", "flush", "free")
    found = verify(run)
    assert found.problems == found.changed == []
    assert found.verified == found.arrays == 20


def test_without_its_journal_a_place_that_was_used_again_looks_damaged(tmp_path: Path):
    """Nothing else can tell: so the test before shows something."""
    run = died(tmp_path / "spill", "flush", "free")
    assert verify(run).problems == []
    (run / "journal.jsonl").unlink()
    assert len(verify(run).problems) > 0


CHANGES = """
import os, signal, sys, time
import numpy as np
from spillgrad.storage.disk_store import DiskStore
store = DiskStore(sys.argv[1], ram_budget=300_000)
arrays = [np.full(8_000, i, np.float64) for i in range(8)]
handles = [store.put(array, persistent=True) for array in arrays]
del arrays
store.flush()
for handle in handles:
    array = store.get(handle)
    store.begin_change(handle, array)
    array += 1
    store.end_change(handle)
    del array
time.sleep(0.5)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_arrays_that_a_dead_run_had_changed_are_no_damage(tmp_path: Path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", CHANGES, str(tmp_path / "spill")]
    assert subprocess.run(command, env=environment, timeout=60).returncode == -signal.SIGKILL
    (run,) = (tmp_path / "spill").glob("run-*")
    found = verify(run)
    assert found.problems == found.changed == []
    assert found.verified == found.arrays > 0
    (run / "journal.jsonl").unlink()
    assert verify(run).problems  # without the journal nobody could know


def test_a_run_that_died_before_its_first_flush_is_told_and_no_damage(tmp_path: Path):
    run = died(tmp_path / "spill")
    found = verify(run)
    assert (found.segments, found.arrays, found.verified, found.problems) == (1, 20, 20, [])
    note = "its run was killed before a flush: 20 of 20 arrays are told from the run's journal; HDF5 cannot read it"
    assert whats(found.notes) == [f"segment-00000.h5/None: {note}"]


def test_a_finished_runs_journal_is_verified_alone(tmp_path: Path):
    store = DiskStore(tmp_path / "spill", ram_budget=0, keep_journal=tmp_path / "kept.jsonl")
    store.get(store.put(NORMAL))
    store.close()
    for place in (tmp_path / "kept.jsonl", tmp_path):
        found = verify(place)
        assert (found.segments, found.journals, found.problems) == (0, 1, [])
        assert found.journal_lines == len((tmp_path / "kept.jsonl").read_text().splitlines())
    assert "there are no segments" in found.notes[0].what


def kept(tmp_path: Path) -> Path:
    store = DiskStore(tmp_path / "spill", ram_budget=0, keep_journal=tmp_path / "kept.jsonl")
    for _ in range(5):
        store.get(store.put(NORMAL))
    store.close()
    return tmp_path / "kept.jsonl"


JOURNALS: dict[str, tuple[Callable[[bytes], bytes], list[str]]] = {
    # what happened to a journal, and the lines that are damaged
    "a line of nonsense": (lambda text: replaced(text, 2, b"nonsense"), ["3"]),
    "a number where a name belongs": (lambda text: replaced(text, 3, b'{"t": 1.0, "event": 7}'), ["4"]),
    "an event nobody knows": (lambda text: replaced(text, 3, b'{"t": 1.0, "event": "party"}'), ["4"]),
    "no time": (lambda text: replaced(text, 1, b'{"t": NaN, "event": "free", "array": 0}'), ["2"]),
    "JSON of no end of depth": (lambda text: replaced(text, 1, b"[" * 100_000), ["2"]),
    "two lines": (lambda text: replaced(replaced(text, 1, b"{"), 2, b"\xff\xfe"), ["2, 3"]),
    "cut off in a line before its end": (lambda text: text[: text.index(b"\n", len(text) // 2) - 5], []),
    "a line cut off before its end": (lambda text: replaced(text, 2, text.split(b"\n")[2][:-5]), ["3"]),
}


def replaced(text: bytes, number: int, line: bytes) -> bytes:
    lines = text.split(b"\n")
    lines[number] = line
    return b"\n".join(lines)


@pytest.mark.parametrize(("change", "lines"), JOURNALS.values(), ids=list(JOURNALS))
def test_damaged_lines_of_a_journal_are_named(change: Callable[[bytes], bytes], lines: list[str], tmp_path: Path):
    path = kept(tmp_path)
    path.write_bytes(change(path.read_bytes()))
    found = verify(path)
    assert [one.what.rpartition(": ")[2] for one in found.problems] == lines
    assert len(found.problems) + len(found.notes) == 1


def test_many_damaged_lines_are_counted_and_the_first_named(tmp_path: Path):
    path = kept(tmp_path)
    path.write_bytes(path.read_bytes() + b"{\n" * 1000)
    (problem,) = verify(path).problems
    assert problem.what.startswith("1000 of its lines are damaged: ")
    assert problem.what.endswith(", …")


def test_a_journal_of_a_newer_version_is_refused_by_name(tmp_path: Path):
    path = kept(tmp_path)
    head = json.loads(path.read_bytes().split(b"\n")[0])
    path.write_bytes(replaced(path.read_bytes(), 0, json.dumps({**head, "format": 99}).encode()))
    with pytest.raises(SpillFormatError, match=r"kept\.jsonl has format 99"):
        verify(path)
    found = verify(tmp_path)
    assert ["format 99" in one.what for one in found.problems] == [True]


def no_store(tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.txt").write_text("no segment")
    (tmp_path / "text.jsonl").write_text("no journal\n")
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "pipe.jsonl")
    os.mkfifo(tmp_path / "segment-00000.h5")
    return {
        name: tmp_path / name for name in ("empty", "text.txt", "text.jsonl", "pipe", "pipe.jsonl", "segment-00000.h5")
    }


@pytest.mark.parametrize("name", ["empty", "text.txt", "text.jsonl", "pipe", "pipe.jsonl", "segment-00000.h5"])
def test_what_no_store_wrote_is_bad_input(tmp_path: Path, name: str):
    with pytest.raises((SpillError, ArgumentError)) as caught:
        verify(no_store(tmp_path)[name])
    assert str(tmp_path / name) in str(caught.value)


def test_what_is_not_there_is_the_systems_error(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        verify(tmp_path / "missing")


def test_a_run_that_ends_while_it_is_verified_is_no_damage(run: Path, monkeypatch: pytest.MonkeyPatch):
    other = run.parent / "run-ffffffffffffffff"
    shutil.copytree(run, other)
    found = verify(run.parent, lambda file: shutil.rmtree(other, ignore_errors=True))
    assert found.problems == []
    assert {one.path.parent for one in found.changed} == {other}
    assert found.verified == 20


def test_more_than_a_store_makes_is_a_problem(tmp_path: Path):
    import h5py

    path = stored(tmp_path, [NORMAL])
    with h5py.File(path, "r+") as file:
        file["link"] = h5py.SoftLink("/00000000")
    found = verify(path)
    assert whats(found.problems) == ["segment-00000.h5/None: /link: is of a kind that no store makes: soft link"]
    assert isinstance(found, Verification)
