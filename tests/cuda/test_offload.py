"""Training of device models that live on disk gives the same results, within both budgets."""

from typing import Any

import numpy as np
import pytest

import spillgrad as sg
from spillgrad import nn
from spillgrad.device.device import CUDA
from spillgrad.errors import BudgetError, SpillError
from spillgrad.storage.disk_store import DiskStore

WIDTH, BATCH = 8, 4
STEPS = 3


def build() -> nn.Module:
    sg.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH, bias=False))
    return model.to("cuda")


def adamw(params: Any) -> sg.optim.Optimizer:
    return sg.optim.AdamW(params, lr=1e-2)


def train(model: nn.Module, optimizer: sg.optim.Optimizer, clip: float | None = None) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    losses = []
    for _ in range(STEPS):
        x = sg.tensor(rng.normal(size=(BATCH, WIDTH)).astype(np.float32), device="cuda")
        optimizer.zero_grad()
        loss = (model(x) - x).square().mean()
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(loss.detach())
    return [value.numpy(force=True) for value in (*losses, *model.parameters())]


def plain(clip: float | None = None) -> list[np.ndarray]:
    model = build()
    return train(model, adamw(model.parameters()), clip)


def assert_same(found: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    for mine, its in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(mine, its)


def least(**options: Any) -> sg.disk_offload:
    """Return an offload of such a model, to read its least budgets."""
    return sg.disk_offload(build(), adamw, ram_budget="1MiB", **options)


@pytest.mark.parametrize("in_backward, clip", [(False, None), (True, None), (False, 0.05), (True, 0.05)])
def test_training_is_the_same_within_the_least_budgets(tmp_path, in_backward, clip):
    options = {"step_in_backward": in_backward, "max_grad_norm": clip}
    needs = least(**options)
    offload = sg.disk_offload(
        build(), adamw, tmp_path, ram_budget=needs.least_budget, device_budget=needs.least_device_budget, **options
    )
    assert_same(train(offload.model, offload.optimizer), plain(clip))
    stats = offload.stats()
    assert stats.peak_ram_bytes <= needs.least_budget
    assert stats.device_bytes <= needs.least_device_budget
    assert stats.written_bytes > 0
    assert stats.read_bytes > 0


def test_what_fits_stays_on_the_device(tmp_path):
    offload = sg.disk_offload(build(), adamw, tmp_path, ram_budget="1MiB", device_budget="1MiB")
    assert_same(train(offload.model, offload.optimizer), plain())
    stats = offload.stats()
    assert stats.cache_hits == stats.cache_misses == 0
    assert stats.device_bytes == stats.live_bytes


def test_what_the_next_layer_uses_is_there_before_it_is_used(tmp_path):
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(6)]
    offload = sg.disk_offload(nn.Sequential(*layers).to("cuda"), None, tmp_path, ram_budget="1MiB")
    found = []

    def look(layer: nn.Module, *_: Any) -> None:
        storages = [parameter.storage for parameter in layer.parameters()]
        found.extend(storage._store.is_here(storage._handle) for storage in storages)

    for layer in layers:
        layer.register_forward_pre_hook(look)
    with sg.no_grad():
        for wanted in (False, True):
            found.clear()
            offload.model(sg.ones(1, WIDTH, device="cuda"))
            # The budget holds two layers: the first layers of the first step find nothing of the layers used last.
            assert all(found[2:]) is wanted
            assert offload.stats().device_bytes <= 2 * offload.least_device_budget


def test_a_model_is_built_on_the_device_and_stored_at_once(tmp_path):
    offload = sg.disk_offload(build, adamw, tmp_path, ram_budget="1MiB", device_budget=4096)
    assert {parameter.device.type for parameter in offload.model.parameters()} == {"cuda"}
    assert offload.stats().peak_device_bytes <= (WIDTH + 1) * WIDTH * 4  # one layer
    assert_same(train(offload.model, offload.optimizer), plain())
    assert offload.least_device_budget < offload.stats().device_bytes <= 4096


def test_a_stored_model_moves_to_the_device_and_back(tmp_path):
    wanted = [parameter.numpy(force=True) for parameter in build().parameters()]
    offload = sg.disk_offload(build().cpu(), None, tmp_path, ram_budget="1MiB")
    for device in ("cuda", "cpu", "cuda"):
        offload.model.to(device)
        assert {parameter.device.type for parameter in offload.model.parameters()} == {device}
        assert all(parameter.storage.offloaded for parameter in offload.model.parameters())
        assert_same([parameter.numpy(force=True) for parameter in offload.model.parameters()], wanted)


def test_a_change_is_stored_once_nobody_holds_the_array(tmp_path):
    offload = sg.disk_offload(nn.Linear(WIDTH, WIDTH).to("cuda"), None, tmp_path, ram_budget=256, device_budget=288)
    weight = offload.model.weight
    held = weight.detach()
    array = held.array
    with sg.no_grad():
        weight.mul_(2)
    wanted = weight.numpy(force=True)
    del array
    offload.flush()
    offload.model.bias.numpy(force=True)
    assert_same([weight.numpy(force=True)], [wanted])
    assert offload._store.check() == []


