"""`spillgrad bench models` beside PyTorch: the same code gives the same losses."""

import json

import pytest

from spillgrad_tools.bench.models import PROGRAMS
from spillgrad_tools.cli import main

pytest.importorskip("torch", reason="make test-peers installs PyTorch")


def test_every_program_gives_pytorch_s_losses(capsys, tmp_path):
    # The benchmark compares the losses, and fails where they differ.
    assert main(["bench", "models", "--rounds", "1", "--write", str(tmp_path)]) == 0
    (file,) = tmp_path.glob("models-*.json")
    rows = json.loads(file.read_text())["rows"]
    assert [row["case"] for row in rows] == list(PROGRAMS)
    assert all({"ours", "torch"} <= row["seconds"].keys() for row in rows)
    assert "median of all" in capsys.readouterr().out
