"""What an inspection says of runs: the same as the store itself says, however the run ended."""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spillgrad.errors import SpillError, SpillFormatError, SpillgradError
from spillgrad.inspection.journal_reader import JournalReader
from spillgrad.inspection.records import Run
from spillgrad.inspection.runs import RunReader, spans
from spillgrad.storage import inspect, inspect_segment
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.journal import writer as journal
from spillgrad.storage.journal.files import JOURNAL_NAME, old_path
from spillgrad.storage.origin_counters import IN_STATS, Origin, total
from spillgrad.storage.runs import begin_run
from spillgrad.storage.store import Label, StoreStats
from tests.waiting import wait_until

MakeStore = Callable[..., DiskStore]

# What a journal without an end can say of: other counters are of one moment, or of threads.
SUMS = IN_STATS


def use(store: DiskStore, steps: int, seed: int = 0, pause_s: float = 0.0) -> None:
    """Put, get, share and drop arrays as training does."""
    draw = random.Random(seed)
    for step in range(steps):
        handles = []
        for place in range(12):
            label = Label(("mul", "gelu", "linear")[place % 3], "self", f"h.{place // 3}", seed + step)
            dtype = (np.float32, np.float64, np.uint8)[draw.randrange(3)]
            handles.append(store.put(np.full(5_000, place, dtype), key=(step, place), label=label))
            if draw.random() < 0.3:
                handles.append(store.put(np.full(5_000, place, dtype), key=(step, place), label=label))
        store.note_kept(1000, Label("softmax", "result", "h.0", step), np.dtype(np.float32))
        time.sleep(pause_s)
        for handle in reversed(handles):
            store.get(handle)
            store.drop(handle)


def one(path: Path) -> Run:
    (run,) = inspect(path).runs
    return run


def sums(stats: StoreStats) -> dict[str, float]:
    return {name: getattr(stats, name) for name in (*SUMS, "fetched_bytes")}


def assert_sums_fit(run: Run) -> None:
    """The origins, whatever they are grouped by, come to what the store did in all."""
    for key in ("module", "op", "kind", "dtype"):
        summed = total(group.moved for group in run.by(key))
        for name in SUMS:
            assert getattr(summed, name) == pytest.approx(getattr(run.stats, name), abs=1e-3), (key, name)


def test_a_living_run_is_told_from_its_directory(make_store: MakeStore):
    store = make_store(100_000)
    use(store, 5)
    wait_until(lambda: sums(one(store.directory).stats) == pytest.approx(sums(store.stats()), abs=2e-3))
    run = one(store.directory)
    assert (run.state, run.process, run.settings.budget_bytes) == ("live", os.getpid(), 100_000)
    assert run.command == " ".join(sys.argv)
    assert {group.name for group in run.by("module")} == {"h.0", "h.1", "h.2", "h.3"}
    assert {group.name for group in run.by("op")} == {"mul", "gelu", "linear", "softmax"}
    assert {group.name for group in run.by("dtype")} == {"float32", "float64", "uint8"}
    assert [step.label for step in run.steps] == [0, 1, 2, 3, 4]
    assert run.stats.peak_ram_bytes <= store.stats().peak_ram_bytes
    assert run.kept_bytes == 5000
    assert_sums_fit(run)
    # Threads of the store may still do and tell things: sooner or later nothing comes between two looks.
    wait_until(lambda: sum(one(store.directory).segments.values()) == store.stats().disk_bytes)
    wait_until(lambda: one(store.directory.parent) == dataclasses.replace(one(store.directory), path=store.directory))


@pytest.mark.parametrize("moment", ["before it is opened", "before it is read"])
def test_a_run_that_ends_meanwhile_hides_no_other(
    make_store: MakeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
):
    ends, stays = make_store(0), make_store(0)
    name, real = ("__init__", RunReader.__init__) if moment == "before it is opened" else ("read", RunReader.read)

    def close_first(*arguments: Any) -> Any:
        ends.close()
        return real(*arguments)

    monkeypatch.setattr(RunReader, name, close_first)
    assert [run.path for run in inspect(stays.directory.parent).runs] == [stays.directory]


