"""Training from the command line: what is printed, saved, interrupted and resumed."""

import collections
import dataclasses
import functools
import io
import itertools
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from safetensors.numpy import load_file

import spillgrad as sg
from spillgrad.errors import ArgumentError, CheckpointError, SpillError
from spillgrad_kernels.jit.compile import Counts
from spillgrad_kernels.memory.system_memory import SystemMemory
from spillgrad_tools.cli import main
from spillgrad_tools.train import command as train_command
from spillgrad_tools.train import display as train_display
from spillgrad_tools.train import saves as train_saves
from spillgrad_tools.train.display import output_console, show_preparation, show_progress, show_sample
from spillgrad_tools.train.options import TrainOptions, TrainSettings
from spillgrad_tools.train.saves import Saves
from spillgrad_tools.train.training import LR, LR_WIDTH, StepRecord, Training
from tests.crafted import altered, rewrite
from tests.storage.test_disk_store import in_own_mounts
from tests.waiting import wait_until, wait_until_no_spill_file_is_below

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
    # `os.walk` passes over a store's folder that vanishes meanwhile, where `rglob` raises.
    (folder,) = (folder for folder, _, names in os.walk(directory) if "model.safetensors" in names)
    return load_file(Path(folder, "model.safetensors"))


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


@pytest.mark.parametrize("offloaded", [False, True], ids=["in RAM", "offloaded"])
def test_gradients_that_are_not_finite_stop_training_before_anybody_saves_what_they_made(
    tmp_path: Path, offloaded: bool
):
    place = functools.partial(sg.disk_offload, directory=tmp_path, ram_budget="300KiB") if offloaded else None
    training = Training(SETTINGS, TEXT, offload=place)
    next(training.model.parameters()).register_hook(lambda gradient: gradient * float("inf"))
    with pytest.raises(sg.errors.ArgumentError, match=r"gradient norm of (nan|inf) in step 1.*lower --lr"):
        list(training.steps())


def test_the_held_out_loss_of_a_new_model_is_that_of_a_uniform_guess():
    assert Training(SETTINGS, TEXT).held_out_loss().loss == pytest.approx(np.log(256), rel=0.05)


