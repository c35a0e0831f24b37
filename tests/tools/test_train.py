"""Training from the command line: what is printed, saved, interrupted and resumed."""

import dataclasses
import io
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from safetensors.numpy import load_file

import spillgrad as sg
from spillgrad_kernels.compile import Counts
from spillgrad_tools import train_display
from spillgrad_tools.cli import main
from spillgrad_tools.train import StepRecord, Training
from spillgrad_tools.train_display import show_preparation, show_progress, show_sample
from spillgrad_tools.train_settings import TrainSettings
from tests.waiting import wait_until

TEXT = b"It was the best of times, it was the worst of times. " * 60
SETTINGS = TrainSettings(model="tiny", steps=6, batch=2, context=32, lr=1e-3, seed=3)
ARGUMENTS = ["train", "--data", "text.txt", "--model", "tiny", "--steps", "6", "--batch", "2", "--context", "32"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "text.txt").write_bytes(TEXT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def weights(training: Training) -> dict[str, bytes]:
    return {name: parameter.numpy().tobytes() for name, parameter in training.model.named_parameters()}


def saved_model(directory: Path) -> dict[str, np.ndarray]:
    (path,) = directory.rglob("model.safetensors")
    return load_file(path)


def test_a_record_says_what_the_step_took():
    record = StepRecord(step=1, loss=5.5, tokens=64, duration_s=0.5, waited_s=0.1, rss_bytes=1, written_bytes=2)
    assert (record.tokens_per_s, record.wait_share) == (128, 0.2)


def test_training_yields_one_record_per_step_and_learns():
    training = Training(SETTINGS, TEXT)
    records = list(training.steps())
    assert [record.step for record in records] == [1, 2, 3, 4, 5, 6]
    assert records[-1].loss < records[0].loss
    assert all(record.tokens == 64 and record.rss_bytes > 0 for record in records)
    assert list(training.steps()) == []


def test_a_loss_that_is_not_finite_stops_training():
    training = Training(SETTINGS, TEXT)
    next(training.model.parameters()).data.fill_(float("nan"))
    with pytest.raises(sg.errors.ArgumentError, match=r"loss of nan in step 1.*lower --lr"):
        list(training.steps())


def test_the_held_out_loss_of_a_new_model_is_that_of_a_uniform_guess():
    assert Training(SETTINGS, TEXT).held_out_loss() == pytest.approx(np.log(256), rel=0.05)


def test_a_sample_has_the_asked_length_and_is_the_same_again():
    training = Training(SETTINGS, TEXT)
    sample = training.sample(20)
    assert sample.startswith("The ")
    assert 5 <= len(sample) <= 24
    assert training.sample(20) == sample


@pytest.mark.parametrize("model", ["tiny", "llama-tiny"])
def test_a_resumed_run_goes_through_the_same_numbers(tmp_path: Path, model: str):
    settings = dataclasses.replace(SETTINGS, model=model)
    whole = Training(settings, TEXT)
    losses = [record.loss for record in whole.steps()]
    stopped = Training(settings, TEXT)
    steps = stopped.steps()
    first = [next(steps).loss for _ in range(3)]
    stopped.save(tmp_path)
    resumed = Training(Training.settings_of(tmp_path), TEXT, tmp_path)
    rest = [record.loss for record in resumed.steps()]
    assert first + rest == losses
    assert weights(resumed) == weights(whole)


def test_spilling_changes_no_number(tmp_path: Path):
    plain, spilled = Training(SETTINGS, TEXT), Training(SETTINGS, TEXT)
    spilled.spill = sg.save_on_disk(tmp_path, ram_budget=0)
    assert [record.loss for record in plain.steps()] == [record.loss for record in spilled.steps()]
    assert weights(plain) == weights(spilled)
    assert spilled.spill.stats().written_bytes > 0


def test_the_command_trains_saves_and_reports(here: Path, capsys: pytest.CaptureFixture[str]):
    assert main([*ARGUMENTS, "--ram-budget", "64KiB", "--out", "out"]) == 0
    printed = capsys.readouterr().out
    for words in ("step 6/6", "sample", "train loss", "held-out loss", "peak RSS", "checkpoint: out"):
        assert words in printed
    assert re.search(r"written to disk\s+[1-9]", printed)
    assert saved_model(here / "out")["transformer.wte.weight"].shape == (256, 64)
    wait_until(lambda: not list(here.rglob("*.h5")))  # the store's own thread removes them


@pytest.mark.parametrize(
    ("options", "given"),
    [
        ([], {"codec": None, "on_full": "raise", "encrypt": False}),
        (["--codec", "lossless"], {"codec": "lossless", "on_full": "raise", "encrypt": False}),
        (["--codec", "bf16", "--on-full", "ram"], {"codec": "bf16", "on_full": "ram", "encrypt": False}),
        (["--codec", "int8", "--encrypt"], {"codec": "int8", "on_full": "raise", "encrypt": True}),
    ],
)
def test_the_command_says_what_spilled_tensors_become(
    here: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], given: dict[str, object]
):
    spilled = []

    class Watched(sg.save_on_disk):
        def __init__(self, *arguments: object, **options: object):
            spilled.append((self, options))
            super().__init__(*arguments, **options)

    monkeypatch.setattr(sg, "save_on_disk", Watched)
    arguments = [*ARGUMENTS, "--steps", "2", "--context", "64", "--ram-budget", "0", "--out", "out"]
    assert main([*arguments, *options]) == 0
    ((spill, passed),) = spilled
    assert {name: passed[name] for name in given} == given
    stats = spill.stats()
    # Floats as integers of a quarter, as halves, or as they are.
    share = {"int8": 0.3, "bf16": 0.6}.get(given["codec"], 1)
    assert stats.stored_bytes <= share * stats.written_bytes
    wait_until(lambda: not list(here.rglob("*.h5")))


