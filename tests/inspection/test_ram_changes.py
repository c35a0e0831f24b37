"""What came into RAM and left it, array by array: the sum is what the store counted."""

import bisect
import itertools
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spillgrad.inspection.records import RamChange, Run
from spillgrad.storage import inspect, ram_changes
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.journal import writer as journal
from spillgrad.storage.journal.reader import read_journal
from spillgrad.storage.origin_counters import Origin
from spillgrad.storage.store import Label
from tests.inspection.test_runs import one, use

MakeStore = Callable[..., DiskStore]

# A sample without the lock has the bytes of a moment after its time.
LATE_S = 0.2
OPTIONS: dict[str, dict[str, Any]] = {
    "all on disk": {"ram_budget": 0},
    "some on disk": {"ram_budget": 100_000},
    "all in RAM": {"ram_budget": "1GiB"},
    "lossless": {"ram_budget": 100_000, "codec": "lossless"},
    "encrypted": {"ram_budget": 100_000, "encrypt": True},
}


def assert_samples_fit(run: Run, changes: list[RamChange]) -> None:
    """The changes up to a sample come to the bytes of the sample."""
    times = [change.t for change in changes]
    sums = list(itertools.accumulate((change.nbytes for change in changes), initial=0))
    assert run.samples
    for sample in run.samples:
        first, last = bisect.bisect_left(times, sample.t), bisect.bisect_right(times, sample.t + LATE_S)
        assert sample.ram_bytes in sums[first : last + 1]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_the_changes_come_to_what_the_store_counted(make_store: MakeStore, tmp_path: Path, options: dict[str, Any]):
    path = tmp_path / "run.jsonl"
    store = make_store(**options, keep_journal=path)
    use(store, 5)
    kept = store.put(np.zeros(10_000), persistent=True, label=Label("parameter", None, "h.1"))
    held = store.get(kept)
    for _ in range(3):
        store.begin_change(kept, held)
        store.end_change(kept)
        store.flush()
        assert store.check() == []
    with store.room(50_000):
        store.put(np.zeros((300, 300)).T)  # it is copied
    peak_bytes = store.stats().peak_ram_bytes
    store.close()
    run = one(path)
    changes = list(ram_changes(run))
    assert_samples_fit(run, changes)
    sums = list(itertools.accumulate(change.nbytes for change in changes))
    assert max(sums) == peak_bytes
    assert sums[-1] == held.nbytes  # which lives on
    assert min(sums) >= 0
    for array in {change.array for change in changes}:
        assert min(itertools.accumulate(change.nbytes for change in changes if change.array == array)) >= 0
    if "encrypt" not in options:
        assert {change.origin.module for change in changes} >= {"h.0", "h.1", "h.2", "h.3"}
        assert {change.step for change in changes if change.origin.op == "mul"} == set(range(5))
    assert {change.origin for change in changes if change.array is None} == {Origin(op="room")}


def test_bytes_go_with_the_label_with_which_they_came(make_store: MakeStore, tmp_path: Path):
    store = make_store("1MiB", keep_journal=tmp_path / "run.jsonl")
    handle = store.put(np.zeros(1000), label=Label("parameter", None, "Linear.weight"))
    store.relabel(handle, Label("parameter", None, "h.0.weight", 7))
    store.drop(handle)
    store.close()
    told = [(each.nbytes, each.origin.module, each.step) for each in ram_changes(one(tmp_path / "run.jsonl"))]
    first, second = ("Linear.weight", None), ("h.0.weight", 7)
    assert told == [(8000, *first), (-8000, *first), (8000, *second), (-8000, *second)]


def test_a_long_run_whose_first_lines_are_gone_begins_with_what_was_in_ram(
    make_store: MakeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(journal, "_FILE_BYTES", 20_000)
    path = tmp_path / "run.jsonl"
    store = make_store(200_000, keep_journal=path)
    stays = store.put(np.zeros(5_000), label=Label("mul", "self", "stays", 3))
    for _ in range(60):
        use(store, 1)
        store.flush()
    run = one(path)
    changes = list(ram_changes(run))
    assert sum(change.nbytes for change in changes) == store.stats().ram_bytes
    store.drop(stays)
    store.close()
    assert not any(line.get("array") == 0 for line in read_journal(path) if line.get("event") == "pack")
    run = one(path)
    changes = list(ram_changes(run))
    assert (changes[0].origin.module, changes[0].step, changes[0].nbytes) == ("stays", 3, 40_000)
    assert_samples_fit(run, changes)
    assert sum(change.nbytes for change in changes) == 0


def test_after_lost_lines_the_totals_set_it_right(tmp_path: Path):
    stats = {"ram_bytes": 24}
    lines: list[dict[str, Any]] = [
        {"format": 2, "began": "2026-01-01T00:00:00+00:00"},
        {"t": 1, "event": "pack", "array": 1, "bytes": 8, "op": "mul", "dtype": "float64"},
        {"t": 1, "event": "ram", "array": 1, "bytes": 8},
        {"t": 2, "event": "ram", "array": -1, "bytes": 5},
        {"t": 3, "event": "lost", "lines": 9},
        {"t": 4, "event": "totals", "totals": {
            "stats": stats, "kept": 0, "steps": 0, "origins": [["h", "exp", None, None, *[0] * 9]],
            "live": [[2, 24, 0, 6]], "ram": [[2, 24]],
        }},
        {"t": 5, "event": "ram", "array": 2, "bytes": -25},  # no more can go than came
        {"t": 6, "event": "ram", "array": 3, "bytes": -8},
    ]  # fmt: skip
    path = tmp_path / "run.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    told = [(each.t, each.array, each.nbytes, each.origin.op, each.step) for each in ram_changes(one(path))]
    assert told == [
        (1, 1, 8, "mul", None), (2, None, 5, "room", None), (4, 1, -8, "mul", None), (4, None, -5, "room", None),
        (4, 2, 24, "exp", 6), (5, 2, -24, "exp", 6),
    ]  # fmt: skip


def test_only_a_kept_journal_has_the_changes(make_store: MakeStore, directory: Path):
    store = make_store(100_000)
    use(store, 2)
    store.flush()
    (run,) = inspect(directory).runs
    assert list(ram_changes(run)) == []
    assert "ram" not in Counter(line.get("event") for line in read_journal(store.directory))
