"""Training by several processes, compared bit for bit with one that runs the batches of all after one another."""

import contextlib
import sys
import time

import numpy as np
from net import Net, add_rounded, loss_of, rounded

import spillgrad as sg
import spillgrad.distributed as dist
from spillgrad import nn
from spillgrad.nn.parallel import DistributedDataParallel

dist.init_process_group("mpi")
rank, size = dist.get_rank(), dist.get_world_size()
STEPS, BATCHES = 4, 12


def train(model, run_batches, autocast):
    optimizer = sg.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for step in range(STEPS):
        optimizer.zero_grad()
        with sg.autocast("cpu") if autocast else contextlib.nullcontext():
            run_batches(step)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    return {name.removeprefix("module."): value for name, value in model.state_dict().items()}


def require_same(found, wanted):
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        assert value.numpy().tobytes() == found[name].numpy().tobytes(), name


def one_process(autocast, wire="float32"):
    sg.manual_seed(1)
    model = Net()

    def run_batches(step):
        for number in range(BATCHES):
            add_rounded(model, loss_of(model, step, number) * (1 / BATCHES), wire)
        for parameter in model.parameters():
            if parameter.grad is not None and wire != "float32":
                parameter.grad = rounded(parameter.grad, "bfloat16")  # on the way back

    return train(model, run_batches, autocast)


def several(autocast, bucket_cap_mb, wire="float32"):
    sg.manual_seed(1 + rank)  # the first process's weights are taken
    parallel = DistributedDataParallel(Net(), bucket_cap_mb=bucket_cap_mb, wire=wire)
    parallel.set_gradient_divide_factor(1)

    def run_batches(step):
        for number in range(rank, BATCHES, size):
            (loss_of(parallel, step, number) * (1 / BATCHES)).backward()

    return train(parallel, run_batches, autocast)


for autocast in (False, True):
    wanted = one_process(autocast)
    for bucket_cap_mb in (None, 0.01):
        require_same(several(autocast, bucket_cap_mb), wanted)

for wire in ("bfloat16", "int8"):
    wanted = one_process(False, wire)
    for bucket_cap_mb in (None, 0.01):
        require_same(several(False, bucket_cap_mb, wire), wanted)

# Where sums travel back rounded, a later backward adds to the exact ones; but to what a user has put in their place.
parallel = DistributedDataParallel(nn.Linear(1, 1, bias=False), wire="bfloat16")
parallel.set_gradient_divide_factor(1)
weight = parallel.module.weight
for x, rounded_sum in ((1.0, 1.0), (2**-8, 1.0), (2**-7, 1 + 2**-6)):  # both sums lie halfway, and end even
    parallel(sg.tensor([[x if rank == 0 else 0.0]])).sum().backward()
    assert weight.grad.item() == rounded_sum
for act in (lambda: weight.grad.numpy().fill(3.0), lambda: setattr(weight.grad, "data", sg.tensor([[3.0]]))):
    act()
    parallel(sg.tensor([[1.0 if rank == 0 else 0.0]])).sum().backward()
    assert weight.grad.item() == 4.0

# PyTorch's own way: the average over processes, of sums that each made under no_sync.
model = nn.Linear(8, 8)
parallel = DistributedDataParallel(model)
inputs = [sg.tensor(np.random.default_rng(number).normal(size=(4, 8)).astype(np.float32)) for number in range(3 * size)]
mine = inputs[rank::size]
for x in mine[:-1]:
    with parallel.no_sync():
        parallel(x).square().mean().backward()
parallel(mine[-1]).square().mean().backward()
sums = []
for other in range(size):
    single = nn.Linear(8, 8)
    single.load_state_dict(model.state_dict())
    for x in inputs[other::size]:
        single(x).square().mean().backward()
    sums.append(single.weight.grad.numpy() / np.float32(size))
total = sums[0]
for term in sums[1:]:
    total = total + term
assert model.weight.grad.numpy().tobytes() == total.tobytes()

# While a sum is under way, nobody sees its memory: neither a hook, nor who goes on after a backward that fails.
large = nn.Linear(1000, 1000, bias=False)
parallel = DistributedDataParallel(large)
parallel.set_gradient_divide_factor(1)
kept = []
handle = large.weight.register_post_accumulate_grad_hook(lambda param: kept.append(param.grad))


def change(param):
    param.grad.mul_(0.5)


handle_of_change = large.weight.register_post_accumulate_grad_hook(change)
parallel(sg.ones(2, 1000)).sum().backward()
assert large.weight.grad[0, 0].item() == (2 * size if size > 1 else 1)
handle.remove()
handle_of_change.remove()
first = DistributedDataParallel(large)
first.set_gradient_divide_factor(1)
large.zero_grad()
(first(sg.ones(2, 1000)) + parallel(sg.ones(2, 1000))).sum().backward()
assert large.weight.grad[0, 0].item() == 4 * size
del first

# A backward that fails leaves nothing that a later one would add.
model = nn.Linear(4, 4)
parallel = DistributedDataParallel(model)
parallel.set_gradient_divide_factor(1)
parallel(sg.ones(2, 4)).sum().backward()