def test_a_sample_has_the_asked_length_and_is_the_same_again():
    training = Training(SETTINGS, TEXT)
    sample = training.sample(20)
    assert sample.startswith("The ")
    assert 5 <= len(sample) <= 24
    assert training.sample(20) == sample


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with the weights of a model."""
    sg.manual_seed(5)
    folder = tmp_path_factory.mktemp("base")
    return str(sg.save_checkpoint(folder, sg.models.build("llama-tiny", context=64)))


KINDS: dict[str, dict[str, Any]] = {
    "GPT": {},
    "Llama": {"model": "llama-tiny"},
    "given weights": {"weights": "base"},
    "adapters": {"lora": 2},
    "adapters of given weights": {"weights": "base", "lora": 2, "accumulate": 2},
    "bfloat16": {"autocast": True},
    "halves": {"autocast": True, "master": "split"},
    "bfloat16 alone": {"autocast": True, "master": "none"},
    "accumulated": {"accumulate": 3},
}


@pytest.fixture(scope="module")
def uninterrupted(base: str) -> Callable[[str], tuple[TrainSettings, list[float], dict[str, bytes]]]:
    """Return a function that returns the settings of a kind of run, and the losses and weights of a whole run."""

    @functools.cache
    def trained(kind: str) -> tuple[TrainSettings, list[float], dict[str, bytes]]:
        changes = {name: base if name == "weights" else value for name, value in KINDS[kind].items()}
        settings = dataclasses.replace(SETTINGS, **changes)
        whole = Training(settings, TEXT)
        return settings, [record.loss for record in whole.steps()], weights(whole)

    return trained


@pytest.mark.parametrize("where", ["RAM to RAM", "disk to disk", "RAM to disk", "disk to RAM"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_goes_through_the_same_numbers(
    tmp_path: Path, uninterrupted: Callable[[str], Any], kind: str, where: str
):
    first_place, second_place = (
        functools.partial(sg.disk_offload, directory=tmp_path / "store", ram_budget="320KiB")
        if place == "disk"
        else None
        for place in where.split(" to ")
    )
    settings, losses, wanted = uninterrupted(kind)
    assert len(set(losses)) == settings.steps
    stopped = Training(settings, TEXT, offload=first_place)
    steps = stopped.steps()
    first = [next(steps).loss for _ in range(3)]
    stopped.save(tmp_path / "saved")
    resumed = Training(Training.settings_of(tmp_path / "saved")[0], TEXT, tmp_path / "saved", second_place)
    rest = [record.loss for record in resumed.steps()]
    assert first + rest == losses
    assert weights(resumed) == wanted
    if second_place is not None:
        stats = resumed.stats()
        assert min(stats.read_bytes, stats.written_bytes) > 0


def test_what_is_known_of_a_base_is_its_contents_not_its_place(tmp_path: Path, base: str):
    settings = dataclasses.replace(SETTINGS, weights=base, lora=2)
    training = Training(settings, TEXT)
    next(training.steps())
    training.save(tmp_path / "saved")
    saved = saved_model(tmp_path / "saved")
    assert saved
    assert all(".lora_" in name for name in saved)
    shutil.copytree(base, tmp_path / "moved")
    moved = dataclasses.replace(settings, weights=str(tmp_path / "moved"))
    Training(moved, TEXT, tmp_path / "saved")
    sg.save_checkpoint(tmp_path / "other", sg.models.build("llama-tiny", context=64))
    with pytest.raises(CheckpointError, match="adapters of other weights than those at"):
        Training(dataclasses.replace(settings, weights=str(tmp_path / "other")), TEXT, tmp_path / "saved")


def test_a_published_model_keeps_its_vocabulary_and_its_largest_context():
    training = Training(dataclasses.replace(SETTINGS, model="gpt2", lora=1), TEXT)
    assert training.model.config.vocab_size == 50257
    assert (training.data.train_batches(0).__next__()[0] < 256).all()
    with pytest.raises(sg.errors.ArgumentError, match="got --context 1025; gpt2 has 1024 positions at most"):
        Training(dataclasses.replace(SETTINGS, model="gpt2", context=1025), TEXT)
    assert Training(dataclasses.replace(SETTINGS, context=128), TEXT).model.config.context == 128


def test_weights_keep_their_context(base: str):
    training = Training(dataclasses.replace(SETTINGS, weights=base), TEXT)
    assert training.model.config.context == 64
    assert training.model.training
    with pytest.raises(sg.errors.ArgumentError, match=r"got --context 65; .* has 64 positions at most"):
        Training(dataclasses.replace(SETTINGS, weights=base, context=65), TEXT)


@pytest.mark.parametrize(("model", "lr"), [("tiny", 2e-3), ("small", 2e-3), ("gpt2", 2e-3 / 3), ("gpt2-xl", 3.2e-4)])
def test_wide_models_have_a_lower_learning_rate(model: str, lr: float):
    config = sg.models.config(model, n_layer=1, vocab_size=256)
    assert LR * min(1.0, LR_WIDTH / config.n_embd) == pytest.approx(lr)


def test_a_token_that_is_no_byte_is_shown_as_such(monkeypatch: pytest.MonkeyPatch):
    training = Training(SETTINGS, TEXT)
    tokens = sg.tensor([[ord("T"), 255, 256, 50000, ord("!")]])
    monkeypatch.setattr(training.model, "generate", lambda *_, **__: tokens)
    assert training.sample(3) == "T\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}!"


@pytest.mark.parametrize(("steps", "batches", "length"), [(1, 1, 2), (2, 1, 4), (4, 2, 5), (100, 4, 28)])
def test_after_a_short_training_evaluation_and_sample_are_short(steps: int, batches: int, length: int):
    training = Training(dataclasses.replace(SETTINGS, steps=steps), TEXT)
    found = training.held_out_loss()
    assert (found.batches, found.all_batches) == (batches, 4)
    lengths = []
    training.model.generate = lambda prompt, length, **_: lengths.append(length) or sg.tensor([[65]])
    training.sample(300)
    assert lengths == [length]


def test_spilling_changes_no_number(tmp_path: Path):
    plain, spilled = Training(SETTINGS, TEXT), Training(SETTINGS, TEXT)
    spilled.spill = sg.save_on_disk(tmp_path, ram_budget=0)
    assert [record.loss for record in plain.steps()] == [record.loss for record in spilled.steps()]
    assert weights(plain) == weights(spilled)
    assert spilled.spill.stats().written_bytes > 0


PLACES = [["--ram-budget", "0"], ["--ram-budget", "300KiB", "--offload"]]


def test_the_command_trains_saves_and_reports(here: Path, capsys: pytest.CaptureFixture[str]):
    assert main([*ARGUMENTS, "--ram-budget", "64KiB", "--out", "out"]) == 0
    printed = capsys.readouterr().out
    for words in ("step 6/6", "sample", "train loss", "held-out loss", "peak RSS", "checkpoint: out"):
        assert words in printed
    assert re.search(r"written to disk\s+[1-9]", printed)
    assert saved_model(here / "out")["transformer.wte.weight"].shape == (256, 64)
    wait_until_no_spill_file_is_below(here)


@pytest.mark.parametrize("place", PLACES, ids=["spilled", "offloaded"])
def test_a_report_is_written_of_the_finished_run(place: list[str], here: Path, capsys: pytest.CaptureFixture[str]):
    assert main([*ARGUMENTS, *place, "--out", "out", "--report"]) == 0
    assert capsys.readouterr().out.endswith("report: out/report.html\n")
    page = (here / "out" / "report.html").read_text()
    assert "out/journal.jsonl" in page
    assert "Finished, on" in page
    assert "transformer.<wbr>h.<wbr>0" in page


@pytest.mark.parametrize("place", [["--no-spill"], *PLACES], ids=["in RAM", "spilled", "offloaded"])
def test_a_profile_says_where_the_time_of_a_step_goes(place: list[str], here: Path, capsys: pytest.CaptureFixture[str]):
    assert main([*ARGUMENTS, *place, "--out", "out", "--profile"]) == 0
    printed = capsys.readouterr().out
    for words in ("a step, mean of 4", "Python", "transformer.h.*.mlp", "profile: out/profile.json"):
        assert words in printed
    trace = json.loads((here / "out" / "profile.json").read_text())["traceEvents"]
    names = collections.Counter(event["name"] for event in trace)
    assert names["forward"] == names["backward"] == names["optimizer"] == 4
    assert {event["args"]["module"] for event in trace} >= {"transformer.h.0.mlp.c_fc", "transformer.h.1.attn"}


def test_a_profile_of_a_single_step_is_of_that_step(here: Path, capsys: pytest.CaptureFixture[str]):
    assert main([*ARGUMENTS, "--steps", "1", "--no-spill", "--profile"]) == 0
    assert "a step, mean of 1" in capsys.readouterr().out


def test_a_resumed_run_reports_of_itself(here: Path):
    assert main([*ARGUMENTS, "--ram-budget", "0", "--out", "out", "--report"]) == 0
    assert (
        main(["train", "--data", "text.txt", "--resume", "out", "--steps", "9", "--ram-budget", "0", "--report"]) == 0
    )
    assert "out/journal-2.jsonl" in (here / "out" / "report.html").read_text()


def test_a_stopped_run_has_a_report_too(here: Path):
    process = start("--steps", "100000", "--ram-budget", "0", "--out", "out", "--report")
    try:
        assert process.stdout
        assert process.stdout.readline().startswith("spilling to out/run-")
        assert process.stdout.readline().startswith("step 1/100000")
        process.send_signal(signal.SIGINT)
        printed, complaints = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, complaints) == (130, "")
    assert printed.endswith("report: out/report.html\n")
    assert "Finished, on" in (here / "out" / "report.html").read_text()


def test_a_report_that_cannot_be_made_is_told_before_training(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(sys.modules, "plotly", None)
    assert main([*ARGUMENTS, "--out", "out", "--report"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "spillgrad: report: got --report without plotly; pip install 'spillgrad[report]'\n"
    assert not (here / "out").exists()


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
    del spill
    spilled.clear()
    # Floats as integers of a quarter, as halves, or as they are.
    share = {"int8": 0.3, "bf16": 0.6}.get(given["codec"], 1)
    assert stats.stored_bytes <= share * stats.written_bytes
    wait_until_no_spill_file_is_below(here)


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
        (["--resume", "done", "--data", "text.txt", "--lora", "2", "--steps", "9"], ["--lora 2", "no --lora"]),
        (["--resume", "done", "--data", "text.txt", "--autocast", "--steps", "9"], ["--autocast", "--no-autocast"]),
        (["--resume", "done", "--data", "text.txt", "--weights", "x", "--model", "small"], ["--weights", "--model"]),
        (["--resume", "done", "--data", "other.txt", "--steps", "9"], ["other data", "--data"]),
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


def start(*options: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "spillgrad_tools", *ARGUMENTS, *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("place", PLACES, ids=["spilled", "offloaded"])
def test_a_stop_signal_saves_a_checkpoint_and_leaves_no_spill_file(stop: signal.Signals, place: list[str], here: Path):
    process = start("--steps", "100000", *place, "--out", "out")
    try:
        assert process.stdout
        assert re.match(r"(spill|offload)ing to out/run-", process.stdout.readline())
        assert process.stdout.readline().startswith("step 1/100000")
        process.send_signal(stop)
        printed, complaints = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, complaints) == (130, "")
    assert printed.index("stopping after this step; Ctrl-C again stops at once") < printed.index("stopped after step")
    assert f"go on with: spillgrad train --resume out --data text.txt {' '.join(place)}" in printed
    state = sg.load_checkpoint(here / "out")
    assert 1 <= state["step"] < 100000
    kept = {path.name.partition("-")[0] for path in (here / "out").iterdir()}
    assert kept == {"checkpoint.json", "step", "journal.jsonl"}


@pytest.mark.parametrize("place", PLACES, ids=["spilled", "offloaded"])
def test_what_a_killed_run_leaves_goes_with_the_next(place: list[str], here: Path):
    process = start("--steps", "100000", *place, "--out", "out")
    try:
        assert process.stdout
        for _ in range(2):
            process.stdout.readline()
    finally:
        process.kill()
        process.communicate()
    (left,) = (here / "out").glob("run-*")
    assert list(left.glob("*.h5"))
    assert main([*ARGUMENTS, *place, "--steps", "1", "--out", "out"]) == 0
    # The checkpoint and its pointer, and the journals of both.
    wait_until(lambda: len(list((here / "out").iterdir())) == 4)
    assert [run.state for run in sg.storage.inspect("out").runs] == ["dead", "finished"]
    assert not left.exists()


@pytest.mark.parametrize(
    ("kibibytes", "options", "says"),
    [
        (1000, [], "MiB will be stored (parameters and buffers"),
        (3000, ["--batch", "64"], "No space left on device"),
        (3000, ["--batch", "64", "--on-full", "ram"], ""),
    ],
    ids=["before it starts", "in mid-step", "kept in RAM"],
)
def test_a_model_that_has_no_room_on_its_disk(here: Path, kibibytes: int, options: list[str], says: str):
    (here / "disk").mkdir()
    program = [sys.executable, "-W", "ignore", "-m", "spillgrad_tools", *ARGUMENTS, "--offload", "--steps", "2"]
    command = [*program, "--ram-budget", "300KiB", "--spill-dir", "disk", "--out", "out", *options]
    ran = subprocess.run(
        [*in_own_mounts(here / "disk", kibibytes), *command],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert says in ran.stderr
    if says:
        assert (ran.returncode, ran.stderr.count("\n")) == (2, 1)
        assert (here / "out").exists() == ("No space" in says)
        if "No space" in says:  # it began, and its journal says what became of it
            (run,) = sg.storage.inspect(here / "out").runs
            assert (run.state, run.failures[-1].reason.count("No space left on device")) == ("finished", 1)
            assert "stopped after step 0: no checkpoint is there yet\n" in ran.stdout
    else:
        assert (ran.returncode, ran.stderr) == (0, "")
        assert saved_model(here / "out")


def test_a_run_that_the_disk_stops_says_how_to_go_on(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    steps = Training.steps

    def fail(self: Training) -> Iterator[StepRecord]:
        yield from itertools.islice(steps(self), 3)
        raise SpillError("spill: could not write 1 MiB: No space left on device; free space")

    monkeypatch.setattr(Training, "steps", fail)
    options = ["--steps", "9", "--ram-budget", "0", "--save-every", "2", "--codec", "bf16", "--policy", "auto"]
    assert main([*ARGUMENTS, *options, "--out", "out"]) == 2
    printed = capsys.readouterr()
    assert printed.err == "spillgrad: spill: could not write 1 MiB: No space left on device; free space\n"
    again = printed.out.replace("\n", "").partition(
        "stopped after step 3: the checkpoint of step 2 stays; go on with: "
    )[2]
    given = "--data text.txt --ram-budget 0 --save-every 2 --codec bf16 --policy auto"
    assert again == f"spillgrad train --resume out {given}"
    monkeypatch.setattr(Training, "steps", steps)
    assert main(again.split()[1:]) == 0


@pytest.mark.parametrize("place", PLACES, ids=["spilled", "offloaded"])
def test_a_killed_run_goes_on_from_its_last_checkpoint_through_the_same_numbers(place: list[str], here: Path):
    process = start("--steps", "100000", *place, "--save-every", "3", "--out", "out")
    try:
        assert process.stdout
        saves = (line for line in process.stdout if "checkpoint saved in" in line)
        for _ in range(3):
            assert re.fullmatch(r"step \d+/100000  checkpoint saved in \d+\.\d s\n", next(saves))
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    settings, done = Training.settings_of(here / "out")
    assert done >= 9
    assert done % 3 == 0
    # Of the schedule only the number of steps is known, so the whole run is as long.
    whole = Training(settings, TEXT)
    losses = [record.loss for record in itertools.islice(whole.steps(), done + 4)]
    offload = None
    if "--offload" in place:
        offload = functools.partial(sg.disk_offload, directory=here / "store", ram_budget="300KiB")
    resumed = Training(settings, TEXT, here / "out", offload)
    assert [record.loss for record in itertools.islice(resumed.steps(), 4)] == losses[done:]
    assert weights(resumed) == weights(whole)


def test_a_run_saves_after_every_so_many_steps_and_at_the_end(here: Path, capsys: pytest.CaptureFixture[str]):
    assert main([*ARGUMENTS, "--no-spill", "--save-every", "2", "--out", "out"]) == 0
    printed = capsys.readouterr().out
    assert re.findall(r"step (\d)/6  checkpoint saved in \d+\.\d s", printed) == ["2", "4", "6"]
    assert re.search(r"saved checkpoints +3, in \d+\.\d s", printed)
    assert Training.settings_of(here / "out")[1] == 6


def test_a_stopped_run_that_has_just_saved_does_not_save_again(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    save = Training.save

    def interrupted(training: Training, directory: Path) -> None:
        save(training, directory)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Training, "save", interrupted)
    assert main([*ARGUMENTS, "--no-spill", "--save-every", "2", "--out", "out"]) == 130
    printed = capsys.readouterr().out
    assert printed.count("checkpoint saved in") == 1
    assert "go on with: spillgrad train --resume out --data text.txt --save-every 2 --no-spill" in printed


class Clock:
    """Tells the time, in which steps and saves take some seconds each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, save_s: float) -> None:
        self.now_s, self.saved = 0.0, []
        monkeypatch.setattr(train_saves.time, "monotonic", lambda: self.now_s)

        def save(training: Training, directory: Path) -> None:
            self.now_s += save_s
            self.saved.append(training.step)

        monkeypatch.setattr(Training, "save", save)

    def go(self, training: Training, out: Path, steps: int, step_s: float) -> list[int]:
        saves = Saves(training, out, None, lambda line: None)
        for training.step in range(1, steps):
            self.now_s += step_s
            saves.after_step()
        return self.saved


