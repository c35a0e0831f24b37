"""A model of whose parameters each process has a part: what programs do with it beside training."""

import copy
import sys
import tempfile
from pathlib import Path

import numpy as np

import spillgrad as sg
import spillgrad.distributed as dist
from spillgrad import nn
from spillgrad.distributed.process_group import Work
from spillgrad.errors import DistributedError
from spillgrad.spill.offload import needs
from spillgrad.spill.offload.gathered import Gathering

dist.init_process_group("mpi")
rank, size = dist.get_rank(), dist.get_world_size()
folder = Path(tempfile.mkdtemp(prefix=f"rank{rank}-", dir=sys.argv[1]))
LAYERS, WIDTH = 6, 256


def build(layers=LAYERS):
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers)), nn.BatchNorm1d(WIDTH))


def offloaded(model=build, budget="2MiB", **options):
    return sg.disk_offload(
        model, lambda params: sg.optim.AdamW(params, lr=1e-3), folder, ram_budget=budget, shard="all", **options
    )


def same_everywhere(value):
    found = [None] * size
    dist.all_gather_object(found, value)
    assert all(other == found[0] for other in found)
    return found[0]


def values(model):
    return {name: tensor.numpy().tobytes() for name, tensor in model.state_dict().items()}


# A function builds the model with the first process's random state; each goes on from its own. The disk has the parts.
sg.manual_seed(3)
wanted = build()
sg.manual_seed(3 + rank)
offload = offloaded()
if rank:
    sg.manual_seed(3 + rank)
    wanted_next = sg.rand(3).tolist()
    sg.manual_seed(3 + rank)
    offload = offloaded()
    assert sg.rand(3).tolist() == wanted_next
else:
    offload = offloaded()
    sg.manual_seed(3)
    offload = offloaded()
if rank:
    sg.manual_seed(3 + rank)
    offload = offloaded()
assert same_everywhere(values(offload.model)) == values(wanted)
offload.flush()
whole_bytes = sum(tensor.nbytes for tensor in wanted.state_dict().values())
stored_bytes = offload.stats().disk_bytes
assert stored_bytes < whole_bytes / size * 1.5, (stored_bytes, whole_bytes)
weight = offload.model[0].weight
assert (weight.shape, weight.dtype, weight.nbytes, weight.is_leaf) == ((WIDTH, WIDTH), sg.float32, WIDTH**2 * 4, True)

# Of a model in RAM, all get the first one's values.
sg.manual_seed(5 + rank)
model = build()
first = [None] * size
dist.all_gather_object(first, values(model))
offload = offloaded(model)
assert values(offload.model) == first[0]

# Arrays are brought together before they are needed, once their order is known.
begun, waited = [], []
kept_begin, kept_wait = Gathering._begin, Work.wait
Gathering._begin = lambda self, handle, array: (begun.append(handle.sequence), kept_begin(self, handle, array))[1]
x = sg.tensor(np.random.default_rng(rank).normal(size=(8, WIDTH)).astype("f"))
for _ in range(2):
    offload.model(x).sum().backward()
    offload.optimizer.step()
begun.clear()
forward = nn.Linear.forward


def begun_before(module, input):
    waited.append(len(begun))
    return forward(module, input)


nn.Linear.forward = begun_before
offload.model(x).sum().backward()
nn.Linear.forward = forward
assert waited == [0, *range(2, LAYERS + 1)], waited  # nothing is ahead of a step's first layer
assert begun == [*range(LAYERS), *reversed(range(1, LAYERS))]  # the batch needs no gradient, nor the first weight again
Gathering._begin = kept_begin
offload.optimizer.step()

# Changes are those of the whole; what was brought together before has the new values.
before = {name: tensor.numpy().copy() for name, tensor in offload.model.state_dict().items()}
with sg.no_grad():
    for parameter in offload.model.parameters():
        parameter.mul_(2)
        parameter[0] = 1
for name, parameter in offload.model.named_parameters():
    before[name] = before[name] * np.float32(2)
    before[name][0] = 1
    assert (parameter.numpy() == before[name]).all(), name
array = offload.model[1].weight.numpy()
array[:] = 7
assert (offload.model[1].weight.detach()[3] == 7).all().item()
del array
assert (offload.model[1].weight.numpy() == 7).all()
offload.model[2].weight.data = sg.full((WIDTH, WIDTH), 3.0)
assert (offload.model[2].weight.numpy() == 3).all()
offload.model[2].weight.data = sg.full((WIDTH, WIDTH), 4.0)

# Loading a checkpoint brings nothing together; copies are whole, and in RAM.
saved = Path(sys.argv[1]) / "wanted"
if rank == 0:
    sg.save_checkpoint(saved, wanted)
