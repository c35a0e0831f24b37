"""Runs that never flushed, live or killed: the journal says where their arrays are, and nothing of it is believed."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spillgrad.errors import ArgumentError, SpillError
from spillgrad.inspection import verify as verify_module
from spillgrad.inspection.arrays import Segment, StoredArray
from spillgrad.inspection.export import export_npy
from spillgrad.inspection.find import find_array
from spillgrad.inspection.journal_reader import read_lines
from spillgrad.inspection.journal_state import JournalState
from spillgrad.inspection.segments import inspect_segment
from spillgrad.inspection.slices import Selection
from spillgrad.inspection.values import StoredValues
from spillgrad.inspection.verify import verify
from spillgrad.storage import array_contents, inspect
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.journal import events
from spillgrad.storage.journal import writer as journal
from spillgrad.storage.journal.files import JOURNAL_NAME, OLD_JOURNAL_NAME
from spillgrad.storage.journal.reader import read_journal
from spillgrad.storage.origin_counters import Origin
from spillgrad.storage.store import Label
from tests.inspection.segments import ARRAYS, NORMAL
from tests.waiting import wait_until

MakeStore = Callable[..., DiskStore]
ON_DISK = [array for array in ARRAYS.values() if array.nbytes]  # what has no bytes stays in RAM until a flush
OPTIONS: list[dict[str, Any]] = [
    {},
    {"codec": "lossless"},
    {"codec": "int8"},
    {"codec": "bf16"},
    {"checksums": False},
    {"encrypt": True},
    {"encrypt": True, "codec": "lossless"},
]

# Puts, gets, changes and drops without an end, and never flushes.
WORKS = """
import json, sys
import numpy as np
from spillgrad.storage.disk_store import DiskStore
store = DiskStore(sys.argv[1], ram_budget=200_000, segment_bytes=2 << 20, **json.loads(sys.argv[2]))
kept = [store.put(np.full(9_000, i, np.float32), persistent=True) for i in range(10)]
step = 0
while True:
    step += 1
    handles = [store.put(np.full(5_000 + 1000 * (i % 3), step + i, np.float64)) for i in range(30)]
    for handle in reversed(handles):
        store.get(handle)
        store.drop(handle)
    for handle in kept:
        array = store.get(handle)
        store.begin_change(handle, array)
        array += 1
        store.end_change(handle)
        del array
    if step == 3:
        print("begun", flush=True)
"""


def killed(place: Path, options: dict[str, Any], after_s: float) -> Path:
    """Return the directory of a run that was killed so long after it had begun, in the middle of what it did."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", WORKS, str(place), json.dumps(options)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        time.sleep(after_s)
        process.kill()
    (run,) = place.glob("run-*")
    return run


def live_arrays(run: Path) -> set[str]:
    """Return the datasets of what a run had on disk when its journal ends."""
    places: dict[int, str] = {}
    for line in read_journal(run):
        if line.get("event") == "write" and "bytes" not in line:
            places[line["array"]] = line["dataset"]
        elif line.get("event") in ("free", "change"):
            places.pop(line["array"], None)
    return set(places.values())


def segment_of(store: DiskStore) -> Path:
    (path,) = store.directory.glob("*.h5")
    return path


def told(store: DiskStore, event: str, count: int) -> None:
    """Wait until the journal has so many lines of an event."""
    wait_until(lambda: sum(line.get("event") == event for line in read_journal(store.directory)) >= count)


def values(segment: Segment, array: StoredArray) -> np.ndarray:
    with StoredValues(segment.path, array) as opened:
        return opened.elements(0, array.size).reshape(array.shape)


@pytest.mark.parametrize("codec", [None, "lossless"])
def test_every_kind_of_array_is_read_before_any_flush(make_store: MakeStore, codec: str | None):
    store = make_store(0, codec=codec)
    handles = [store.put(array, label=Label("mul", "self", "net.0", 3)) for array in ON_DISK]
    told(store, "write", len(handles))
    segment = inspect_segment(segment_of(store))
    assert (segment.problems, segment.left_out) == ((), 0)
    assert segment.note is not None
    assert segment.note.startswith(f"not flushed yet: {len(handles)} of {len(handles)} arrays are told from the run's")
    for array, put in zip(segment.arrays, ON_DISK, strict=True):
        assert (array.problem, array.shape, array.nbytes) == (None, put.shape, put.nbytes)
        assert (array.label, array.from_journal) == (Label("mul", "self", "net.0", 3), True)
        assert values(segment, array).tobytes() == put.tobytes()
        assert array.dtype is not None
        assert array.dtype.byteorder == put.dtype.byteorder
        assert array_contents(segment.path, array).checksum == "verified"
    store.flush()
    flushed = inspect_segment(segment_of(store))
    assert flushed.note is None
    assert [array.checksum for array in flushed.arrays] == [array.checksum for array in segment.arrays]
    assert [array.chunks for array in flushed.arrays] == [array.chunks for array in segment.arrays]
    assert all(array.chunk_shape is not None for array in flushed.arrays if array.shape)