class Fails(sg.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise ZeroDivisionError


parallel = DistributedDataParallel(nn.Sequential(nn.Linear(4, 300_000), nn.Linear(300_000, 1)), wire="int8")
parallel.set_gradient_divide_factor(1)
for _ in range(2):
    parallel(sg.ones(2, 4)).sum().backward()
    parallel.zero_grad()
# A process that is slower than the others sees sums that they still wait for.
handle = parallel.module[0].weight.register_hook(lambda grad: time.sleep(0.2 if rank == size - 1 else 0.0))
for _ in range(3):
    try:
        parallel(Fails.apply(sg.ones(2, 4, requires_grad=True))).sum().backward()
        raise AssertionError("it does not fail")
    except ZeroDivisionError:
        parallel.zero_grad(set_to_none=False)
handle.remove()
parallel(sg.ones(2, 4)).sum().backward()
assert parallel.module[1].bias.grad.item() == 2.0 * size

# Whoever has a hook, and whatever has arrived: after a backward that fails, all processes have the same gradients.
for has_hook in (rank == 0, True):
    layers = [nn.Linear(1500, 1500, bias=False) for _ in range(12)]
    parallel = DistributedDataParallel(nn.Sequential(*layers))
    handles = [layer.weight.register_post_accumulate_grad_hook(lambda param: None) for layer in layers if has_hook]
    for _ in range(2):
        try:
            out = parallel(Fails.apply(sg.full((2, 1500), rank + 1.0, requires_grad=True)))
            out.sum().backward()
            raise AssertionError("it does not fail")
        except ZeroDivisionError:
            assert size == 1 or all(layer.weight.grad is None for layer in layers)
        parallel(sg.full((2, 1500), rank + 1.0)).sum().backward()
        assert layers[-1].weight.grad is not None
    del parallel, layers, handles, out

parallel = DistributedDataParallel(model)
parallel.set_gradient_divide_factor(1)
parallel.zero_grad()
parallel(sg.ones(2, 4)).sum().backward()
try:
    (model.weight.sum() + Fails.apply(parallel(sg.ones(2, 4))).sum()).backward()
    raise AssertionError("it does not fail")
except ZeroDivisionError:
    model.zero_grad()
parallel(sg.ones(2, 4)).sum().backward()
assert model.weight.grad.tolist() == [[2.0 * size] * 4] * 4
try:
    with parallel.no_sync():
        parallel(sg.ones(2, 4)).sum().backward()
    assert size == 1
except sg.errors.GraphError as error:
    assert "to which no_sync() would add what this one has alone" in str(error)
dist.barrier()

# What does not accumulate, or does not go through the wrapper, is each process's own.
parallel.zero_grad()
parallel.set_gradient_divide_factor(size)
parallel(sg.ones(2, 4)).sum().backward()
kept = model.weight.grad.clone()
found = sg.autograd.grad(model(sg.full((1, 4), float(rank))).sum(), [model.weight])[0]
assert found[0, 0].item() == rank
assert sg.equal(model.weight.grad, kept)
parallel.zero_grad()
model(sg.full((1, 4), float(rank))).sum().backward()
assert model.weight.grad[0, 0].item() == rank
parallel(sg.zeros(1, 4)).sum().backward()  # what was added up in one process is averaged with the rest
assert model.weight.grad[0, 0].item() == sum(range(size)) / size
kept = model.weight.grad.clone()
sg.autograd.grad(parallel(sg.full((1, 4), float(rank))).sum(), [model.weight])
assert sg.equal(model.weight.grad, kept)
frozen = parallel(sg.ones(1, 4)).sum()
before = model.bias.grad.clone()
model.bias.requires_grad_(False)
frozen.backward()
assert sg.equal(model.bias.grad, before)
model.bias.requires_grad_(True)

# A hook of the user's sees what this process adds; the second wrapper of a module is the one that counts.
seen = []
model.weight.register_post_accumulate_grad_hook(lambda param: seen.append(param.grad is not None))
del parallel
parallel = DistributedDataParallel(model)
parallel.set_gradient_divide_factor(1)
parallel.zero_grad()
parallel(sg.ones(2, 4)).sum().backward()
assert seen == [True]
assert model.weight.grad[0, 0].item() == 2 * size

# Uneven batches of a layer with buffers.
parallel = DistributedDataParallel(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4)))
for _ in range(rank, size + 1, size):
    parallel(sg.randn(8, 4)).sum().backward()
if size > 1 and rank > 0:
    parallel.contribute_nothing()

# Buffers follow the first process.
norm = DistributedDataParallel(nn.BatchNorm1d(4))
for _ in range(2):
    norm(sg.randn(8, 4) + rank).sum().backward()
found = [None] * size
norm.eval()(sg.randn(8, 4))
dist.all_gather_object(found, norm.module.num_batches_tracked.item())
assert found == [2] * size

sampler = sg.utils.data.DistributedSampler(range(10), shuffle=False)
assert (sampler.rank, sampler.num_replicas) == (rank, size)
print(f"rank {rank} of {size} has the same bits", flush=True, file=sys.stdout)
