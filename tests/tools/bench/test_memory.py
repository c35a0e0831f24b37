"""The benchmarks of memory: each method trains the same model, and the planner fills the table of what fits."""

import gc
import json
from pathlib import Path

import pytest

from spillgrad_tools.bench import fit, memory
from spillgrad_tools.cli import main
from tests.waiting import wait_until

SMALL = {"vocab_size": 256, "context": 16, "n_layer": 2, "n_head": 2, "n_embd": 32}
EXACT = ("keep", "spill", "spill, codec lossless", "recompute", "policy auto", "save_on_cpu", "offload")


@pytest.fixture(autouse=True)
def few_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "SIZES", SMALL)
    monkeypatch.setattr(memory.fresh_process, "call", lambda function, *arguments: function(*arguments))


def test_every_method_trains_the_same_model(tmp_path: Path):
    rows = {
        method.name: memory.train(method, SMALL, memory.BATCH, 1, 1, tmp_path) for method in memory.METHODS
    }  # fmt: skip
    first = rows[memory.KEPT.name]["losses"]
    for name, row in rows.items():
        assert row["losses"][: len(first)] == pytest.approx(first, rel=0.02), name
        assert row["seconds"] > 0
        assert row["peak_rss_bytes"] > 0
    for name, row in rows.items():
        if name.partition(":")[0] in EXACT:
            assert row["losses"][: len(first)] == first, name
    gc.collect()
    wait_until(lambda: list(tmp_path.iterdir()) == [])


def test_the_methods_are_printed_and_written_beside_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    written = tmp_path / "results"
    command = ["bench", "memory", "--filter", "gradient accumulation", "--steps", "1", "--threads", "1"]
    assert main([*command, "--dir", str(tmp_path), "--write", str(written)]) == 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("peak memory", "keep", "gradient", "the same"))
    (path,) = written.iterdir()
    rows = [row for row in json.loads(path.read_text())["rows"] if row["library"] == "ours"]
    assert [row["method"] for row in rows] == [memory.KEPT.name, "gradient accumulation"]
    assert rows[0]["losses_apart"] == 0


def test_the_planner_fills_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(fit, "MODELS", ("tiny",))
    monkeypatch.setattr(fit, "CONTEXTS", (16,))
    written = tmp_path / "results"
    assert main(["bench", "fit", "--dir", str(tmp_path), "--write", str(written), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["results"]
    assert (row["model"], row["context"], row["batch"]) == ("tiny", 16, 1)
    assert [cell["ram_bytes"] for cell in row["cells"]] == [ram for ram in fit.RAMS if ram >= row["least_bytes"]]
    assert row["cells"]
    assert {cell["on_disk"] for cell in row["cells"]} == {"nothing"}
    (path,) = written.iterdir()
    assert json.loads(path.read_text())["rows"] == [row]