@pytest.mark.parametrize(
    ("save_s", "wanted"),
    [(1.0, [10, 20, 30, 40]), (60.0, [10, 29, 48])],
    ids=["every ten minutes", "seldom where saves take long"],
)
def test_unless_told_a_run_saves_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save_s: float, wanted: list[int]
):
    training = Training(dataclasses.replace(SETTINGS, steps=50), TEXT)
    assert Clock(monkeypatch, save_s).go(training, tmp_path, 50, 60.0) == wanted


def test_saving_an_offloaded_run_stays_within_its_budget(here: Path, capsys: pytest.CaptureFixture[str]):
    training = Training(
        SETTINGS, TEXT, offload=functools.partial(sg.disk_offload, directory=here / "store", ram_budget="256KiB")
    )
    assert training.offload.least_budget == 256 << 10
    saves = Saves(training, here, 1, print)
    for _ in training.steps():
        saves.after_step()
    assert capsys.readouterr().out.count("checkpoint saved") == 5
    assert training.stats().peak_ram_bytes <= 256 << 10


FULL = """
import sys
from pathlib import Path
from spillgrad_tools.train import saves as train_saves
from spillgrad_tools.cli import main
from spillgrad_tools.train.training import Training
if "--fill" in sys.argv:  # what else fills the disk, once the first checkpoint is there
    sys.argv.remove("--fill")
    save = train_saves.Saves._save
    def fill(saves):
        save(saves)
        with open("disk/other", "wb", buffering=0) as other:
            other.write(bytes(1 << 30))
    train_saves.Saves._save = fill
status = main(sys.argv[1:])
kept = Path("disk/out/checkpoint.json").exists()
print("status", status, "kept", Training.settings_of(Path("disk/out"))[1] if kept else None, sorted(
    path.name.partition("-")[0] for path in Path("disk/out").glob("*")))
"""


