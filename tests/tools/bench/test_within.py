"""`spillgrad bench within` says how each run ended."""

import json

from spillgrad_tools.bench import within
from spillgrad_tools.bench.options import WithinOptions
from spillgrad_tools.cli import main

WORDS = ("--model", "tiny", "--batch", "2", "--context", "16")


def test_a_run_finishes_within_its_memory_or_says_that_there_is_no_plan(tmp_path):
    enough = within.trained("tiny", WORDS, 512 << 20, tmp_path)
    assert (enough.ended, enough.said) == ("finished", "")
    assert enough.predicted_bytes <= 512 << 20
    assert 0 < enough.peak_bytes <= 512 << 20
    short = within.trained("tiny", WORDS, 190 << 20, tmp_path)
    assert short.ended == "no plan"
    assert "to plan alone takes" in short.said
    assert list(tmp_path.iterdir()) == []


def test_a_run_beside_a_neighbour_finishes_and_both_count_in_the_group(tmp_path):
    found = within.trained_beside("auto", WORDS, 1 << 30, 300 << 20, tmp_path)
    assert (found.ended, found.said, found.ram_bytes) == ("finished", "", 1 << 30)
    assert found.group_peak_bytes is None or found.group_peak_bytes > 300 << 20
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_did_not_finish_gives_an_exit_status(monkeypatch, capsys):
    monkeypatch.setattr(within, "runs", lambda options: [within.Run("one", 1 << 30, "finished", 1 << 29, 1 << 29)])
    assert main(["bench", "within"]) == 0
    printed = capsys.readouterr()
    assert "1 of 1 runs finished" in printed.out
    assert "one, within 1 GiB, peak 512 MiB: finished\n" in printed.err  # as the run ended
    monkeypatch.setattr(within, "runs", lambda options: [within.Run("one", 1 << 30, "killed")])
    assert main(["bench", "within", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["runs"][0]["ended"] == "killed"


def test_the_cases_have_as_many_sizes_as_the_help_says():
    assert len(within.CASES) * len(within.SHARES) == 72
    assert WithinOptions().name == ""
