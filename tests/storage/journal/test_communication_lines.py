"""The lines of a store's journal about the rank of its process, and about collectives."""

import gc
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from spillgrad import communication
from spillgrad.communication import Collective, Member
from spillgrad.inspection.runs import spans
from spillgrad.storage import DiskStore, inspect, read_journal
from spillgrad.storage.journal import writer
from spillgrad.storage.journal.files import old_path

DONE = Collective("all_reduce of float32", 100, 200, 0.5, 0.25, 2, 0.4)


@pytest.fixture(autouse=True)
def member() -> Iterator[Member]:
    """Make this process rank 1 of 3, by a clock that is 1000 s ahead."""
    found = Member(1, 3, "the group", time.time() - time.perf_counter() + 1000, 0.002)
    communication.join(found)
    yield found
    communication._Present.member = None


def lines(journal: Path, kind: str) -> list[dict]:
    return [line for line in read_journal(journal) if line.get("event") == kind]


def test_the_rank_and_each_collective_have_a_line(tmp_path: Path):
    store = DiskStore(tmp_path, ram_budget=0, keep_journal=tmp_path / "run.jsonl")
    communication.tell(DONE)
    communication.tell(DONE._replace(what="barrier", slowest=None, slowest_s=0.0))
    store.close()
    communication.tell(DONE)  # nobody is there
    (rank,) = lines(tmp_path / "run.jsonl", "rank")
    assert (rank["rank"], rank["ranks"], rank["group"], rank["error"]) == (1, 3, "the group", 0.002)
    first, second = lines(tmp_path / "run.jsonl", "collective")
    del first["t"]
    assert first == {
        "event": "collective", "what": "all_reduce of float32", "sent": 100, "received": 200, "took": 0.5,
        "waited": 0.25, "slowest": 2, "behind": 0.4,
    }  # fmt: skip
    assert (second["what"], second["slowest"]) == ("barrier", None)
    (run,) = inspect(tmp_path / "run.jsonl").runs
    assert run.rank is not None
    assert (run.rank.rank, run.rank.ranks, run.rank.group, run.rank.error_s) == (1, 3, "the group", 0.002)
    assert run.rank.zero_s == pytest.approx(time.time() + 1000, abs=60)
    assert run.rank.counters.waited_for_s == {2: 0.25}
    assert (run.rank.counters.sent_bytes, run.rank.counters.received_bytes) == (200, 400)
    assert [(span.title, span.name, round(span.took_s, 6)) for span in spans(run)] == [
        ("collective", "all_reduce of float32, rank 2 last", 0.5),
        ("wait for ranks", "all_reduce of float32, rank 2 last", 0.25),
        ("collective", "barrier", 0.5),
        ("wait for ranks", "barrier", 0.25),
    ]


def test_a_process_that_joins_others_later_says_so_then(tmp_path: Path, member: Member):
    communication._Present.member = None
    store = DiskStore(tmp_path, ram_budget=0, keep_journal=tmp_path / "run.jsonl")
    communication.join(member)
    communication.tell(DONE)
    store.close()
    assert [line["rank"] for line in lines(tmp_path / "run.jsonl", "rank")] == [1]


def test_a_process_alone_says_nothing(tmp_path: Path):
    communication._Present.member = None
    store = DiskStore(tmp_path, ram_budget=0, keep_journal=tmp_path / "run.jsonl")
    store.close()
    assert lines(tmp_path / "run.jsonl", "rank") == []
    (end,) = lines(tmp_path / "run.jsonl", "end")
    assert end["totals"]["communication"] is None
    assert inspect(tmp_path / "run.jsonl").runs[0].rank is None


def test_an_encrypted_store_names_no_collective(tmp_path: Path):
    store = DiskStore(tmp_path, ram_budget=0, keep_journal=tmp_path / "run.jsonl", encrypt=True)
    communication.tell(DONE)
    store.close()
    assert "all_reduce" not in (tmp_path / "run.jsonl").read_text()
    assert lines(tmp_path / "run.jsonl", "collective")[0]["sent"] == 100


def test_sums_outlive_the_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(writer, "_FILE_BYTES", 4000)
    journal = tmp_path / "run.jsonl"
    store = DiskStore(tmp_path, ram_budget="1MiB", keep_journal=journal)
    for number in range(40):
        for _ in range(10):
            communication.tell(DONE)
        store.drop(store.put(np.full(10, number)))
        store.flush()
    store.close()
    assert old_path(journal).exists()
    assert len(lines(journal, "collective")) < 400
    (run,) = inspect(journal).runs
    assert run.rank is not None
    assert run.rank.group == "the group"
    assert run.rank.counters.collectives == 400
    assert run.rank.counters.sent_bytes == 40_000
    assert run.rank.counters.waited_for_s == {2: pytest.approx(100.0)}


def test_to_listen_keeps_no_store_alive(tmp_path: Path):
    store = DiskStore(tmp_path, ram_budget=0, keep_journal=tmp_path / "run.jsonl")
    communication.tell(DONE)
    del store
    gc.collect()
    deadline_s = time.monotonic() + 10
    while not lines(tmp_path / "run.jsonl", "end"):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    communication.tell(DONE)


def test_who_holds_the_store_may_wait_for_a_collective(tmp_path: Path):
    store = DiskStore(tmp_path, ram_budget=0, keep_journal=tmp_path / "run.jsonl")
    with store._state.lock:
        driver = threading.Thread(target=communication.tell, args=(DONE,))
        driver.start()
        driver.join(10)
        assert not driver.is_alive()
        ended_s = time.perf_counter() - store._state.journal.began_s
        time.sleep(0.05)
    store.close()
    (line,) = lines(tmp_path / "run.jsonl", "collective")
    assert line["t"] <= ended_s  # when it ended, not when it was written down