def test_where_the_last_run_ends_meanwhile_there_is_none(make_store: MakeStore, monkeypatch: pytest.MonkeyPatch):
    store, real = make_store(0), RunReader.read

    def close_first(reader: RunReader) -> bool:
        store.close()
        return real(reader)

    monkeypatch.setattr(RunReader, "read", close_first)
    with pytest.raises(SpillError, match="holds no run"):
        inspect(store.directory.parent)


def test_looking_at_a_living_run_of_this_process_leaves_its_lock(make_store: MakeStore, tmp_path: Path):
    store = make_store(0)
    store.put(np.ones(1000))
    wait_until(lambda: (store.directory / JOURNAL_NAME).exists())
    assert one(store.directory).state == "live"
    script = "import sys, spillgrad.storage as s; print(s.inspect(sys.argv[1]).runs[0].state, s.sweep(sys.argv[2]))"
    command = [sys.executable, "-c", script, str(store.directory), str(store.directory.parent)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("live []\n", "")


def test_a_finished_run_is_told_exactly_from_the_journal_that_stayed(tmp_path: Path):
    store = DiskStore(tmp_path / "spill", ram_budget=100_000, keep_journal=tmp_path / "run.jsonl")
    use(store, 4)
    assert (store.directory / JOURNAL_NAME).resolve() == tmp_path / "run.jsonl"
    store.close()
    stats = store.stats()
    run = one(tmp_path / "run.jsonl")
    assert run.state == "finished"
    assert run.stats == dataclasses.replace(stats, **{name: getattr(run.stats, name) for name in MOMENTARY})
    assert_sums_fit(run)
    assert len(run.steps) == 4
    assert run.segments == {}
    assert (run.lost_lines, run.damaged_lines) == (0, 0)


# What is held changes when a store closes.
MOMENTARY = ("live_bytes", "ram_bytes", "disk_bytes", "peak_disk_bytes")


@pytest.mark.parametrize("state", ["live", "finished"])
def test_sums_stay_exact_when_older_lines_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str):
    monkeypatch.setattr(journal, "_FILE_BYTES", 20_000)
    store = DiskStore(tmp_path / "spill", ram_budget=100_000, keep_journal=tmp_path / "run.jsonl")
    persistent = store.put(np.ones(3_000), label=Label("parameter", None, "h.0"), persistent=True)
    for step in range(40):
        use(store, 1, seed=step)
        store.get(persistent)
        store.begin_step()
        time.sleep(0.002)
    if state == "finished":
        store.close()
    wait_until(lambda: sums(one(tmp_path / "run.jsonl").stats) == pytest.approx(sums(store.stats()), abs=1e-3))
    run = one(tmp_path / "run.jsonl")
    assert run.state == state
    assert old_path(tmp_path / "run.jsonl").exists()
    assert run.first_s > 0
    assert run.steps[0].number > 1
    assert run.steps[-1].number == 40
    assert_sums_fit(run)
    (parameter,) = (group for group in run.by("op") if group.name == "parameter")
    assert parameter.moved.packed_bytes == 24_000
    assert run.damaged_lines == 0
    store.close()