def on_a_disk(here: Path, kibibytes: int, *options: str) -> tuple[str, str]:
    """Train on a disk of so many KiB, of which a checkpoint takes 1420; return what was printed, and on stderr."""
    (here / "disk").mkdir()
    program = [sys.executable, "-W", "ignore", "-c", FULL, *ARGUMENTS, "--no-spill", "--out", "disk/out", *options]
    ran = subprocess.run(
        [*in_own_mounts(here / "disk", kibibytes), *program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout, ran.stderr


def test_a_checkpoint_that_cannot_be_written_costs_neither_the_run_nor_the_former_one(here: Path):
    printed, complaints = on_a_disk(here, 4000, "--save-every", "2", "--fill")
    assert re.findall(r"step (\d)/6  checkpoint saved", printed) == ["2"]
    assert re.search(
        r"step 4: not saved: a checkpoint needs 1\.4 MiB, and disk/out has 0 B free; free space there\. Training "
        r"goes on; the checkpoint of step 2 stays\n",
        printed,
    ), printed
    assert complaints.startswith("spillgrad: checkpoint: disk/out cannot be written (No space left on device); free")
    assert complaints.endswith("; step 6 is not saved, the checkpoint of step 2 stays\n")
    assert printed.endswith("status 2 kept 2 ['checkpoint.json', 'step']\n")


def test_a_disk_that_refuses_a_checkpoint_costs_a_line(here: Path, monkeypatch: pytest.MonkeyPatch):
    training = Training(SETTINGS, TEXT)
    said: list[str] = []
    (here / "out").mkdir()
    saves = Saves(training, here / "out", 1, said.append)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    former = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10000, limit[1]))
    try:
        records = list(itertools.islice(training.steps(), 1))
        saves.after_step()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, former)
    assert said == [
        f"step 1: not saved: checkpoint: {here / 'out'} cannot be written (File too large); free space there or give "
        "another directory. Training goes on; no checkpoint is there yet"
    ]
    for record in training.steps():
        records.append(record)
        saves.after_step()
    saves.at_end()
    assert [line.partition(" saved")[0] for line in said[1:]] == [f"step {n}/6  checkpoint" for n in range(2, 7)]
    assert [record.loss for record in records] == [record.loss for record in Training(SETTINGS, TEXT).steps()]


