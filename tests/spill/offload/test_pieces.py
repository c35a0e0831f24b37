"""Large parameters are updated piece by piece: the same bits, in less RAM."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import spillgrad as sg
from spillgrad import nn
from spillgrad.errors import BudgetError, ShapeError, SpillError
from spillgrad.spill.offload import pieces
from spillgrad.spill.offload.pieces import PiecedStorage
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.store import Handle
from tests.spill.offload.training import BATCHES, assert_same, held_bytes, least_bytes, train


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pieces, "PIECE_BYTES", 32 << 10)  # the embedding has two, and most weights one


def build() -> nn.Module:
    sg.manual_seed(0)
    return sg.models.build("tiny")  # its embedding is its head


def adamw(parameters: list[nn.Parameter]) -> sg.optim.Optimizer:
    return sg.optim.AdamW(parameters, lr=1e-3)


def state_of(model: nn.Module, optimizer: sg.optim.Optimizer) -> list[np.ndarray]:
    states = [optimizer.state[parameter] for parameter in model.parameters()]
    return [value.numpy().copy() for state in states for value in state.values() if isinstance(value, sg.Tensor)]


def is_in_pieces(tensor: sg.Tensor | None) -> bool:
    assert tensor is not None
    return isinstance(tensor.storage, PiecedStorage)


MAKERS: list[Callable[..., sg.optim.Optimizer]] = [
    sg.optim.SGD, partial(sg.optim.SGD, momentum=0.9, nesterov=True), sg.optim.Lion,
    partial(sg.optim.AdamW, amsgrad=True), sg.optim.NAdam, sg.optim.RAdam, sg.optim.Adamax, sg.optim.Adagrad,
    sg.optim.Adadelta,
    partial(sg.optim.RMSprop, centered=True, momentum=0.5), sg.optim.Rprop, partial(sg.optim.ASGD, t0=3, maximize=True),
    partial(sg.optim.AdamW, state="int8", keep_exact=False), partial(sg.optim.Adam, state="bf16", keep_exact=False),
    partial(sg.optim.SGD, momentum=0.9, state="int8", keep_exact=False),
]  # fmt: skip


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("how", ["plain", "clip", "accumulate"])
def test_training_is_bit_for_bit_that_in_ram(tmp_path: Path, make: Callable[..., sg.optim.Optimizer], how: str):
    options = {"clip": {"clip": True}, "accumulate": {"accumulate": 2}}.get(how, {})
    model = build()
    optimizer = make(model.parameters(), lr=1e-3)
    wanted = train(model, optimizer, **options)
    state = state_of(model, optimizer)
    model = build()
    optimizer = make(model.parameters(), lr=1e-3)
    budget_bytes = 600 << 10
    offload = sg.disk_offload(model, optimizer, tmp_path, ram_budget=budget_bytes)
    assert_same(train(model, optimizer, **options), wanted)
    for mine, theirs in zip(state_of(model, optimizer), state, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert offload.stats().peak_ram_bytes <= budget_bytes


@pytest.mark.parametrize(("in_backward", "accumulate"), [(False, 1), (False, 2), (True, 1)])
def test_clipping_by_the_offload_is_that_in_ram(tmp_path: Path, in_backward: bool, accumulate: int):
    model = build()
    wanted = train(model, adamw([*model.parameters()]), accumulate=accumulate, clip=True)
    offload = sg.disk_offload(
        build(), adamw, tmp_path, ram_budget="600KiB", step_in_backward=in_backward, max_grad_norm=0.5
    )
    assert offload.optimizer is not None
    assert_same(train(offload.model, offload.optimizer, accumulate=accumulate), wanted)
    assert offload.stats().peak_ram_bytes <= 600 << 10


def test_an_update_needs_a_parameter_and_pieces_of_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    largest = max(parameter.nbytes for parameter in build().parameters())
    model = build()
    need = least_bytes(model, adamw([*model.parameters()]))
    assert largest <= need < 4 * largest
    with pytest.raises(BudgetError, match=r"give at least"):
        sg.disk_offload(build(), adamw, tmp_path, ram_budget=need - 1)
    monkeypatch.setattr(pieces, "PIECE_BYTES", 1 << 30)
    assert least_bytes(model, adamw([*model.parameters()])) == 4 * largest


def test_a_run_goes_on_from_a_checkpoint_of_any_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model = build()
    optimizer = adamw([*model.parameters()])
    train(model, optimizer)
    wanted = train(model, optimizer)
    first = sg.disk_offload(build(), adamw, tmp_path, ram_budget="1MiB")
    assert first.optimizer is not None
    train(first.model, first.optimizer)
    sg.save_checkpoint(tmp_path / "saved", first.model, first.optimizer)
    for nbytes in (16 << 10, 32 << 10, 1 << 30):
        monkeypatch.setattr(pieces, "PIECE_BYTES", nbytes)
        second = sg.disk_offload(build(), adamw, tmp_path, ram_budget="1MiB")
        assert second.optimizer is not None
        sg.load_checkpoint(tmp_path / "saved", second.model, second.optimizer)
        assert_same(train(second.model, second.optimizer), wanted)
    in_ram = build()
    of_ram = adamw([*in_ram.parameters()])
    of_ram.load_state_dict(second.optimizer.state_dict())
    in_ram.load_state_dict(second.model.state_dict())
    assert_same(train(in_ram, of_ram), train(second.model, second.optimizer))


def test_a_program_reads_and_changes_what_is_in_pieces(tmp_path: Path):
    def changed(model: nn.Module, optimizer: sg.optim.Optimizer) -> tuple[list[str], list[np.ndarray]]:
        train(model, optimizer)
        weight = next(model.parameters())
        state = optimizer.state[weight]
        state["exp_avg"].mul_(0.5)
        state["exp_avg_sq"][3:5] = 1.0
        weight.grad.add_(1.0)
        optimizer.step()
        view = state["exp_avg"].view(-1)[5:9]
        return [view.tolist()], [parameter.numpy().copy() for parameter in model.parameters()]

    model = build()
    wanted = changed(model, adamw([*model.parameters()]))
    offload = sg.disk_offload(build(), adamw, tmp_path, ram_budget="1MiB")
    assert offload.optimizer is not None
    assert_same(changed(offload.model, offload.optimizer), wanted)
    weight = next(offload.model.parameters())
    assert is_in_pieces(offload.optimizer.state[weight]["exp_avg"]) and is_in_pieces(weight.grad)


def test_a_step_that_fails_lets_go_of_what_it_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model = build()
    optimizer = adamw([*model.parameters()])
    offload = sg.disk_offload(model, optimizer, tmp_path, ram_budget="1MiB")
    model(BATCHES[0][:, :-1].copy(), BATCHES[0][:, 1:].copy())[1].backward()
    with monkeypatch.context() as patch:
        patch.setattr(type(optimizer), "update", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            optimizer.step()
    assert held_bytes(offload) == 0
    optimizer.step()


def test_dropped_gradients_leave_the_store(tmp_path: Path):
    offload = sg.disk_offload(build(), adamw, tmp_path, ram_budget="1MiB")
    assert offload.optimizer is not None
    train(offload.model, offload.optimizer)
    offload.optimizer.zero_grad()
    persistent_bytes = 3 * sum(parameter.nbytes for parameter in offload.model.parameters())
    assert offload.stats().live_bytes == persistent_bytes


def keep_arrays_and_clip(model: nn.Module, optimizer: sg.optim.Optimizer) -> list[object]:
    kept = [parameter.grad.numpy() for parameter in model.parameters()]
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    optimizer.step()
    return [array.copy() for array in kept]


def keep_views_and_add(model: nn.Module, optimizer: sg.optim.Optimizer) -> list[object]:
    kept = [parameter.grad.view(-1) for parameter in model.parameters()]
    backward(model, 1)
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    optimizer.step()
    return [view.numpy().copy() for view in kept]


def keep_and_change_state(model: nn.Module, optimizer: sg.optim.Optimizer) -> list[object]:
    kept = [optimizer.state[parameter]["exp_avg"].view(-1) for parameter in model.parameters()]
    for view in kept:
        view.mul_(0.5)
    optimizer.step()
    return [view.numpy().copy() for view in kept]


def keep_state_for_a_step(model: nn.Module, optimizer: sg.optim.Optimizer) -> list[object]:
    kept = [optimizer.state[parameter]["exp_avg"].numpy() for parameter in model.parameters()]
    optimizer.step()
    kept[0][:] = 1
    return [array.copy() for array in kept]


def give_a_transposed_gradient(model: nn.Module, optimizer: sg.optim.Optimizer) -> list[object]:
    for parameter in model.parameters():
        if parameter.ndim == 2 and parameter.shape[0] == parameter.shape[1]:
            parameter.grad = parameter.grad.T
    optimizer.step()
    return []


def give_state_of_a_larger_tensor(model: nn.Module, optimizer: sg.optim.Optimizer) -> list[object]:
    for parameter in model.parameters():
        optimizer.state[parameter]["exp_avg"] = sg.ones(2, *parameter.shape)[1]
    optimizer.step()
    return []


def backward(model: nn.Module, number: int) -> None:
    batch = BATCHES[number]
    model(batch[:, :-1].copy(), batch[:, 1:].copy())[1].backward()


@pytest.mark.parametrize(
    "change",
    [
        keep_arrays_and_clip, keep_views_and_add, keep_and_change_state, keep_state_for_a_step,
        give_a_transposed_gradient, give_state_of_a_larger_tensor,
    ],
)  # fmt: skip
@pytest.mark.parametrize("piece_bytes", [16 << 10, 32 << 10])
def test_what_a_program_keeps_or_gives_is_updated_as_in_ram(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    change: Callable[[nn.Module, sg.optim.Optimizer], list[object]], piece_bytes: int,
):  # fmt: skip
    monkeypatch.setattr(pieces, "PIECE_BYTES", piece_bytes)

    def run(model: nn.Module, optimizer: sg.optim.Optimizer) -> list[object]:
        backward(model, 0)
        optimizer.step()
        optimizer.zero_grad()
        backward(model, 0)
        kept = change(model, optimizer)
        backward(model, 1)
        optimizer.step()
        return [*kept, *(parameter.numpy().copy() for parameter in model.parameters()), *state_of(model, optimizer)]

    model = build()
    wanted = run(model, adamw([*model.parameters()]))
    offload = sg.disk_offload(build(), adamw, tmp_path, ram_budget="1MiB")
    assert offload.optimizer is not None
    for mine, theirs in zip(run(offload.model, offload.optimizer), wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_an_update_in_backward_that_fails_lets_go_of_what_it_used(tmp_path: Path):
    offload = sg.disk_offload(build(), adamw, tmp_path, ram_budget="1MiB", step_in_backward=True)
    weight = next(offload.model.parameters())
    backward(offload.model, 0)
    offload.optimizer.state[weight]["exp_avg"] = sg.ones(2, 2)
    with pytest.raises(ShapeError):
        backward(offload.model, 0)
    assert len(offload._residents.thread.frames) == 1  # that outside of all modules and updates


def test_a_change_of_a_whole_reaches_all_pieces_although_the_disk_refuses_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    offload = sg.disk_offload(build(), adamw, tmp_path, ram_budget="1MiB")
    weight = next(offload.model.parameters())
    backward(offload.model, 0)
    assert is_in_pieces(weight.grad)
    wanted = 3 * weight.grad.numpy().copy()
    refused: list[object] = []
    end_change = DiskStore.end_change

    def refuse_first(store: DiskStore, handle: Handle, changed: bool) -> None:
        end_change(store, handle, changed)
        if not refused:
            refused.append(handle)
            raise SpillError("a full disk")

    weight.grad.mul_(3)
    with monkeypatch.context() as patch:
        patch.setattr(DiskStore, "end_change", refuse_first)
        with pytest.raises(SpillError, match="a full disk"):
            offload.flush()
    np.testing.assert_array_equal(weight.grad.numpy(), wanted)


def test_a_first_update_keeps_its_state_although_the_disk_refuses_a_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    model = build()
    backward(model, 0)
    optimizer = adamw([*model.parameters()])
    optimizer.step_parameter(next(model.parameters()), optimizer.param_groups[0])
    wanted = [next(model.parameters()).numpy().copy(), *state_of(model, optimizer)]
    offload = sg.disk_offload(build(), adamw, tmp_path, ram_budget="1MiB")
    assert offload.optimizer is not None
    backward(offload.model, 0)
    refused: list[object] = []
    put = DiskStore.put

    def refuse_second(store: DiskStore, *args: object, **kwargs: object) -> Handle:
        refused.append(None)
        if len(refused) == 2:
            raise SpillError("a full disk")
        return put(store, *args, **kwargs)

    weight = next(offload.model.parameters())
    with monkeypatch.context() as patch:
        patch.setattr(DiskStore, "put", refuse_second)
        with pytest.raises(SpillError, match="a full disk"):
            offload.optimizer.step_parameter(weight, offload.optimizer.param_groups[0])
    for mine, theirs in zip([weight.numpy(), *state_of(offload.model, offload.optimizer)], wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs)