def test_a_run_that_was_killed_is_dead_and_its_journal_stays(tmp_path: Path):
    script = """
        import os, signal, sys, time
        import numpy as np
        from spillgrad.storage.disk_store import DiskStore
        store = DiskStore(sys.argv[1], ram_budget=0, keep_journal=sys.argv[2])
        handles = [store.put(np.ones(1000)) for _ in range(5)]
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    kept = tmp_path / "kept.jsonl"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "spill"), str(kept)]
    assert subprocess.run(command, env=environment).returncode == -signal.SIGKILL
    with kept.open("a") as file:
        file.write('{"t": 1.0, "ev')  # as a kill may leave it
    for path in (kept, tmp_path / "spill", next((tmp_path / "spill").iterdir())):
        run = one(path)
        assert (run.state, run.stats.written_bytes, run.damaged_lines) == ("dead", 40_000, 0)
        assert len(run.segments) == 1
    DiskStore(tmp_path / "spill", ram_budget=0).close()  # removes what the dead run left, but for the journal
    assert (one(kept).state, one(kept).segments) == ("dead", {})


def test_a_run_without_a_journal_yet_is_told_too(make_store: MakeStore):
    run = one(make_store(0).directory)
    assert (run.state, run.journal, run.stats, run.began) == ("live", None, StoreStats(), None)


def test_a_journal_is_followed_beyond_its_end_and_through_the_next_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(journal, "_FILE_BYTES", 5_000)
    store = DiskStore(tmp_path, ram_budget=0, keep_journal=tmp_path / "run.jsonl")
    with RunReader(tmp_path / "run.jsonl") as reader:
        for step in range(10):
            use(store, 1, seed=step)

            def told() -> bool:
                reader.read()
                return sums(reader.run().stats) == pytest.approx(sums(store.stats()), abs=1e-3)

            wait_until(told)
        assert not reader.read() or reader.run().state == "live"
        store.close()
        reader.read()
        assert reader.run().state == "finished"
        assert reader.run().damaged_lines == 0


def test_spans_are_phases_writes_reads_and_waits_with_their_origins(tmp_path: Path):
    store = DiskStore(tmp_path, ram_budget=0, keep_journal=tmp_path / "run.jsonl")
    use(store, 3)
    store.begin_phase("update")
    store.begin_phase(None)
    store.close()
    run = one(tmp_path / "run.jsonl")
    found = list(spans(run))
    counts = Counter(span.kind for span in found)
    assert (counts["forward"], counts["backward"], counts["update"]) == (3, 3, 1)
    assert sum(span.nbytes for span in found if span.kind == "write") == run.stats.written_bytes
    assert sum(span.nbytes for span in found if span.kind == "read") == run.stats.read_bytes
    waited_s = sum(span.took_s for span in found if span.kind == "wait")
    assert waited_s == pytest.approx(run.stats.wait_write_s + run.stats.wait_read_s, abs=1e-3)
    assert {span.origin.op for span in found if span.kind == "read"} == {"mul", "gelu", "linear"}
    for span in found:
        assert span.began_s >= 0
        assert span.began_s + span.took_s <= run.duration_s + 1e-3


def test_what_is_held_is_sampled(tmp_path: Path):
    store = DiskStore(tmp_path, ram_budget=400_000, keep_journal=tmp_path / "run.jsonl")
    for step in range(5):
        use(store, 1, seed=step, pause_s=0.02)
    store.close()
    samples = one(tmp_path / "run.jsonl").samples
    assert len(samples) >= 5
    for sample in samples:
        parts = sample.hot_bytes + sample.writing_bytes + sample.cached_bytes + sample.lent_bytes
        assert 0 <= parts <= 2 * 400_000  # of one moment, but for each other's
        assert sample.rss_bytes > 1 << 20
    assert max(sample.ram_bytes for sample in samples) > 0
    assert samples[-1].hits > samples[0].hits


def test_encrypted_runs_say_nothing_of_where_arrays_come_from(tmp_path: Path):
    store = DiskStore(tmp_path, ram_budget=0, encrypt=True, keep_journal=tmp_path / "run.jsonl")
    use(store, 2)
    store.close()
    text = (tmp_path / "run.jsonl").read_text()
    for secret in ("h.0", "gelu", "linear", '"command"'):
        assert secret not in text, secret
    run = one(tmp_path / "run.jsonl")
    assert run.stats.written_bytes > 0
    assert {origin._replace(dtype=None) for origin in run.origins} == {Origin()}
    assert_sums_fit(run)


def test_a_journal_of_the_first_version_is_read(tmp_path: Path):
    lines = [
        {"format": 1, "began": "2026-01-01T00:00:00+00:00", "process": 7},
        {"t": 0.1, "event": "pack", "array": 0, "bytes": 8000, "op": "mul", "slot": "self", "module": "h.0", "step": 3},
        {"t": 0.2, "event": "write", "array": 0, "took": 0.05, "segment": "segment-00000.h5", "dataset": "00000000"},
        {"t": 0.3, "event": "read", "array": 0, "took": 0.1},
        {"t": 0.3, "event": "wait", "array": 0, "took": 0.1, "in": "get"},
        {"t": 0.4, "event": "free", "array": 0},
    ]
    (tmp_path / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = one(tmp_path / "journal.jsonl")
    assert (run.state, run.process, run.settings.budget_bytes, run.duration_s) == ("dead", 7, None, 0.4)
    assert (run.stats.packed_bytes, run.stats.written_bytes, run.stats.read_bytes) == (8000, 8000, 8000)
    assert run.by("module")[0].name == "h.0"


def test_a_kept_journal_takes_the_place_of_another_but_of_nothing_else(tmp_path: Path):
    kept = tmp_path / "run.jsonl"
    for _ in range(2):
        store = DiskStore(tmp_path / "spill", ram_budget=0, keep_journal=kept)
        use(store, 1)
        store.close()
    assert len(one(kept).steps) == 1
    for path in (tmp_path / "notes.txt", tmp_path):
        if path != tmp_path:
            path.write_text("mine\n")
        with pytest.raises(SpillError, match="is there and no journal; keep the journal somewhere else"):
            DiskStore(tmp_path / "spill", ram_budget=0, keep_journal=path)
    assert (tmp_path / "notes.txt").read_text() == "mine\n"
    with pytest.raises(SpillError, match="name a file in a folder that can be written"):
        DiskStore(tmp_path / "spill", ram_budget=0, keep_journal=tmp_path / "none" / "run.jsonl")
    assert list((tmp_path / "spill").iterdir()) == []


def test_several_runs_come_from_the_oldest_to_the_newest(tmp_path: Path):
    stores = [DiskStore(tmp_path, ram_budget=0) for _ in range(3)]
    for store in stores:
        use(store, 1)
        wait_until((store.directory / JOURNAL_NAME).exists)
    assert [run.path for run in inspect(tmp_path).runs] == [store.directory for store in stores]
    for store in stores:
        store.close()


@pytest.mark.parametrize("what", ["text", "binary", "null device", "pipe", "empty folder", "nothing"])
def test_what_is_no_run_is_refused_at_once(tmp_path: Path, what: str):
    path = tmp_path / "it"
    if what == "text":
        path.write_text("once upon a time\n" * 100)
    elif what == "binary":
        path.write_bytes(os.urandom(100_000))
    elif what == "null device":
        path = Path("/dev/zero")
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "empty folder":
        path.mkdir()
    with pytest.raises((SpillError, FileNotFoundError), match=str(path)):
        inspect(path)


def test_a_newer_version_is_refused_by_name(tmp_path: Path):
    path = tmp_path / "run.jsonl"
    path.write_text('{"format": 99, "began": "2126-01-01T00:00:00+00:00"}\n')
    with pytest.raises(SpillFormatError, match=r"run\.jsonl has format 99; this spillgrad reads 1 to 2"):
        inspect(path)


HOSTILE = [
    b"",
    b"[1, 2]",
    b"{}",
    b"null",
    b'{"t": -1, "event": "pack"}',
    b'{"t": 1e999, "event": "pack"}',
    b'{"t": 1, "event": "pack", "array": "x"}',
    b'{"t": 1, "event": "pack", "array": 1, "bytes": -5}',
    b'{"t": 1, "event": "pack", "array": 1, "bytes": 99999999999999999999999}',
    b'{"t": 1, "event": "step", "moved": [1, 2]}',
    b'{"t": 1, "event": "end", "totals": {"stats": {}, "kept": 0, "steps": 0, "origins": [[1]], "live": []}}',
    b'{"t": 1, "event": "plan", "plan": 0, "arrays": [[8, false]], "happened": "pu", "to": [0, 7]}',
    b'{"t": 1, "event": "plan", "plan": 0, "arrays": [[8, false]], "happened": "xx", "to": [0, 0]}',
    b'{"t": 1, "event": "no such event"}',
    b'{"t": 1, "event": "\xff\xfe"}',
    b'{"t": 1, "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b"\x00" * 1000,
]


def test_lines_that_make_no_sense_are_counted_and_hurt_no_other(tmp_path: Path):
    path = tmp_path / "run.jsonl"
    sound = b'{"t": 1.0, "event": "pack", "array": 3, "bytes": 10, "op": "mul", "dtype": "int8", "module": null}\n'
    path.write_bytes(b'{"format": 2}\n' + b"\n".join(HOSTILE) + b"\n" + sound)
    run = one(path)
    assert run.damaged_lines == len(HOSTILE) - 1  # an empty line is none
    assert (run.stats.packed_bytes, run.by("op")[0].name) == (10, "mul")


def test_a_line_without_end_takes_no_memory_without_end(tmp_path: Path):
    path = tmp_path / "run.jsonl"
    with path.open("wb") as file:
        file.write(b'{"format": 2}\n')
        for _ in range(300):
            file.write(b"x" * (1 << 20))
    with JournalReader(path) as reader:
        reader.read()
        assert len(reader._file._rest) < 20 << 20  # type: ignore[union-attr]
        assert reader.state.damaged_lines >= 1


def test_a_segment_is_inspected_as_runs_are(make_store: MakeStore):
    store = make_store(0)
    store.get(store.put(np.ones(1000), label=Label("mul", "self", "h.0")))
    store.flush()
    (path,) = store.directory.glob("*.h5")
    found = inspect(path)
    assert found.runs == []
    assert found.segment == inspect_segment(path)
    assert [array.label.op for array in found.segment.arrays] == ["mul"]


def test_looking_through_a_link_leaves_the_lock_too(make_store: MakeStore, tmp_path: Path):
    store = make_store(0)
    store.put(np.ones(1000))
    wait_until((store.directory / JOURNAL_NAME).exists)
    (tmp_path / "latest").symlink_to(store.directory)
    assert one(tmp_path / "latest").state == "live"
    script = "import sys, spillgrad.storage as s; print(s.sweep(sys.argv[1]))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script, str(store.directory.parent)]
    assert subprocess.run(command, env=environment, capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.parametrize("name", ["run-old.jsonl", "run.jsonl"])
def test_a_kept_journal_replaces_nothing_that_is_no_journal(tmp_path: Path, name: str):
    (tmp_path / name).write_text('{"format": "coco", "images": []}\n')
    with pytest.raises(SpillError, match="is there and no journal"):
        DiskStore(tmp_path / "spill", ram_budget=0, keep_journal=tmp_path / "run.jsonl")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [name]
    assert list((tmp_path / "spill").iterdir()) == []


@pytest.mark.parametrize("kept", [123, b"run.jsonl", "a\0b", ""], ids=["number", "bytes", "NUL", "empty"])
def test_what_is_no_path_of_a_journal_is_refused_and_leaves_nothing(tmp_path: Path, kept: Any):
    with pytest.raises(SpillgradError, match=r"keep_journal|cannot keep a journal|is there and no journal"):
        DiskStore(tmp_path / "spill", ram_budget=0, keep_journal=kept)
    assert not (tmp_path / "spill").exists() or list((tmp_path / "spill").iterdir()) == []


@pytest.mark.parametrize(
    "label",
    [
        Label("mul", "self", "h", np.int64(3)),  # type: ignore[arg-type]
        Label("mul", "self", "h", "third"),  # type: ignore[arg-type]
        Label("m\udce9l", '"self"\n', "h" * 5000, 1),
    ],
    ids=["a step of NumPy's", "a step in words", "names of any text"],
)
def test_whatever_labels_say_the_journal_can_be_read(tmp_path: Path, label: Label):
    store = DiskStore(tmp_path / "spill", ram_budget=0, keep_journal=tmp_path / "run.jsonl")
    store.drop(store.put(np.ones(1000), label=label))
    store.close()
    run = one(tmp_path / "run.jsonl")
    assert (run.state, run.damaged_lines, run.stats.packed_bytes) == ("finished", 0, 8000)
    assert len(run.steps) == 1


def test_a_command_of_any_length_is_no_hindrance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    begin_run.about_process.cache_clear()
    monkeypatch.setattr(sys, "argv", ["train", *(f"shard-{number:020}" for number in range(200)), "\udce9"])
    store = DiskStore(tmp_path / "spill", ram_budget=0, keep_journal=tmp_path / "run.jsonl")
    store.close()
    begin_run.about_process.cache_clear()
    assert one(tmp_path / "run.jsonl").command.startswith("train shard-00")  # type: ignore[union-attr]


def test_lines_never_pile_up(make_store: MakeStore):
    store = make_store("1GiB")
    for _ in range(20):
        for _ in range(1000):
            store.note_kept(8, Label("mul"), np.dtype(np.int8))
        wait_until(lambda: len(store._state.journal._lines) < 1000)
    store.close()
    store.note_kept(8, Label("mul"), np.dtype(np.int8))
    assert not store._state.journal.waits


def test_of_very_many_origins_the_journal_stays_short(tmp_path: Path):
    store = DiskStore(tmp_path / "spill", ram_budget="1GiB", keep_journal=tmp_path / "run.jsonl")
    for number in range(10_000):
        store.drop(store.put(np.ones(1), label=Label("mul", None, f"h.{number}")))
    store.close()
    run = one(tmp_path / "run.jsonl")
    assert (run.state, run.damaged_lines, run.stats.packed_bytes) == ("finished", 0, 80_000)
    assert len(run.origins) <= 8193
    assert_sums_fit(run)


def test_a_folder_of_folders_of_runs_is_looked_through(tmp_path: Path):
    for name in ("1", "2"):
        (tmp_path / name).mkdir()
        DiskStore(tmp_path / "spill", ram_budget=0, keep_journal=tmp_path / name / "journal.jsonl").close()
    (tmp_path / "spill").rmdir()
    assert len(inspect(tmp_path).runs) == 2


def test_what_comes_between_batches_of_a_step_is_told_from_steps_and_ends_none(tmp_path: Path):
    store = DiskStore(tmp_path / "spill", ram_budget=0, keep_journal=tmp_path / "kept.jsonl")
    for step in (10, None, 10, 11, None, None, 11, 12):
        store.drop(store.put(np.arange(100), label=Label("mul", "self", None, step)))
    store.close()
    run = one(tmp_path / "kept.jsonl")
    names = [group.name for group in run.by("step")]
    assert names == ["10", "(none, store's 2)", "11", "(none, store's 4)", "(none, store's 5)", "12"]
    assert [step.number for step in run.steps] == [1, 2, 3, 4, 5, 6]
    assert [step.batches for step in run.steps] == [2, 1, 2, 1, 1, 1]
    assert [step.moved.arrays for step in run.steps] == [2, 1, 2, 1, 1, 1]
    assert run.steps[0].began_s + run.steps[0].took_s > run.steps[1].began_s + run.steps[1].took_s


def test_where_no_step_has_a_label_they_are_called_by_their_number(tmp_path: Path):
    store = DiskStore(tmp_path / "spill", ram_budget=0, keep_journal=tmp_path / "kept.jsonl")
    for _ in range(3):
        store.drop(store.put(np.arange(100)))
    store.close()
    assert [group.name for group in one(tmp_path / "kept.jsonl").by("step")] == ["1", "2", "3"]
