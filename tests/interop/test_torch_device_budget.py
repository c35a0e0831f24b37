"""The newest saved tensors of a device stay there, within a budget; the others go to the store and come back in time.

Here the device is the host: only what copies and waits is replaced. `test_torch_cuda.py` has the same with a GPU.
"""

import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="`make test-peers` installs PyTorch")

from spillgrad.errors import BudgetError, SavedTensorError  # noqa: E402
from spillgrad.interop.torch import device_memory, save_on_disk  # noqa: E402
from tests.interop.torch_models import LARGE, NBYTES, all_same, gradients, transformer  # noqa: E402

SIDE = 64  # a tensor of SIDE × SIDE float32 numbers has 16 KiB
BYTES = 4 * SIDE * SIDE


class HostArray(device_memory.OnDevice):
    """Bytes of the device that is the host."""

    def fetch(self) -> tuple[np.ndarray, Callable[[], None]]:
        host = self._source.clone()
        return host.numpy().view(self.dtype).reshape(self.shape), lambda: None


class HostArriving:
    """Bytes on their way to the device that is the host; `all` lists them."""

    all: list["HostArriving"]

    def __init__(self, array: np.ndarray, device: Any) -> None:
        self._array = array.reshape(-1).view(np.uint8).copy()
        self.tensor = torch.full((array.nbytes,), 255, dtype=torch.uint8)  # as long as nobody has waited
        self.waited = False
        self.all.append(self)

    def wait(self) -> None:
        self.tensor.numpy()[:] = self._array
        self.waited = True


@pytest.fixture(autouse=True)
def _the_host_is_a_device(monkeypatch: pytest.MonkeyPatch):
    HostArriving.all = []
    monkeypatch.setattr(device_memory, "is_on_device", lambda tensor: True)
    monkeypatch.setattr(device_memory, "OnDevice", HostArray)
    monkeypatch.setattr(device_memory, "Arriving", HostArriving)
    monkeypatch.setattr(
        device_memory, "to_device", lambda array, device: torch.from_numpy(array.reshape(-1).view(np.uint8)).clone()
    )


def chain(x: Any, length: int = 10) -> Any:
    """Return a result for which `length` tensors of BYTES bytes are saved, besides `x`."""
    for _ in range(length):
        x = x.sin() * 1.0
    return x.sum()


def leaf() -> Any:
    return torch.linspace(-1, 1, SIDE * SIDE).view(SIDE, SIDE).requires_grad_()


@pytest.mark.parametrize("device_budget", [0, 3 * NBYTES, 20 * NBYTES, LARGE])
@pytest.mark.parametrize("ram_budget", [0, 3 * NBYTES, LARGE])
def test_gradients_are_the_same(directory: Path, device_budget: int | str, ram_budget: int | str):
    model, x = transformer(), torch.randint(0, 100, (4, 16))
    wanted = gradients(model, lambda: model(x))
    spill = save_on_disk(directory, ram_budget=ram_budget, device_budget=device_budget, min_bytes=1)
    for _ in range(3):
        assert all_same(gradients(model, lambda: model(x), spill), wanted)
    gc.collect()
    assert spill.stats().device_bytes == 0
    assert spill.stats().live_bytes == 0
    assert (spill.stats().packed_bytes == 0) == (device_budget == LARGE)


def test_the_newest_stay_on_the_device(directory: Path):
    x = leaf()
    with save_on_disk(directory, ram_budget=LARGE, device_budget=4 * BYTES) as spill:
        loss = chain(x, 10)
    stats = spill.stats()
    assert stats.device_bytes == 4 * BYTES
    assert stats.peak_device_bytes == 5 * BYTES  # the newest comes before the oldest goes
    assert stats.live_bytes == 5 * BYTES  # the leaf is in RAM anyway
    loss.backward()


def test_backward_has_them_back_before_it_needs_them(directory: Path):
    x = leaf()
    with save_on_disk(directory, ram_budget=LARGE, device_budget=4 * BYTES) as spill:
        loss = chain(x, 12)
    loss.backward()
    assert len(HostArriving.all) >= 6
    assert all(arriving.waited for arriving in HostArriving.all)
    assert spill.stats().peak_device_bytes == 5 * BYTES
    wanted = leaf()
    chain(wanted, 12).backward()
    assert torch.equal(x.grad, wanted.grad)


