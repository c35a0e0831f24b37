"""Small tensors that PyTorch saves share arrays of the store, and come back as they were."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="`make test-peers` installs PyTorch")


from spillgrad.interop.torch import save_on_disk  # noqa: E402
from tests.interop.small_tensors import ENOUGH, SmallTensors  # noqa: E402
from tests.interop.torch_models import about, bits  # noqa: E402


class TestSmallTensors(SmallTensors):
    save_on_disk = save_on_disk
    about, bits = staticmethod(about), staticmethod(bits)
    tensor = staticmethod(torch.tensor)

    def grad(self, tensor: Any) -> None:
        tensor.requires_grad_().grad = None

    def view_as_int32(self, tensor: Any) -> Any:
        return tensor.view(torch.int32)

    def place(self, packed: Any) -> Any:
        return packed._place

    def test_a_storage_is_in_a_batch_once_for_as_long_as_it_lives(self, directory: Path):
        spill, x = self.spilling(directory), torch.ones(10)
        first = spill.pack_hook(x)
        others = self.fill(spill)
        assert spill.pack_hook(x[2:])._place is first._place
        assert len(others) == ENOUGH

    def test_what_is_held_of_a_storage_goes_once_that_is_gone(self, directory: Path):
        spill = self.spilling(directory)
        kept = torch.ones(10)
        packed = [spill.pack_hook(kept), *self.fill(spill), *self.fill(spill)]
        held = [each for each in packed if each._place.original is not None]
        assert held[0] is packed[0]
        assert len(held) < 200

    def test_a_backward_that_changes_a_small_tensor_does_not_change_what_comes_back_next(self, directory: Path):
        spill = self.spilling(directory)
        packed = spill.pack_hook(torch.ones(10))
        spill.unpack_hook(packed).mul_(2)
        assert torch.equal(spill.unpack_hook(packed), torch.ones(10))


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
