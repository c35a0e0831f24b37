"""The journals of several ranks are one run: also where some are missing, damaged, or of other versions."""

import json
from collections import defaultdict
from pathlib import Path

import pytest

from spillgrad.errors import ArgumentError, SpillFormatError
from spillgrad.inspection.perfetto import write_perfetto
from spillgrad.inspection.ranks import DistributedRun, inspect_together
from spillgrad.storage import distributed_runs, inspect
from tests.inspection.rank_journals import DURATION_S, write_journal, write_ranks


def together(folder: Path) -> DistributedRun:
    (found,) = distributed_runs(inspect(folder).runs)
    return found


def test_ranks_of_one_group_are_one_run(tmp_path: Path):
    found = together(write_ranks(tmp_path))
    assert (found.size, list(found.ranks), found.missing, found.state) == (3, [0, 1, 2], [], "finished")
    assert found.zeros_s == {0: 0.0, 1: 0.0, 2: 0.5}
    assert found.clock_error_s == 0.002
    assert found.duration_s == DURATION_S + 0.5
    assert found.waited_for_s == pytest.approx({0: 0.1, 1: 0.1, 2: 2.5})
    assert found.straggler == 2
    counters = [run.rank.counters for run in found.ranks.values() if run.rank is not None]
    assert [each.exposed_s for each in counters] == [1.25, 1.25, 0.2]
    assert [each.hidden_s for each in counters] == [0.75, 0.75, 1.8]


def test_a_missing_rank_is_named_and_its_share_is_known_from_the_others(tmp_path: Path):
    (write_ranks(tmp_path) / "journal-r002.jsonl").unlink()
    found = together(tmp_path)
    assert (list(found.ranks), found.missing, found.straggler) == ([0, 1], [2], 2)
    assert found.waited_for_s == {0: 0.0, 1: 0.0, 2: 2.5}


def test_nobody_is_a_straggler_where_nobody_waited(tmp_path: Path):
    for rank in range(2):
        write_journal(tmp_path / f"{rank}.jsonl", rank, 2)
    assert together(tmp_path).straggler is None


def test_a_rank_that_was_killed_makes_the_run_dead(tmp_path: Path):
    write_ranks(tmp_path)
    write_journal(tmp_path / "journal-r001.jsonl", 1, end=False)
    assert together(tmp_path).state == "dead"


def test_a_journal_of_a_rank_with_damaged_lines_still_counts(tmp_path: Path):
    write_ranks(tmp_path)
    path = tmp_path / "journal-r001.jsonl"
    path.write_bytes(path.read_bytes() + b'{"event": "collective", "sent": -1}\n{"event": "rank", "rank": 1e9}\n')
    found = together(tmp_path)
    assert {rank: run.damaged_lines for rank, run in found.ranks.items()} == {0: 0, 1: 2, 2: 0}
    assert found.waited_for_s == pytest.approx({0: 0.1, 1: 0.1, 2: 2.5})


def test_a_journal_whose_line_of_its_rank_is_damaged_stands_alone(tmp_path: Path):
    write_ranks(tmp_path)
    path = tmp_path / "journal-r001.jsonl"
    path.write_text(path.read_text().replace('"rank": 1', '"rank": "one"'))
    assert together(tmp_path).missing == [1]
    assert len(inspect(tmp_path).runs) == 3
    with pytest.raises(ArgumentError, match=r"perfetto: got 3 runs in .*, wanted one; name one"):
        inspect_together("perfetto", tmp_path)


def test_a_journal_of_the_first_version_stands_alone_and_one_of_a_newer_version_is_refused(tmp_path: Path):
    write_ranks(tmp_path)
    write_journal(tmp_path / "old.jsonl", None, format=1)
    assert len(inspect(tmp_path).runs) == 4
    assert together(tmp_path).missing == []
    write_journal(tmp_path / "new.jsonl", 2, format=3)
    with pytest.raises(SpillFormatError, match=r"new\.jsonl"):
        inspect(tmp_path)


def test_a_rank_beyond_the_number_of_ranks_is_not_believed(tmp_path: Path):
    write_journal(tmp_path / "a.jsonl", 3, 3)
    assert inspect(tmp_path).runs[0].rank is None


def test_runs_in_one_folder_are_told_apart_by_their_group_and_sorted(tmp_path: Path):
    for number, began in enumerate(("2026-11-28T11:00:00+00:00", "2026-11-28T10:00:00+00:00")):
        for rank in range(2):
            path = tmp_path / f"{number}-{rank}.jsonl"
            write_journal(path, rank, 2, group=f"group {number}", began=began)
    found = distributed_runs(inspect(tmp_path).runs)
    names = [[run.path.name for run in each.ranks.values()] for each in found]
    assert names == [["1-0.jsonl", "1-1.jsonl"], ["0-0.jsonl", "0-1.jsonl"]]


def test_without_a_group_ranks_that_began_together_are_one_run(tmp_path: Path):
    for number, hour in enumerate((10, 11)):
        for rank in range(2 - number):  # of the second run one is missing
            began = f"2026-11-28T{hour}:00:0{rank}+00:00"
            path = tmp_path / f"{number}-{rank}.jsonl"
            write_journal(path, rank, 2, group=None, zero_s=None, error=None, began=began)
    first, second = distributed_runs(inspect(tmp_path).runs)
    assert ([*first.ranks], [*second.ranks]) == ([0, 1], [0])
    assert first.clock_error_s is None
    assert first.zeros_s == {0: 0.0, 1: 1.0}  # by what their machines said


def test_of_two_journals_of_a_rank_the_newer_one_counts(tmp_path: Path):
    write_ranks(tmp_path)
    newer = write_journal(tmp_path / "again.jsonl", 1, began="2026-11-28T10:34:30+00:00")
    assert together(tmp_path).ranks[1].path == newer


@pytest.mark.parametrize("began", ["", "yesterday", "9999-99-99", "-1"])
def test_times_that_make_no_sense_are_taken_for_the_beginning(tmp_path: Path, began: str):
    for rank in range(2):
        write_journal(tmp_path / f"{rank}.jsonl", rank, 2, zero_s=None, error=None, began=began)
    assert together(tmp_path).zeros_s == {0: 0.0, 1: 0.0}


def test_a_trace_has_tracks_by_rank_on_one_clock(tmp_path: Path):
    found = inspect_together("perfetto", write_ranks(tmp_path))
    assert isinstance(found, DistributedRun)
    write_perfetto(found, tmp_path / "trace.json")
    told = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"].split(",")[0] for event in told if event["name"] == "process_name"}
    assert names == {1: "rank 0 on mill", 3: "rank 1 on mill", 5: "rank 2 on mill"}
    slices = defaultdict(list)
    for event in told:
        if event["ph"] == "X" and event["cat"] in ("collective", "wait for ranks"):
            slices[event["pid"], event["cat"]].append((event["name"], event["ts"], event["dur"]))
    assert slices[1, "collective"] == [
        ("gradients 1 of 2, rank 2 last", 2e6, 1e6),
        ("gradients 2 of 2, rank 2 last", 4e6, 1e6),
    ]
    assert slices[1, "wait for ranks"][0][1:] == (2.5e6, 0.5e6)
    assert slices[5, "collective"][0][1:] == (2.5e6, 1e6)  # it began half a second later