def test_memory_that_others_may_change_is_stored_again(tmp_path):
    offload = sg.disk_offload(nn.Linear(WIDTH, WIDTH).to("cuda"), None, tmp_path, ram_budget="1MiB")
    weight = offload.model.weight
    lent = sg.from_dlpack(weight.detach())
    lent.fill_(3.0)
    del lent
    offload.flush()
    stored = offload._store.get(weight.storage._handle.below)
    np.testing.assert_array_equal(stored, np.full((WIDTH, WIDTH), 3.0, np.float32))


def test_memory_that_the_tensor_does_not_hold_is_not_handed_out_by_address(tmp_path):
    offload = sg.disk_offload(nn.Linear(WIDTH, WIDTH).to("cuda"), None, tmp_path, ram_budget="1MiB")
    weight = offload.model.weight.detach()
    assert not hasattr(weight, "__cuda_array_interface__")
    with pytest.raises(AttributeError, match="pass it by DLPack"):
        _ = weight.__cuda_array_interface__
    assert_same([sg.from_dlpack(weight).numpy(force=True)], [weight.numpy(force=True)])


def test_nothing_is_kept_of_the_gradients_of_steps_before(tmp_path):
    offload = sg.disk_offload(build(), adamw, tmp_path, ram_budget="1MiB", device_budget="1MiB")
    found = []
    for _ in range(2):
        train(offload.model, offload.optimizer)
        offload.stats()
        found.append(len(offload._residents.store_of(CUDA)._state.entries))
    assert found == [4 * 5, 4 * 5]  # five parameters: the parameters, their gradients and two states


def test_saved_tensors_share_the_store(tmp_path):
    offload = sg.disk_offload(build(), adamw, tmp_path, ram_budget="64KiB", step_in_backward=True)
    model, rng = offload.model, np.random.default_rng(0)
    found = []
    for _ in range(STEPS):
        x = sg.tensor(rng.normal(size=(BATCH, WIDTH)).astype(np.float32), device="cuda")
        with sg.save_on_disk(offload, device_budget=0, min_bytes=1) as spill:
            loss = (model(x) - x).square().mean()
        loss.backward()
        assert spill.stats().packed_bytes > 0
        found.append(loss.detach().numpy(force=True))
    assert_same([*found, *[parameter.numpy(force=True) for parameter in model.parameters()]], plain())


def test_checkpoints_and_copies_are_of_the_values(tmp_path):
    offload = sg.disk_offload(build(), adamw, tmp_path / "store", ram_budget="1MiB")
    found = train(offload.model, offload.optimizer)
    sg.save_checkpoint(tmp_path / "at", offload.model, offload.optimizer)
    other = build()
    sg.load_checkpoint(tmp_path / "at", other, adamw(other.parameters()))
    assert_same([parameter.numpy(force=True) for parameter in other.parameters()], found[STEPS:])
    again = sg.disk_offload(build(), adamw, tmp_path / "again", ram_budget="1MiB")
    sg.load_checkpoint(tmp_path / "at", again.model, again.optimizer)
    assert_same([parameter.numpy(force=True) for parameter in again.model.parameters()], found[STEPS:])


def test_too_small_a_budget_says_what_needs_how_much(tmp_path):
    needs = least()
    with pytest.raises(
        BudgetError, match=r"got a device_budget of 100 bytes, but [03]\.weight needs .* when it is updated"
    ):
        sg.disk_offload(build(), adamw, tmp_path, ram_budget="1MiB", device_budget=100)
    with pytest.raises(
        BudgetError, match=r"got a ram_budget of 100 bytes, but 0\.weight, of 256 B, passes through RAM"
    ):
        sg.disk_offload(build(), adamw, tmp_path, ram_budget=100)
    assert needs.least_budget == WIDTH * WIDTH * 4
    assert needs.least_device_budget == 4 * WIDTH * WIDTH * 4


def test_a_change_after_one_that_the_store_refused_is_stored_too(tmp_path, monkeypatch):
    offload = sg.disk_offload(nn.Linear(WIDTH, WIDTH).to("cuda"), None, tmp_path, ram_budget="1MiB")
    weight = offload.model.weight
    wanted = 4 * weight.numpy(force=True)
    with sg.no_grad():
        weight.mul_(2)
    with monkeypatch.context() as patch:
        patch.setattr(DiskStore, "replace", lambda *arguments: (_ for _ in ()).throw(SpillError("the disk is full")))
        with pytest.raises(SpillError, match="full"):
            offload.flush()
    held = weight.detach().array
    offload._residents.flush()  # as when it must leave the device
    with sg.no_grad():
        weight.mul_(2)
    del held
    offload.flush()
    np.testing.assert_array_equal(offload._store.get(weight.storage._handle.below), wanted)
