"""Models whose parameters, gradients and optimizer state are on disk train as those in RAM do."""

import copy
import gc
import pickle
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spillgrad as sg
from spillgrad import nn
from spillgrad.errors import ArgumentError, BudgetError, GraphError, SpillError
from spillgrad.storage.disk_store import DiskStore
from tests.spill.offload.training import BATCHES, assert_same, held_bytes, least_bytes, train


def build() -> nn.Module:
    sg.manual_seed(0)
    return sg.models.build("tiny")  # its embedding is its head


def adamw(model: nn.Module) -> sg.optim.Optimizer:
    return sg.optim.AdamW(model.parameters(), lr=1e-3)


def parameter_bytes(model: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in model.parameters())


@pytest.mark.parametrize("share", [0, 1, 2, 100])
@pytest.mark.parametrize("how", ["plain", "clip", "accumulate", "step in backward"])
def test_training_is_bit_for_bit_that_in_ram(tmp_path: Path, share: float, how: str):
    options = {"clip": {"clip": True}, "accumulate": {"accumulate": 2}}.get(how, {})
    model = build()
    wanted = train(model, adamw(model), **options)
    model = build()
    optimizer = adamw(model)
    offload = sg.disk_offload(
        model,
        optimizer,
        tmp_path,
        ram_budget=max(least_bytes(model, optimizer), int(share * parameter_bytes(model))),
        step_in_backward=how == "step in backward",
    )
    assert_same(train(model, optimizer, **options), wanted)
    assert (offload.stats().read_bytes > 0) == (share < 100)


@pytest.mark.parametrize("make", [
    sg.optim.SGD, sg.optim.Lion, sg.optim.Adam, partial(sg.optim.AdamW, amsgrad=True), sg.optim.NAdam, sg.optim.RAdam,
    sg.optim.Adamax, sg.optim.Adagrad, sg.optim.Adadelta, partial(sg.optim.RMSprop, centered=True, momentum=0.5),
    sg.optim.Rprop, partial(sg.optim.ASGD, t0=3, maximize=True),
])  # fmt: skip
def test_any_optimizer_goes_on_from_any_state(tmp_path: Path, make: Callable[..., sg.optim.Optimizer]):
    def start() -> tuple[nn.Module, sg.optim.Optimizer]:
        model = build()
        optimizer = make(model.parameters(), lr=1e-3)
        train(model, optimizer)
        return model, optimizer

    wanted = train(*start())
    model, optimizer = start()
    sg.disk_offload(model, optimizer, tmp_path, ram_budget=least_bytes(model, optimizer))
    assert_same(train(model, optimizer), wanted)


def test_saved_tensors_may_be_spilled_at_the_same_time(tmp_path: Path):
    model = build()
    wanted = train(model, adamw(model))
    model = build()
    optimizer = adamw(model)
    sg.disk_offload(model, optimizer, tmp_path, ram_budget=least_bytes(model, optimizer))
    spill = sg.save_on_disk(tmp_path, ram_budget="100KiB")
    assert_same(train(model, optimizer, context=lambda: spill), wanted)
    assert spill.stats().written_bytes > 0


def test_the_budget_holds_but_for_what_one_module_or_update_needs(tmp_path: Path):
    model = build()
    optimizer = adamw(model)
    largest = max(parameter.nbytes for parameter in model.parameters())
    offload = sg.disk_offload(model, optimizer, tmp_path, ram_budget=4 * largest)
    train(model, optimizer)
    stats = offload.stats()
    assert stats.live_bytes > 12 * largest
    assert stats.peak_ram_bytes <= 8 * largest
    assert stats.ram_bytes <= 4 * largest


def test_from_the_third_step_on_arrays_are_there_before_they_are_needed(tmp_path: Path):
    model = build()
    optimizer = adamw(model)
    offload = sg.disk_offload(model, optimizer, tmp_path, ram_budget=parameter_bytes(model))
    train(model, optimizer)
    before = offload.stats()
    train(model, optimizer)
    after = offload.stats()
    assert after.cache_misses - before.cache_misses < 0.5 * (after.cache_hits - before.cache_hits)


def test_frozen_parameters_are_written_once(tmp_path: Path):
    model = build()
    head = nn.Linear(64, 3)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    optimizer = adamw(head)
    offload = sg.disk_offload(model, directory=tmp_path, ram_budget=least_bytes(model))
    offload.flush()
    written = offload.stats().written_bytes
    assert written == parameter_bytes(model)
    for batch in BATCHES:
        hidden = model(np.ascontiguousarray(batch[:, :-1]))[0]
        head(hidden[..., :64]).square().mean().backward()
        optimizer.step()
    assert offload.stats().written_bytes == written


