"""A model in parts, in RAM, compared bit for bit with one process that runs the batches of all."""

import contextlib
import copy
import pickle
import sys
from pathlib import Path

import numpy as np
from net import BATCHES, OPTIMIZERS, STEPS, Net, as_bytes, loss_of, one_process, require_same

import spillgrad as sg
import spillgrad.distributed as dist
from spillgrad import nn
from spillgrad.distributed.fsdp import FSDPModule, fully_shard
from spillgrad.distributed.sharded_tensor import ShardedTensor
from spillgrad.errors import ArgumentError, DistributedError, UnsupportedError
from spillgrad.spill.offload import needs
from spillgrad.spill.offload.gathered import Gathering

try:
    fully_shard(nn.Linear(2, 2))
    raise AssertionError("there is no group")
except DistributedError as error:
    assert "init_process_group" in str(error), error
dist.init_process_group("mpi")
rank, size = dist.get_rank(), dist.get_world_size()
needs._LEAST_PART_BYTES = (32 << 10) // size  # the layer that some batches skip is too small for parts


def train(model, optimizer, autocast, max_norm, steps=range(STEPS)):
    model.set_gradient_divide_factor(1)
    for step in steps:
        optimizer.zero_grad()
        with sg.autocast("cpu") if autocast else contextlib.nullcontext():
            for first in range(0, BATCHES, size):
                if first + rank < BATCHES:
                    (loss_of(model, step, first + rank) * (1 / BATCHES)).backward()
                else:
                    model.contribute_nothing()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()


def sharded(kind="adamw", seed=1, layers=False, **options):
    sg.manual_seed(seed + rank)  # all get the first one's values
    model = Net()
    if layers:  # as PyTorch's programs do
        fully_shard(model.hidden, **options)
        fully_shard(model.embedding, **options)
    assert fully_shard(model, **options) is model
    return model, OPTIMIZERS[kind]([p for p in model.parameters() if p.requires_grad])


# The bits of one process.
for kind, autocast, max_norm, wire, options in (
    ("adamw", False, 0.5, "float32", {}),
    ("adamw", True, None, "float32", {"layers": True}),
    ("sgd", False, 0.5, "float32", {"reshard_after_forward": False}),
    ("adamw", False, 0.5, "bfloat16", {}),
):
    wanted = one_process(kind, autocast, max_norm, wire=wire)
    model, optimizer = sharded(kind, wire=wire, **options)
    train(model, optimizer, autocast, max_norm)
    require_same(as_bytes(model, optimizer), wanted)

