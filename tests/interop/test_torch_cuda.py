"""Tensors of a CUDA device go to the store through pinned memory and come back, beside the kernels."""

import contextlib
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="`make test-peers` installs PyTorch")

from spillgrad.errors import SavedTensorError  # noqa: E402
from spillgrad.interop.torch import disk_offload_optimizer, save_on_disk  # noqa: E402
from tests.interop.torch_models import LARGE, NBYTES, all_same, bits, gradients, transformer  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU")


@pytest.mark.parametrize("device_budget", [0, 3 * NBYTES])
@pytest.mark.parametrize("budget", [0, 3 * NBYTES, LARGE])
def test_gradients_on_a_device_are_the_same(directory: Path, budget: int | str, device_budget: int):
    model, x = transformer().cuda(), torch.randint(0, 100, (4, 16), device="cuda")

    def on_host(grads: list[Any]) -> list[Any]:
        return [grad.cpu() for grad in grads]

    wanted = on_host(gradients(model, lambda: model(x)))
    spill = save_on_disk(directory, ram_budget=budget, device_budget=device_budget, min_bytes=1)
    for _ in range(3):
        assert all_same(on_host(gradients(model, lambda: model(x), spill)), wanted)
    assert (spill.stats().written_bytes > 0) == (budget != LARGE)


def test_device_memory_is_free_between_forward_and_backward(directory: Path):
    spill = save_on_disk(directory, ram_budget=LARGE, device_budget=0)
    w = torch.randn(1024, 1024, device="cuda", requires_grad=True)
    before = torch.cuda.memory_allocated()
    with spill:
        x = w * 1
        for _ in range(20):
            x = x.sin()
        loss = x.sum()
    del x
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() - before <= 2 * w.nbytes
    loss.backward()
    x = w.detach()
    wanted = torch.ones_like(x)
    values = [x]
    for _ in range(19):
        values.append(values[-1].sin())
    for value in reversed(values):
        wanted = wanted * value.cos()
    assert torch.equal(w.grad, wanted)


@pytest.mark.parametrize("ram_budget", [0, LARGE])
def test_the_newest_stay_on_the_device(directory: Path, ram_budget: int | str):
    w = torch.randn(1024, 1024, device="cuda", requires_grad=True)
    budget = 6 * w.nbytes
    spill = save_on_disk(directory, ram_budget=ram_budget, device_budget=budget)
    wanted = None
    for context in (contextlib.nullcontext(), spill, spill):
        with context:
            x = w * 1
            for _ in range(30):
                x = (x.sin() @ x) / 1024
            loss = x.sum()
        del x
        torch.cuda.synchronize()
        if context is spill:
            assert spill.stats().device_bytes <= budget
        w.grad = None
        loss.backward()
        wanted = w.grad.clone() if wanted is None else wanted
        assert torch.equal(w.grad, wanted)
        assert torch.isfinite(wanted).all()
    assert spill.stats().peak_device_bytes <= budget + w.nbytes
    assert spill.stats().device_bytes == 0


def test_a_change_in_place_behind_the_copy_raises(directory: Path):
    spill = save_on_disk(directory, ram_budget=LARGE, device_budget=0)
    x, w = torch.randn(1000, 1000, device="cuda"), torch.randn(1000, 1000, device="cuda", requires_grad=True)
    with spill:
        loss = (x * w).sum()
    x.zero_()
    with pytest.raises(SavedTensorError, match="modified by an inplace operation"):
        loss.backward()


def test_streams_each_get_what_they_saved(directory: Path):
    spill = save_on_disk(directory, ram_budget=0, device_budget=0)
    streams = [torch.cuda.Stream() for _ in range(4)]
    leaves = [torch.full((500, 500), float(i), device="cuda", requires_grad=True) for i in range(4)]
    torch.cuda.synchronize()
    losses = []
    for stream, leaf in zip(streams, leaves, strict=True):
        with torch.cuda.stream(stream), spill:
            losses.append((leaf * 1).exp().sum())
    torch.cuda.synchronize()
    for loss in losses:
        loss.backward()
    assert all(bits(leaf.grad.cpu()) == bits(leaf.detach().exp().cpu()) for leaf in leaves)


def test_an_optimizer_of_a_model_on_a_device_steps_the_same(directory: Path):
    def train(offload: Any) -> list[Any]:
        torch.manual_seed(0)
        model = torch.nn.Linear(100, 100).cuda()
        optimizer = offload(torch.optim.Adam(model.parameters()))
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(5, 100, device="cuda")).square().mean().backward()
            optimizer.step()
        return [parameter.detach().cpu() for parameter in model.parameters()]

    wanted = train(lambda optimizer: optimizer)
    assert all_same(train(lambda optimizer: disk_offload_optimizer(optimizer, directory, ram_budget=0)), wanted)
