"""Saved tensors beside offloaded parameters, gradients and optimizer state: one store, one budget, the same numbers."""

import copy
import gc
import time
from pathlib import Path

import numpy as np
import pytest

import spillgrad as sg
from spillgrad import nn
from spillgrad.errors import ArgumentError, SavedTensorError
from spillgrad_kernels.memory import buffers
from tests.spill.offload.training import BATCHES, assert_same, held_bytes, least_bytes, train


def build() -> tuple[nn.Module, sg.optim.Optimizer]:
    sg.manual_seed(0)
    model = sg.models.build("tiny", dropout=0.1)  # its embedding is its head
    return model, sg.optim.AdamW(model.parameters(), lr=1e-3)


def all_bytes() -> int:
    """What a step of the model has in the store: parameters, moments, gradients, and what its forward saves."""
    model = build()[0]
    return 4 * sum(parameter.nbytes for parameter in model.parameters()) + (1500 << 10)


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 2])
@pytest.mark.parametrize("how", ["plain", "clip", "accumulate", "step in backward", "recompute", "mixed policy"])
@pytest.mark.parametrize("fresh", [False, True], ids=["one object", "one object for each step"])
def test_training_is_bit_for_bit_that_in_ram(tmp_path: Path, share: float, how: str, fresh: bool):
    options = {"clip": {"clip": True}, "accumulate": {"accumulate": 2}}.get(how, {})
    policy = {"recompute": "recompute", "mixed policy": {"*.0": "recompute", "*.1": "keep", "gelu": "keep"}}
    wanted = train(*build(), **options)
    model, optimizer = build()
    budget_bytes = max(int(share * all_bytes()), least_bytes(model, optimizer))
    offload = sg.disk_offload(
        model, optimizer, tmp_path, ram_budget=budget_bytes, step_in_backward=how == "step in backward"
    )
    made = []

    def context() -> sg.save_on_disk:
        if fresh or not made:
            made.append(sg.save_on_disk(offload, policy=policy.get(how, "spill")))
        return made[-1]

    assert_same(train(model, optimizer, context, **options), wanted)
    stats = offload.stats()
    assert len(list(tmp_path.iterdir())) == 1
    if share == 2:
        assert stats.read_bytes == 0
        assert stats.peak_ram_bytes <= budget_bytes
    else:
        assert stats.read_bytes > 0
        # The embedding's update has four arrays of its size in RAM at once.
        # One derivative's operands, beside what an update is about to have written.
        assert stats.peak_ram_bytes <= budget_bytes + 2 * max(parameter.nbytes for parameter in model.parameters())
    optimizer.zero_grad()
    persistent_bytes = 3 * sum(parameter.nbytes for parameter in model.parameters())
    assert offload.stats().live_bytes == persistent_bytes


def test_saved_tensors_go_to_the_offloads_store_and_count_in_either_stats(tmp_path: Path):
    model, optimizer = build()
    offload = sg.disk_offload(model, optimizer, tmp_path, ram_budget=least_bytes(model, optimizer))
    before = offload.stats()
    with sg.save_on_disk(offload, min_bytes=0) as spill:
        loss = model(BATCHES[0])[0].square().mean()
    saved_bytes = offload.stats().live_bytes - before.live_bytes
    assert saved_bytes > 100 << 10
    assert spill.stats().live_bytes == offload.stats().live_bytes
    assert spill.directory == offload.directory
    spill.flush()
    loss.backward()
    optimizer.zero_grad()
    assert offload.stats().live_bytes == before.live_bytes