def test_the_report_says_how_many_bytes_went_to_disk(here: Path, capsys: pytest.CaptureFixture[str]):
    arguments = [*ARGUMENTS, "--batch", "8", "--ram-budget", "0", "--out"]
    assert main([*arguments, "exact"]) == 0
    assert re.search(r"written to disk +[0-9.]+ MiB\s", capsys.readouterr().out)
    assert main([*arguments, "int8", "--codec", "int8"]) == 0
    found = re.search(r"written to disk +([0-9.]+) MiB, stored as ([0-9.]+) MiB\s", capsys.readouterr().out)
    assert found is not None
    assert float(found[2]) < 0.5 * float(found[1])


def test_runs_without_an_output_folder_are_numbered(here: Path, capsys: pytest.CaptureFixture[str]):
    for number in (1, 2):
        assert main([*ARGUMENTS, "--steps", "1", "--no-spill"]) == 0
        assert f"checkpoint: runs/{number}" in capsys.readouterr().out


def test_what_a_killed_run_left_beside_a_new_one_goes(here: Path):
    dead = here / "runs" / "1" / "run-0123456789abcdef"
    dead.mkdir(parents=True)
    for name in (".lock", "segment-00000.h5"):
        (dead / name).touch()
    assert main([*ARGUMENTS, "--steps", "1"]) == 0
    assert list((here / "runs" / "1").iterdir()) == []
    assert (here / "runs" / "2" / "checkpoint.json").exists()


