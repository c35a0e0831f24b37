"""The learning rate of a run, and which settings go together."""

import dataclasses
from pathlib import Path

import pytest

from spillgrad_tools.cli import main
from spillgrad_tools.train.options import PANELS, TrainOptions, TrainSettings
from spillgrad_tools.train.schedule import warmup_steps
from spillgrad_tools.train.training import Training

TEXT = b"It was the best of times, it was the worst of times. " * 60
SETTINGS = TrainSettings(model="tiny", steps=4, batch=2, context=32, lr=1.0)


@pytest.mark.parametrize(
    ("changes", "rates"),
    [
        ({"warmup": 0}, [1.0, 0.8681980515339464, 0.55, 0.23180194846605362]),
        ({"warmup": 0, "schedule": "linear", "final_lr_share": 0}, [1.0, 0.75, 0.5, 0.25]),
        ({"warmup": 1, "schedule": "linear", "final_lr_share": 0.25}, [0.5, 1.0, 0.75, 0.5]),
        ({"warmup": 0.5, "schedule": "constant"}, [1 / 3, 2 / 3, 1.0, 1.0]),
    ],
)
def test_the_learning_rate_follows_the_settings(changes: dict[str, float], rates: list[float]):
    training = Training(dataclasses.replace(SETTINGS, clip=0.01, **changes), TEXT)
    assert [record.lr for record in training.steps()] == pytest.approx(rates)


@pytest.mark.parametrize(("given", "steps"), [(0, 0), (0.1, 24), (0.999, 240), (1, 1), (1.0, 1), (240, 240)])
def test_a_warmup_is_a_share_or_a_number_of_steps(given: float, steps: int):
    assert warmup_steps(TrainSettings(warmup=given)) == steps


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--warmup", "1.5"], "got --warmup 1.5; wanted a share of the steps below 1, or a number of steps up to 240"),
        (["--warmup", "241"], "got --warmup 241;"),
        (["--warmup", "nan"], "--warmup nan: Invalid value"),
        (["--clip", "nan"], "--clip nan: Invalid value"),
        (["--weight-decay", "inf"], "got --weight-decay inf;"),
        (["--final-lr-share", "2"], "--final-lr-share"),
        (["--final-lr-share", "0.5", "--schedule", "constant"], "with --schedule constant, which does not fall"),
        (["--schedule", "triangle"], "triangle"),
        (["--patience", "2"], "got --patience 2 without --eval-every"),
        (["--eval-every", "0"], "--eval-every"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_settings_that_make_no_sense_are_refused_in_one_line(
    options: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_bytes(TEXT)
    assert main(["train", "--data", "text.txt", "--model", "tiny", *options]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "options",
    [["--schedule", "linear"], ["--warmup", "3"], ["--clip", "2"], ["--eval-batches", "3"], ["--state", "int8"]],
    ids=" ".join,
)
def test_a_resumed_run_keeps_its_settings(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_bytes(TEXT)
    training = Training(SETTINGS, TEXT)
    training.save(tmp_path / "out")
    assert main(["train", "--data", "text.txt", "--resume", "out", *options]) == 2
    assert f"got {' '.join(options)}" in capsys.readouterr().err
    # What decides no number may change.
    assert main(["train", "--data", "text.txt", "--resume", "out", "--eval-every", "2", "--patience", "9"]) == 0
    assert "held-out loss" in capsys.readouterr().out
    settings, _ = Training.settings_of(tmp_path / "out")
    assert (settings.eval_every, settings.patience) == (2, 9)


def test_each_option_has_one_place_in_the_help():
    fields = [*dataclasses.fields(TrainSettings), *dataclasses.fields(TrainOptions)]
    places = [name for names in PANELS.values() for name in names]
    assert sorted(places) == sorted(field.name for field in fields if field.name != "settings")