def test_from_the_second_step_on_most_arrays_are_in_ram_when_they_are_needed(tmp_path: Path):
    model, optimizer = build()
    offload = sg.disk_offload(model, optimizer, tmp_path, ram_budget=all_bytes() // 2, step_in_backward=True)
    counts = []
    for _ in range(3):
        before = offload.stats()
        train(model, optimizer, lambda: sg.save_on_disk(offload))
        after = offload.stats()
        counts.append((after.cache_hits - before.cache_hits, after.cache_misses - before.cache_misses))
    for hits, misses in counts[1:]:
        assert misses < 0.2 * hits, counts


def test_leaving_and_entering_again_packs_only_inside(tmp_path: Path):
    model, optimizer = build()
    offload = sg.disk_offload(model, optimizer, tmp_path, ram_budget=least_bytes(model, optimizer))
    spill = sg.save_on_disk(offload)
    x = sg.ones(64, 64, requires_grad=True)
    for _ in range(2):
        packed = offload.stats().packed_bytes
        outside = (x * 2).exp()
        assert offload.stats().packed_bytes == packed
        with spill:
            inside = (x * 2).exp()
        assert offload.stats().packed_bytes > packed
        (outside + inside).sum().backward()


def test_the_graph_goes_on_after_the_spill_object_and_the_offload_object_died(tmp_path: Path):
    model, optimizer = build()
    offload = sg.disk_offload(model, optimizer, tmp_path, ram_budget=least_bytes(model, optimizer))
    x = sg.ones(64, 64, requires_grad=True)
    with sg.save_on_disk(offload):
        first = (x * 2).exp().sum()
    first.backward()
    wanted = x.grad.numpy().copy()
    with sg.save_on_disk(offload):
        second = (x * 2).exp().sum()
    del offload, model, optimizer
    gc.collect()
    x.grad = None
    second.backward()
    np.testing.assert_array_equal(x.grad.numpy(), wanted)


@pytest.mark.parametrize("last", ["spill", "offload", "graph"])
def test_nothing_is_left_behind_whatever_dies_last(tmp_path: Path, last: str):
    model, optimizer = build()
    offload = sg.disk_offload(model, optimizer, tmp_path, ram_budget=least_bytes(model, optimizer))
    with sg.save_on_disk(offload) as spill:
        loss = model(BATCHES[0][:, :-1].copy(), BATCHES[0][:, 1:].copy())[1]
    assert list(tmp_path.iterdir())
    things = {"spill": spill, "offload": (offload, model, optimizer), "graph": loss}
    del spill, offload, model, optimizer, loss
    for name in sorted(things, key=lambda name: name == last):
        assert list(tmp_path.iterdir())
        things.pop(name)
        gc.collect()
    deadline = time.monotonic() + 10
    while list(tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("frozen", [False, True])
def test_parameters_are_not_stored_again_wherever_the_context_is_entered(tmp_path: Path, frozen: bool):
    layer = nn.Linear(64, 64)
    for parameter in layer.parameters():
        parameter.requires_grad_(not frozen)
    offload = sg.disk_offload(layer, directory=tmp_path, ram_budget=least_bytes(layer))
    live_bytes = offload.stats().live_bytes
    x = sg.ones(2, 64, requires_grad=True)
    with sg.save_on_disk(offload, min_bytes=0):
        result = x.detach() @ layer.weight.t() if not frozen else x @ layer.weight.t()
    saved = offload.stats().live_bytes - live_bytes
    assert saved <= x.nbytes
    assert held_bytes(offload) == 0
    result.sum().backward()
    assert (x.grad is not None) == frozen


def test_a_parameter_changed_between_forward_and_backward_raises_as_in_ram(tmp_path: Path):
    layer = nn.Linear(64, 64)
    offload = sg.disk_offload(layer, directory=tmp_path, ram_budget=least_bytes(layer))
    x = sg.randn(5, 64, requires_grad=True)
    with sg.save_on_disk(offload):
        loss = layer(x).square().sum()
    with sg.no_grad():
        layer.weight.zero_()
    with pytest.raises(SavedTensorError, match="modified by an inplace operation"):
        loss.backward()


def test_what_belongs_to_the_offload_is_refused_in_one_line(tmp_path: Path):
    offload = sg.disk_offload(nn.Linear(3, 3), directory=tmp_path, ram_budget="1MiB")
    for name, value in {
        "ram_budget": "1MiB",
        "direct_io": False,
        "checksums": False,
        "on_full": "ram",
        "codec": "lossless",
        "encrypt": True,
    }.items():
        with pytest.raises(ArgumentError, match=f"save_on_disk: got {name} with an offload"):
            sg.save_on_disk(offload, **{name: value})  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"save_on_disk: got no ram_budget; give bytes"):
        sg.save_on_disk(tmp_path)


def test_hooks_of_a_user_see_offloaded_parameters_as_they_see_others(tmp_path: Path):
    def seen(offloaded: bool) -> list[object]:
        sg.manual_seed(0)
        layer = nn.Linear(8, 8)
        if offloaded:
            sg.disk_offload(layer, directory=tmp_path, ram_budget=least_bytes(layer))
        found: list[object] = []

        def pack(tensor: sg.Tensor) -> sg.Tensor:
            found.append((tuple(tensor.shape), tensor.storage.trainable))
            return tensor * 2

        x = sg.ones(2, 8, requires_grad=True)
        with sg.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed / 2):
            layer(x).square().sum().backward()
        found.append(x.grad.numpy().tolist())
        return found

    assert seen(True) == seen(False)


