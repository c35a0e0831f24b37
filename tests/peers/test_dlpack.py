"""PyTorch's CPU tensors and spillgrad's share memory by DLPack, both ways. See `test_against_torch` for its Python."""

import os
import subprocess

import pytest

from tests.peers import peer

PROGRAM = """
import numpy as np, torch
import spillgrad as sg

NAMES = "float16 bfloat16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool complex64 complex128"

for name in NAMES.split():
    theirs = torch.arange(6).reshape(2, 3).to(getattr(torch, name))
    ours = sg.from_dlpack(theirs.T)
    assert (ours.data_ptr(), ours.shape, str(ours.dtype)) == (theirs.data_ptr(), (3, 2), name), name
    assert (ours.stride(), ours.tolist()) == (theirs.T.stride(), theirs.T.tolist()), name
    ours[2, 1] = 0
    assert theirs[1, 2] == 0, name

    ours = sg.arange(6).reshape(2, 3).to(name)
    theirs = torch.from_dlpack(ours.T)
    assert (theirs.data_ptr(), tuple(theirs.shape)) == (ours.data_ptr(), (3, 2)), name
    assert theirs.dtype == getattr(torch, name), name
    assert (theirs.stride(), theirs.tolist()) == (ours.T.stride(), ours.T.tolist()), name
    theirs[2, 1] = 0
    assert ours[1, 2].item() == 0, name
    assert torch.from_dlpack(sg.from_dlpack(theirs)).data_ptr() == ours.data_ptr(), name

ours = sg.from_dlpack(torch.full((2,), 3.0))  # whose other owner is gone
assert (ours * 2).tolist() == [6, 6]
assert sg.from_dlpack(torch.tensor(2.5)).item() == 2.5
assert sg.from_dlpack(torch.zeros(0, 3)).shape == (0, 3)
assert torch.from_dlpack(sg.zeros(0, 3)).shape == (0, 3)

frozen = np.ones(3)
frozen.flags.writeable = False
ours = sg.from_dlpack(frozen)
try:
    ours += 1
except sg.errors.GraphError as error:
    assert "read-only" in str(error)
else:
    raise AssertionError("read-only memory was changed")
assert torch.from_dlpack(ours).data_ptr() == frozen.ctypes.data

with_gradient, backwards = torch.ones(2, requires_grad=True), sg.arange(3)[::-1]
for take, given in ((sg.from_dlpack, with_gradient), (torch.from_dlpack, backwards)):
    try:
        take(given)
    except BufferError:
        pass
    else:
        raise AssertionError("it was exported")
print("shared")
"""


def test_memory_is_shared_both_ways():
    python = peer.python("torch")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(peer.PATHS)}
    has_both = subprocess.run(
        [python, "-c", "import torch, spillgrad"], env=environment, capture_output=True, text=True
    )
    if has_both.returncode:
        pytest.skip(f"{python} has PyTorch, and lacks what spillgrad needs: {has_both.stderr.splitlines()[-1]}")
    done = subprocess.run([python, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("shared\n", 0), done.stderr