def test_where_one_checkpoint_has_room_it_is_that_of_the_end(here: Path):
    printed, complaints = on_a_disk(here, 2000)
    assert re.search(r"a checkpoint is saved at the end alone: it and the next one would need 2\.7 MiB", printed)
    assert complaints == ""
    assert printed.endswith("status 0 kept 6 ['checkpoint.json', 'step']\n")


@pytest.mark.parametrize(
    ("kibibytes", "options", "says"),
    [
        (1000, [], "train: a checkpoint needs 1.4 MiB, and disk/out has 1000 KiB free; free space there, or name"),
        (2000, ["--save-every", "2"], "got --save-every 2, but a checkpoint and the next one need 2.7 MiB, and"),
    ],
    ids=["the only one", "the next one"],
)
def test_a_disk_without_room_for_checkpoints_is_told_before_training(
    here: Path, kibibytes: int, options: list[str], says: str
):
    printed, complaints = on_a_disk(here, kibibytes, *options)
    assert says in complaints
    assert complaints.count("\n") == 1
    assert "step 1" not in printed
    assert printed.endswith("status 2 kept None []\n")


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


def test_progress_away_from_a_terminal_is_not_redrawn_where_colour_is_forced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as Jupyter does for the commands of a cell
    console = output_console()
    with show_preparation(console):
        pass
    list(show_progress(console, records(50), 0, 50))
    assert capsys.readouterr().out.count("\n") == 2


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
    assert whole.held_out_loss().loss == pytest.approx(parts.held_out_loss().loss, rel=1e-4)


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
    resumed = Training(Training.settings_of(tmp_path)[0], TEXT, tmp_path)
    assert first + [record.loss for record in resumed.steps()] == losses
    assert weights(resumed) == weights(whole)