def test_a_recomputed_layer_does_not_hold_its_parameters_until_its_backward(tmp_path: Path):
    layers = nn.Sequential(*[nn.Linear(64, 64, bias=False) for _ in range(8)])
    offload = sg.disk_offload(layers, directory=tmp_path, ram_budget=least_bytes(layers))
    x = sg.ones(2, 64, requires_grad=True)
    held = []
    x.register_hook(lambda gradient: held.append(offload.stats().ram_bytes))
    with sg.save_on_disk(offload, policy={"": "recompute"}):
        result = layers(x)
    offload.flush()
    result.sum().backward()
    # Gradients are in the store too: one may be in RAM still, and what the first layer's derivative asks for.
    assert held[0] <= 3 * layers[0].weight.nbytes


class Repeats(nn.Module):
    """Uses one layer three times, and one parameter twice in a forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(96, 96)
        self.weight = nn.Parameter(sg.randn(96, 96) / 10)

    def forward(self, x: sg.Tensor) -> sg.Tensor:
        for _ in range(3):
            x = self.layer(x).tanh()
        return (x @ self.weight) @ self.weight


@pytest.mark.parametrize("spills", [False, True])
@pytest.mark.parametrize("rank", [0, 4], ids=["all trained", "lora"])
@pytest.mark.parametrize("kind", ["gpt", "repeats"])
def test_mixed_precision_is_bit_for_bit_that_in_ram(tmp_path: Path, spills: bool, rank: int, kind: str):
    def run(offloaded: bool) -> list[np.ndarray]:
        sg.manual_seed(0)
        model = sg.models.build("tiny") if kind == "gpt" else Repeats()
        if rank:
            nn.lora(model, rank=rank)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = sg.optim.AdamW(trained, lr=1e-2)
        context = sg.enable_grad
        if offloaded:
            offload = sg.disk_offload(model, optimizer, tmp_path, ram_budget=least_bytes(model, optimizer))
            if spills:
                context = lambda: sg.save_on_disk(offload)  # noqa: E731
        results = []
        for batch in BATCHES[:3]:
            optimizer.zero_grad()
            with context(), sg.autocast("cpu"):
                if kind == "gpt":
                    loss = model(batch[:, :-1].copy(), batch[:, 1:].copy())[1]
                else:
                    loss = model(sg.tensor(batch[:, :32].repeat(3, 1) / 256, dtype=sg.float32)).square().mean()
            loss.backward()
            optimizer.step()
            results.append(loss.detach().numpy().copy())
        return results + [parameter.detach().numpy().copy() for parameter in model.parameters()]

    for got, wanted in zip(run(True), run(False), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("frozen", [False, True])
def test_conversions_of_offloaded_parameters_leave_ram_with_their_module(tmp_path: Path, frozen: bool):
    layers = nn.Sequential(*[nn.Linear(512, 512, bias=False) for _ in range(8)])
    for parameter in layers.parameters():
        parameter.requires_grad_(not frozen)
    offload = sg.disk_offload(layers, directory=tmp_path, ram_budget=least_bytes(layers))
    x = sg.ones(1, 512, requires_grad=True)
    before = buffers.memory_stats().live_bytes
    with sg.autocast("cpu"):
        result = layers(x)
        assert buffers.memory_stats().live_bytes - before < 2 * layers[0].weight.nbytes
        assert held_bytes(offload) == 0
    result.sum().backward()
    assert x.grad is not None


def test_a_converted_parameter_that_changed_before_backward_is_refused(tmp_path: Path):
    layer = nn.Linear(64, 64)
    sg.disk_offload(layer, directory=tmp_path, ram_budget=least_bytes(layer))
    with sg.autocast("cpu"):
        loss = layer(sg.ones(2, 64, requires_grad=True)).sum()
    with sg.no_grad():
        layer.weight.zero_()
    with pytest.raises(SavedTensorError, match=r"linear saved a parameter of \(64, 64\) as 'weight'"):
        loss.backward()


def test_what_is_saved_is_not_read_ahead_while_more_is_being_saved(tmp_path: Path):
    model = sg.models.build("tiny", n_layer=6)
    optimizer = sg.optim.AdamW(model.parameters())
    tokens = np.random.default_rng(0).integers(0, 256, (8, 65))
    offload = sg.disk_offload(
        model, optimizer, tmp_path, ram_budget=12_500_000, step_in_backward=True, max_grad_norm=1.0
    )
    for block in model.transformer.h:  # the prefetcher has all the time it wants between blocks
        block.register_forward_hook(lambda module, args, result: time.sleep(0.02))
    moved = []
    for _ in range(6):
        before = offload.stats()
        with sg.save_on_disk(offload):
            loss = model(tokens[:, :-1], tokens[:, 1:])[1]
        after = offload.stats()
        loss.backward()
        moved.append((after.read_bytes - before.read_bytes, after.written_bytes - before.written_bytes))
    assert min(written for _, written in moved[2:]) > 1 << 20
    # It would leave RAM again: going forward, hardly anything but parameters is read.
    assert sum(read for read, _ in moved[2:]) < 1 << 20


def test_a_gradient_that_waits_for_another_of_its_parameter_is_in_the_store(tmp_path: Path):
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(sg.randn(512, 512) / 20)

        def forward(self, x: sg.Tensor) -> sg.Tensor:
            hidden = (x @ self.weight).tanh()
            if hidden.requires_grad:
                hidden.register_hook(lambda gradient: live.append(offload.stats().live_bytes))
            return hidden @ self.weight

    live: list[int] = []
    model = Tied()
    x = sg.ones(2, 512)
    plain = Tied()
    plain.weight.data = model.weight.data.clone()
    offload = sg.disk_offload(model, directory=tmp_path, ram_budget="4MiB")
    model(x).sum().backward()
    assert live == [2 * model.weight.nbytes]
    plain(x).sum().backward()
    np.testing.assert_array_equal(model.weight.grad.numpy(), plain.weight.grad.numpy())


def test_gradients_of_parts_of_a_parameter_add_up_in_the_store(tmp_path: Path):
    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(sg.randn(4, 128, 128) / 10)
            self.others = nn.ModuleList([nn.Linear(128, 128) for _ in range(4)])

        def forward(self, x: sg.Tensor) -> sg.Tensor:
            for t in range(4):
                x = self.others[t](x @ self.weight[t]).tanh()
            return x

    x = sg.ones(2, 128)
    model = Steps()
    plain = copy.deepcopy(model)
    sg.disk_offload(model, directory=tmp_path, ram_budget=400_000)  # little more than a layer needs
    for each in (model, plain):
        each(x).sum().backward()
    np.testing.assert_array_equal(model.weight.grad.numpy(), plain.weight.grad.numpy())
