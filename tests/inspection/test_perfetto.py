"""A trace for Perfetto: what was in RAM and on disk, and slices that no viewer drops."""

import gzip
import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from spillgrad.inspection import perfetto
from spillgrad.inspection.perfetto import write_perfetto
from spillgrad.inspection.printable import origin_name
from spillgrad.storage import DiskStore, ram_changes, spans
from tests.inspection.test_runs import one, use

Event = dict[str, Any]
PHASES = ("forward", "backward", "update")


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("run")
    store = DiskStore(place / "spill", ram_budget=100_000, keep_journal=place / "run.jsonl")
    use(store, 4, pause_s=0.02)
    store.close()
    return place / "run.jsonl"


def events(journal: Path, path: Path) -> list[Event]:
    write_perfetto(one(journal), path)
    data = path.read_bytes()
    found = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    assert found["displayTimeUnit"] == "ms"
    told = found["traceEvents"]
    assert isinstance(told, list)
    return told


def counter(told: list[Event], name: str, process: int = 1) -> list[tuple[float, int]]:
    return [
        (event["ts"], event["args"]["bytes"])
        for event in told
        if event["ph"] == "C" and event["name"] == name and event["pid"] == process
    ]


def us(seconds: float) -> float:
    return round(seconds * 1e6, 1)


def test_counters_are_the_memory_of_the_run(journal: Path, tmp_path: Path):
    told, run = events(journal, tmp_path / "trace.json"), one(journal)
    for name, attribute in (("live", "live_bytes"), ("disk", "disk_bytes"), ("process", "rss_bytes")):
        assert counter(told, name) == [(us(sample.t), getattr(sample, attribute)) for sample in run.samples]
    changes = list(ram_changes(run))
    times = [us(change.t) for change in changes]
    sums = itertools.accumulate(change.nbytes for change in changes)
    assert counter(told, "RAM") == list(zip(times, sums, strict=True))
    for module in ("h.0", "h.1", "h.2", "h.3"):
        of_module = [change for change in changes if change.origin.module == module]
        sums = itertools.accumulate(change.nbytes for change in of_module)
        assert counter(told, module, 2) == list(zip((us(change.t) for change in of_module), sums, strict=True))


def test_slices_are_the_spans_of_the_run(journal: Path, tmp_path: Path):
    told, run = events(journal, tmp_path / "trace.json"), one(journal)
    slices = [event for event in told if event["ph"] == "X"]
    assert [event["name"] for event in slices if event["cat"] == "step"] == ["step 0", "step 1", "step 2", "step 3"]
    timed = list(spans(run))
    assert [event["name"] for event in slices if event["cat"] == "phase"] == [
        span.kind for span in timed if span.kind in PHASES
    ]
    for title in ("write", "read", "read ahead", "wait for room", "wait for data"):
        found = [event for event in slices if event["cat"] == title]
        wanted = [span for span in timed if span.title == title]
        assert [event["name"] for event in found] == [origin_name(span.origin) for span in wanted]
        assert [event["args"]["module"] for event in found] == [span.origin.module for span in wanted]
        assert [event["args"]["array"] for event in found] == [span.array for span in wanted]
        for event, span in zip(found, wanted, strict=True):
            assert event["ts"] + event["dur"] == pytest.approx(us(span.began_s + span.took_s), abs=0.3)
    assert {event["cat"] for event in slices} >= {"step", "phase", "write", "read ahead"}


def test_slices_of_a_row_do_not_overlap_and_each_row_has_a_name(journal: Path, tmp_path: Path):
    told = events(journal, tmp_path / "trace.json")
    names = {event["tid"]: event["args"]["name"] for event in told if event["name"] == "thread_name"}
    rows: dict[int, list[Event]] = defaultdict(list)
    for event in told:
        if event["ph"] == "X":
            rows[event["tid"]].append(event)
    assert len(set(names.values())) == len(names)
    assert rows.keys() == names.keys()
    for number, row in rows.items():
        assert names[number].rstrip(" 0123456789") == row[0]["cat"]
        row.sort(key=lambda event: event["ts"])
        for event, following in itertools.pairwise(row):
            assert event["dur"] >= 0
            assert event["ts"] + event["dur"] <= following["ts"] + 0.2


def test_more_spans_at_once_than_rows_share_the_last_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(perfetto, "_ROWS", 3)
    journal = tmp_path / "run.jsonl"
    lines = ['{"format": 2, "began": ""}']
    lines += [f'{{"t": {10 + n}, "event": "read", "array": {n}, "took": 10}}' for n in range(5)]
    journal.write_text("\n".join(lines) + "\n")
    slices = [event for event in events(journal, tmp_path / "trace.json") if event["ph"] == "X"]
    assert len({event["tid"] for event in slices}) == 3
    assert sum(event["dur"] for event in slices) == pytest.approx(32e6)  # 10 s each, and then what is left of the row


def test_a_name_that_ends_with_gz_is_compressed(journal: Path, tmp_path: Path):
    assert events(journal, tmp_path / "trace.json.gz") == events(journal, tmp_path / "trace.json")
    assert (tmp_path / "trace.json.gz").stat().st_size * 3 < (tmp_path / "trace.json").stat().st_size


def test_a_journal_without_changes_has_ram_from_its_samples(tmp_path: Path):
    journal = tmp_path / "run.jsonl"
    lines = ['{"format": 2, "began": ""}', '{"t": 1, "event": "sample", "ram": 7, "peak_ram": 9, "live": 8, "disk": 4}']
    journal.write_text("\n".join(lines) + "\n")
    told = events(journal, tmp_path / "trace.json")
    assert [counter(told, name) for name in ("RAM", "live", "disk")] == [[(1e6, 7)], [(1e6, 8)], [(1e6, 4)]]
