"""The page of a run of several processes: lanes by rank on one time axis, and a table."""

import re
from pathlib import Path

from spillgrad.inspection.ranks import DistributedRun, inspect_together
from spillgrad.inspection.records import Span
from spillgrad.inspection.runs import spans
from spillgrad_tools.report import page as report_page
from spillgrad_tools.report.page import page
from spillgrad_tools.report.timeline import Spans, timeline
from tests.inspection.rank_journals import write_journal, write_ranks
from tests.page.runs import HOSTILE, HOSTILE_SHOWN
from tests.tools.report.test_page import Reader


def read(folder: Path) -> Reader:
    found = inspect_together("report", folder)
    assert isinstance(found, DistributedRun)
    return Reader(page(found.first, spans(found.first), [], found))


def test_each_rank_has_lanes_of_its_own_on_one_time_axis(tmp_path: Path):
    made = read(write_ranks(tmp_path)).data["timeline"]
    assert [lane["name"] for lane in made["lanes"]] == [
        f"rank {rank}, {what}" for rank in range(3) for what in ("computing", "waiting", "communicating")
    ]  # nothing was written or read
    bars = {(made["lanes"][bars["lane"]]["name"], bars["kind"]): bars for bars in made["bars"] if bars["began"]}
    assert bars["rank 0, communicating", "collective"]["began"] == [2_000_000, 4_000_000]
    assert bars["rank 2, communicating", "collective"]["began"] == [2_500_000, 4_500_000]
    assert bars["rank 0, waiting", "wait for ranks"]["took"] == [500_000, 750_000]
    names = [made["names"][name] for name in bars["rank 0, communicating", "collective"]["name"]]
    assert names == ["gradients 1 of 2, rank 2 last", "gradients 2 of 2, rank 2 last"]
    assert bars["rank 0, communicating", "collective"]["bytes"] == [1000, 1000]


def test_rows_of_ranks_do_not_mix_and_merged_spans_keep_their_sums():
    timed = [[Span("collective", 0.01 * number, 0.001, nbytes=rank) for number in range(1000)] for rank in (1, 2)]
    made = timeline(Spans(*timed, parts=["rank 0", "rank 1"], zeros_s=[0.0, 5.0]), most_bars=200)
    assert sum(len(bars["began"]) for bars in made["bars"]) <= 200
    found = [(min(bars["began"]), sum(bars["spans"]), sum(bars["bytes"])) for bars in made["bars"] if bars["began"]]
    assert found == [(0, 1000, 1000), (5_000_000, 1000, 2000)]


def test_a_process_alone_has_no_lane_for_communication():
    assert "communicating" not in [lane["name"] for lane in timeline(Spans([Span("write", 0, 1)]))["lanes"]]


def test_the_table_by_rank_says_who_waited(tmp_path: Path):
    text = read(write_ranks(tmp_path)).text
    assert "3 ranks trained together. Rank 2: the others waited 1.25 s for it on average, 12% of the time." in text
    assert "with times aligned to within 2 ms. All else is of rank 0;" in text
    assert re.search(r"By rank.*0 on mill\s*710 s.*2\.5 s", text, re.DOTALL)


def test_a_page_of_many_ranks_shows_the_first_ones(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(report_page, "MOST_RANKS", 2)
    found = read(write_ranks(tmp_path))
    assert {lane["name"].split(",")[0] for lane in found.data["timeline"]["lanes"]} == {"rank 0", "rank 1"}
    assert "2 on mill" in found.text


def test_hostile_names_of_hosts_and_collectives_are_text(tmp_path: Path):
    for rank in range(2):
        write_journal(tmp_path / f"{rank}.jsonl", rank, 2, ((1 - rank, 0.5),), host=HOSTILE, group=HOSTILE)
    path = tmp_path / "0.jsonl"
    path.write_text(path.read_text().replace("gradients 1 of 1", HOSTILE[:40]))
    found = read(tmp_path)
    assert HOSTILE_SHOWN in found.text
    assert not [tag for tag, _ in found.elements if tag in ("img", "b")]
