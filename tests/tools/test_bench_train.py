"""The training step's benchmark: the same model, weights and losses in every library."""

import importlib.util
import json
import math
from pathlib import Path

import numpy as np
import pytest

import spillgrad as sg
from spillgrad_tools.bench_train import check, write_weights
from spillgrad_tools.bench_train_worker import StepRunner, tokens
from spillgrad_tools.cli import main

HAS_TORCH = importlib.util.find_spec("torch") is not None


def test_steps_are_timed_and_their_losses_compared(capsys: pytest.CaptureFixture[str]):
    arguments = ["--model", "tiny", "--batch", "2", "--context", "16", "--steps", "2", "--threads", "1", "--json"]
    assert main(["bench", "train", *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["results"].keys() == ({"ours", "torch"} if HAS_TORCH else {"ours"})
    assert (found["bar"] is not None) == HAS_TORCH
    for result in found["results"].values():
        assert len(result["losses"]) == 3
        assert result["losses"][0] == pytest.approx(math.log(256), rel=0.02)  # untrained: all bytes are as likely
        assert result["tokens_per_s"] == pytest.approx(2 * 16 / result["seconds"])
        assert result["peak_rss_bytes"] > 1 << 24


def test_the_table_shows_speed_and_memory(capsys: pytest.CaptureFixture[str]):
    assert main(["bench", "train", "--model", "tiny", "--batch", "1", "--context", "8", "--steps", "1"]) == 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("tokens/s", "peak memory", "spillgrad"))


def test_an_unknown_model_is_one_line(capsys: pytest.CaptureFixture[str]):
    assert main(["bench", "train", "--model", "gpt3"]) == 2
    assert "did you mean 'gpt2'" in capsys.readouterr().err


@pytest.mark.skipif(not HAS_TORCH, reason="compares with PyTorch")
def test_both_libraries_train_the_same_model(tmp_path: Path):
    config = sg.models.config("tiny", context=16)
    model = sg.models.GPT(config)
    write_weights(model, tmp_path / "weights.npz")
    runners = [StepRunner(library, threads=1) for library in ("ours", "torch")]
    for runner in runners:
        runner.build(vars(config), str(tmp_path / "weights.npz"))
        for number in range(3):
            runner.step(number, batch=2)
    ours, torch = (dict(runner.training.model.named_parameters()) for runner in runners)
    assert ours.keys() == torch.keys()
    for name, parameter in ours.items():
        other = torch[name].detach().numpy()
        if name.endswith("weight") and ".c_" in name:
            other = other.T
        moved = np.abs(parameter.detach().numpy() - dict(model.named_parameters())[name].detach().numpy()).max()
        assert moved > 1e-4, f"{name} was not trained"
        # Three steps of 3e-4 each. Where a gradient is near 0, AdamW's first steps have a random sign: that is for few.
        off = np.abs(parameter.detach().numpy() - other)
        assert np.quantile(off, 0.99) < 2e-5, name


def test_tokens_are_the_same_every_time_and_targets_follow():
    inputs, targets = tokens(100, (2, 8), seed=3)
    assert (inputs[:, 1:] == targets[:, :-1]).all()
    assert (tokens(100, (2, 8), seed=3)[0] == inputs).all()
    assert not (tokens(100, (2, 8), seed=4)[0] == inputs).all()


@pytest.mark.parametrize(("step", "difference"), [(0, 2e-5), (1, float("nan"))])
def test_losses_that_differ_are_an_error(step: int, difference: float):
    check({"ours": 1.0, "torch": 1.0}, step)
    with pytest.raises(RuntimeError, match=f"of step {step} differ"):
        check({"ours": 1.0 + difference, "torch": 1.0}, step)