def test_a_storage_counts_once_and_is_stored_once(directory: Path):
    x = leaf()
    with save_on_disk(directory, ram_budget=LARGE, device_budget=LARGE) as spill:
        y = x * 1.0
        loss = (y.sin() + y.cos() + y.t().exp()).sum()
        stats = spill.stats()
        assert stats.device_bytes == 2 * BYTES  # `y` and the result of exp
        spill.flush()
        assert spill.stats().device_bytes == 0
        assert spill.stats().live_bytes == 2 * BYTES
    loss.backward()
    wanted = leaf()
    y = wanted * 1.0
    (y.sin() + y.cos() + y.t().exp()).sum().backward()
    assert torch.equal(x.grad, wanted.grad)


@pytest.mark.parametrize("views", [False, True])
def test_all_that_share_a_storage_wait_for_its_bytes(directory: Path, views: bool):
    def compute(x: Any) -> Any:
        y = x * 1.0
        first, second = y.chunk(2) if views else (y, y)
        return chain(first.sin() + second.cos(), 6)

    wanted, x = leaf(), leaf()
    compute(wanted).backward()
    with save_on_disk(directory, ram_budget=LARGE, device_budget=(2 if views else 4) * BYTES):
        loss = compute(x)
    loss.backward()
    assert HostArriving.all
    assert torch.equal(x.grad, wanted.grad)


def test_graphs_that_die_leave_nothing_behind(directory: Path):
    spill = save_on_disk(directory, ram_budget=LARGE, device_budget=2 * BYTES)
    kept = []
    for number in range(20):
        with spill:
            loss = chain(leaf(), 6)
        if number == 10:
            kept.append(loss)
    del loss
    gc.collect()
    assert spill.stats().device_bytes <= 2 * BYTES
    assert len(spill._newest_on_device._away) <= 6  # what the kept graph has
    kept.pop().backward()
    gc.collect()
    assert spill.stats().device_bytes == 0
    assert not spill._newest_on_device._away


def test_a_copy_that_fails_gives_its_place_back(directory: Path, monkeypatch: pytest.MonkeyPatch):
    with save_on_disk(directory, ram_budget=LARGE, device_budget=4 * BYTES) as spill:
        loss = chain(leaf(), 10)

    def fail(array: np.ndarray, device: Any) -> None:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(device_memory, "Arriving", fail)
    with pytest.raises(RuntimeError, match="the device is gone"):
        loss.backward()
    del loss
    gc.collect()
    assert spill.stats().device_bytes == 0


@pytest.mark.parametrize("device_budget", [0, LARGE])
def test_a_change_in_place_raises(directory: Path, device_budget: int | str):
    x, other = leaf(), torch.ones(SIDE, SIDE)
    with save_on_disk(directory, ram_budget=LARGE, device_budget=device_budget):
        loss = (x * other).sum()
    other.add_(1)
    with pytest.raises(SavedTensorError, match="modified by an inplace operation"):
        loss.backward()


def test_a_change_before_a_tensor_is_sent_raises(directory: Path):
    x, other = leaf(), torch.ones(SIDE, SIDE)
    spill = save_on_disk(directory, ram_budget=LARGE, device_budget=BYTES)
    with spill:
        loss = (x * other).sum()
        other.add_(1)
        later = chain(leaf(), 3)
    with pytest.raises(SavedTensorError, match="modified by an inplace operation"):
        loss.backward()
    later.backward()


def test_a_dropped_graph_frees_the_device(directory: Path):
    with save_on_disk(directory, ram_budget=LARGE, device_budget=4 * BYTES) as spill:
        loss = chain(leaf(), 10)
    del loss
    gc.collect()
    assert spill.stats().device_bytes == 0


def test_a_kept_graph_is_used_twice(directory: Path):
    x = leaf()
    with save_on_disk(directory, ram_budget=0, device_budget=2 * BYTES):
        loss = chain(x, 8)
    loss.backward(retain_graph=True)
    once = x.grad.clone()
    loss.backward()
    assert torch.equal(x.grad, 2 * once)


def test_threads_share_the_budget(directory: Path):
    spill = save_on_disk(directory, ram_budget=4 * BYTES, device_budget=4 * BYTES)
    wanted = leaf()
    chain(wanted, 10).backward()
    found: list[Any] = []

    def train() -> None:
        for _ in range(5):
            x = leaf()
            with spill:
                loss = chain(x, 10)
            loss.backward()
            found.append(x.grad)

    threads = [threading.Thread(target=train) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 20
    assert all(torch.equal(grad, wanted.grad) for grad in found)
    gc.collect()
    assert spill.stats().device_bytes == 0


def test_a_size_that_does_not_parse_is_an_error(directory: Path):
    with pytest.raises(BudgetError, match="much"):
        save_on_disk(directory, ram_budget=0, device_budget="much")
