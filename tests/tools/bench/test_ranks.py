"""`spillgrad bench ranks`: what it predicts, and that it runs what it compares with."""

import json
from pathlib import Path

import pytest

from spillgrad_tools.bench import ranks
from spillgrad_tools.cli import main
from tests.distributed.launcher import needs_mpi

TINY = ["bench", "ranks", "--model", "tiny", "--batch", "2", "--context", "32", "--ranks", "4"]


def test_steps_of_many_processes_are_predicted_for_each_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):  # fmt: skip
    command = [*TINY, "--rounds", "0", "--links", "1Gbit,10Gbit", "--dir", str(tmp_path), "--json"]
    assert main([*command, "--write", str(tmp_path / "pages")]) == 0
    rows = json.loads(capsys.readouterr().out)["results"]
    assert len(rows) == 2 * len(ranks.MACHINES) * 2
    for row in rows:
        assert [cell["ranks"] for cell in row["cells"]] == [1, 2, 4]
        computing_s = row["cells"][0]["compute_s"]
        assert computing_s == pytest.approx(row["seconds"] * row["batches"], rel=0.5)  # there is one update
        if row["batches"] == ranks.WEAK:
            assert computing_s == pytest.approx(row["seconds"])
            assert [cell["batches"] for cell in row["cells"]] == [1, 2, 4]
    (written,) = (tmp_path / "pages").glob("ranks-*.json")
    assert json.loads(written.read_text())["rows"] == rows


@needs_mpi
@pytest.mark.exhaustive
def test_two_processes_run_what_is_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(ranks, "MEASURED", (("tiny", 2, 32),))
    assert main([*TINY, "--rounds", "2", "--links", "1Gbit", "--dir", str(tmp_path), "--json"]) == 0
    first = json.loads(capsys.readouterr().out)["results"][0]
    assert (first["kind"], len(first["rounds"])) == ("measured", 2)
    assert first["predicted_s"] > 0
    assert first["measured_s"] > 0
