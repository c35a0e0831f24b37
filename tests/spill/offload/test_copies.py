"""Copies and pickles of what is offloaded are plain, in RAM, and train on from where they were made."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spillgrad as sg
from spillgrad import nn
from spillgrad.errors import ArgumentError, OperandError
from tests.spill.offload.training import assert_same, least_bytes, train


def trained(directory: Path) -> tuple[nn.Module, sg.optim.Optimizer, sg.disk_offload]:
    sg.manual_seed(0)
    model = sg.models.build("tiny")
    optimizer = sg.optim.AdamW(model.parameters(), lr=1e-3)
    offload = sg.disk_offload(model, optimizer, directory, ram_budget=least_bytes(model, optimizer))
    train(model, optimizer)
    return model, optimizer, offload


def pickled(objects: Any) -> Any:
    return pickle.loads(pickle.dumps(objects))


@pytest.mark.parametrize("again", [copy.deepcopy, pickled])
def test_a_model_and_its_optimizer_go_on_in_ram(tmp_path: Path, again: Callable[[Any], Any]):
    model, optimizer, offload = trained(tmp_path)
    twin, twin_optimizer = again((model, optimizer))
    before = offload.stats()
    got = train(twin, twin_optimizer)
    assert offload.stats().packed_bytes == before.packed_bytes
    assert offload.stats().cache_hits == before.cache_hits
    tensors = [*twin.parameters(), *twin.buffers(), *[parameter.grad for parameter in twin.parameters()]]
    assert not any(tensor.storage.offloaded for tensor in tensors)
    assert_same(got, train(model, optimizer))


def test_a_copy_can_be_offloaded_itself(tmp_path: Path):
    model, optimizer, _ = trained(tmp_path)
    twin, twin_optimizer = copy.deepcopy((model, optimizer))
    sg.disk_offload(twin, twin_optimizer, tmp_path, ram_budget=least_bytes(twin, twin_optimizer))
    assert_same(train(twin, twin_optimizer), train(model, optimizer))


def test_a_users_own_hooks_are_copied(tmp_path: Path):
    layer = nn.Linear(2, 2)
    calls = []
    sg.disk_offload(layer, directory=tmp_path, ram_budget="1MiB")
    layer.register_forward_hook(lambda *_: calls.append(1))
    copy.deepcopy(layer)(sg.ones(1, 2))
    assert calls == [1]


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickle.dumps])
def test_the_offload_itself_is_not_copied(tmp_path: Path, again: Callable[[Any], Any]):
    offload = sg.disk_offload(nn.Linear(2, 2), directory=tmp_path, ram_budget="1MiB")
    with pytest.raises(OperandError, match="copy or pickle the model"):
        again(offload)


def test_an_optimizer_of_two_offloads_is_told(tmp_path: Path):
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizer = sg.optim.AdamW([*first.parameters(), *second.parameters()])
    sg.disk_offload(first, optimizer, tmp_path, ram_budget="1MiB")
    with pytest.raises(ArgumentError, match="in a ModuleList"):
        sg.disk_offload(second, optimizer, tmp_path, ram_budget="1MiB")
    assert not any(parameter.storage.offloaded for parameter in second.parameters())
    np.testing.assert_array_equal(second(sg.zeros(1, 2)).detach().numpy()[0], second.bias.numpy())
