"""Parameters in two halves, of which products read one: the same bits. And of bfloat16 alone, rounded at random."""

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import spillgrad as sg
from spillgrad import nn
from spillgrad.errors import ArgumentError, BudgetError, SavedTensorError, UnsupportedError
from spillgrad.ops.autocast import as_operand
from spillgrad.spill.offload import pieces
from spillgrad.spill.offload.pieces import PiecedStorage
from spillgrad.spill.offload.planes import SplitStorage
from tests.spill.offload.training import BATCHES, Trained, assert_same, held_bytes, train

# Bits of float32 numbers that are told apart by what both halves hold.
SPECIAL = [
    0x3F808000, 0x3F818000, 0x3F807FFF, 0x3F817FFF, 0x3F808001, 0x7F7F8000, 0x7F7FFFFF, 0x7F7F7FFF, 0xFF7FFFFF, 1,
    0x7FFF, 0x8000, 0x80008000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7FC07FFF, 0x7F800001, 0xFF807FFF, 0, 0x80000000,
]  # fmt: skip


@pytest.fixture(params=["one piece", "pieces"])
def cut(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param == "pieces":
        monkeypatch.setattr(pieces, "PIECE_BYTES", 16 << 10)
    return bool(request.param == "pieces")


def build() -> nn.Module:
    sg.manual_seed(0)
    return sg.models.build("tiny")  # its embedding is its head


def adamw(parameters: list[nn.Parameter]) -> sg.optim.Optimizer:
    return sg.optim.AdamW(parameters, lr=1e-3)


def weights(model: nn.Module) -> list[np.ndarray]:
    return [parameter.detach().to(sg.float32).numpy().copy() for parameter in model.parameters()]


def autocast() -> sg.autocast:
    return sg.autocast("cpu")


def steps(model: nn.Module, optimizer: sg.optim.Optimizer, count: int) -> list[str]:
    """Train for `count` steps under autocast."""
    losses = []
    for number in range(count):
        batch = BATCHES[number % len(BATCHES)]
        with autocast():
            loss = model(batch[:, :-1].copy(), batch[:, 1:].copy())[1]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
    return losses


@pytest.mark.parametrize("in_backward", [False, True])
def test_fifty_steps_of_split_parameters_are_those_of_float32_parameters_in_ram(
    tmp_path: Path, cut: bool, in_backward: bool
):
    model = build()
    wanted: Trained = steps(model, adamw([*model.parameters()]), 50), weights(model)
    offload = sg.disk_offload(build, adamw, tmp_path, ram_budget="600KiB", step_in_backward=in_backward, master="split")
    assert offload.optimizer is not None
    assert isinstance(offload.model.transformer.wte.weight.storage, PiecedStorage if cut else SplitStorage)
    assert_same((steps(offload.model, offload.optimizer, 50), weights(offload.model)), wanted)
    assert offload.stats().peak_ram_bytes <= 600 << 10
    assert offload._store.check() == []


MAKERS: list[Callable[..., sg.optim.Optimizer]] = [
    sg.optim.SGD, partial(sg.optim.SGD, momentum=0.9), sg.optim.Lion, partial(sg.optim.AdamW, amsgrad=True),
    sg.optim.Adafactor, partial(sg.optim.AdamW, state="int8"),
]  # fmt: skip


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("context", [autocast, sg.enable_grad])
def test_other_optimizers_and_steps_without_autocast_are_those_in_ram(
    tmp_path: Path, cut: bool, make: Callable[..., sg.optim.Optimizer], context: Callable[[], object]
):
    model = build()
    wanted = train(model, make(model.parameters(), lr=1e-3), context)
    model = build()
    optimizer = make(model.parameters(), lr=1e-3)
    sg.disk_offload(model, optimizer, tmp_path, ram_budget="1MiB", master="split")
    assert_same(train(model, optimizer, context), wanted)


@pytest.mark.parametrize(("accumulate", "in_backward"), [(1, False), (2, False), (1, True)])
def test_clipped_and_accumulated_gradients_are_those_in_ram(
    tmp_path: Path, cut: bool, accumulate: int, in_backward: bool
):
    model = build()
    wanted = train(model, adamw([*model.parameters()]), autocast, accumulate=accumulate, clip=True)
    offload = sg.disk_offload(
        build(), adamw, tmp_path, ram_budget="1MiB", step_in_backward=in_backward, max_grad_norm=0.5, master="split"
    )
    assert offload.optimizer is not None
    assert_same(train(offload.model, offload.optimizer, autocast, accumulate=accumulate), wanted)


@pytest.mark.parametrize("in_backward", [False, True])
@pytest.mark.parametrize("context", [autocast, sg.enable_grad])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_the_least_budget_is_enough(
    tmp_path: Path, cut: bool, in_backward: bool, context: Callable[[], object], clip: float | None
):
    options = {"step_in_backward": in_backward, "max_grad_norm": clip, "master": "split"}
    with pytest.raises(BudgetError) as error:
        sg.disk_offload(build(), adamw, tmp_path, ram_budget=1, **options)
    budget_bytes = error.value.least_bytes
    offload = sg.disk_offload(build(), adamw, tmp_path, ram_budget=budget_bytes, **options)
    assert offload.least_budget == budget_bytes
    assert offload.optimizer is not None
    train(offload.model, offload.optimizer, context)
    assert offload.stats().peak_ram_bytes <= budget_bytes


def deep() -> nn.Module:
    sg.manual_seed(0)
    return nn.Sequential(*[nn.Linear(256, 256) for _ in range(16)])


def test_a_forward_under_autocast_reads_half_of_the_bytes(tmp_path: Path):
    read_bytes = {}
    for master in ("whole", "split"):
        offload = sg.disk_offload(deep(), None, tmp_path / master, ram_budget="1MiB", master=master)
        with autocast(), sg.no_grad():
            for _ in range(3):
                before = offload.stats().read_bytes
                offload.model(sg.ones(4, 256))
        read_bytes[master] = offload.stats().read_bytes - before
    weights_bytes = 16 * 256 * 256 * 4
    assert read_bytes["split"] <= weights_bytes / 2 + 16 * 1024
    assert read_bytes["whole"] >= weights_bytes - (1 << 20)


def test_a_product_takes_the_first_half_as_it_is(tmp_path: Path):
    model = deep()
    weight = model[0].weight
    wanted = weight.to(sg.bfloat16).detach().numpy()
    offload = sg.disk_offload(model, None, tmp_path, ram_budget="1MiB", master="split")
    with autocast(), sg.no_grad():
        operand = as_operand(weight).array
    assert operand is weight.storage.rounded.array
    np.testing.assert_array_equal(operand, wanted)
    assert held_bytes(offload) <= weight.nbytes / 2


def test_every_bit_comes_back_where_the_parameter_is_read(tmp_path: Path, cut: bool):
    model = nn.Sequential(nn.Linear(100, 90))
    words = np.resize(np.array(SPECIAL, np.uint32), (90, 100))
    with sg.no_grad():
        model[0].weight.copy_(sg.from_numpy(words.view(np.float32)))
    wanted = model[0].weight.to(sg.bfloat16)
    sg.disk_offload(model, None, tmp_path / "offload", ram_budget="1MiB", master="split")
    weight = model[0].weight
    np.testing.assert_array_equal(weight.numpy().view(np.uint32), words)
    np.testing.assert_array_equal(model.state_dict()["0.weight"].numpy().view(np.uint32), words)
    np.testing.assert_array_equal(copy.deepcopy(model)[0].weight.numpy().view(np.uint32), words)
    rounded = weight.storage.rounded.numpy().view(np.uint16)
    np.testing.assert_array_equal(rounded, wanted.detach().numpy().view(np.uint16))
    sg.save_checkpoint(tmp_path / "saved", model)
    with sg.no_grad():
        weight.zero_()
    sg.load_checkpoint(tmp_path / "saved", model)
    np.testing.assert_array_equal(weight.numpy().view(np.uint32), words)


def test_a_change_by_hand_reaches_the_next_product(tmp_path: Path, cut: bool):
    model = nn.Linear(128, 64, bias=False)
    sg.disk_offload(model, None, tmp_path, ram_budget="1MiB", master="split")
    x = sg.ones(1, 128)

    def found() -> float:
        with autocast(), sg.no_grad():
            return model(x).sum().item()

    for value in (1.0, 2.0):
        with sg.no_grad():
            model.weight.fill_(value)
        assert found() == value * 128 * 64
    array = model.weight.numpy()
    array[...] = 3
    assert found() == 3 * 128 * 64  # while it may still be written to
    array[...] = 4
    assert found() == 4 * 128 * 64
    del array
    assert found() == 4 * 128 * 64


def test_backward_through_a_changed_parameter_raises_as_in_ram(tmp_path: Path, cut: bool):
    model = nn.Linear(128, 64, bias=False)
    sg.disk_offload(model, None, tmp_path, ram_budget="1MiB", master="split")
    x = sg.ones(1, 128, requires_grad=True)
    with autocast():
        y = model(x).sum()
    with sg.no_grad():
        model.weight.mul_(2)
    with pytest.raises(SavedTensorError, match="modified by an inplace operation"):
        y.backward()


def test_gradients_of_gradients_are_those_in_ram(tmp_path: Path):
    def gradients(model: nn.Module) -> list[np.ndarray]:
        batch = BATCHES[0]
        with autocast():
            loss = model(batch[:, :-1].copy(), batch[:, 1:].copy())[1]
        first = sg.autograd.grad(loss, [*model.parameters()], create_graph=True)
        sum(g.square().sum() for g in first).backward()
        return [parameter.grad.numpy().copy() for parameter in model.parameters()]

    wanted = gradients(build())
    model = build()
    sg.disk_offload(model, None, tmp_path, ram_budget="2MiB", master="split")
    for mine, theirs in zip(gradients(model), wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("master", ["split", "none"])
def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(tmp_path: Path, cut: bool, master: str):
    def make(name: str) -> sg.disk_offload:
        return sg.disk_offload(build, adamw, tmp_path / name, ram_budget="1MiB", master=master)

    once = make("once")
    assert once.optimizer is not None
    steps(once.model, once.optimizer, 3)
    sg.save_checkpoint(tmp_path / "saved", once.model, once.optimizer)
    wanted = steps(once.model, once.optimizer, 3), weights(once.model)
    sg.manual_seed(7)  # another one than that of the first run
    again = make("again")
    assert again.optimizer is not None
    sg.load_checkpoint(tmp_path / "saved", again.model, again.optimizer)
    assert_same((steps(again.model, again.optimizer, 3), weights(again.model)), wanted)


def in_bfloat16(seed: int = 0) -> tuple[nn.Module, sg.optim.Optimizer]:
    model = build().bfloat16()
    optimizer = sg.optim.AdamW(model.parameters(), lr=1e-3)
    optimizer.round_stochastically(seed)
    return model, optimizer


@pytest.mark.parametrize("in_backward", [False, True])
def test_bfloat16_parameters_alone_are_updated_as_those_in_ram(tmp_path: Path, cut: bool, in_backward: bool):
    model, optimizer = in_bfloat16()
    wanted = steps(model, optimizer, 6), weights(model)
    offload = sg.disk_offload(build, adamw, tmp_path, ram_budget="1MiB", step_in_backward=in_backward, master="none")
    assert {parameter.dtype for parameter in offload.model.parameters()} == {sg.bfloat16}
    assert offload.optimizer is not None
    assert_same((steps(offload.model, offload.optimizer, 6), weights(offload.model)), wanted)
    assert {value.dtype for value in offload.optimizer.state[offload.model.transformer.wte.weight].values()
            if isinstance(value, sg.Tensor)} == {sg.bfloat16}  # fmt: skip


def test_the_seed_decides_how_bfloat16_parameters_are_rounded():
    found = []
    for seed in (0, 0, 1):
        model, optimizer = in_bfloat16(seed)
        steps(model, optimizer, 2)
        found.append(weights(model)[0])
    np.testing.assert_array_equal(found[0], found[1])
    assert (found[0] != found[2]).any()


@pytest.mark.parametrize("make", [sg.optim.SGD, sg.optim.Lion])
def test_small_updates_add_up_although_each_is_less_than_the_last_bit(make: Callable[..., sg.optim.Optimizer]):
    changes = {}
    for is_random in (False, True):
        weight = nn.Parameter(sg.ones(4096, dtype=sg.bfloat16))
        optimizer = make([weight], lr=2.0**-12)
        if is_random:
            optimizer.round_stochastically(0)
        for _ in range(64):
            weight.grad = sg.ones(4096, dtype=sg.bfloat16)
            optimizer.step()
        changes[is_random] = 1 - weight.detach().to(sg.float32).mean().item()
    assert changes[False] == 0
    assert changes[True] >= 0.9 * 64 / 4096


def test_a_model_keeps_what_is_no_float32_parameter(tmp_path: Path):
    model = nn.Sequential(nn.Linear(128, 128), nn.BatchNorm1d(128), nn.Linear(128, 64).double())
    sg.disk_offload(model, None, tmp_path, ram_budget="1MiB", master="split")
    kinds = {name: isinstance(parameter.storage, SplitStorage) for name, parameter in model.named_parameters()}
    assert [name for name, is_split in kinds.items() if is_split] == ["0.weight"]


def test_loaded_weights_are_split_if_they_are_trained_and_stay_in_their_file_if_not(tmp_path: Path, cut: bool):
    version = sg.save_checkpoint(tmp_path / "base", build())
    wanted = weights(build())

    def loaded(rank: int | None) -> nn.Module:
        model = sg.models.from_safetensors(version).train()
        return model if rank is None else nn.lora(model, rank)

    offload = sg.disk_offload(partial(loaded, None), adamw, tmp_path / "all", ram_budget="1MiB", master="split")
    for mine, theirs in zip(weights(offload.model), wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    large = [parameter for parameter in offload.model.parameters() if parameter.numel() >= 4096]
    assert all(parameter.storage.rounded is not None for parameter in large)
    whole = sg.disk_offload(partial(loaded, 2), adamw, tmp_path / "whole", ram_budget="1MiB")
    offload = sg.disk_offload(partial(loaded, 2), adamw, tmp_path / "lora", ram_budget="1MiB", master="split")
    assert offload.least_budget == whole.least_budget  # no planes are to be joined
    frozen = [parameter for parameter in offload.model.parameters() if not parameter.requires_grad]
    assert all(parameter.storage.is_read_in_place for parameter in frozen)
    assert offload.optimizer is not None
    steps(offload.model, offload.optimizer, 1)


ERRORS: list[tuple[Callable[[], nn.Module], dict[str, object], type[Exception], list[str]]] = [
    (deep, {"master": "half"}, ArgumentError, ["master='half'", "'whole', 'split' or 'none'"]),
    (lambda: deep().double(), {"master": "split"}, ArgumentError, ["float64", "leave it out"]),
    (lambda: deep().bfloat16(), {"master": "split"}, ArgumentError, ["bfloat16", "leave it out"]),
    (lambda: deep().double(), {"master": "none"}, ArgumentError, ["float64", "leave it out"]),
    (deep, {"master": "split", "wire": "int8"}, UnsupportedError, ["wire='int8'", "shard=None"]),
    (deep, {"master": "none", "optimizer": sg.optim.Adafactor}, UnsupportedError, ["Adafactor", "master='split'"]),
]


@pytest.mark.parametrize(("make", "options", "kind", "words"), ERRORS)
def test_what_cannot_be_is_one_line(
    tmp_path: Path, make: Callable[[], nn.Module], options: dict[str, object], kind: type[Exception], words: list[str]
):
    with pytest.raises(kind) as error:
        sg.disk_offload(make(), directory=tmp_path, ram_budget="4MiB", **options)
    assert "\n" not in str(error.value)
    assert [word for word in words if word not in str(error.value)] == []


def multiplied(model: nn.Module) -> None:
    with sg.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.25)


def loaded(model: nn.Module) -> None:
    model.load_state_dict({name: 0.5 * sg.ones(*value.shape) for name, value in model.state_dict().items()})


def drawn(model: nn.Module) -> None:
    sg.manual_seed(3)
    for parameter in model.parameters():
        nn.init.normal_(parameter)


def written(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.detach().numpy()[...] += 1


@pytest.mark.parametrize("change", [multiplied, loaded, drawn, written])
def test_a_change_outside_of_modules_reaches_both_halves_under_the_least_budget(
    tmp_path: Path, cut: bool, change: Callable[[nn.Module], None]
):
    models = [nn.Sequential(*[nn.Linear(256, 256, bias=False) for _ in range(6)]) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    offload = sg.disk_offload(models[0], None, tmp_path, ram_budget="1GiB", master="split")
    offload = sg.disk_offload(copy.deepcopy(models[1]), None, tmp_path, ram_budget=offload.least_budget, master="split")
    for _ in range(2):
        for model in (offload.model, models[1]):
            change(model)
        for ours, theirs in zip(weights(offload.model), weights(models[1]), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    x = sg.randn(4, 256)
    with autocast(), sg.no_grad():
        np.testing.assert_array_equal(offload.model(x).numpy(), models[1](x).numpy())
