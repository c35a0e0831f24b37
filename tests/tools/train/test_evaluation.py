"""Evaluation every few steps: it changes no number, survives a kill, and ends a run that learns no more."""

import functools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import spillgrad as sg
from spillgrad_tools.cli import main
from spillgrad_tools.launch.program import Program
from spillgrad_tools.train.best_so_far import BestSoFar
from spillgrad_tools.train.options import TrainSettings
from spillgrad_tools.train.training import Training
from tests.distributed.launcher import launch, needs_mpi

TEXT = b"It was the best of times, it was the worst of times. " * 60
# A learning rate that soon makes the model worse.
HOT = ["--lr", "0.05", "--schedule", "constant", "--warmup", "0"]
ARGUMENTS = ["train", "--data", "text.txt", "--model", "tiny", "--steps", "20", "--batch", "2", "--context", "32"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "text.txt").write_bytes(TEXT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def saved(out: Path) -> dict[str, bytes]:
    (folder,) = out.glob("step-*")
    tensors = {name: load_file(folder / f"{name}.safetensors") for name in ("model", "optimizer")}
    return {f"{kind} {name}": array.tobytes() for kind, each in tensors.items() for name, array in each.items()}


def lines(folder: Path) -> list[dict[str, Any]]:
    """The metrics without times, memory and traffic, which differ from run to run."""
    numbers = ("step", "loss", "lr", "grad_norm", "tokens", "held_out_loss", "batches")
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: line[name] for name in numbers if name in line} for line in found]


@pytest.mark.parametrize(
    ("losses", "best", "ends_with_patience"),
    [
        ([], BestSoFar(), []),
        ([3.0, 2.0, 2.5], BestSoFar(2.0, 2, 1), [1]),
        ([3.0, 3.0, 3.0], BestSoFar(3.0, 1, 2), [1, 2]),
        ([float("nan"), float("inf")], BestSoFar(None, 0, 2), [1, 2]),
        ([float("nan"), 2.0], BestSoFar(2.0, 2), []),
    ],
)
def test_only_a_smaller_loss_is_better(losses: list[float], best: BestSoFar, ends_with_patience: list[int]):
    found = BestSoFar()
    for step, loss in enumerate(losses, 1):
        found = found.after(loss, step)
    assert found == best
    assert [patience for patience in (1, 2, 3) if found.ends(patience)] == ends_with_patience
    assert not found.ends(None)


PLACES = [["--no-spill"], ["--ram-budget", "0"], ["--offload", "--ram-budget", "320KiB"]]


@pytest.mark.parametrize("place", PLACES, ids=["in RAM", "spilled", "offloaded"])
def test_a_run_that_is_evaluated_has_the_numbers_of_one_that_is_not(place: list[str], here: Path):
    assert main([*ARGUMENTS, "--steps", "6", "--no-spill", "--out", "plain", "--log-dir", "plain-log"]) == 0
    evaluated = ["--eval-every", "2", "--keep-best", "--log-dir", "log"]
    assert main([*ARGUMENTS, "--steps", "6", *place, *evaluated, "--out", "out"]) == 0
    assert saved(here / "out") == saved(here / "plain")
    found = lines(here / "log")
    assert [line for line in found if "loss" in line] == lines(here / "plain-log")
    assert [line["step"] for line in found if "held_out_loss" in line] == [2, 4, 6]


def test_a_run_ends_after_evaluations_that_are_no_better_and_keeps_the_best(
    here: Path, capsys: pytest.CaptureFixture[str]
):
    evaluated = ["--eval-every", "2", "--eval-batches", "1", "--patience", "2", "--keep-best", "--log-dir", "log"]
    assert main([*ARGUMENTS, *HOT, "--no-spill", *evaluated, "--out", "out"]) == 0
    printed = capsys.readouterr().out
    losses = {line["step"]: line["held_out_loss"] for line in lines(here / "log") if "held_out_loss" in line}
    best, last = min(losses, key=lambda step: losses[step]), max(losses)
    assert last == best + 4 < 20
    words = f"{losses[best]:.4f} nats/byte at step {best}, kept in out/best"
    assert f"ended early at step {last}; best held-out loss: {words}" in printed
    assert f"step {last}/20  held-out loss {losses[last]:.4f} (1 of 4 batches), best {losses[best]:.4f}" in printed
    assert sg.load_checkpoint("out")["step"] == last
    settings, step = Training.settings_of(Path("out/best"))
    assert step == best
    assert Training(settings, TEXT, Path("out/best")).held_out_loss(1).loss == losses[best]
    program = Program(["train", "--out", "out"])
    program._before = None  # as if it had been started before the checkpoint was there
    assert program.has_ended
    # Only with more patience does it go on.
    assert main(["train", "--data", "text.txt", "--resume", "out"]) == 2
    assert "has ended early: 2 evaluations after" in capsys.readouterr().err
    assert main(["train", "--data", "text.txt", "--resume", "out", "--patience", "3", "--steps", str(last + 1)]) == 0


