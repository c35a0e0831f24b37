"""The folders that a training writes to: checked before data is read, and of one training at a time."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spillgrad_tools.cli import main
from tests.waiting import wait_until

TEXT = b"It was the best of times, it was the worst of times. " * 60
ARGUMENTS = ["train", "--data", "text.txt", "--model", "tiny", "--steps", "2", "--batch", "2", "--context", "32"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "text.txt").write_bytes(TEXT)
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "options, told",
    [
        (["--out", "file"], "--out file cannot be written (it is no folder); name another"),
        (["--out", "file/out"], "--out file/out cannot be written (Not a directory); name another"),
        (["--out", "/proc/out"], "--out /proc/out cannot be written (No such file or directory); name another"),
        (["--out", "x" * 300], "cannot be written (File name too long); name another"),
        (["--spill-dir", "file/spill"], "--spill-dir file/spill cannot be written (Not a directory); name another"),
        (["--log-dir", "file"], "--log-dir file cannot be written (it is no folder); name another"),
        (["--log-dir", "file/log"], "--log-dir file/log cannot be written (Not a directory); name another"),
    ],
    ids=lambda value: " ".join(value)[:20],
)
def test_a_folder_that_cannot_be_written_is_told_before_data_is_read(
    options: list[str], told: str, here: Path, capsys: pytest.CaptureFixture[str]
):
    assert main([*ARGUMENTS, "--data", "missing.txt", *options]) == 2
    error = capsys.readouterr().err
    assert (error.startswith("spillgrad: train: "), told in error, error.count("\n")) == (True, True, 1), error
    assert sorted(path.name for path in here.iterdir()) == ["file", "text.txt"]


def test_data_that_are_missing_leave_no_folder(here: Path, capsys: pytest.CaptureFixture[str]):
    folders = ["--out", "a/b", "--log-dir", "log/c", "--spill-dir", "d/e"]
    assert main([*ARGUMENTS, "--data", "missing.txt", *folders]) == 2
    assert "missing.txt does not exist" in capsys.readouterr().err
    assert sorted(path.name for path in here.iterdir()) == ["file", "text.txt"]


def test_the_metrics_of_one_training_are_no_others(here: Path, capsys: pytest.CaptureFixture[str]):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "spillgrad_tools", *ARGUMENTS, "--steps", "100000", "--log-dir", "log"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        metrics = here / "log" / "metrics.jsonl"
        wait_until(lambda: metrics.exists() and metrics.stat().st_size, 120)
        assert main([*ARGUMENTS, "--log-dir", "log"]) == 2
        told = "spillgrad: train: another training is writing to --log-dir log; wait until it ends, or name another\n"
        assert capsys.readouterr().err == told
        assert [path.name for path in (here / "log").glob("*.jsonl")] == ["metrics.jsonl"]
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert main([*ARGUMENTS, "--log-dir", "log"]) == 0  # the lock has ended with the process
    assert sorted(path.name for path in (here / "log").glob("*.jsonl")) == ["metrics-1.jsonl", "metrics.jsonl"]


def test_metrics_may_be_beside_the_checkpoint(here: Path):
    assert main([*ARGUMENTS, "--out", "out", "--log-dir", "out"]) == 0
    assert (here / "out" / "metrics.jsonl").exists() and (here / "out" / "checkpoint.json").exists()
