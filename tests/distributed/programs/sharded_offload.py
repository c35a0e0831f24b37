"""Offloaded training by several processes, compared bit for bit with one that runs the batches of all in RAM."""

import contextlib
import errno
import gc
import os
import sys
import tempfile
import weakref
from pathlib import Path

import numpy as np
from net import BATCHES, OPTIMIZERS, STEPS, Net, as_bytes, loss_of, one_process, require_same

import spillgrad as sg
import spillgrad.distributed as dist
from spillgrad import nn
from spillgrad.distributed.sharded_tensor import ShardedTensor
from spillgrad.errors import (
    ArgumentError,
    CheckpointError,
    DistributedError,
    GraphError,
    OperandError,
    UnsupportedError,
)
from spillgrad.files import safetensors_io
from spillgrad.spill.offload import needs

dist.init_process_group("mpi")
rank, size = dist.get_rank(), dist.get_world_size()
shard = sys.argv[2]
if shard == "all":  # the layer that some batches skip is too small for parts
    needs._LEAST_PART_BYTES = (32 << 10) // size


def offloaded(kind, autocast, max_norm, folder, seed=1, budget="300KiB", wire="float32"):
    """Return an offload of the processes, whose weights are those of the first one."""
    sg.manual_seed(seed + rank)
    offload = sg.disk_offload(
        Net, OPTIMIZERS[kind], folder, ram_budget=budget, max_grad_norm=max_norm, wire=wire, shard=shard
    )
    offload.set_gradient_divide_factor(1)
    return offload


def train(offload, autocast, steps=range(STEPS)):
    for step in steps:
        offload.optimizer.zero_grad()
        with sg.autocast("cpu") if autocast else contextlib.nullcontext():
            for first in range(0, BATCHES, size):
                if first + rank >= BATCHES:
                    offload.contribute_nothing()
                    continue
                with sg.save_on_disk(offload):
                    loss = loss_of(offload.model, step, first + rank) * (1 / BATCHES)
                loss.backward()
        offload.optimizer.step()


