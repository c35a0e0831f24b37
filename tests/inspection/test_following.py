"""A journal that is read while it is written: each line once, however long it goes on, and of one run alone."""

import os
from pathlib import Path

import numpy as np
import pytest

from spillgrad.inspection import journal_reader
from spillgrad.inspection.journal_reader import JournalReader
from spillgrad.inspection.runs import RunReader
from spillgrad.storage import DiskStore
from tests.waiting import wait_until

HEAD = '{"format": 2, "began": "%s", "process": 1}\n'
KEEP = '{"t": %d, "event": "keep", "bytes": 1, "op": "add"}\n'


def write(path: Path, began: str, times: range) -> None:
    """Write a journal, in the place of one that is there."""
    new = path.with_suffix(".new")
    new.write_text(HEAD % began + "".join(KEEP % t for t in times))
    os.replace(new, path)


def rotate(path: Path) -> None:
    os.replace(path, path.with_name("journal-old.jsonl"))


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def kept(reader: JournalReader) -> int:
    """Return how many lines came."""
    reader.read()
    return reader.state.moved.kept_bytes


def test_each_call_takes_in_what_is_new(journal: Path):
    write(journal, "a", range(3))
    with JournalReader(journal) as reader, open(journal, "a") as file:
        assert kept(reader) == 3
        assert not reader.read()
        file.write(KEEP % 3 + (KEEP % 4)[:20])
        file.flush()
        assert kept(reader) == 4
        file.write((KEEP % 4)[20:])
        file.flush()
        assert reader.read()
        assert (reader.state.moved.kept_bytes, reader.state.damaged_lines) == (5, 0)


def test_a_journal_is_followed_however_much_it_came_to_be(journal: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(journal_reader, "_READ_MAX_BYTES", 4000)
    write(journal, "a", range(10))
    with JournalReader(journal) as reader:
        assert kept(reader) == 10
        for number in range(1, 20):
            rotate(journal)
            write(journal, "a", range(10 * number, 10 * number + 10))
            assert kept(reader) == 10 * number + 10


def test_the_journal_of_the_next_run_in_its_place_is_not_taken_for_more_of_it(journal: Path):
    write(journal, "a", range(3))
    with JournalReader(journal) as reader:
        assert kept(reader) == 3
        write(journal, "b", range(100))
        assert kept(reader) == 3
        assert not reader.read()
        assert reader.head.began == "a"
    with JournalReader(journal) as reader:
        assert (kept(reader), reader.head.began) == (100, "b")


def test_a_store_is_followed_while_it_works_and_its_end_is_seen(tmp_path: Path):
    store = DiskStore(tmp_path / "spill", ram_budget=0, keep_journal=tmp_path / "kept.jsonl")
    with RunReader(tmp_path / "kept.jsonl") as reader:
        handle = store.put(np.arange(10_000))
        wait_until(lambda: reader.read() and reader.run().stats.packed_bytes == 80_000)
        assert reader.run().state == "live"
        store.drop(handle)
        store.close()
        wait_until(reader.read)
        assert reader.run().state == "finished"