@pytest.mark.parametrize(
    "options",
    [OPTIONS[0], *(pytest.param(options, marks=pytest.mark.exhaustive) for options in OPTIONS[1:-1]), OPTIONS[-1]],
    ids=str,
)
def test_a_run_that_is_killed_in_a_step_has_nothing_damaged(tmp_path: Path, options: dict[str, Any]):
    """Whatever it was about: the place of an array is another's only once the journal has it as gone."""
    for number, after_s in enumerate((0.0, 0.13, 0.31)):
        run = killed(tmp_path / f"{number}", options, after_s)
        found = verify(run)
        assert found.problems == found.changed == []
        assert found.arrays == len(live_arrays(run)) > 0
        assert found.verified + found.encrypted + found.unverified == found.arrays
        # A kill may come in the middle of a write: the kernel stops after any page.
        notes = [one.what for one in found.notes if one.what != "its last line is cut off, as a killed run leaves it"]
        assert all(note.startswith("its run was killed before a flush: ") for note in notes)
        assert notes


def test_one_flipped_byte_of_a_run_that_never_flushed_is_found(tmp_path: Path):
    run = killed(tmp_path / "spill", {}, 0.0)
    for path in sorted(run.glob("*.h5")):
        for array in inspect_segment(path).arrays[:3]:
            whole = path.read_bytes()
            with open(path, "r+b") as file:
                file.seek(array.chunks[0].offset + array.stored_bytes - 1)
                file.write(bytes([whole[array.chunks[0].offset + array.stored_bytes - 1] ^ 1]))
            assert [(one.path, one.key) for one in verify(run).problems] == [(path, array.key)]
            path.write_bytes(whole)


