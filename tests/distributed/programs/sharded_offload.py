"""Offloaded training by several processes, compared bit for bit with one that runs the batches of all in RAM."""

import contextlib
import sys
import tempfile
from pathlib import Path

import numpy as np

import spillgrad as sg
import spillgrad.distributed as dist
from spillgrad import nn
from spillgrad.distributed.sharded_tensor import ShardedTensor
from spillgrad.errors import ArgumentError, GraphError, UnsupportedError
from spillgrad.generator import GeneratorState

dist.init_process_group("mpi")
rank, size = dist.get_rank(), dist.get_world_size()
STEPS, BATCHES = 4, 12
F = nn.functional


class Net(nn.Module):
    """Tied weights, dropout, a layer that some batches skip, one that all skip, a frozen one, a scale of no dimension."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(300, 64)
        self.hidden = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.2), nn.Linear(256, 64))
        self.sometimes = nn.Linear(64, 64)
        self.never = nn.Linear(64, 64)
        self.frozen = nn.Linear(64, 64).requires_grad_(False)
        self.scale = nn.Parameter(sg.tensor(1.5))

    def forward(self, tokens, often):
        x = self.embedding(tokens)
        x = self.frozen(x + self.hidden(x)) * self.scale
        return F.linear(self.sometimes(x) if often else x, self.embedding.weight)


def batch(step, number):
    rng = np.random.default_rng((step, number))
    return sg.tensor(rng.integers(0, 300, (2, 16))), sg.tensor(rng.integers(0, 300, (2, 16)))


def loss_of(model, step, number):
    """Return a batch's share of the loss. Random numbers hang on the batch's number, not on the process."""
    tokens, targets = batch(step, number)
    with sg.default_generator.replay(GeneratorState(step, number << 40)):
        logits = model(tokens, often=number % 3 != 1)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten()) * (1 / BATCHES)


OPTIMIZERS = {
    "adamw": lambda params: sg.optim.AdamW(params, lr=1e-2),
    "sgd": lambda params: sg.optim.SGD(params, lr=1e-1, momentum=0.9),
}


def as_bytes(model, optimizer):
    """Return the bytes of parameters and of the optimizer's state."""
    found = {name: value.numpy().tobytes() for name, value in model.state_dict().items()}
    for number, state in optimizer.state_dict()["state"].items():
        for key, value in state.items():
            if isinstance(value, ShardedTensor):
                value = value.full_tensor()
            found[f"{number}.{key}"] = value.numpy().tobytes() if isinstance(value, sg.Tensor) else value
    return found


def one_process(kind, autocast, max_norm, seed=1):
    sg.manual_seed(seed)
    model = Net()
    optimizer = OPTIMIZERS[kind]([p for p in model.parameters() if p.requires_grad])
    for step in range(STEPS):
        optimizer.zero_grad()
        with sg.autocast("cpu") if autocast else contextlib.nullcontext():
            for number in range(BATCHES):
                loss_of(model, step, number).backward()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
    return as_bytes(model, optimizer)


def offloaded(kind, autocast, max_norm, folder, seed=1, budget="300KiB"):
    """Return an offload of the processes, whose weights are those of the first one."""
    sg.manual_seed(seed + rank)
    offload = sg.disk_offload(Net, OPTIMIZERS[kind], folder, ram_budget=budget, max_grad_norm=max_norm)
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
                    loss = loss_of(offload.model, step, first + rank)
                loss.backward()
        offload.optimizer.step()


def require_same(found, wanted):
    assert list(found) == list(wanted)
    differing = [name for name, value in wanted.items() if found[name] != value]
    assert not differing, differing


folder = Path(tempfile.mkdtemp(prefix=f"rank{rank}-", dir=sys.argv[1]))
for kind, autocast, max_norm in (("adamw", False, 0.5), ("adamw", True, None), ("sgd", False, None)):
    wanted = one_process(kind, autocast, max_norm)
    offload = offloaded(kind, autocast, max_norm, folder)
    train(offload, autocast)
    require_same(as_bytes(offload.model, offload.optimizer), wanted)
    stats = offload.stats()
    assert stats.peak_ram_bytes <= 300 << 10, stats.peak_ram_bytes
    assert stats.read_bytes > 0
print(f"rank {rank} of {size}: all right")