def test_the_command_resumes_to_the_weights_of_an_uninterrupted_run(here: Path, capsys: pytest.CaptureFixture[str]):
    assert main([*ARGUMENTS, "--out", "whole"]) == 0
    stopped = Training(TrainSettings(model="tiny", steps=6, batch=2, context=32), TEXT)
    steps = stopped.steps()
    for _ in range(2):
        next(steps)
    stopped.save(here / "part")
    assert main(["train", "--data", "text.txt", "--resume", "part"]) == 0
    capsys.readouterr()
    whole, part = saved_model(here / "whole"), saved_model(here / "part")
    assert {name: array.tobytes() for name, array in whole.items()} == {name: a.tobytes() for name, a in part.items()}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--resume", "done", "--data", "text.txt"], ["done", "6 steps", "--steps"]),
        (["--resume", "done", "--data", "text.txt", "--model", "small"], ["--model small", "tiny"]),
        (["--resume", "done", "--data", "text.txt", "--lr", "1", "--steps", "9"], ["--lr 1", "0.002"]),
        (["--resume", "done", "--data", "other.txt", "--steps", "9"], ["another text", "--data"]),
        (["--out", "done", "--data", "text.txt", "--steps", "1"], ["done", "--resume"]),
        (["--resume", "model_only", "--data", "text.txt"], ["model_only", "no run"]),
    ],
)
def test_what_cannot_be_resumed_is_refused_in_one_line(
    arguments: list[str], words: list[str], here: Path, capsys: pytest.CaptureFixture[str]
):
    training = Training(TrainSettings(model="tiny", steps=6, batch=2, context=32), TEXT)
    training.step = 6
    training.save(here / "done")
    sg.save_checkpoint(here / "model_only", training.model)
    (here / "other.txt").write_bytes(TEXT[::-1])
    assert main(["train", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1
    assert [word for word in words if word not in printed.err] == []


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_signal_saves_a_checkpoint_and_leaves_no_spill_file(stop: signal.Signals, here: Path):
    options = [*ARGUMENTS, "--steps", "100000", "--ram-budget", "0", "--out", "out"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "spillgrad_tools", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout
        assert process.stdout.readline().startswith("spilling to out/run-")
        assert process.stdout.readline().startswith("step 1/100000")
        process.send_signal(stop)
        printed, complaints = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, complaints) == (130, "")
    assert printed.index("stopping after this step; Ctrl-C again stops at once") < printed.index("stopped after step")
    assert "go on with: spillgrad train --data text.txt --resume out" in printed
    state = sg.load_checkpoint(here / "out")
    assert 1 <= state["step"] < 100000
    assert {path.name.partition("-")[0] for path in (here / "out").iterdir()} == {"checkpoint.json", "step"}


def records(count: int) -> list[StepRecord]:
    return [
        StepRecord(step=n, loss=2.0, tokens=10, duration_s=1.0, waited_s=0.25, rss_bytes=2**20, written_bytes=2**30)
        for n in range(1, count + 1)
    ]


def test_progress_away_from_a_terminal_is_a_line_now_and_then():
    console = Console(file=io.StringIO(), width=200)
    assert len(list(show_progress(console, records(50), 0, 50))) == 50
    assert console.file.getvalue().splitlines() == [
        f"step {n}/50  loss 2.0000  10 tokens/s  RSS 1 MiB  spilled 1 GiB  waiting 25%" for n in (1, 50)
    ]


def test_progress_on_a_terminal_shows_the_numbers_without_colour_where_none_is_wanted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NO_COLOR", "1")
    console = Console(file=io.StringIO(), width=200, force_terminal=True, force_interactive=True)
    list(show_progress(console, records(3), 0, 3))
    shown = console.file.getvalue()
    assert "3/3" in shown
    assert "waiting 25%" in shown
    assert re.search(r"\x1b\[[\d;]*3\dm", shown) is None


def test_while_kernels_compile_a_terminal_shows_how_many(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(train_display, "counts", Counts(compiled=17))
    terminal = Console(file=io.StringIO(), width=200, force_terminal=True, force_interactive=True)
    with show_preparation(terminal):
        pass
    assert "compiling kernels: 17" in terminal.file.getvalue()
    progress = show_progress(terminal, records(1), 0, 1)
    terminal.file.truncate(0)
    next(progress)
    assert "compiling kernels: 17" in terminal.file.getvalue()
    progress.close()
    pipe = Console(file=io.StringIO(), width=200)
    with show_preparation(pipe):
        pass
    assert pipe.file.getvalue() == ""


def test_a_sample_cannot_command_the_terminal():
    console = Console(file=io.StringIO(), width=200)
    show_sample(console, "plain\n\x1b[2J[red]text")
    assert "plain\n\N{REPLACEMENT CHARACTER}[2J[red]text" in console.file.getvalue()


def test_accumulated_batches_are_one_larger_batch_up_to_rounding():
    whole = Training(SETTINGS, TEXT)
    parts = Training(TrainSettings(**{**vars(SETTINGS), "batch": 1, "accumulate": 2}), TEXT)
    for one, other in zip(whole.steps(), parts.steps(), strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-4)
        assert one.tokens == other.tokens
    assert whole.held_out_loss() == pytest.approx(parts.held_out_loss(), rel=1e-4)


def test_the_gradient_of_accumulated_batches_is_their_mean():
    whole = Training(SETTINGS, TEXT)
    parts = Training(TrainSettings(**{**vars(SETTINGS), "batch": 1, "accumulate": 2}), TEXT)
    for training in (whole, parts):
        next(training.steps())
    for one, other in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        np.testing.assert_allclose(one.grad.numpy(), other.grad.numpy(), rtol=1e-3, atol=1e-6)


def test_a_resumed_run_with_accumulated_batches_goes_through_the_same_numbers(tmp_path: Path):
    settings = TrainSettings(**{**vars(SETTINGS), "batch": 2, "accumulate": 3})
    whole = Training(settings, TEXT)
    losses = [record.loss for record in whole.steps()]
    stopped = Training(settings, TEXT)
    steps = stopped.steps()
    first = [next(steps).loss for _ in range(2)]
    stopped.save(tmp_path)
    resumed = Training(Training.settings_of(tmp_path), TEXT, tmp_path)
    assert first + [record.loss for record in resumed.steps()] == losses
    assert weights(resumed) == weights(whole)


def test_the_command_accumulates(here: Path, capsys: pytest.CaptureFixture[str]):
    assert main([*ARGUMENTS, "--steps", "1", "--accumulate", "3", "--no-spill", "--out", "out"]) == 0
    assert "step 1/1" in capsys.readouterr().out
    assert Training.settings_of(here / "out").accumulate == 3


@pytest.mark.parametrize("policy", ["keep", "spill", "recompute"])
def test_the_command_trains_to_the_same_weights_under_every_policy(policy: str, here: Path):
    budget = ["--ram-budget", "0"]
    assert main([*ARGUMENTS, "--steps", "2", *budget, "--out", "plain"]) == 0
    assert main([*ARGUMENTS, "--steps", "2", *budget, "--policy", policy, "--out", policy]) == 0
    plain, other = saved_model(here / "plain"), saved_model(here / policy)
    assert {name: array.tobytes() for name, array in plain.items()} == {n: a.tobytes() for n, a in other.items()}
    wait_until(lambda: not list(here.rglob("*.h5")))


def test_a_policy_without_spilling_is_refused(here: Path, capsys: pytest.CaptureFixture[str]):
    assert main([*ARGUMENTS, "--no-spill", "--policy", "recompute"]) == 2
    assert "--policy recompute with --no-spill" in capsys.readouterr().err
