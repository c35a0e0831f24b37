"""Which runs there are at a path, and which of them go on."""

import os
from pathlib import Path

import numpy as np
import pytest

from spillgrad.errors import SpillFormatError
from spillgrad.inspection.runs import find_runs, goes_on
from spillgrad.storage import DiskStore, inspect


def test_a_runs_process_is_found_alive_by_its_directory_or_its_journal_until_it_ends(tmp_path: Path):
    journal = tmp_path / "kept.jsonl"
    store = DiskStore(tmp_path / "spill", ram_budget=0, keep_journal=journal)
    handle = store.put(np.arange(10_000))
    (run,) = (tmp_path / "spill").iterdir()
    assert goes_on(run)
    assert goes_on(journal)
    store.drop(handle)
    store.close()
    assert not goes_on(run)
    assert not goes_on(journal)
    assert not goes_on(tmp_path / "missing.jsonl")


def test_a_journal_of_another_machine_goes_on_nowhere_here(tmp_path: Path):
    store = DiskStore(tmp_path / "spill", ram_budget=0)
    (run,) = (tmp_path / "spill").iterdir()
    elsewhere = tmp_path / "elsewhere.jsonl"
    elsewhere.write_text(f'{{"format": 2, "began": "x", "host": "other", "run": "{run}"}}\n')
    assert not goes_on(elsewhere)
    elsewhere.write_text(f'{{"format": 2, "began": "x", "run": "{run}"}}\n')
    assert goes_on(elsewhere)
    store.close()


def test_what_is_no_journal_goes_nowhere(tmp_path: Path):
    (tmp_path / "notes.jsonl").write_text("hello\n")
    with pytest.raises(SpillFormatError, match=r"notes\.jsonl is no journal"):
        goes_on(tmp_path / "notes.jsonl")


def test_files_of_others_beside_a_journal_are_left_alone(tmp_path: Path):
    DiskStore(tmp_path / "spill", ram_budget=0, keep_journal=tmp_path / "kept.jsonl").close()
    (tmp_path / "data.jsonl").write_text('{"text": "hello"}\n')
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "folder.jsonl").mkdir()
    os.symlink("nowhere", tmp_path / "link.jsonl")
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert find_runs(tmp_path) == [tmp_path / "kept.jsonl"]
    assert [run.path for run in inspect(tmp_path).runs] == [tmp_path / "kept.jsonl"]


def test_a_journal_that_was_renamed_beside_the_next_runs_is_a_run_of_its_own(tmp_path: Path):
    for _ in range(2):
        store = DiskStore(tmp_path / "spill", ram_budget=0, keep_journal=tmp_path / "run.jsonl")
        store.drop(store.put(np.arange(10_000)))
        store.close()
        if not (tmp_path / "run-old.jsonl").exists():
            (tmp_path / "run.jsonl").rename(tmp_path / "run-old.jsonl")
    assert {path.name for path in find_runs(tmp_path)} == {"run.jsonl", "run-old.jsonl"}
    assert len(inspect(tmp_path).runs) == 2