def test_the_command_accumulates(here: Path, capsys: pytest.CaptureFixture[str]):
    assert main([*ARGUMENTS, "--steps", "1", "--accumulate", "3", "--no-spill", "--out", "out"]) == 0
    assert "step 1/1" in capsys.readouterr().out
    assert Training.settings_of(here / "out")[0].accumulate == 3


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """The model of four steps in RAM."""
    folder = tmp_path_factory.mktemp("plain")
    (folder / "text.txt").write_bytes(TEXT)
    arguments = [*ARGUMENTS, "--data", str(folder / "text.txt"), "--steps", "4", "--no-spill"]
    assert main([*arguments, "--out", str(folder / "out")]) == 0
    return saved_model(folder / "out")


@pytest.mark.parametrize("place", [["--ram-budget", "0"], ["--offload", "--ram-budget", "300KiB"]], ids=" ".join)
@pytest.mark.parametrize("policy", ["keep", "spill", "recompute", "auto"])
def test_the_command_trains_to_the_same_weights_under_every_policy(
    policy: str, place: list[str], here: Path, plain: dict[str, np.ndarray]
):
    assert main([*ARGUMENTS, "--steps", "4", *place, "--policy", policy, "--out", policy]) == 0
    other = saved_model(here / policy)
    assert {name: array.tobytes() for name, array in plain.items()} == {n: a.tobytes() for n, a in other.items()}
    wait_until_no_spill_file_is_below(here)


BUSY = "spillgrad: train: another training is writing to out; wait until it ends, or name another folder with --out\n"


