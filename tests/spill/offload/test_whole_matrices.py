"""Optimizers whose updates need whole matrices train on disk as in RAM, bit for bit."""

from collections.abc import Callable
from pathlib import Path

import pytest

import spillgrad as sg
from spillgrad import nn
from spillgrad.spill.offload.needs import disk_need
from spillgrad.spill.offload.training import FRAMEWORK
from tests.spill.offload.training import assert_same, least_bytes, train

Make = Callable[[nn.Module], sg.optim.Optimizer]


def build() -> nn.Module:
    sg.manual_seed(0)
    return sg.models.build("tiny")


def matrices(model: nn.Module) -> list[nn.Parameter]:
    return [param for param in model.parameters() if param.ndim == 2]


def apollo(model: nn.Module, **options: object) -> sg.optim.Optimizer:
    vectors = [param for param in model.parameters() if param.ndim != 2]
    groups = [{"params": vectors}, {"params": matrices(model), "update_proj_gap": 2, **options}]
    return sg.optim.APOLLOAdamW(groups, lr=1e-2, weight_decay=0.1)


MAKES: dict[str, Make] = {
    "Adafactor": lambda model: sg.optim.Adafactor(model.parameters(), weight_decay=0.1),
    "Muon": lambda model: sg.optim.Muon(matrices(model)),
    "APOLLO": lambda model: apollo(model, rank=8),
    "APOLLO-Mini": lambda model: apollo(model, rank=1, scale=128.0, scale_type="tensor"),
}


@pytest.mark.parametrize("share", [0, 0.5])
@pytest.mark.parametrize("how", ["plain", "accumulate", "step in backward"])
@pytest.mark.parametrize("name", MAKES)
def test_training_is_bit_for_bit_that_in_ram(tmp_path: Path, name: str, how: str, share: float):
    options = {"accumulate": 2} if how == "accumulate" else {}
    model = build()
    wanted = train(model, MAKES[name](model), **options)
    model = build()
    optimizer = MAKES[name](model)
    least = least_bytes(model, optimizer)
    offload = sg.disk_offload(
        model,
        optimizer,
        tmp_path,
        ram_budget=max(least, int(share * sum(param.nbytes for param in model.parameters()))),
        step_in_backward=how == "step in backward",
    )
    assert_same(train(model, optimizer, **options), wanted)
    stats = offload.stats()
    assert min(stats.read_bytes, stats.written_bytes) > 0


@pytest.mark.parametrize("name", MAKES)
def test_a_checkpoint_goes_on_from_the_same_state(tmp_path: Path, name: str):
    model = build()
    optimizer = MAKES[name](model)
    train(model, optimizer)
    sg.save_checkpoint(tmp_path / "run", model, optimizer)
    wanted = train(model, optimizer)
    resumed = build()
    other = MAKES[name](resumed)
    sg.disk_offload(resumed, other, tmp_path / "spill", ram_budget=least_bytes(resumed, other))
    sg.load_checkpoint(tmp_path / "run", resumed, other)
    assert_same(train(resumed, other), wanted)


@pytest.mark.parametrize("name", MAKES)
def test_the_state_takes_as_many_bytes_as_are_foreseen(tmp_path: Path, name: str):
    model = build()
    optimizer = MAKES[name](model)
    foreseen = disk_need(FRAMEWORK, model, optimizer, gradients=False).state
    train(model, optimizer)
    tensors = (value for state in optimizer.state.values() for value in state.values())
    assert sum(value.nbytes for value in tensors if isinstance(value, sg.Tensor)) == foreseen
