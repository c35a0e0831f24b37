"""The journal: every line a store owes, readable while it runs and after it was killed."""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.journal import events
from spillgrad.storage.journal import writer as journal
from spillgrad.storage.journal.files import JOURNAL_NAME, OLD_JOURNAL_NAME
from spillgrad.storage.journal.reader import read_journal
from spillgrad.storage.journal.writer import Journal
from spillgrad.storage.store import Label
from tests.waiting import wait_until

MakeStore = Callable[..., DiskStore]


def told_events(store: DiskStore) -> list[dict[str, Any]]:
    return list(read_journal(store.directory))[1:]


def test_every_pack_write_read_wait_and_free_is_told(make_store: MakeStore):
    store = make_store(150_000)
    label = Label("mul", "self", 'net."0"', 3)
    handles = [store.put(np.full(10_000, i), key=i, label=label) for i in range(5)]
    store.put(np.full(10_000, 4), key=4)
    for handle in handles:
        store.get(handle)
    for handle in (*handles, handles[4]):
        store.drop(handle)
    wait_until(lambda: Counter(e["event"] for e in told_events(store))["free"] == 5)
    told = told_events(store)
    counts = Counter(event["event"] for event in told)
    assert (counts["pack"], counts["share"], counts["free"]) == (5, 1, 5)
    assert counts["write"] >= 4
    assert counts["read"] >= 4
    assert {e["in"] for e in told if e["event"] == "wait"} <= {"put", "get"}
    packed = next(e for e in told if e["event"] == "pack")
    assert packed | vars(label) == packed
    assert packed["bytes"] == 80_000
    for event in told:
        if event["event"] in ("write", "read", "wait"):
            assert event["took"] >= 0
        if event["event"] == "write":
            assert (store.directory / event["segment"]).exists()
            assert event["dataset"].isdigit()


def test_a_write_names_the_dataset_that_the_next_flush_leaves(make_store: MakeStore):
    store = make_store(0)
    for handle in [store.put(np.full(10_000, float(i))) for i in range(4)]:
        store.drop(handle)
    handles = [store.put(np.full(10_000, -float(i))) for i in range(4)]  # in the places of those before
    store.flush()
    (path,) = store.directory.glob("*.h5")
    with h5py.File(shutil.copy(path, store.directory.parent.parent / "copy.h5")) as file:
        there = set(file)
    wait_until(lambda: len([e for e in told_events(store) if e["event"] == "write"]) == 8)
    written = {e["array"]: e["dataset"] for e in told_events(store) if e["event"] == "write"}
    assert {written[handle.sequence] for handle in handles} == there


def test_nothing_spilled_is_told_too(make_store: MakeStore):
    store = make_store("1GiB")
    for _ in range(300):
        store.drop(store.put(np.ones(10)))
    wait_until(lambda: Counter(e["event"] for e in told_events(store)) >= Counter(pack=300, free=300))


def test_a_line_that_comes_while_the_writer_sleeps_is_written(make_store: MakeStore):
    store = make_store("1GiB")
    handle = store.put(np.ones(10))
    wait_until(lambda: any(event["event"] == "pack" for event in told_events(store)))
    time.sleep(0.5)  # the writer has nothing left to do, and no thread wakes it
    store._state.journal.add(events.Free(7))
    wait_until(lambda: any(event["event"] == "free" for event in told_events(store)), 5)
    store.drop(handle)


def test_a_run_that_was_killed_leaves_its_journal_for_who_looks(tmp_path: Path):
    script = """
        import os, signal, sys, time
        import numpy as np
        from spillgrad.storage.disk_store import DiskStore
        store = DiskStore(sys.argv[1], ram_budget=0)
        handles = [store.put(np.ones(1000)) for _ in range(5)]
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    assert subprocess.run(command, env=environment).returncode == -signal.SIGKILL
    (run,) = tmp_path.iterdir()
    with (run / JOURNAL_NAME).open("a") as file:
        file.write('{"t": 1.0, "ev')  # as a kill may leave it
    head, *told = read_journal(run)
    assert head["format"] == 2
    assert Counter(e["event"] for e in told)["write"] == 5
    DiskStore(tmp_path, ram_budget=0).close()  # removes what the dead run left
    assert list(tmp_path.iterdir()) == []


def test_only_the_owner_can_read_it(make_store: MakeStore):
    store = make_store(0)
    store.put(np.ones(10))
    wait_until(lambda: (store.directory / JOURNAL_NAME).exists())
    assert stat.S_IMODE((store.directory / JOURNAL_NAME).stat().st_mode) == 0o600


def test_a_long_run_keeps_the_last_two_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(journal, "_FILE_BYTES", 10_000)
    kept = Journal(tmp_path)
    for i in range(1000):
        kept.add(events.Pack(8, array=i))
        kept.write()
    kept.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [OLD_JOURNAL_NAME, JOURNAL_NAME]
    assert all(path.stat().st_size < 10_300 for path in tmp_path.iterdir())
    arrays = [line["array"] for line in read_journal(tmp_path) if "array" in line]
    assert arrays == list(range(arrays[0], 1000))
    for path in tmp_path.iterdir():
        assert json.loads(path.read_text().splitlines()[0])["format"] == 2


def test_what_the_disk_refused_is_counted(tmp_path: Path):
    place = tmp_path / "run"
    kept = Journal(place)
    kept.add(events.Pack(8, array=0))
    kept.add(events.Free(0))
    kept.write()  # there is no such directory
    place.mkdir()
    kept.add(events.Free(1))
    kept.write()
    kept.close()
    _, lost, freed = read_journal(place)
    assert (lost["event"], lost["lines"], freed["array"]) == ("lost", 2, 1)
