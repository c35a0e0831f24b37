"""What a training needs at most in RAM, without measuring anything."""

import re
from pathlib import Path
from typing import Any

import pytest

import spillgrad as sg
from spillgrad_kernels.memory import buffers
from spillgrad_kernels.memory.system_memory import SystemMemory
from spillgrad_tools.cli import main
from spillgrad_tools.train import training, within
from spillgrad_tools.train.options import TrainOptions, TrainSettings
from spillgrad_tools.train.rough_need import _BEGUN_BYTES, rough_need
from spillgrad_tools.train.training import Training

ARGUMENTS = ["train", "--data", "text.txt", "--model", "tiny", "--steps", "2", "--batch", "2", "--context", "32"]
TEXT = b"It was the best of times, it was the worst of times. " * 60
GEMMA = sg.models.DecoderConfig(
    vocab_size=512, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, head_dim=32,
    num_key_value_heads=1, model_type="gemma2", hidden_act="gelu_pytorch_tanh", sliding_window=16,
    attn_logit_softcapping=50.0, final_logit_softcapping=30.0,
)  # fmt: skip
MODELS = {
    "tiny": sg.models.config("tiny"),
    "small": sg.models.config("small"),
    "many tokens": sg.models.config("tiny", vocab_size=20000),
    "llama-tiny": sg.models.config("llama-tiny", context=256),
    "gemma": GEMMA,
}


@pytest.mark.parametrize("changes", [{}, {"lora": 8}, {"autocast": True}, {"accumulate": 2}], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_a_training_in_ram_takes_less_than_the_rough_need_and_not_much_less(
    name: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    config = MODELS[name]
    settings = TrainSettings(steps=2, batch=8, context=min(128, config.context), **changes)
    monkeypatch.setattr(training, "_config", lambda *_: config)
    buffers.empty_cache()
    before_bytes = buffers.memory_stats().mapped_bytes
    assert len(list(Training(settings, TEXT * 20).steps())) == 2
    taken_bytes = buffers.memory_stats().mapped_bytes - before_bytes
    assert taken_bytes < rough_need(config, settings) - _BEGUN_BYTES < 5 * taken_bytes


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "text.txt").write_bytes(TEXT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("options", [[], ["--ram", "auto"]], ids=str)
def test_what_plainly_fits_trains_in_ram_and_one_line_says_so(
    options: list[str], here: Path, capsys: pytest.CaptureFixture[str]
):
    assert main([*ARGUMENTS, *options, "--out", "out"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert re.match(
        r"all in RAM: it takes less than \S+ .iB, and \S+ .iB are free, \S+ .iB stay so\nstep 1/2", printed.out
    )
    assert "plan" not in printed.out
    assert not list((here / "out").glob("*.jsonl"))


def test_what_may_not_fit_is_planned_though_nobody_asked(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(within, "system_memory", lambda: SystemMemory(800 << 20, 4 << 30))
    assert main([*ARGUMENTS, "--out", "out"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^within \S+ .iB of RAM: \S+ .iB are free, \S+ MiB stay so\nplan: ", printed)


def test_a_report_of_a_plan_that_keeps_all_is_of_a_store_that_wrote_nothing(
    here: Path, capsys: pytest.CaptureFixture[str]
):
    assert main([*ARGUMENTS, "--ram", "8GiB", "--report", "--out", "out"]) == 0
    printed = capsys.readouterr().out
    assert "plan: the model in RAM, what backward needs, too\n" in printed
    assert re.search(r"written to disk +0 B", printed)
    assert (here / "out" / "report.html").exists()


def test_where_nobody_knows_what_is_free_there_is_no_plan(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(within, "system_memory", lambda: None)
    assert main([*ARGUMENTS, "--out", "out"]) == 0
    assert capsys.readouterr().out.startswith("spilling to out/run-")
    assert main([*ARGUMENTS, "--ram", "auto", "--out", "other"]) == 2
    assert "the free memory cannot be read here; give a size, such as 4GiB" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options, automatic",
    [
        ({}, True),
        ({"spill_dir": Path("there"), "on_full": "ram", "save_every": 2, "profile": True}, True),
        ({"ram": "auto"}, False),
        ({"ram_budget": "1MiB"}, False),
        ({"offload": True}, False),
        ({"spill": False}, False),
        ({"policy": "auto"}, False),
        ({"codec": "lossless"}, False),
        ({"encrypt": True}, False),
        ({"report": True}, False),
        ({"device": "cuda"}, False),
    ],
    ids=str,
)
def test_an_option_that_says_where_tensors_are_leaves_the_plan_out(options: dict[str, Any], automatic: bool):
    assert within.is_automatic(TrainOptions({}, **options)) == automatic


@pytest.mark.parametrize(
    "words, told",
    [
        (["--context", "4000"], "data: got 3180 bytes"),
        (["--model", "gpt2", "--context", "4000"], "gpt2 has 1024 positions at most"),
    ],
)
def test_a_mistake_is_said_before_a_plan_is_made(
    words: list[str], told: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(within, "_plan", pytest.fail)
    assert main([*ARGUMENTS, "--ram", "400MiB", *words]) == 2
    error = capsys.readouterr().err
    assert (told in error, error.count("\n")) == (True, 1), error
