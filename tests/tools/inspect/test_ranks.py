"""What `spillgrad inspect` shows of a run of several processes: from journals by hand, and of a real training."""

import datetime
import json
import re
from pathlib import Path

import pytest
from rich.console import Console
from rich.screen import Screen

from spillgrad.storage import distributed_runs, inspect
from spillgrad_tools.cli import main
from spillgrad_tools.inspect.ranks import rank_rows, straggler_words
from spillgrad_tools.inspect.watch_follow import Follower
from spillgrad_tools.inspect.watch_view import View
from tests.distributed.launcher import launch, needs_mpi
from tests.inspection.rank_journals import write_journal, write_ranks


def printed(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> str:
    assert main(["inspect", *map(str, arguments)]) == status
    found = capsys.readouterr()
    assert found.err == ""
    return found.out


def line(text: str, name: str) -> str:
    (found,) = re.findall(rf"^{name} +(\S.*)$", text, re.MULTILINE)
    return found.strip()


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


def test_the_folder_of_a_run_shows_all_ranks_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text = printed(capsys, write_ranks(tmp_path))
    assert line(text, "ranks") == "3 of 3, all finished"
    assert line(text, "clocks") == "compared, to within 2 ms"
    assert line(text, "sent") == "5.9 KiB in 6 collectives of all ranks"
    shares = "2.7 s exposed (9% of the time of all ranks), 3.3 s hidden (11% of the time of all ranks)"
    assert line(text, "communication") == shares
    assert line(text, "straggler") == "rank 2: the others waited 1.25 s for it on average, 12% of the time"
    rows = [re.split(" {2,}", row.strip()) for row in text.splitlines() if re.match(r"(\d|total) ", row)]
    assert [(row[0], *row[-4:-2], row[-1]) for row in rows] == [
        ("0", "750 ms", "1.25 s", "100 ms"),
        ("1", "750 ms", "1.25 s", "100 ms"),
        ("2", "1.8 s", "200 ms", "2.5 s"),
        ("total", "3.3 s", "2.7 s", "2.7 s"),
    ]


def test_a_rank_alone_is_shown_by_its_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text = printed(capsys, write_ranks(tmp_path) / "journal-r002.jsonl")
    assert line(text, "rank") == "2 of 3 that train together"
    assert line(text, "communication") == "2 KiB sent, 1000 B received in 2 collectives"
    assert "200 ms exposed (2% of the time), 1.8 s hidden (18% of the time)" in text


def test_what_is_missing_or_damaged_or_of_another_release_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write_ranks(tmp_path)
    (tmp_path / "journal.jsonl").unlink()
    write_journal(tmp_path / "journal-r001.jsonl", 1, more=("{}", "no line"), version="0.0.9", host="barn", end=False)
    text = printed(capsys, tmp_path, status=1)
    assert line(text, "ranks") == "2 of 3, 1 finished, 1 dead"
    assert "no journal of rank 0 is here: copy what other machines have into this folder" in text
    assert line(text, "version") == "spillgrad 0.0.9, 0.1.0; ranks run different releases"
    assert line(text, "damaged") == "2 lines of the journals of rank 1, without sense: not counted"
    assert re.findall(r"^(\d on \w+) +(\w+)", text, re.MULTILINE) == [("1 on barn", "dead"), ("2 on mill", "finished")]


def test_of_several_runs_there_is_a_line_for_each_journal_and_the_newest_run_by_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    write_ranks(tmp_path)
    for rank in range(2):
        write_journal(tmp_path / f"later-{rank}.jsonl", rank, 2, group="h", began="2026-11-29T10:34:20+00:00")
    text = printed(capsys, tmp_path)
    assert len(re.findall(r"\.jsonl +finished", text)) == 5
    assert line(text, "ranks") == "2 of 2, all finished"
    assert line(text, "straggler") == "no rank waited for another"


def test_programs_get_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write_ranks(tmp_path)
    document = json.loads(printed(capsys, tmp_path, "--json"))
    assert sorted(run["rank"]["rank"] for run in document["runs"]) == [0, 1, 2]
    (found,) = document["distributed"]
    by_rank, totals, waited_for_s = found.pop("by_rank"), found.pop("totals"), found.pop("waited_for_s")
    assert found == {
        "ranks": 3, "missing": [], "state": "finished", "duration_s": 10.5, "clock_error_s": 0.002, "straggler": 2,
    }  # fmt: skip
    assert waited_for_s["2"] == 2.5
    assert totals["sent_bytes"] == sum(each["sent_bytes"] for each in by_rank) == 6000
    assert by_rank[2] == {
        "rank": 2, "path": str(tmp_path / "journal-r002.jsonl"), "host": "mill", "process": 102, "version": "0.1.0",
        "state": "finished", "began_s": 0.5, "duration_s": 10.0, "steps": 7, "peak_ram_bytes": 2002,
        "peak_rss_bytes": 5000, "written_bytes": 0, "read_bytes": 0, "waited_disk_s": 0.0, "collectives": 2,
        "sent_bytes": 2000, "received_bytes": 1000, "hidden_s": 1.8, "exposed_s": 0.2, "awaited_s": 2.5,
    }  # fmt: skip
    assert json.loads(printed(capsys, tmp_path / "journal.jsonl", "--json"))["distributed"][0]["missing"] == [1, 2]


def screen(view: View, height: int = 30) -> list[str]:
    console = Console(width=120, height=height, color_system=None)
    with console.capture() as captured:
        console.print(Screen(view))
    return [row.rstrip() for row in captured.get().split("\n")]


def test_the_live_view_shows_all_ranks_and_how_they_ended(tmp_path: Path):
    with Follower(write_ranks(tmp_path)) as follower:
        watched = follower.look()
        assert watched is not None
        assert watched.ended == "it finished: its store was closed"
        assert watched.ranks is not None
        assert list(watched.ranks.ranks) == [0, 1, 2]
        found = screen(View(watched))
        assert "rank 0 of 3" in found[0]
        assert [row[:6] for row in found if re.match(r"\d of 3", row)] == ["0 of 3", "1 of 3", "2 of 3"]
        few = [row[:6] for row in screen(View(watched), 16) if re.match(r"\d of 3", row)]
        assert few in ([], ["2 of 3"], ["2 of 3", "0 of 3"])  # those that the others waited for most
        assert follower.look() == watched


# The last rank sleeps before each batch.
SLOW = """
import os, sys, time
from spillgrad_tools.cli import main
from spillgrad_tools.train import training
forward = training.Training._forward
def slow(self, *arguments):
    time.sleep(0.3 * (os.environ["RANK"] == "2"))
    return forward(self, *arguments)
training.Training._forward = slow
sys.exit(main(["train", *sys.argv[1:]]))
"""
SETTINGS = ["--model", "tiny", "--batch", "2", "--context", "64", "--accumulate", "3", "--ram-budget", "1MiB"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a training in three processes."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "program.py").write_text(SLOW)
    ran = launch(3, folder / "program.py", *SETTINGS, "--steps", 8, "--out", folder / "out")
    assert ran.status == 0, ran.errors
    return folder / "out"


@pytest.mark.exhaustive
@needs_mpi
def test_the_slow_rank_of_a_training_is_the_straggler(trained: Path, capsys: pytest.CaptureFixture[str]):
    (found,) = distributed_runs(inspect(trained).runs)
    assert (found.size, list(found.ranks), found.missing, found.state) == (3, [0, 1, 2], [], "finished")
    rows = rank_rows(found)
    assert [row.steps for row in rows] == [8, 8, 8]
    assert found.straggler == 2
    assert found.waited_for_s[2] > 1.0
    assert straggler_words(found).startswith("rank 2: the others waited ")
    assert len({row.collectives for row in rows}) == 1
    assert sum(row.sent_bytes for row in rows) == sum(row.received_bytes for row in rows) > 0
    assert line(printed(capsys, trained), "ranks") == "3 of 3, all finished"


@needs_mpi
def test_the_clocks_of_a_training_agree_within_their_error(trained: Path):
    (found,) = distributed_runs(inspect(trained).runs)
    error_s = found.clock_error_s
    assert error_s is not None
    assert 0 < error_s < 1
    for run in found.ranks.values():
        assert run.rank is not None
        began_s = datetime.datetime.fromisoformat(
            run.began or ""
        ).timestamp()  # processes of one machine have one clock
        assert run.rank.zero_s == pytest.approx(began_s, abs=error_s + 0.01)


@needs_mpi
def test_the_folder_of_a_training_makes_a_page_and_a_trace(trained: Path, tmp_path: Path):
    assert main(["inspect", str(trained), "--perfetto", str(tmp_path / "trace.json")]) == 0
    told = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["pid"] for event in told if event.get("cat") == "collective"} == {1, 3, 5}
    assert main(["inspect", str(trained), "--html", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "3 ranks trained together. Rank 2: the others waited" in page
    for rank in range(3):
        assert f'"name":"rank {rank}, communicating"' in page
