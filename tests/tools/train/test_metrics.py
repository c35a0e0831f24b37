"""The metrics of a run in files."""

import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.record_writer import masked_crc32c

from spillgrad.errors import ArgumentError
from spillgrad_tools.cli import main
from spillgrad_tools.train.metrics import Metrics
from spillgrad_tools.train.training import Evaluation, StepRecord
from tests.storage.test_disk_store import in_own_mounts
from tests.tools.train.test_evaluation import lines

TEXT = b"It was the best of times, it was the worst of times. " * 60
ARGUMENTS = ["train", "--data", "text.txt", "--model", "tiny", "--steps", "6", "--batch", "2", "--context", "32"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "text.txt").write_bytes(TEXT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def record(step: int) -> StepRecord:
    return StepRecord(
        step=step, loss=2.5, tokens=64, duration_s=0.5, waited_s=0.125, rss_bytes=2**20, written_bytes=7, read_bytes=9,
        stored_bytes=5, fetched_bytes=6,
        lr=0.25, grad_norm=1.5,
    )  # fmt: skip


def events(folder: Path) -> list[Event]:
    """The events of all files, as the format says; checksums and lengths are verified."""
    found = []
    for path in sorted(folder.glob("events.out.tfevents.*"), key=lambda path: path.stat().st_ctime_ns):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            body = data[12 : 12 + length]
            sums = struct.unpack("<I", data[8:12]) + struct.unpack("<I", data[12 + length : 16 + length])
            assert sums == (masked_crc32c(data[:8]), masked_crc32c(body))
            found.append(Event.FromString(body))
            data = data[16 + length :]
    return found


def test_a_line_says_what_a_step_took_and_another_what_an_evaluation_found(tmp_path: Path):
    metrics = Metrics(tmp_path / "new" / "log", 0, print)
    metrics.stepped(record(1))
    metrics.evaluated(1, Evaluation(float("nan"), 2, 4), 0.75)
    one, other = map(json.loads, (tmp_path / "new" / "log" / "metrics.jsonl").read_text().splitlines())
    assert one == {
        "step": 1, "loss": 2.5, "lr": 0.25, "grad_norm": 1.5, "tokens": 64, "tokens_per_s": 128.0, "seconds": 0.5,
        "rss_bytes": 2**20, "written_bytes": 7, "read_bytes": 9, "stored_bytes": 5,
        "fetched_bytes": 6, "waited_share": 0.25,
    }  # fmt: skip
    assert other == {"step": 1, "held_out_loss": None, "batches": 2, "seconds": 0.75}


def test_without_a_folder_nothing_is_written_or_said(tmp_path: Path):
    metrics = Metrics(None, 0, pytest.fail)
    metrics.stepped(record(1))
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_reads_the_same_numbers(tmp_path: Path):
    for first_step in (0, 2):
        metrics = Metrics(tmp_path, first_step, print)
        metrics.stepped(record(first_step + 1))
        metrics.evaluated(first_step + 1, Evaluation(2.25, 2, 4), 0.75)
    head, start, step, evaluation, *rest = events(tmp_path)
    assert head.file_version == "brain.Event:2"
    assert (start.step, start.session_log.status) == (1, SessionLog.START)
    values = {value.tag: value.simple_value for value in step.summary.value}
    assert (step.step, values["train/loss"], values["train/lr"], values["train/tokens_per_s"]) == (1, 2.5, 0.25, 128)
    assert {value.tag: value.simple_value for value in evaluation.summary.value} == {
        "evaluation/held_out_loss": 2.25, "evaluation/batches": 2, "evaluation/seconds": 0.75,
    }  # fmt: skip
    # TensorBoard drops what was written of steps from here on before the run was resumed.
    assert [(event.step, event.session_log.status) for event in rest[:2]] == [(0, 0), (3, SessionLog.START)]
    assert rest[2].step == 3


def test_without_tensorboardx_lines_are_written_and_the_package_is_named(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    for name in [name for name in sys.modules if name.startswith("tensorboardX")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    assert main([*ARGUMENTS, "--no-spill", "--log-dir", "log"]) == 0
    said = "metrics: log/metrics.jsonl; for TensorBoard's event files, too: pip install 'spillgrad[tensorboard]'"
    assert said in capsys.readouterr().out
    assert [path.name for path in (here / "log").iterdir()] == ["metrics.jsonl"]
    assert [line["step"] for line in lines(here / "log")] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("rest", ["", '{"step": 4, "lo', '{"step": 4}\n{"step": 5}\n', "{}\n"], ids=repr)
def test_a_resumed_run_continues_the_file_after_its_step(tmp_path: Path, rest: str):
    path = tmp_path / "metrics.jsonl"
    kept = '{"step": 2, "loss": 1.0}\n{"step": 3, "loss": 1.0}\n{"step": 3, "held_out_loss": 2.0}\n'
    path.write_text(kept + rest)
    Metrics(tmp_path, 3, print).stepped(record(4))
    assert path.read_text().startswith(kept)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [2, 3, 3, 4]


def test_a_file_of_something_else_is_not_cut(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("somebody's\nnotes\n")
    with pytest.raises(ArgumentError, match=r"metrics.jsonl has no metrics of a run in line 1; remove it, or name"):
        Metrics(tmp_path, 3, print)
    assert path.read_text() == "somebody's\nnotes\n"


def test_a_new_run_leaves_the_metrics_of_a_former_one(tmp_path: Path):
    said: list[str] = []
    for number in range(3):
        Metrics(tmp_path, 0, said.append).stepped(record(number + 1))
    steps = {path.name: json.loads(path.read_text())["step"] for path in tmp_path.glob("*.jsonl")}
    assert steps == {"metrics-1.jsonl": 1, "metrics-2.jsonl": 2, "metrics.jsonl": 3}
    assert said[-1] == f"metrics of a former run are in {tmp_path / 'metrics-2.jsonl'} now"


def test_a_folder_that_cannot_be_written_is_told_before_training(here: Path, capsys: pytest.CaptureFixture[str]):
    (here / "file").touch()
    assert main([*ARGUMENTS, "--log-dir", "file/log", "--out", "out"]) == 2
    printed = capsys.readouterr()
    assert "step 1" not in printed.out
    assert printed.err == "spillgrad: train: --log-dir file/log cannot be written (Not a directory); name another\n"
    assert not (here / "out").exists()


def test_what_a_full_disk_refuses_is_written_when_there_is_room_again(tmp_path: Path):
    said: list[str] = []
    metrics = Metrics(tmp_path / "log", 0, said.append)
    metrics.stepped(record(1))
    (tmp_path / "log").rename(tmp_path / "away")  # as a network file system that is gone for a while
    for step in (2, 3):
        metrics.stepped(record(step))
    (tmp_path / "away").rename(tmp_path / "log")
    metrics.stepped(record(4))
    assert [line["step"] for line in lines(tmp_path / "log")] == [1, 2, 3, 4]
    assert [event.step for event in events(tmp_path / "log")] == [0, 1, 1, 2, 3, 4]
    assert [line for line in said if "(No such file or directory). Training goes on; free space there" in line]
    assert len(said) == 3  # where they are; and a line for each file


FULL = """
import sys
from pathlib import Path
from spillgrad_tools.cli import main
status = main(sys.argv[1:])
print("status", status)
print(Path("disk/metrics.jsonl").read_text(), end="")
"""


def test_a_full_disk_costs_metrics_and_nothing_else(here: Path):
    (here / "disk").mkdir()
    words = [*ARGUMENTS, "--steps", "30", "--no-spill", "--out", "out", "--log-dir", "disk", "--eval-every", "10"]
    ran = subprocess.run(
        [*in_own_mounts(here / "disk", 8), sys.executable, "-W", "ignore", "-c", FULL, *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    printed, _, kept = ran.stdout.partition("status 0\n")
    assert ran.stderr == ""
    for name in ("metrics.jsonl", "events"):
        assert len(re.findall(rf"{name}.* cannot be written \(No space left on device\)", printed)) == 1
    assert "step 30/30  held-out loss" in printed
    # What was written is whole.
    steps = [json.loads(line)["step"] for line in kept.splitlines()]
    assert steps == sorted(steps)
    assert 10 <= len(steps) < 30