@pytest.mark.parametrize("keeps", [False, True], ids=["journal in the run", "journal that stays"])
def test_nothing_is_lost_when_the_journal_begins_another_file(
    make_store: MakeStore, tmp_path: Path, keeps: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(journal, "_FILE_BYTES", 20_000)
    place = tmp_path / "kept.jsonl" if keeps else None
    store = make_store(0, keep_journal=place, codec="lossless")
    stays = [store.put(array, label=Label("add", "self", "net.1", 7)) for array in ON_DISK]
    for number in range(600):
        store.drop(store.put(np.full(100, number)))
    gone = [store.put(np.full(100, number)) for number in range(3)]
    for handle in gone:
        store.drop(handle)
    told(store, "free", 10)
    wait_until(lambda: len(inspect_segment(segment_of(store)).arrays) == len(stays))
    found = place or store.directory / JOURNAL_NAME
    assert found.with_name(OLD_JOURNAL_NAME if place is None else "kept-old.jsonl").exists()
    lines = [json.loads(line) for line in found.read_text().splitlines()]
    assert [line["event"] for line in lines[1 : len(stays) + 2]] == ["place"] * len(stays) + ["totals"]
    segment = inspect_segment(segment_of(store))
    for array, put in zip(segment.arrays, ON_DISK, strict=True):
        assert array.label == Label("add", "self", "net.1", 7)
        assert values(segment, array).tobytes() == put.tobytes()
    assert verify(store.directory).problems == []


def test_a_journal_that_lost_lines_says_anew_what_there_is(tmp_path: Path):
    place = tmp_path / "run"
    kept = journal.Journal(place)
    live = {"stats": {}, "kept": 0, "steps": 0, "origins": [[None, "mul", None, "float64", *[0] * 7, 0.0, 0.0]]}
    kept.ask(
        events.Sample,
        lambda lines: journal.Summary(
            [lines.popleft() for _ in range(len(lines))],
            [(4, ("segment-00000.h5", "00000004", [2], [(4096, 16)]))],
            {**live, "live": [[4, 16, 0, None]]},
        ),
    )
    for number in range(4):
        kept.add(events.Free(number))
    kept.write()  # there is no such directory
    place.mkdir()
    kept.add(events.Free(1))
    kept.write()
    kept.close()
    assert [line.get("event") for line in read_journal(place)] == [None, "lost", "free", "place", "totals"]
    (place / "segment-00000.h5").write_bytes(bytes(8192))
    (array,) = inspect_segment(place / "segment-00000.h5").arrays
    assert (array.key, array.label.op, array.shape) == ("00000004", "mul", (2,))


def test_of_an_array_that_may_have_gone_with_lost_lines_no_place_is_believed():
    """It changed, and is in RAM again: totals have it, and no line says where it lies."""
    where = ', "segment": "segment-00000.h5", "dataset": "00000001", "shape": [2], "pieces": [[4096, 16]]'
    totals = {"stats": {}, "kept": 0, "steps": 0, "origins": [[None] * 4 + [0] * 7 + [0.0] * 2]}
    for lost in ('{"t": 1, "event": "lost", "lines": 3}', ""):  # or a whole file of lines that nobody followed
        state = JournalState(with_places=True)

        def add(text: str, state: JournalState = state) -> list[str]:
            for line in read_lines(text.encode()):
                state.add(line)
            return [one.place.dataset for one in state.placed("segment-00000.h5")]

        assert add(f'{{"event": "pack", "array": 1, "bytes": 16}}\n{{"event": "write", "array": 1{where}}}') == [
            "00000001"
        ]
        assert add(lost) == ([] if lost else ["00000001"])
        assert state.knows_places == (not lost)
        end = json.dumps({"event": "totals", "totals": {**totals, "live": [[1, 16, 0, None]]}})
        assert add(f'{{"event": "place", "array": 1{where}}}\n{end}') == ["00000001"]
        assert state.knows_places
        assert add(end) == []


def test_many_damaged_arrays_are_checked_in_a_moment(tmp_path: Path):
    run = tmp_path / "run-0123456789abcdef"
    run.mkdir()
    (run / "segment-00000.h5").write_bytes(bytes(4096))
    where = '"segment": "segment-00000.h5", "shape": [100], "pieces": [[0, 800]]'
    lines = ['{"format": 2, "began": "now"}']
    for number in range(20_000):
        lines.append(f'{{"event": "pack", "array": {number}, "bytes": 800, "dtype": "float64"}}')
        lines.append(f'{{"event": "write", "array": {number}, "dataset": "{number:08d}", {where}}}')
    (run / JOURNAL_NAME).write_text("\n".join(lines) + "\n")
    began_s = time.monotonic()
    assert len([one for one in verify(run).problems if one.key is not None]) == 20_000
    assert time.monotonic() - began_s < 30


def test_an_array_that_goes_while_it_is_read_is_said_to_have_gone(make_store: MakeStore, tmp_path: Path):
    store = make_store(0)
    handles = [store.put(np.full(3000, float(i))) for i in range(5)]
    told(store, "write", 5)
    segment, array = find_array(store.directory, "2")
    for handle in handles:
        store.drop(handle)
    again = [store.put(np.full(3000, -1.0)) for _ in range(5)]
    with pytest.raises(SpillError, match="00000002 went while it was read: its run freed it, or changed it"):
        array_contents(segment.path, array)
    out = tmp_path / "out.npy"
    out.write_text("as it was")
    with StoredValues(segment.path, array) as opened:
        assert opened.elements(0, 1) == -1.0  # its place is another's
        with pytest.raises(SpillError, match="went while it was read"):
            export_npy(opened, Selection((...,), array.shape), out, overwrite=True)
    assert out.read_text() == "as it was"
    del again


def test_an_array_that_goes_while_it_is_verified_has_changed(make_store: MakeStore, monkeypatch: pytest.MonkeyPatch):
    store = make_store(0)
    handles = [store.put(np.full(3000, float(i))) for i in range(5)]
    told(store, "write", 5)
    again = []

    def inspect_and_work(*arguments: Any) -> Segment:
        found = inspect_segment(*arguments)
        for handle in handles[:2]:
            store.drop(handle)
        again.extend(store.put(np.full(3000, -1.0)) for _ in range(2))
        return found

    monkeypatch.setattr(verify_module, "inspect_segment", inspect_and_work)
    found = verify(store.directory)
    assert (found.problems, found.verified) == ([], 3)
    assert [one.key for one in found.changed] == ["00000000", "00000001"]
    assert all("it went while it was read" in one.what for one in found.changed)


def test_damage_in_a_live_run_is_no_change(make_store: MakeStore):
    store = make_store(0)
    store.put(np.full(3000, 1.0))
    told(store, "write", 1)
    (array,) = inspect_segment(segment_of(store)).arrays
    with open(segment_of(store), "r+b") as file:
        file.seek(array.chunks[0].offset)
        file.write(b"\1")
    assert [one.key for one in verify(store.directory).problems] == ["00000000"]


def test_an_array_that_somebody_modified_as_it_was_written_is_none_that_is_stored(make_store: MakeStore):
    store = make_store("1MiB")
    handle = store.put(np.full(3000, 1.0), unchanged=lambda: False)
    with pytest.raises(SpillError, match="modified in place"):
        store.flush()
        store.get(handle)
    told(store, "change", 1)
    store.put(np.full(3000, 2.0))
    store.flush()
    assert [array.key for array in inspect_segment(segment_of(store)).arrays] == ["00000001"]


def test_a_copy_without_its_journal_says_what_hdf5_has(make_store: MakeStore, tmp_path: Path):
    store = make_store(0)
    store.put(NORMAL)
    told(store, "write", 1)
    unflushed = Path(shutil.copy(segment_of(store), tmp_path / "segment-00007.h5"))
    with pytest.raises(SpillError, match=r"segment-00007\.h5 was never flushed"):
        inspect_segment(unflushed)
    assert [one.path for one in verify(unflushed).problems] == [unflushed]
    store.flush()
    flushed = Path(shutil.copy(segment_of(store), tmp_path / "segment-00008.h5"))
    (array,) = inspect_segment(flushed).arrays
    assert (array.from_journal, array.problem) == (False, None)
    assert verify(flushed).verified == 1
    both = tmp_path / "both"  # the folder with its journal says as much as the run's
    shutil.copytree(store.directory, both)
    assert (inspect_segment(both / "segment-00000.h5").note, verify(both).verified) == (None, 1)


def test_the_journal_that_took_the_place_of_a_dead_runs_says_nothing_of_it(tmp_path: Path):
    kept = tmp_path / "kept.jsonl"
    run = killed(tmp_path / "spill", {"keep_journal": str(kept)}, 0.0)
    assert all(segment.arrays for segment in map(inspect_segment, run.glob("*.h5")))
    store = DiskStore(tmp_path / "other", ram_budget=0, keep_journal=kept)
    try:
        store.put(NORMAL)
        told(store, "write", 1)
        for path in run.glob("*.h5"):
            with pytest.raises(SpillError, match="was never flushed"):
                inspect_segment(path)
        assert verify(store.directory).verified == 1
    finally:
        store.close()


HEAD = '{"format": 2, "began": "2026-01-01T00:00:00+00:00"}'
PACK = '{"t": 0.1, "event": "pack", "array": 0, "bytes": 4096, "op": "mul", "dtype": "float32"}'
SOUND: dict[str, Any] = {
    "t": 0.2, "event": "write", "array": 0, "took": 0.1, "segment": "segment-00000.h5", "dataset": "00000000",
    "shape": [1024], "pieces": [[4096, 4096]], "xxh3_64": "0" * 16,
}  # fmt: skip
LOSSLESS = {"codec": "lossless", "shape": [1024], "chunks": [4096]}
HOSTILE: dict[str, tuple[dict[str, Any], str | None]] = {
    # what a line says otherwise, and what is wrong with the array; None: the line is damaged, and there is no array
    "beyond the file": ({"pieces": [[1 << 40, 4096]]}, "outside of the file"),
    "partly beyond the file": ({"pieces": [[8192, 4097]], "shape": [4097]}, "outside of the file"),
    "a huge shape": ({"shape": [1 << 61, 1 << 61]}, "it has 4096 bytes"),
    "a huge shape with a codec": ({"shape": [1 << 61, 1 << 61], "codec": "bf16"}, "codec bf16 makes"),
    "a huge shape, compressed": ({**LOSSLESS, "shape": [1 << 61, 1 << 61]}, "it has 1 chunks"),
    "no bytes at all": ({"pieces": []}, "it has 0 bytes"),
    "an empty piece": ({"pieces": [[4096, 4096], [4096, 0]]}, "outside of the file"),
    "half elements": ({"pieces": [[4096, 4094], [4096, 2]]}, "no whole elements"),
    "one place again and again": ({"shape": [1 << 20], "pieces": [[4096, 4096]] * 1024}, "it has 4194304 bytes"),
    "a million pieces": ({"shape": [1 << 20], "pieces": [[4096, 4]] * 1_000_000}, None),
    "100,000 pieces": ({"shape": [100_000], "pieces": [[4096, 4]] * 100_000}, None),
    "a negative offset": ({"pieces": [[-1, 4096]]}, None),
    "a negative length": ({"shape": [-1024]}, None),
    "a fraction": ({"pieces": [[4096.5, 4096]]}, None),
    "text for a number": ({"pieces": [["4096", 4096]]}, None),
    "a thousand dimensions": ({"shape": [1] * 1000}, None),
    "another checksum": ({"xxh3_64": "nonsense"}, None),
    "a number beyond all": ({"pieces": [[1 << 63, 4096]]}, None),
    "an unknown codec": ({"codec": "rot13"}, "codec is rot13"),
    "a name as of a path": ({"dataset": "../../etc/passwd"}, "name is none that a store gives"),
    "chunks of no page": ({**LOSSLESS, "chunks": [4095]}, "no whole pages"),
    "chunks larger than their pieces": ({**LOSSLESS, "chunks": [8192]}, "no whole pages"),
    "pieces larger than their chunks": ({**LOSSLESS, "pieces": [[0, 8192]]}, "hold more than"),
    "compressed nothing": ({**LOSSLESS, "shape": [0, 5]}, "not compressed as a store does it"),
}  # fmt: skip


def hostile_run(place: Path, *lines: str, file: bytes = bytes(8192)) -> Path:
    run = place / "run-0123456789abcdef"
    run.mkdir(parents=True)
    (run / JOURNAL_NAME).write_text("\n".join((HEAD, *lines, "")))
    (run / "segment-00000.h5").write_bytes(file)
    return run


@pytest.mark.parametrize(("change", "wrong"), HOSTILE.values(), ids=list(HOSTILE))
def test_a_hostile_journal_is_not_believed(tmp_path: Path, change: dict[str, Any], wrong: str | None):
    run = hostile_run(tmp_path, PACK, json.dumps({**SOUND, **change}))
    began = time.monotonic()
    segment = inspect_segment(run / "segment-00000.h5")
    found = verify(run)
    assert time.monotonic() - began < 10
    if wrong is None:
        assert segment.arrays == ()
        assert [one.path.name for one in found.problems] == [JOURNAL_NAME]
        return
    (array,) = segment.arrays
    assert wrong in (array.problem or "")
    assert [wrong in one.what for one in found.problems] == [True]
    with pytest.raises(ArgumentError, match="no values that can be read"):
        StoredValues(segment.path, array)


def test_the_sound_line_that_the_hostile_ones_are_made_of_is_believed(tmp_path: Path):
    run = hostile_run(tmp_path, PACK, json.dumps(SOUND))
    (array,) = inspect_segment(run / "segment-00000.h5").arrays
    assert (array.problem, array.nbytes) == (None, 4096)
    assert ["its checksum is" in one.what for one in verify(run).problems] == [True]


def test_arrays_that_lie_over_each_other_are_not_read(tmp_path: Path):
    lines = [PACK.replace('"array": 0', f'"array": {i}') for i in range(3)]
    lines += [json.dumps({**SOUND, "array": i, "dataset": f"{i:08d}"}) for i in range(3)]
    segment = inspect_segment(hostile_run(tmp_path, *lines) / "segment-00000.h5")
    assert ["they overlap" in (array.problem or "") for array in segment.arrays] == [True] * 3


def test_places_without_end_take_no_memory_without_end(tmp_path: Path):
    pieces = json.dumps([[4096, 4]] * 60_000)
    lines = []
    for i in range(100):
        lines.append(PACK.replace('"array": 0', f'"array": {i}'))
        lines.append(json.dumps({**SOUND, "array": i, "pieces": []}).replace("[]", pieces))
    run = hostile_run(tmp_path, *lines)
    program = (
        "import re, sys; from spillgrad.storage import verify; found = verify(sys.argv[1]);"
        r"print(len(found.problems), re.search(r'VmHWM:\s*(\d+)', open('/proc/self/status').read())[1])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", program, str(run)], env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    problems, memory_kib = map(int, ended.stdout.split())
    assert problems > 0
    assert memory_kib < 400 << 10


@pytest.mark.parametrize("kind", ["fifo", "link", "folder"])
def test_what_is_no_file_is_no_segment_whatever_the_journal_says(tmp_path: Path, kind: str):
    run = hostile_run(tmp_path, PACK, json.dumps(SOUND))
    path = run / "segment-00000.h5"
    path.unlink()
    (tmp_path / "secret").write_bytes(bytes(8192))
    {"fifo": lambda: os.mkfifo(path), "link": lambda: path.symlink_to(tmp_path / "secret"), "folder": path.mkdir}[
        kind
    ]()
    assert verify(run).segments == 0
    with pytest.raises(ArgumentError, match="there is no segment"):
        find_array(run, "0")
    with pytest.raises(OSError):
        inspect_segment(path)


def test_an_array_that_is_read_must_still_be_in_a_regular_file(make_store: MakeStore, tmp_path: Path):
    run = hostile_run(tmp_path, PACK, json.dumps(SOUND))
    segment, array = find_array(run, "0")
    segment.path.unlink()
    os.mkfifo(segment.path)
    with pytest.raises(ArgumentError, match="no regular file"):
        StoredValues(segment.path, array)


def test_a_journal_of_the_first_version_says_which_arrays_are_there(tmp_path: Path, make_store: MakeStore):
    store = make_store(0)
    for number in range(3):
        store.put(np.full(3000, float(number)))
    store.flush()
    run = tmp_path / "old"
    shutil.copytree(store.directory, run)
    lines = ['{"format": 1, "began": "2026-01-01T00:00:00+00:00"}']
    for i in range(3):
        lines.append(f'{{"t": 0.1, "event": "pack", "array": {i}, "bytes": 24000}}')
        where = f'"segment": "segment-00000.h5", "dataset": "{i:08d}"'
        lines.append(f'{{"t": 0.1, "event": "write", "array": {i}, "took": 0.1, {where}}}')
    lines.append('{"t": 0.2, "event": "free", "array": 1}')
    (run / JOURNAL_NAME).write_text("\n".join(lines) + "\n")
    segment = inspect_segment(run / "segment-00000.h5")
    assert [array.key for array in segment.arrays] == ["00000000", "00000002"]
    assert [array_contents(segment.path, array).checksum for array in segment.arrays] == ["verified"] * 2
    assert verify(run).problems == []


def test_room_that_is_waited_for_is_of_no_dtype(make_store: MakeStore, tmp_path: Path):
    store = make_store(400_000, keep_journal=tmp_path / "kept.jsonl")
    for i in range(4):
        store.put(np.full(100_000, i, np.int8))
    with store.room(250_000):
        pass
    store.close()
    (line,) = (line for line in read_journal(tmp_path / "kept.jsonl") if line.get("event") == "wait")
    assert (line["op"], line["dtype"]) == ("room", None)
    (run,) = inspect(tmp_path / "kept.jsonl").runs
    assert {origin.dtype for origin in run.origins} == {"int8", None}
    assert sum(moved.wait_write_s for moved in run.origins.values()) == pytest.approx(run.stats.wait_write_s)


def test_an_error_in_a_sample_is_told_and_is_none_of_the_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from spillgrad.storage.codecs import Lossless

    def breaks(*arguments: object) -> None:
        raise ZeroDivisionError("a bug")

    heard = threading.Event()
    monkeypatch.setattr("threading.excepthook", lambda error: heard.set())
    monkeypatch.setattr(Lossless, "sample", breaks)
    store = DiskStore(tmp_path / "spill", ram_budget=0, keep_journal=tmp_path / "kept.jsonl")
    try:
        with pytest.raises(SpillError, match="ZeroDivisionError"):
            while True:
                store.drop(store.put(NORMAL))
        assert heard.wait(5)
    finally:
        store.close()
    events = [line.get("event") for line in read_journal(tmp_path / "kept.jsonl")]
    assert "write" in events
    assert "fail" not in events


def test_a_shrunk_sample_of_an_array_that_is_gone_says_whose_it_was(tmp_path: Path):
    store = DiskStore(tmp_path / "spill", ram_budget=0, keep_journal=tmp_path / "kept.jsonl")
    for _ in range(20):
        store.drop(store.put(np.zeros((300, 300)), label=Label("mul", "self", "net.0")))
    store.close()
    (run,) = inspect(tmp_path / "kept.jsonl").runs
    (found,) = run.shrinkage
    assert found.origin == Origin("net.0", "mul", "self", "float64")
    assert found.nbytes >= 8 * 90_000 * 8  # the first eight, each counted as it was
    assert found.nbytes % (90_000 * 8) == 0