@pytest.mark.parametrize("place", [["--ram-budget", "0"], ["--no-spill"]], ids=" ".join)
def test_a_folder_that_a_training_writes_to_is_no_others(
    place: list[str], here: Path, capsys: pytest.CaptureFixture[str]
):
    process = start("--steps", "100000", *place, "--save-every", "1", "--out", "out")
    try:
        wait_until((here / "out" / "checkpoint.json").exists)
        for option in ("--out", "--resume"):
            assert main(["train", "--data", "text.txt", option, "out"]) == 2
            assert capsys.readouterr().err == BUSY
        process.kill()
        process.communicate()
        assert main(["train", "--data", "text.txt", "--resume", "out", "--steps", "1"]) == 2
        assert "has gone through" in capsys.readouterr().err  # the folder is free
    finally:
        process.kill()


def test_of_trainings_that_begin_at_once_each_has_a_folder(here: Path):
    named = [start("--no-spill", "--steps", "1", "--out", "out") for _ in range(2)]
    ended = [(process.communicate(timeout=60)[1], process.returncode) for process in named]
    assert all(each == ("", 0) or (BUSY in each[0] or "holds a checkpoint" in each[0]) for each in ended)
    assert [each for each in ended if each[1] == 0] == [("", 0)]
    others = [start("--no-spill", "--steps", "1") for _ in range(2)]
    assert [process.communicate(timeout=60)[1] for process in others] == [""] * 2
    assert sorted(path.parent.name for path in here.glob("runs/*/checkpoint.json")) == ["1", "2"]


def test_a_policy_without_spilling_is_refused(here: Path, capsys: pytest.CaptureFixture[str]):
    assert main([*ARGUMENTS, "--no-spill", "--policy", "recompute"]) == 2
    assert "--policy recompute with --no-spill" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [["--offload"], ["--offload", "--lora", "2", "--autocast"], ["--offload", "--no-spill", "--accumulate", "2"]],
    ids=" ".join,
)
def test_the_command_trains_a_model_that_lives_on_disk(
    options: list[str], here: Path, capsys: pytest.CaptureFixture[str]
):
    in_ram = [word for word in options if word not in ("--offload", "--no-spill")]
    assert main([*ARGUMENTS, *in_ram, "--no-spill", "--out", "ram"]) == 0
    capsys.readouterr()
    assert main([*ARGUMENTS, *options, "--ram-budget", "320KiB", "--out", "out"]) == 0
    printed = capsys.readouterr().out
    assert "offloading to out/run-" in printed
    for row in ("written a step", "read a step", "peak RSS"):
        assert re.search(rf"{row} +[1-9]", printed)
    ram, disk = saved_model(here / "ram"), saved_model(here / "out")
    assert {name: array.tobytes() for name, array in ram.items()} == {n: a.tobytes() for n, a in disk.items()}
    wait_until_no_spill_file_is_below(here)


def test_a_run_within_a_memory_follows_a_plan_to_the_same_numbers(here: Path, capsys: pytest.CaptureFixture[str]):
    assert main([*ARGUMENTS, "--no-spill", "--out", "free"]) == 0
    capsys.readouterr()
    wanted = {name: array.tobytes() for name, array in saved_model(here / "free").items()}
    least = ""
    for number, ram in enumerate(["4GiB", "least"]):
        words = ["--ram", least if ram == "least" else ram]
        assert main([*ARGUMENTS, *words, "--out", f"out{number}"]) == 0
        printed = capsys.readouterr().out
        assert re.search(r"within \S+ \SiB of RAM", printed) and "plan: " in printed
        least = "".join(re.findall(r"the least --ram that works is (\S+) (\SiB)", printed)[0])
        assert {n: array.tobytes() for n, array in saved_model(here / f"out{number}").items()} == wanted
    wait_until_no_spill_file_is_below(here)


def test_a_stopped_run_within_a_memory_names_the_memory_and_not_what_the_plan_chose():
    options = TrainOptions({}, ram="1GiB", save_every=2)
    assert train_command._again(options, Path("out")) == "spillgrad train --resume out --ram 1GiB --save-every 2"