def no_room(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


folder = Path(tempfile.mkdtemp(prefix=f"rank{rank}-", dir=sys.argv[1]))
for kind, autocast, max_norm in (
    ("adamw", False, 0.5), ("adamw", True, None), ("sgd", False, None), ("in 8 bits", False, 0.5),
    ("in bfloat16", True, None),
):  # fmt: skip
    wanted = one_process(kind, autocast, max_norm)
    offload = offloaded(kind, autocast, max_norm, folder)
    train(offload, autocast)
    require_same(as_bytes(offload.model, offload.optimizer), wanted)
    stats = offload.stats()
    assert stats.peak_ram_bytes <= 300 << 10, stats.peak_ram_bytes
    assert stats.read_bytes > 0

for wire in ("bfloat16", "int8"):
    wanted = one_process("adamw", False, 0.5, wire=wire)
    offload = offloaded("adamw", False, 0.5, folder, budget="420KiB", wire=wire)
    train(offload, False)
    require_same(as_bytes(offload.model, offload.optimizer), wanted)
    assert offload.stats().peak_ram_bytes <= 420 << 10, offload.stats().peak_ram_bytes
offload = offloaded("sgd", False, None, folder)
train(offload, False)
wanted = as_bytes(offload.model, offload.optimizer)

# All write their ranges, or the first one writes all if the others do not see its folder: the files are the same. Any
# number of processes goes on from them.
saved, written = Path(sys.argv[1]) / "checkpoint", []
write_ranges = safetensors_io.write_ranges


def counted(folder, ranges):
    checksums = write_ranges(folder, ranges)
    written.append(sum(map(len, checksums)))
    return checksums


safetensors_io.write_ranges = counted
version = sg.save_checkpoint(saved, offload.model, offload.optimizer, step=STEPS)
assert version.is_dir()
assert len(written) >= 2
assert sum(written) > 0
written.clear()
elsewhere = saved if rank == 0 else Path(sys.argv[1]) / f"elsewhere-{rank}"
another = sg.save_checkpoint(elsewhere.with_name(f"{elsewhere.name}-2"), offload.model, offload.optimizer, step=STEPS)
assert bool(written) == (rank == 0)
dist.barrier()
assert not elsewhere.exists() or rank == 0
for name in ("model.safetensors", "optimizer.safetensors", "state.json"):
    assert (version / name).read_bytes() == (another / name).read_bytes(), name
sg.manual_seed(7)
again = offloaded("sgd", False, None, folder, seed=7)
sg.load_checkpoint(saved, again.model, again.optimizer)
require_same(as_bytes(again.model, again.optimizer), wanted)
train(again, False, steps=[STEPS])
train(offload, False, steps=[STEPS])
require_same(as_bytes(again.model, again.optimizer), as_bytes(offload.model, offload.optimizer))
alone = Net()
optimizer = OPTIMIZERS["sgd"]([p for p in alone.parameters() if p.requires_grad])
sg.load_checkpoint(saved, alone, optimizer)
require_same(as_bytes(alone, optimizer), wanted)

# A checkpoint that one process cannot write is an error in all, and what was there stays.
for full, function in ((0, "write"), (0, "write_ranges"), (size - 1, "write_ranges")):
    kept = getattr(safetensors_io, function)
    if rank == full:
        setattr(safetensors_io, function, no_room)
    try:
        sg.save_checkpoint(saved, again.model, again.optimizer, step=9)
        raise AssertionError("it is saved")
    except CheckpointError as error:
        assert "No space left on device" in str(error), error
        assert function == "write" or f"rank {full}: " in str(error), error
    setattr(safetensors_io, function, kept)
assert sg.load_checkpoint(saved)["step"] == STEPS
assert len(list(saved.glob("step-*"))) == 1
dist.barrier()  # before the next save begins


def interrupted(*_):
    raise KeyboardInterrupt


# So is an interrupt of one, and all can go on.
for who in (0, size - 1):
    kept = safetensors_io.write_ranges
    if rank == who:
        safetensors_io.write_ranges = interrupted
    try:
        sg.save_checkpoint(saved, again.model, again.optimizer, step=9)
        raise AssertionError("it is saved")
    except KeyboardInterrupt:
        assert rank == who
    except CheckpointError as error:
        assert rank != who and "KeyboardInterrupt" in str(error), error
    safetensors_io.write_ranges = kept
assert sg.load_checkpoint(saved)["step"] == STEPS

# What is not updated together is saved as the first process has it.
with sg.no_grad():
    values = again.model.frozen.weight.clone()
    again.model.frozen.weight.fill_(float(rank))
sg.save_checkpoint(Path(sys.argv[1]) / "frozen", again.model, again.optimizer)
if shard == "state":
    alone = Net()
    sg.load_checkpoint(Path(sys.argv[1]) / "frozen", alone)
    assert (alone.frozen.weight.numpy() == 0).all()
with sg.no_grad():
    again.model.frozen.weight.copy_(values)

# Saves that one process alone makes go wrong are errors in all.
for extra in ({"set": {1}}, {}):
    try:
        sg.save_checkpoint(saved, again.model, again.optimizer, step=9, extra=extra if rank == 0 else {})
        assert not extra
    except (OperandError, CheckpointError) as error:
        assert "JSON cannot hold extra" in str(error), error
sg.load_checkpoint(saved, again.model, again.optimizer)
require_same(as_bytes(again.model, again.optimizer), as_bytes(offload.model, offload.optimizer))

# An update that is interrupted, or a state that is loaded, leaves nothing under way and no state in parts.
offload = offloaded("adamw", False, 0.5, folder)
train(offload, False, steps=[0])
loss_of(offload.model, 1, rank).backward()
kept, calls = offload.optimizer.update, []


def interrupted(*arguments):
    calls.append(arguments)
    if len(calls) == 3:
        raise KeyboardInterrupt
    return kept(*arguments)


offload.optimizer.update = interrupted
try:
    offload.optimizer.step()
    raise AssertionError("it is not interrupted")
except KeyboardInterrupt:
    offload.optimizer.update = kept
state = offload.optimizer.state_dict()["state"].values()
kinds = {type(value) for entries in state for value in entries.values() if isinstance(value, sg.Tensor)}
assert kinds == {ShardedTensor}
before = as_bytes(offload.model, offload.optimizer)
offload.optimizer.load_state_dict(offload.optimizer.state_dict())
require_same(as_bytes(offload.model, offload.optimizer), before)
sg.save_checkpoint(saved, offload.model, offload.optimizer)
sg.load_checkpoint(saved, offload.model, offload.optimizer)
offload.model.load_state_dict(offload.model.state_dict())
require_same(as_bytes(offload.model, offload.optimizer), before)

# Gradients that a user sets or changes count, as in one process.
offload.optimizer.zero_grad(set_to_none=False)
assert not offload.model.scale.grad.full_tensor().numpy().any()
offload.model.scale.grad = sg.tensor(3.0)
offload.optimizer.zero_grad(set_to_none=True)
for parameter in offload.model.parameters():
    if parameter.requires_grad:
        parameter.grad = sg.ones_like(parameter)
loss_of(offload.model, 0, 0).backward()
found = {name: p.grad.full_tensor().numpy() for name, p in offload.model.named_parameters() if p.requires_grad}
offload.optimizer.zero_grad()
loss_of(offload.model, 0, 0).backward()
for name, parameter in offload.model.named_parameters():
    if parameter.requires_grad and parameter.grad is not None:
        total = np.ones_like(found[name])
        gradient = parameter.grad.full_tensor().numpy() / np.float32(size)
        assert np.allclose(total + size * gradient, found[name], rtol=1e-5, atol=1e-6), name
norms = []
for factor in (1.0, 0.001):
    offload.optimizer.zero_grad()
    loss_of(offload.model, 0, 0).backward()
    for parameter in offload.model.parameters():
        if parameter.grad is not None:
            with sg.no_grad():
                parameter.grad.shard.mul_(factor)
    offload.optimizer.step()
    norms.append(offload.grad_norm)
    sg.load_checkpoint(saved, offload.model)
assert abs(norms[0] / norms[1] / 1000 - 1) < 1e-4, norms

# Parts of which this process has none hold no memory; the store goes when the model does.
gc.collect()
gc.disable()
deep = sg.disk_offload(
    lambda: nn.Sequential(*(nn.Linear(256, 256) for _ in range(40))),
    sg.optim.AdamW,
    folder,
    ram_budget="4MiB",
    shard=shard,
)
deep.model(sg.ones(2, 256)).sum().backward()
assert deep.stats().peak_ram_bytes <= 4 << 20, deep.stats().peak_ram_bytes
known = weakref.ref(deep._training)
del deep
assert known() is None, "a cycle holds it"
gc.enable()

# Updates at the end of each backward, and sums that each process makes first.
offload = sg.disk_offload(
    nn.Linear(300, 70),
    lambda params: sg.optim.AdamW(params, lr=0.1),
    folder,
    ram_budget="1MiB",
    step_in_backward=True,
    shard=shard,
)
single = nn.Linear(300, 70)
single.load_state_dict(offload.model.state_dict())
optimizer = sg.optim.AdamW(single.parameters(), lr=0.1)
for step in range(2):
    inputs = [sg.tensor(np.random.default_rng(number).normal(size=(4, 300)).astype("f")) for number in range(size)]
    offload.model(inputs[rank]).square().mean().backward()
    assert offload.model.weight.grad is None
    for x in inputs:
        gradients = sg.autograd.grad(single(x).square().mean(), list(single.parameters()))
        for parameter, gradient in zip(single.parameters(), gradients, strict=True):
            gradient = gradient / size
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
    optimizer.step()
    optimizer.zero_grad()
    assert offload.model.weight.numpy().tobytes() == single.weight.numpy().tobytes(), step
del offload

offload = sg.disk_offload(nn.Linear(300, 70), sg.optim.AdamW, folder, ram_budget="1MiB", shard=shard)
x = sg.ones(4, 300)
with offload.no_sync():
    offload.model(x * rank).sum().backward()
assert offload.model.weight.grad.shape == (70, 300)
try:
    offload.optimizer.step()
    raise AssertionError("it updates by what this process has alone")
except GraphError as error:
    assert "outside no_sync()" in str(error)
offload.model(x).sum().backward()
total = sum(4 * (other + 1) for other in range(size)) / size
assert isinstance(offload.model.weight.grad, ShardedTensor)
assert (offload.model.weight.grad.full_tensor().numpy() == np.float32(total)).all()
try:
    offload.model.weight.grad + 1
    raise AssertionError("it computes with a part of a gradient")
except GraphError as error:
    assert "is in" in str(error), error
wholes = [parameter.grad.full_tensor() for parameter in offload.model.parameters()]
for norm_type in (2.0, 1.0, float("inf")):
    others = [nn.Parameter(sg.zeros_like(whole)) for whole in wholes]
    for other, parameter in zip(others, offload.model.parameters(), strict=True):
        other.grad = parameter.grad.full_tensor()
    norms = [
        nn.utils.clip_grad_norm_(parameters, 1.0, norm_type).item()
        for parameters in (offload.model.parameters(), others)
    ]
    assert norms[0] == norms[1] > 0, norms
    nn.utils.clip_grad_value_(offload.model.parameters(), 0.01)
    nn.utils.clip_grad_value_(others, 0.01)
    for other, parameter in zip(others, offload.model.parameters(), strict=True):
        assert parameter.grad.full_tensor().numpy().tobytes() == other.grad.numpy().tobytes()
        with sg.no_grad():
            parameter.grad.shard.mul_(1e4)
with offload.no_sync():
    try:
        offload.model(x).sum().backward()
        raise AssertionError("it adds to a sum over all processes")
    except GraphError as error:
        assert "has a sum over all processes, to which no_sync()" in str(error)
offload.optimizer.zero_grad()
assert offload.model.weight.grad is None

for make, error, told in (
    (
        lambda: sg.disk_offload(nn.Linear(2, 2), sg.optim.Adafactor, folder, ram_budget="1MiB"),
        UnsupportedError,
        "Adafactor",
    ),
    (lambda: sg.disk_offload(nn.Linear(2, 2), None, folder, ram_budget="1MiB", shard="al"), ArgumentError, "'state'"),
    (lambda: sg.disk_offload(nn.Linear(2, 2 + rank), None, folder, ram_budget="1MiB"), DistributedError, "different"),
):
    try:
        make()
        raise AssertionError(f"{told}: it is not refused")
    except error as raised:
        assert told in str(raised), raised
offload = sg.disk_offload(nn.Linear(2, 2), None, folder, ram_budget="1MiB", shard=None)  # alone
if rank == 0:
    offload.model(sg.ones(1, 2)).sum().backward()
print(f"rank {rank} of {size}: the bits of one process", flush=True)