def test_a_best_model_that_cannot_be_kept_costs_a_line(here: Path, capsys: pytest.CaptureFixture[str]):
    (here / "out").mkdir()
    (here / "out" / "best").write_text("a file where the folder would be")
    options = ["--steps", "2", "--no-spill", "--eval-every", "1", "--keep-best", "--out", "out"]
    assert main([*ARGUMENTS, *options]) == 0
    printed = capsys.readouterr().out
    assert printed.count("the best model is not kept: checkpoint: out/best cannot be written") == 2
    assert "kept in" not in printed


@pytest.mark.parametrize("place", PLACES[1:], ids=["spilled", "offloaded"])
def test_a_killed_run_goes_on_to_the_same_evaluations_and_the_same_end(place: list[str], here: Path):
    options = [*HOT, *place, "--save-every", "2", "--keep-best"]
    settings = ["--eval-every", "3", "--patience", "2"]
    assert main([*ARGUMENTS, *options, *settings, "--out", "whole", "--log-dir", "whole-log"]) == 0
    # In the first step after its first evaluation that is no better, a run is killed.
    found = [(line["step"], line["held_out_loss"]) for line in lines(here / "whole-log") if "held_out_loss" in line]
    lowest = np.minimum.accumulate([loss for _, loss in found])
    killed_at = next(step for (step, loss), before in zip(found[1:], lowest, strict=False) if loss >= before) + 1
    program = KILL.format(step=killed_at)
    command = [*ARGUMENTS, *options, *settings, "--out", "out", "--log-dir", "log"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run([sys.executable, "-c", program, *command], env=environment, capture_output=True, timeout=60)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert max(line["step"] for line in lines(here / "log")) == killed_at
    assert Training.settings_of(Path("out"))[1] < killed_at
    again = ["train", "--data", "text.txt", *place, "--save-every", "2", "--keep-best"]
    assert main([*again, "--resume", "out", "--log-dir", "log"]) == 0
    assert lines(here / "log") == lines(here / "whole-log")
    assert saved(here / "out") == saved(here / "whole")
    assert saved(here / "out" / "best") == saved(here / "whole" / "best")
    assert Training.best_of(Path("out")) == Training.best_of(Path("whole"))


KILL = """
import os, signal, sys
from spillgrad_tools.cli import main
from spillgrad_tools.train.metrics import Metrics
stepped = Metrics.stepped
def killed_after(metrics, record):
    stepped(metrics, record)
    if record.step == {step}:
        os.kill(os.getpid(), signal.SIGKILL)
Metrics.stepped = killed_after
main(sys.argv[1:])
"""


@needs_mpi
@pytest.mark.parametrize("place", [[], ["--offload", "--shard", "all"]], ids=["in RAM", "offloaded"])
def test_two_processes_evaluate_and_end_as_one_does(place: list[str], here: Path, capsys: pytest.CaptureFixture[str]):
    evaluated = ["--eval-every", "2", "--patience", "2", "--keep-best"]
    words = [*ARGUMENTS, *HOT, "--ram-budget", "2MiB", "--accumulate", "2", *evaluated]
    assert main([*words, "--out", "out1", "--log-dir", "log1"]) == 0
    assert capsys.readouterr().out.count("ended early") == 1
    ran = launch(2, "--", *words, *place, "--out", here / "out2", "--log-dir", here / "log2")
    assert ran.status == 0, ran.errors
    assert ran.output.count("ended early") == 1
    assert lines(here / "log1") == lines(here / "log2")
    for folder in (".", "best"):
        assert saved(here / "out1" / folder) == saved(here / "out2" / folder)


def test_a_checkpoint_of_an_earlier_release_has_no_evaluations(tmp_path: Path):
    training = Training(TrainSettings(model="tiny", steps=3, batch=2, context=32), TEXT)
    extra = {"settings": {"model": "tiny", "steps": 3, "batch": 2, "context": 32, "lr": 0.002}}
    extra |= {"text": training.source.digest, "base": None}
    schedule = training.schedule
    sg.save_checkpoint(tmp_path, training.model, training.optimizer, scheduler=schedule, step=0, extra=extra)
    settings, _ = Training.settings_of(tmp_path)
    assert settings == training.settings
    resumed = Training(settings, TEXT, tmp_path)
    assert resumed.best == BestSoFar()
    assert [record.loss for record in resumed.steps()] == [record.loss for record in training.steps()]


@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_gradients_are_clipped_as_told_wherever_the_model_is(tmp_path: Path, clip: float):
    settings = TrainSettings(model="tiny", steps=4, batch=2, context=32, lr=1e-3, clip=clip)
    place = functools.partial(sg.disk_offload, directory=tmp_path, ram_budget="320KiB")
    trainings = [Training(settings, TEXT), Training(settings, TEXT, offload=place)]
    norms = [[record.grad_norm for record in training.steps()] for training in trainings]
    assert norms[0] == norms[1]
    assert min(norms[0]) > 0.5
    gradients = [p.grad.numpy().astype(float) for p in trainings[0].model.parameters()]
    norm = sum((gradient**2).sum() for gradient in gradients) ** 0.5
    assert norm == pytest.approx(clip or norms[0][-1], rel=1e-4)
