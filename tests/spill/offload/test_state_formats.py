"""The state of an offloaded optimizer in fewer bits: the same numbers as in RAM, and fewer bytes."""

from pathlib import Path

import numpy as np
import pytest

import spillgrad as sg
from spillgrad import nn
from spillgrad.errors import ArgumentError
from spillgrad.spill.offload import pieces
from spillgrad.spill.offload.needs import disk_need
from spillgrad.spill.offload.training import FRAMEWORK
from tests.spill.offload.training import assert_same, least_bytes, train


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pieces, "PIECE_BYTES", 32 << 10)


def build() -> nn.Module:
    sg.manual_seed(0)
    return sg.models.build("tiny")


def adamw(parameters: list[nn.Parameter], **options: object) -> sg.optim.Optimizer:
    return sg.optim.AdamW(parameters, lr=1e-3, **options)  # type: ignore[arg-type]


def state_of(model: nn.Module, optimizer: sg.optim.Optimizer) -> dict[str, np.ndarray]:
    return {
        f"{name}.{key}": value.numpy().copy()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state[parameter].items()
        if isinstance(value, sg.Tensor)
    }


def assert_equal(mine: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    assert mine.keys() == theirs.keys()
    for key, value in mine.items():
        assert value.dtype == theirs[key].dtype, key
        np.testing.assert_array_equal(value, theirs[key], err_msg=key)


@pytest.mark.parametrize("state", ["int8", "bf16"])
@pytest.mark.parametrize("how", ["plain", "in backward", "clipped"])
def test_training_with_state_in_fewer_bits_is_bit_for_bit_that_in_ram(tmp_path: Path, state: str, how: str):
    model = build()
    optimizer = adamw([*model.parameters()], state=state)
    wanted = train(model, optimizer, clip=how == "clipped")
    options = {"in backward": {"step_in_backward": True}, "clipped": {"max_grad_norm": 0.5}}.get(how, {})
    offload = sg.disk_offload(build(), adamw, tmp_path, ram_budget="600KiB", state=state, **options)  # type: ignore[arg-type]
    assert offload.optimizer is not None
    assert offload.optimizer.state_formats().keys() == {*offload.model.parameters()}
    assert set(offload.optimizer.state_formats().values()) == {"float32", state}
    assert_same(train(offload.model, offload.optimizer), wanted)
    assert_equal(state_of(offload.model, offload.optimizer), state_of(model, optimizer))
    assert offload.stats().peak_ram_bytes <= 600 << 10


def test_needs_count_the_bytes_of_encoded_state(tmp_path: Path):
    model = build()
    exact, few = (adamw([*model.parameters()], state=state, keep_exact=False) for state in ("float32", "int8"))
    elements = sum(parameter.numel() for parameter in model.parameters())
    blocks = sum(-(-parameter.numel() // 256) for parameter in model.parameters())
    assert disk_need(FRAMEWORK, model, exact, True).state == 8 * elements
    assert disk_need(FRAMEWORK, model, few, True).state == 2 * (elements + 4 * blocks)
    assert least_bytes(model, few) < least_bytes(model, exact)
    train(model, few)
    assert disk_need(FRAMEWORK, model, few, True).state == sum(value.nbytes for value in state_of(model, few).values())


@pytest.mark.parametrize("after", ["float32", "bf16", "int8"])
@pytest.mark.parametrize("before", ["float32", "bf16", "int8"])
def test_state_that_exists_is_converted_before_and_after_it_is_offloaded(tmp_path: Path, before: str, after: str):
    def trained() -> tuple[nn.Module, sg.optim.Optimizer]:
        model = build()
        optimizer = adamw([*model.parameters()], state=before)
        train(model, optimizer)
        return model, optimizer

    in_ram, first, second = trained(), trained(), trained()
    in_ram[1].set_state_format(after)
    offloads = [
        sg.disk_offload(*first, tmp_path / "1", ram_budget="1MiB", state=after),
        sg.disk_offload(*second, tmp_path / "2", ram_budget="1MiB"),
    ]
    second[1].set_state_format(after)
    for each in (first, second):
        assert_equal(state_of(*each), state_of(*in_ram))
    wanted = train(*in_ram)
    for each in (first, second):
        assert_same(train(*each), wanted)
        assert_equal(state_of(*each), state_of(*in_ram))
    assert len(offloads) == 2


@pytest.mark.parametrize("to", ["float32", "int8"])
def test_a_checkpoint_of_an_offloaded_optimizer_is_loaded_into_any_format(tmp_path: Path, to: str):
    offload = sg.disk_offload(build(), adamw, tmp_path / "1", ram_budget="600KiB", state="int8")
    assert offload.optimizer is not None
    train(offload.model, offload.optimizer)
    sg.save_checkpoint(tmp_path / "saved", offload.model, offload.optimizer)
    model = build()
    optimizer = adamw([*model.parameters()], state=to)
    sg.load_checkpoint(tmp_path / "saved", model, optimizer)
    other = sg.disk_offload(build(), adamw, tmp_path / "2", ram_budget="600KiB", state=to)
    assert other.optimizer is not None
    sg.load_checkpoint(tmp_path / "saved", other.model, other.optimizer)
    assert_equal(state_of(other.model, other.optimizer), state_of(model, optimizer))
    assert_same(train(other.model, other.optimizer), train(model, optimizer))


@pytest.mark.parametrize(
    ("optimizer", "state", "message"),
    [
        (adamw, "int4", "disk_offload: got state='int4'; wanted 'float32', 'bf16' or 'int8'"),
        (None, "int8", "disk_offload: got state='int8' without an optimizer; give one"),
        (sg.optim.Muon, "int8", "Muon: got state='int8'; its state is exact; Adam, AdamW, Lion and SGD"),
    ],
)
def test_what_cannot_be_in_fewer_bits_is_refused(tmp_path: Path, optimizer: object, state: str, message: str):
    with pytest.raises(ArgumentError, match=message):
        sg.disk_offload(nn.Linear(4, 4, bias=False), optimizer, tmp_path, ram_budget="1MiB", state=state)  # type: ignore[arg-type]