def test_the_table_says_how_much_was_evaluated(here: Path, capsys: pytest.CaptureFixture[str]):
    assert main([*ARGUMENTS, "--steps", "2", "--no-spill", "--out", "out"]) == 0
    assert re.search(r"held-out loss \(1 of 4 batches\) +[0-9.]+ nats", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--no-spill", "--ram-budget", "1MiB"], ["--ram-budget 1MiB with --no-spill"]),
        (["--offload", "--codec", "bf16"], ["--codec with --offload"]),
        (["--offload", "--encrypt"], ["--encrypt with --offload"]),
        (["--shard", "all"], ["--shard all without --offload"]),
        (["--autocast", "--master", "split"], ["--master split without --offload"]),
        (["--offload", "--master", "none"], ["--master none without --autocast"]),
        (["--lossy", "--no-spill"], ["--lossy without a plan"]),
        (["--ram", "4GiB", "--offload"], ["--ram 4GiB with --offload"]),
        (["--ram", "auto", "--ram-budget", "1MiB"], ["--ram auto with --ram-budget 1MiB"]),
        (["--ram", "4GiB", "--no-spill"], ["--ram 4GiB with --no-spill"]),
        (["--ram", "4GiB", "--policy", "keep"], ["--ram 4GiB with --policy keep"]),
        (["--ram", "4GiB", "--shard", "all"], ["--ram 4GiB with --shard all", "--offload --ram-budget SIZE"]),
        (["--out", ""], ["empty name", "--out"]),
        (["--log-dir", ""], ["empty name", "--log-dir"]),
        (["--ram", "many"], ["many"]),
        (["--ram", "40MiB"], ["40 MiB", "the least that works is"]),
        (["--weights", "base"], ["--model tiny with --weights"]),
        (["--lora", "0"], ["--lora", "0"]),
        (["--report", "--no-spill"], ["--report with --no-spill"]),
        (["--offload", "--ram-budget", "1KiB"], ["ram_budget", "1024 bytes", "give at least 262144 bytes"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_options_that_contradict_each_other_are_one_line(
    options: list[str], words: list[str], here: Path, capsys: pytest.CaptureFixture[str]
):
    assert main([*ARGUMENTS, *options]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert [word for word in words if word not in error] == []
    assert not (here / "runs").exists()


def test_a_budget_is_a_quarter_of_what_is_free_where_a_model_on_disk_names_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(train_command, "system_memory", lambda: SystemMemory(4000, 9000))
    assert train_command._offload_budget(TrainOptions({}, offload=True)) == 1000
    assert train_command._offload_budget(TrainOptions({}, offload=True, ram_budget="1K")) == 1024


def test_a_resumed_run_of_given_weights_needs_them_no_more(here: Path, base: str):
    arguments = ["train", "--data", "text.txt", "--batch", "2", "--context", "32"]
    folder = here / "weights"
    shutil.copytree(base, folder)
    assert main([*arguments, "--weights", "weights", "--steps", "2", "--out", "out"]) == 0
    shutil.rmtree(folder)
    assert main(["train", "--data", "text.txt", "--resume", "out", "--steps", "3"]) == 0


@pytest.mark.parametrize("model", ["tiny", "llama-tiny"])
def test_a_run_whose_settings_and_sizes_were_altered_is_refused_or_still_one(tmp_path: Path, model: str):
    training = Training(TrainSettings(model=model, steps=3, batch=2, context=32), TEXT)
    training.save(tmp_path)
    (version,) = tmp_path.glob("step-*")
    whole = json.loads((version / "state.json").read_text())
    rng, outcomes = random.Random(0), set()
    for number in range(150):
        place = ("config", "extra")[number % 2]
        rewrite(version, whole | {place: altered(whole[place], rng)})
        try:
            settings, _ = Training.settings_of(tmp_path)
            Training(settings, TEXT, tmp_path)
            outcomes.add("resumed")
        except (CheckpointError, ArgumentError, MemoryError):
            outcomes.add("refused")
    assert outcomes == {"resumed", "refused"}


def test_a_crafted_run_is_refused_in_one_line(here: Path, capsys: pytest.CaptureFixture[str]):
    training = Training(TrainSettings(model="tiny", steps=3, batch=2, context=32), TEXT)
    training.save(here / "run")
    (version,) = (here / "run").glob("step-*")
    whole = json.loads((version / "state.json").read_text())
    settings = whole["extra"]["settings"]
    for changed in (
        {"config": whole["config"] | {"n_head": "x"}},
        {"config": whole["config"] | {"n_layer": 2**31 - 1}},
        {"config": whole["config"] | {"n_embd": 10**400}},
        {"config": {"a": 1}},
        {"extra": whole["extra"] | {"settings": None}},
        {"extra": whole["extra"] | {"settings": settings | {"steps": "3"}}},
        {"extra": whole["extra"] | {"settings": settings | {"rate": 1}}},
        {"extra": whole["extra"] | {"settings": settings | {"lr": float("nan")}}},
    ):
        rewrite(version, whole | changed)
        capsys.readouterr()
        assert main(["train", "--data", "text.txt", "--resume", "run"]) == 2, changed
        printed = capsys.readouterr().err
        assert printed.startswith("spillgrad: "), printed
        assert printed.count("\n") == 1, printed
