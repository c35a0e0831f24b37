"""A plan applied to a loop of one's own gives the numbers of RAM, wherever it puts things."""

import dataclasses

import numpy as np
import pytest

import spillgrad as sg

X = np.random.default_rng(0).integers(0, 256, (4, 32))


def make(parameters):
    return sg.optim.AdamW(parameters, lr=1e-2)


def build():
    sg.manual_seed(0)
    return sg.models.build("tiny")


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    return sg.planning.plan("tiny", 4, 32, "2GiB", tmp_path_factory.mktemp("disk"))


def trained(training):
    with training:
        for _ in range(3):
            with training.forward():
                _, loss = training.model(X, np.roll(X, -1, 1))
            loss.backward()
            training.optimizer.step()
            training.optimizer.zero_grad()
    return {name: parameter.numpy().tobytes() for name, parameter in training.model.named_parameters()}


@pytest.mark.parametrize(
    ("offload", "policy", "options"),
    [
        (False, "keep", {}),
        (False, "spill", {}),
        (False, "recompute", {}),
        (True, "spill", {"step_in_backward": True}),
        (True, "recompute", {}),
    ],
)
def test_each_way_trains_to_the_weights_of_a_plain_loop(plan, tmp_path, offload, policy, options):
    plain = build()
    optimizer = make(list(plain.parameters()))
    for _ in range(3):
        plain(X, np.roll(X, -1, 1))[1].backward()
        optimizer.step()
        optimizer.zero_grad()
    prediction = dataclasses.replace(plan.prediction, budget_bytes=2 << 20)
    chosen = dataclasses.replace(plan, offload=offload, policy=policy, prediction=prediction)
    training = chosen.apply(build, make, tmp_path, **options)
    wanted = {name: parameter.numpy().tobytes() for name, parameter in plain.named_parameters()}
    assert trained(training) == wanted
    assert (training.offload is None, training.spill is None) == (not offload, policy == "keep")


def test_a_model_that_is_there_is_taken_as_it_is(plan, tmp_path):
    model = build()
    training = plan.apply(model, make, tmp_path)
    assert training.model is model
    assert training.spill is None
