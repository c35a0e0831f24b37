"""`spillgrad bench models`: every program trains, and a benchmark without PyTorch prints spillgrad's times."""

import json
import math

import numpy as np
import pytest

import spillgrad as sg
from spillgrad_tools.bench.models import LEAST, PROGRAMS, judged
from spillgrad_tools.cli import main

QUICK = ("PPO", "makemore GRU", "VAE")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.exhaustive) for name in PROGRAMS]
)
def test_a_program_trains(name):
    step = PROGRAMS[name].make(sg, np.random.default_rng(0))
    losses = [step().item() for _ in range(4)]
    assert all(map(math.isfinite, losses))
    if name not in ("DCGAN", "PPO"):  # their losses need not fall
        assert losses[-1] < losses[0]


def test_a_program_is_the_same_each_time():
    first, second = (PROGRAMS["VAE"].make(sg, np.random.default_rng(0)) for _ in range(2))
    assert first().item() == second().item()


def test_times_are_printed(capsys):
    assert main(["bench", "models", "--filter", "ppo", "--rounds", "1", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["results"]
    assert row["case"] == "PPO"
    assert row["seconds"]["ours"] > 0


def test_an_unknown_model_is_one_line(capsys):
    assert main(["bench", "models", "--filter", "resnest"]) == 2
    assert "the models are MNIST CNN, ResNet-18" in capsys.readouterr().err


def test_each_model_and_the_median_have_a_goal():
    rows = [{"case": str(ratio), "seconds": {"ours": 1.0, "torch": ratio}} for ratio in (0.5, 1.25, 4.0)]
    *each, last = judged(rows)
    assert [row.verdicts[0].met for row in each] == [False, True, True]
    assert each[0].verdicts[0].wanted == LEAST
    assert (last.case, last.verdicts[0].reached) == ("median of all", 1.25)