def linear(directory: Path) -> nn.Linear:
    sg.manual_seed(0)
    layer = nn.Linear(30, 40)
    sg.disk_offload(layer, directory=directory, ram_budget=least_bytes(layer))
    return layer


def test_a_parameter_whose_memory_lies_otherwise_is_used_in_order(tmp_path: Path):
    def run(offloaded: bool) -> list[np.ndarray]:
        sg.manual_seed(0)
        layer, other = nn.Linear(30, 40), nn.Linear(30, 40)
        memory = np.asfortranarray(layer.weight.numpy())
        layer.weight = nn.Parameter(memory)
        layers = nn.ModuleList([layer, other])
        if offloaded:
            sg.disk_offload(layers, directory=tmp_path, ram_budget=least_bytes(layers))
        x = sg.ones(2, 30, requires_grad=True)
        loss = layer(x).square().sum()
        del memory
        other(x)  # evicts the layer
        loss.backward()
        return [layer.weight.numpy().copy(), x.grad.numpy(), layer.weight.grad.numpy().copy()]

    for got, wanted in zip(run(True), run(False), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_what_a_user_does_to_parameters_takes_effect(tmp_path: Path):
    sg.manual_seed(0)
    plain = nn.Linear(30, 40)
    layer = linear(tmp_path)
    np.testing.assert_array_equal(layer.weight.numpy(), plain.weight.numpy())
    assert (layer.weight.shape, layer.weight.dtype, layer.weight.numel()) == ((40, 30), sg.float32, 1200)
    with sg.no_grad():
        for each in (plain, layer):
            each.weight.mul_(2).add_(each.weight)
            each.weight[3] = 7
            each.weight.view(-1)[5] = 9
            nn.init.constant_(each.bias, 0.5)
    for mine, theirs in zip(layer.parameters(), plain.parameters(), strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy())
    x = sg.randn(5, 30)
    np.testing.assert_array_equal(layer(x).detach().numpy(), plain(x).detach().numpy())


def test_a_view_and_its_parameter_see_each_others_changes(tmp_path: Path):
    layer = linear(tmp_path)
    view = layer.weight.detach()[:2]
    with sg.no_grad():
        layer.weight.fill_(3)
    assert (view.numpy() == 3).all()
    with sg.no_grad():
        view.fill_(4)
    assert (layer.weight.numpy()[:2] == 4).all()
    assert (layer.weight.numpy()[2:] == 3).all()


def test_a_parameter_changed_between_forward_and_backward_raises_as_in_ram(tmp_path: Path):
    layer = linear(tmp_path)
    x = sg.randn(5, 30, requires_grad=True)
    loss = layer(x).square().sum()
    with sg.no_grad():
        layer.weight.zero_()
    with pytest.raises(GraphError, match="modified by an inplace operation"):
        loss.backward()


def test_recomputation_finds_the_parameters(tmp_path: Path):
    def run(offloaded: bool) -> list[np.ndarray]:
        sg.manual_seed(0)
        layers = nn.Sequential(nn.Linear(30, 30), nn.GELU(), nn.Linear(30, 30))
        if offloaded:
            sg.disk_offload(layers, directory=tmp_path, ram_budget=least_bytes(layers))
        x = sg.randn(5, 30, requires_grad=True)
        sg.utils.checkpoint.checkpoint(layers, x, use_reentrant=False).square().sum().backward()
        return [x.grad.numpy(), *[parameter.grad.numpy().copy() for parameter in layers.parameters()]]

    for got, wanted in zip(run(True), run(False), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_buffers_that_a_forward_changes_are_kept(tmp_path: Path):
    x = sg.randn(20, 6)
    plain, norm = nn.BatchNorm1d(6), nn.BatchNorm1d(6)
    sg.disk_offload(norm, directory=tmp_path, ram_budget=least_bytes(norm))
    for _ in range(3):
        np.testing.assert_array_equal(norm(x).detach().numpy(), plain(x).detach().numpy())
    for name, buffer in plain.named_buffers():
        np.testing.assert_array_equal(norm.get_buffer(name).numpy(), buffer.numpy())


def test_state_is_saved_and_loaded_as_in_ram(tmp_path: Path):
    model = build()
    optimizer = adamw(model)
    sg.disk_offload(model, optimizer, tmp_path, ram_budget=least_bytes(model, optimizer))
    train(model, optimizer)
    saved = pickle.loads(pickle.dumps({name: tensor for name, tensor in model.state_dict().items()}))
    plain, plain_optimizer = build(), None
    plain_optimizer = adamw(plain)
    plain.load_state_dict(saved)
    plain_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert_same(train(model, optimizer), train(plain, plain_optimizer))
    model.load_state_dict(saved)
    for name, tensor in model.state_dict().items():
        np.testing.assert_array_equal(tensor.numpy(), saved[name].numpy())


def test_a_deep_copy_is_in_ram_and_memory_that_a_tensor_is_given_is_stored(tmp_path: Path):
    layer = linear(tmp_path)
    twin = copy.deepcopy(layer.weight)
    assert not twin.storage.offloaded
    np.testing.assert_array_equal(twin.numpy(), layer.weight.numpy())
    layer.weight.data = sg.zeros(40, 30)
    assert layer.weight.storage.offloaded
    assert (layer(sg.ones(1, 30)).detach().numpy() == layer.bias.numpy()).all()


def test_evaluation_reads_ahead_and_changes_nothing(tmp_path: Path):
    model = build()
    wanted = model(BATCHES[0])[0].detach().numpy()
    offload = sg.disk_offload(model, directory=tmp_path, ram_budget=parameter_bytes(model) // 2)
    with sg.no_grad():
        for _ in range(4):
            np.testing.assert_array_equal(model(BATCHES[0])[0].numpy(), wanted)
    stats = offload.stats()
    assert stats.cache_hits > stats.cache_misses
    assert stats.written_bytes <= parameter_bytes(model)


def test_an_exception_in_a_forward_leaves_a_model_that_works(tmp_path: Path):
    model = build()
    wanted = model(BATCHES[0])[0].detach().numpy()
    sg.disk_offload(model, directory=tmp_path, ram_budget=least_bytes(model))
    with pytest.raises(Exception, match="context"):
        model(np.zeros((1, 10_000), np.int64))
    np.testing.assert_array_equal(model(BATCHES[0])[0].detach().numpy(), wanted)


def test_without_the_model_nothing_is_left(tmp_path: Path):
    model = build()
    optimizer = adamw(model)
    offload = sg.disk_offload(model, optimizer, tmp_path, ram_budget=least_bytes(model, optimizer))
    train(model, optimizer)
    assert list(tmp_path.iterdir())
    gone = weakref.ref(model)
    gc.collect()
    gc.disable()
    try:
        del model, optimizer, offload
        assert gone() is None
        deadline = time.monotonic() + 10
        while list(tmp_path.iterdir()) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert list(tmp_path.iterdir()) == []
    finally:
        gc.enable()


def test_zeroed_gradients_and_the_state_dict_hold_nothing_in_ram(tmp_path: Path):
    model = build()
    optimizer = adamw(model)
    offload = sg.disk_offload(model, optimizer, tmp_path, ram_budget=least_bytes(model, optimizer))
    model(BATCHES[0][:, :-1].copy(), BATCHES[0][:, 1:].copy())[1].backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    state = model.state_dict(), optimizer.state_dict(), [parameter.data for parameter in model.parameters()]
    offload.flush()
    assert held_bytes(offload) == 0
    assert all((parameter.grad.numpy() == 0).all() for parameter in model.parameters())
    assert len(state) == 3


def test_a_parameter_that_is_no_longer_frozen_trains_from_disk(tmp_path: Path):
    def run(offloaded: bool, **options: object) -> list[np.ndarray]:
        sg.manual_seed(0)
        layers = nn.Sequential(nn.Linear(30, 30).requires_grad_(False), nn.Linear(30, 30))
        optimizer = adamw(layers)
        if offloaded:
            sg.disk_offload(layers, optimizer, tmp_path, ram_budget=least_bytes(layers, optimizer) * 2, **options)
        for step in range(4):
            if step == 2:
                layers.requires_grad_()
            layers(sg.ones(2, 30)).square().sum().backward()
            if offloaded and not options:
                gradients = [parameter.grad for parameter in layers.parameters() if parameter.grad is not None]
                assert len(gradients) == (2 if step < 2 else 4)
                assert all(gradient.storage.offloaded for gradient in gradients)
            optimizer.step()
            optimizer.zero_grad()
        return [parameter.numpy().copy() for parameter in layers.parameters()]

    wanted = run(False)
    for options in ({}, {"step_in_backward": True}, {"step_in_backward": True, "max_grad_norm": 1e9}):
        for got, value in zip(run(True, **options), wanted, strict=True):
            np.testing.assert_array_equal(got, value)


def test_bad_input_is_refused_in_one_line(tmp_path: Path):
    layer = nn.Linear(3, 3)
    with pytest.raises(ArgumentError, match="step_in_backward=True without an optimizer"):
        sg.disk_offload(layer, directory=tmp_path, ram_budget="1MiB", step_in_backward=True)
    with pytest.raises(BudgetError, match="got 'much'"):
        sg.disk_offload(layer, directory=tmp_path, ram_budget="much")
    other = nn.Linear(3, 3)
    other.bias.data = layer.bias.data
    with pytest.raises(ArgumentError, match=r"1\.bias and 0\.bias share memory"):
        sg.disk_offload(nn.Sequential(layer, other), directory=tmp_path, ram_budget="1MiB")


def test_a_tensor_that_the_disk_refused_keeps_its_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    layers = nn.Sequential(nn.Linear(30, 30), nn.Linear(30, 30))
    wanted = [parameter.numpy().copy() for parameter in layers.parameters()]
    put = DiskStore.put

    def refused(self: DiskStore, array: np.ndarray, **options: object) -> object:
        if array.shape == (30,):
            raise SpillError("put: no space")
        return put(self, array, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch, pytest.raises(SpillError, match="no space"):
        patch.setattr(DiskStore, "put", refused)
        sg.disk_offload(layers, directory=tmp_path, ram_budget=least_bytes(layers))
    for parameter, values in zip(layers.parameters(), wanted, strict=True):
        np.testing.assert_array_equal(parameter.numpy(), values)


@pytest.mark.parametrize("dtype", [sg.float32, sg.bfloat16])
def test_a_parameter_changed_just_before_its_update_has_both_changes(tmp_path: Path, dtype: sg.dtype):
    def run(offloaded: bool) -> np.ndarray:
        parameter = nn.Parameter(sg.ones(1000, dtype=dtype))
        module = nn.Module()
        module.parameter = parameter
        optimizer = sg.optim.AdamW([parameter], lr=0.5)
        if offloaded:
            offload = sg.disk_offload(module, optimizer, tmp_path, ram_budget=least_bytes(module, optimizer))
        for _ in range(3):
            (parameter * 2).sum().backward()
            with sg.no_grad():
                parameter.mul_(0.5)
            optimizer.step()
            if offloaded:
                offload.flush()
            optimizer.zero_grad()
        return parameter.detach().float().numpy().copy()

    np.testing.assert_array_equal(run(True), run(False))


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["forward", "hook"])
def test_after_an_interruption_nothing_stays_in_ram(tmp_path: Path, error: type[BaseException], where: str):
    layers = nn.Sequential(nn.Linear(30, 30), nn.Identity())
    offload = sg.disk_offload(layers, directory=tmp_path, ram_budget=least_bytes(layers))

    def fail(*_: object) -> None:
        raise error("now")

    if where == "hook":
        handle = layers[1].register_forward_pre_hook(fail)
    else:
        layers[1].forward = fail
    with pytest.raises(error, match="now"):
        layers(sg.ones(2, 30))
    if where == "hook":
        handle.remove()
    else:
        del layers[1].forward
    assert not sg.autograd.core.hooks.stack.watched
    assert held_bytes(offload) == 0
    layers(sg.ones(2, 30)).sum().backward()
    assert not sg.autograd.core.hooks.stack.watched


def test_a_step_that_fails_lets_go_of_what_it_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model = build()
    optimizer = adamw(model)
    offload = sg.disk_offload(model, optimizer, tmp_path, ram_budget=least_bytes(model, optimizer))
    model(BATCHES[0][:, :-1].copy(), BATCHES[0][:, 1:].copy())[1].backward()
    with monkeypatch.context() as patch:
        patch.setattr(type(optimizer), "update", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError) as caught:
            optimizer.step()
    assert held_bytes(offload) == 0
    del caught
    optimizer.step()


def test_threads_may_use_one_model(tmp_path: Path):
    model = build()
    x = BATCHES[0][:, :-1].copy()
    wanted = model(x)[0].detach().numpy()
    sg.disk_offload(model, directory=tmp_path, ram_budget=least_bytes(model))
    failures: list[BaseException] = []
    buffers = [nn.Parameter(sg.zeros(1000)) for _ in range(2)]
    holder = nn.ParameterList(buffers)
    sg.disk_offload(holder, directory=tmp_path, ram_budget=least_bytes(holder))

    def work(number: int) -> None:
        try:
            for _ in range(10):
                np.testing.assert_array_equal(model(x)[0].detach().numpy(), wanted)
                with sg.no_grad():
                    for _ in range(20):
                        buffers[number].add_(1)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert all((buffer.numpy() == 200).all() for buffer in buffers)


@pytest.mark.parametrize(
    ("calls", "wanted"),
    [
        ("fb fb u fb fb u", [1, 0, 0, 1, 0, 0]),
        ("f f fb fb u f", [1, 1, 1, 0, 0, 1]),
        ("fb z fb u", [1, 0, 1, 0]),
    ],
    ids=["batches add up", "evaluation before and after", "forgotten gradients"],
)
def test_what_adds_to_gradients_that_wait_is_no_step_of_its_own(tmp_path: Path, calls: str, wanted: list[int]):
    layer = nn.Linear(4, 4)
    optimizer = sg.optim.SGD(layer.parameters(), lr=0.1)
    offload = sg.disk_offload(layer, optimizer, tmp_path, ram_budget=least_bytes(layer, optimizer))
    begun: list[None] = []
    offload._store.begin_step = lambda: begun.append(None)
    found = []
    for call in calls.split():
        begun.clear()
        if call in ("f", "fb"):
            result = layer(sg.ones(1, 4)).sum()
        if call == "fb":
            result.backward()
        if call == "u":
            optimizer.step()
            optimizer.zero_grad()
        if call == "z":
            optimizer.zero_grad()
        found.append(len(begun))
    assert found == wanted


def test_a_change_after_one_that_the_disk_refused_is_stored_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    layer = nn.Linear(30, 30)
    wanted = 4 * layer.weight.numpy()
    offload = sg.disk_offload(layer, directory=tmp_path, ram_budget="1MiB")
    end_change, store = DiskStore.end_change, offload._store

    def refused(*arguments: Any) -> None:
        end_change(*arguments)
        raise SpillError("the disk is full")

    with sg.no_grad():
        layer.weight.mul_(2)
    with monkeypatch.context() as patch, pytest.raises(SpillError, match="full"):
        patch.setattr(DiskStore, "end_change", refused)
        offload.flush()
    held = layer.weight.detach().array
    store.flush()
    with sg.no_grad():
        layer.weight.mul_(2)
    del held
    offload.flush()
    with store._state.lock:
        store._state.tier.make_room(store.ram_budget)
    assert not store.is_here(layer.weight.storage._handle)
    np.testing.assert_array_equal(layer.weight.numpy(), wanted)


def test_groups_that_change_between_steps_in_backward_keep_their_learning_rates(tmp_path: Path):
    found = []
    for offloads in (False, True):
        sg.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))
        groups = [{"params": [param], "lr": 0.1 * number} for number, param in enumerate(model.parameters(), 1)]
        optimizer = sg.optim.SGD(groups)
        if offloads:
            sg.disk_offload(model, optimizer, tmp_path, ram_budget="1MiB", step_in_backward=True)
        for number in range(3):
            model(sg.ones(4, 32)).square().mean().backward()
            if not offloads:
                optimizer.step()
                optimizer.zero_grad()
            optimizer.param_groups.reverse() if number == 0 else optimizer.param_groups.pop()
        found.append([param.detach().numpy().copy() for param in model.parameters()])
    assert all((in_ram == on_disk).all() for in_ram, on_disk in zip(*found, strict=True))


def test_a_step_in_backward_needs_no_reference_to_the_offload(tmp_path: Path):
    found = []
    for offloads in (False, True):
        sg.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))
        optimizer = sg.optim.SGD(model.parameters(), lr=0.1)
        if offloads:
            sg.disk_offload(model, optimizer, tmp_path, ram_budget="1MiB", step_in_backward=True)
            alive = weakref.ref(optimizer)
            del optimizer
            gc.collect()
        for _ in range(2):
            model(sg.ones(4, 32)).square().mean().backward()
            if not offloads:
                optimizer.step()
                optimizer.zero_grad()
        found.append([param.detach().numpy().copy() for param in model.parameters()])
    assert all((in_ram == on_disk).all() for in_ram, on_disk in zip(*found, strict=True))
    del model
    gc.collect()
    assert alive() is None