# What a module is, and what is in memory.
assert isinstance(model, FSDPModule) and isinstance(model, Net) and type(model).__name__ == "Net"
assert repr(model) == repr(Net())
model, optimizer = sharded()
loss_of(model, 0, rank).backward()
if size > 1:
    assert isinstance(model.embedding.weight.grad, ShardedTensor)
    shard = model.embedding.weight._storage.in_parts.shard
    assert shard.numel() <= -(-model.embedding.weight.numel() // 4096 // size) * 4096 + 4096
    assert model.embedding.weight._storage._alive() is None, "the whole is still there"
gathered, kept = [], Gathering.gather
Gathering.gather = lambda *arguments: (gathered.append(arguments[1].sequence), kept(*arguments))[1]
counts = {}
for reshards in (True, False):
    model.set_reshard_after_forward(reshards)
    gathered.clear()
    loss_of(model, 0, 0).backward()
    counts[reshards] = len(gathered)
assert size == 1 or counts[False] < counts[True], counts
model.unshard()
gathered.clear()
with sg.no_grad():
    loss_of(model, 0, 0)
assert not gathered
model.reshard()
with sg.no_grad():
    loss_of(model, 0, 0)
assert size == 1 or gathered
Gathering.gather = kept
optimizer.zero_grad()

# What a program has changed is saved, also while it holds an array.
for change in ("in place", "array", "unsharded"):
    changed = nn.Linear(300, 70)
    fully_shard(changed)
    trained = sg.optim.SGD(changed.parameters(), lr=0.1)
    if change == "array":
        array = changed.weight.numpy()
        array[:] = 3
    else:
        if change == "unsharded":
            changed.unshard()
        with sg.no_grad():
            changed.weight.fill_(3.0)
    sg.save_checkpoint(Path(sys.argv[1]) / "changed", changed, trained)
    loaded = nn.Linear(300, 70)
    sg.load_checkpoint(Path(sys.argv[1]) / "changed", loaded)
    assert (loaded.weight.numpy() == 3).all(), change
    array = None

# Models are told apart, and each has its own settings.
alike = nn.Linear(300, 70)
fully_shard(alike, reshard_after_forward=False)
if size > 1:
    assert not changed._fully_sharded._gathering.keeps_until_backward
    before = [p.numel() for p in alike.parameters()] if rank == 0 else []  # which needs no other process

# Gradients of this process alone, added up at the end; an average, as PyTorch's.
x = sg.tensor(np.random.default_rng(rank).normal(size=(4, 300)).astype("f"))
linear = nn.Linear(300, 70)
fully_shard(linear)
single = nn.Linear(300, 70)
single.load_state_dict({name: sg.tensor(value.numpy()) for name, value in linear.state_dict().items()})
linear.set_requires_gradient_sync(False)
linear(x).sum().backward()
assert linear.weight.grad.shape == (70, 300) and not isinstance(linear.weight.grad, ShardedTensor)
linear.set_requires_gradient_sync(True)
linear(x).sum().backward()
gradients = []
for other in range(size):
    each = sg.tensor(np.random.default_rng(other).normal(size=(4, 300)).astype("f"))
    single.zero_grad()
    for _ in range(2):
        single(each).sum().backward()
    gradients.append(single.weight.grad.numpy() / np.float32(size))
grad = linear.weight.grad
whole = (grad.full_tensor() if size > 1 else grad).numpy()
assert np.allclose(whole, sum(gradients), rtol=1e-5, atol=1e-6)

# Any number of processes goes on; copies and pickles are whole models.
saved = Path(sys.argv[1]) / "checkpoint"
model, optimizer = sharded("adamw")
train(model, optimizer, False, 0.5)
wanted = as_bytes(model, optimizer)
sg.save_checkpoint(saved, model, optimizer, step=STEPS)
again, other = sharded("adamw", seed=5)
sg.load_checkpoint(saved, again, other)
require_same(as_bytes(again, other), wanted)
for each in ((again, other), (model, optimizer)):
    train(*each, False, 0.5, steps=[STEPS])
require_same(as_bytes(again, other), as_bytes(model, optimizer))
alone = Net()
sg.load_checkpoint(saved, alone, OPTIMIZERS["adamw"]([p for p in alone.parameters() if p.requires_grad]))
sg.load_checkpoint(saved, model, optimizer)
optimizer.zero_grad()
for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
    assert type(copied) is Net
    assert {k: v.numpy().tobytes() for k, v in copied.state_dict().items()} == {
        k: v.numpy().tobytes() for k, v in alone.state_dict().items()
    }

# Mistakes.
if len(sys.argv) > 2:  # two models of one shape
    (linear if rank == 0 else alike)(x)
second = nn.Linear(300, 70)
fully_shard(second)
offloaded = sg.disk_offload(nn.Linear(2, 2), None, Path(sys.argv[1]), ram_budget="1MiB", shard=None)
for act, error, told in (
    (lambda: fully_shard(nn.GELU()), DistributedError, "fully_shard: got a model without parameters"),
    (lambda: fully_shard(nn.Linear(2, 2), wire="int4"), ArgumentError, "fully_shard"),
    (lambda: fully_shard(nn.Linear(2, 2), mesh=object()), UnsupportedError, "process_group"),
    (lambda: fully_shard(offloaded.model), UnsupportedError, "weight is offloaded"),
    (lambda: fully_shard(nn.Linear(2, 2 + rank)), DistributedError, "fully_shard: ranks 0 and"),
    (lambda: sg.optim.SGD([*linear.parameters(), *second.parameters()]), ArgumentError, "of two models"),
):
    if size == 1 and error is not UnsupportedError and "int4" not in told:
        continue
    try:
        act()
        raise AssertionError(f"{told}: it is not refused")
    except error as raised:
        assert told in str(raised), raised
print(f"rank {rank} of {size}: fully sharded")