dist.barrier()
gathered, kept = [], Gathering.gather
Gathering.gather = lambda *arguments: (gathered.append(arguments), kept(*arguments))[1]
sg.load_checkpoint(saved, offload.model)
assert not gathered
Gathering.gather = kept
assert values(offload.model) == values(wanted)
offload.model[1].load_state_dict(wanted[0].state_dict())
assert values(offload.model[1]) == values(wanted[0])
offload.model.load_state_dict(wanted.state_dict())
offload.optimizer.zero_grad()
alone = copy.deepcopy(offload.model)
assert values(alone) == values(wanted)
assert not alone[0].weight.storage.offloaded

# Evaluation under a budget that holds one layer at a time; other processes have more.
least = offloaded(lambda: copy.deepcopy(wanted), budget=offload.least_budget * (1 + 3 * rank))
with sg.no_grad():
    found = least.model.eval()(least.model(x)).numpy()
assert found.tobytes() == wanted.eval()(wanted(x)).detach().numpy().tobytes()
if rank == 0:
    assert least.stats().peak_ram_bytes <= offload.least_budget, (least.stats().peak_ram_bytes, offload.least_budget)
least.model.train()

# All save, with an optimizer or without; one process loads.
for optimizer in (None, offload.optimizer):
    saved = Path(sys.argv[1]) / f"saved-{optimizer is None}"
    sg.save_checkpoint(saved, offload.model, optimizer)
    loaded = build()
    sg.load_checkpoint(saved, loaded)
    assert values(loaded) == values(wanted)

# An array that a program still holds does not keep its parameter from being updated.
sg.load_checkpoint(saved, offload.model, offload.optimizer)
start = values(offload.model)
ends = []
for holds in (False, True):
    model = build()
    sg.load_checkpoint(Path(sys.argv[1]) / "wanted", model)
    trained = offloaded(model)
    held = trained.model[1].weight.numpy() if holds else None
    if holds:
        held[0] = 5
    else:
        with sg.no_grad():
            trained.model[1].weight[0] = 5
    for _ in range(2):
        trained.model(x).square().sum().backward()
        trained.optimizer.step()
        trained.optimizer.zero_grad()
    ends.append(values(trained.model))
assert ends[0] == ends[1] != start

# What a parameter is like needs no other process; a use outside of modules brings it together once.
if rank == 0:
    weight = trained.model[1].weight
    about = (weight.numel(), weight.stride(), weight.is_contiguous(), weight.storage_offset(), weight.dim())
    assert about == (WIDTH**2, (WIDTH, 1), True, 0, 2)
gathered.clear()
Gathering.gather = lambda *arguments: (gathered.append(arguments), kept(*arguments))[1]
with sg.no_grad():
    trained.model[1].weight.mul_(2)
    trained.model[1].weight.clamp_(-1, 1)
assert len(gathered) <= 2, len(gathered)
Gathering.gather = kept

# Another dtype is in parts, too.
expected = {name: tensor.numpy().astype("f8") for name, tensor in trained.model.state_dict().items()}
trained.model.double()
assert trained.model[1].weight.dtype == sg.float64
assert trained.model[1].weight._storage.in_parts.dtype == sg.float64
for name, parameter in trained.model.named_parameters():
    assert (parameter.numpy() == expected[name]).all(), name

# A process without a batch repeats a round of two forwards and one backward.
pair = offloaded(lambda: nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3))))
for turn in range(2):
    if turn == 0 or rank == 0:
        (pair.model(x).square().sum() + pair.model(x * 2).square().sum()).backward()
    else:
        pair.contribute_nothing()
pair.optimizer.step()

# A process that has had no batch cannot know what to take part in.
try:
    offloaded().contribute_nothing()
    raise AssertionError("it knows what the others gather")
except DistributedError as error:
    assert "has had no batch yet" in str(error), error

# Parameters of fewer chunks than processes: some have no part.
needs._LEAST_PART_BYTES = 1 << 10
sg.manual_seed(1)
offload = offloaded(lambda: nn.Linear(64, 80))
single = nn.Linear(64, 80)
single.load_state_dict(offload.model.state_dict())
optimizer = sg.optim.AdamW(single.parameters(), lr=1e-3)
offload.set_gradient_divide_factor(1)
for _ in range(2):
    for model in (offload.model, single):
        model(x[:, :64] * 0 + 1).square().mean().backward()
    for parameter in single.parameters():
        parameter.grad = sum(([parameter.grad] * (size - 1)), parameter.grad)
    for each in (offload.optimizer, optimizer):
        each.step()
        each.zero_grad()
assert values(offload.model) == values(single)

# Whoever uses a parameter alone is told so, and so are the others.
if len(sys.argv) > 2:
    if rank == 0:
        print(offload.model.weight.sum().item())
    dist.barrier()
print(f"rank {rank} of {size}: in parts")
