"""Small tensors that PyTorch saves share arrays of the store, and come back as they were."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="`make test-peers` installs PyTorch")


from spillgrad.errors import SavedTensorError  # noqa: E402
from spillgrad.interop.torch import save_on_disk  # noqa: E402
from spillgrad.interop.torch.saved_tensors import SpilledSmall  # noqa: E402
from tests.interop.torch_models import about, bits  # noqa: E402

ENOUGH = 300  # tensors, so that what is held of those before is looked at


def spilling(directory: Path, **options: Any) -> Any:
    return save_on_disk(directory, ram_budget="1MiB", min_bytes=0, **options)


def fill(spill: Any) -> list[Any]:
    packed = [spill.pack_hook(torch.full((100,), float(i))) for i in range(ENOUGH)]
    spill.flush()
    return packed


@pytest.mark.parametrize("codec", [None, "lossless", "bf16", "int8"])
def test_views_come_back_as_they_lie_over_one_copy_that_no_codec_alters(directory: Path, codec: str | None):
    spill = spilling(directory, codec=codec)
    base = torch.randn(6, 8)
    views = [
        base,
        base.t(),
        base[1:4, ::2],
        base.flatten()[5:],
        base[2],
        base[:, 3].expand(4, 6),
        base.view(torch.int32),
    ]
    wanted = [(about(view), bits(view)) for view in views]
    packed = [spill.pack_hook(view) for view in views]
    assert len({id(each._place) for each in packed}) == 1
    del base, views
    others = fill(spill)
    got = [spill.unpack_hook(each) for each in packed]
    assert [(about(view), bits(view)) for view in got] == wanted
    del got, others, packed
    assert (spill.stats().live_bytes, spill.stats().ram_bytes) == (0, 0)


@pytest.mark.parametrize("is_held", [True, False])
@pytest.mark.parametrize("before", [True, False])
def test_a_change_in_place_raises_whenever_it_came(directory: Path, is_held: bool, before: bool):
    spill = spilling(directory)
    x, untouched = torch.ones(10), torch.ones(10)
    packed = [spill.pack_hook(each) for each in (x, x[3:], untouched)]
    others = [] if before else fill(spill)
    x.add_(1)
    again, wanted = spill.pack_hook(x), bits(x)
    if not is_held:
        del x
    others += fill(spill)
    for each in packed[:2]:
        with pytest.raises(SavedTensorError, match=r"modified by an inplace operation: .* is at version 1; expected"):
            spill.unpack_hook(each)
    assert bits(spill.unpack_hook(again)) == wanted
    assert torch.equal(spill.unpack_hook(packed[2]), untouched)
    assert isinstance(again, SpilledSmall)


def test_a_storage_is_in_a_batch_once_for_as_long_as_it_lives(directory: Path):
    spill, x = spilling(directory), torch.ones(10)
    first = spill.pack_hook(x)
    others = fill(spill)
    assert spill.pack_hook(x[2:])._place is first._place
    assert len(others) == ENOUGH


def test_what_is_held_of_a_storage_goes_once_that_is_gone(directory: Path):
    spill = spilling(directory)
    kept = torch.ones(10)
    packed = [spill.pack_hook(kept), *fill(spill), *fill(spill)]
    held = [each for each in packed if each._place.original is not None]
    assert held[0] is packed[0]
    assert len(held) < 200


def test_a_backward_that_changes_a_small_tensor_spoils_no_other(directory: Path):
    spill = spilling(directory)
    packed = spill.pack_hook(torch.ones(10))
    spill.unpack_hook(packed).mul_(2)
    assert torch.equal(spill.unpack_hook(packed), torch.ones(10))


@pytest.mark.parametrize("budget", [0, "32KiB", "1MiB"])
def test_gradients_of_small_tensors_are_the_same_twice_over(directory: Path, budget: int | str):
    def loss(w: Any) -> Any:
        y = w
        for i in range(300):
            y = (y * (1 + i % 3)).tanh() + w.exp()
        return (y * y).sum()

    plain = torch.randn(20, dtype=torch.float64).requires_grad_()
    spilled = plain.detach().clone().requires_grad_()
    loss(plain).backward()
    spill = save_on_disk(directory, ram_budget=budget, min_bytes=0)
    for _ in range(2):
        spilled.grad = None
        with spill:
            found = loss(spilled)
        found.backward(retain_graph=True)
        found.backward()
        assert torch.equal(spilled.grad, plain.grad + plain.grad)
        del found
        assert (spill.stats().live_bytes, spill.stats().ram_bytes) == (0, 0)


COUNTS = """
import subprocess, sys
import torch
from spillgrad.interop.torch import save_on_disk

def rss() -> int:
    return int(open("/proc/self/statm").read().split()[1]) * 4096

count, directory = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
spill = save_on_disk(directory, ram_budget="1MiB", min_bytes=0)
warm = [spill.pack_hook(torch.ones(32)) for _ in range(8000)]
spill.flush()
packed = [None] * count
before = rss()
for i in range(count):
    packed[i] = spill.pack_hook(torch.full((32,), float(i)))
spill.flush()
used = int(subprocess.run(["du", "-sB1", directory], capture_output=True, text=True).stdout.split()[0])
print((rss() - before) / count, used / (count + len(warm)))
for i in reversed(range(count)):
    assert (spill.unpack_hook(packed[i]) == float(i)).all()
    packed[i] = None
del warm

w = torch.randn(32, requires_grad=True)
gradients = []
for spills in (False, True):
    w.grad, x = None, w
    with spill if spills else torch.enable_grad():
        for _ in range(count // 4):
            x = x.sin() + w  # saves x
    x.sum().backward()
    gradients.append(w.grad)
assert torch.equal(*gradients)
"""


def test_a_small_tensor_takes_few_bytes_beside_its_own(tmp_path: Path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", COUNTS, "40000", str(tmp_path)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=True)
    in_ram, on_disk = map(float, ran.stdout.split())
    assert in_ram <= 300
    assert on_disk <= 1.3 * 128
