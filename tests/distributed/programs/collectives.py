"""Every collective among the processes of a launcher, compared with NumPy's result on the same values."""

import datetime

import numpy as np

import spillgrad as sg
import spillgrad.distributed as dist

dist.init_process_group("mpi", timeout=datetime.timedelta(seconds=60))
rank, size = dist.get_rank(), dist.get_world_size()
WIDTHS = (1, 7, 5003, 1 << 20)


def values(of, width, dtype=np.float32):
    return np.random.default_rng((of, width)).normal(size=width).astype(dtype)


def in_order(function, width, dtype=np.float32):
    total = values(0, width, dtype)
    for other in range(1, size):
        total = function(total, values(other, width, dtype))
    return total


def same(tensor, wanted):
    np.testing.assert_array_equal(tensor.numpy(), wanted)


for width in WIDTHS:
    mine = values(rank, width)
    for op, function in (("SUM", np.add), ("PRODUCT", np.multiply), ("MIN", np.minimum), ("MAX", np.maximum)):
        x = sg.tensor(mine)
        dist.all_reduce(x, getattr(dist.ReduceOp, op))
        same(x, in_order(function, width))
    x = sg.tensor(mine)
    work = dist.all_reduce(x, dist.ReduceOp.AVG, async_op=True)
    work.wait()
    assert work.is_completed() and work.is_success()
    same(x, in_order(np.add, width) / np.float32(size))
    x = sg.tensor(mine)
    dist.reduce(x, dst=size - 1)
    same(x, in_order(np.add, width) if rank == size - 1 else mine)
    x = sg.tensor(mine)
    dist.reduce(x, dst=size - 1, op=dist.ReduceOp.AVG)
    same(x, in_order(np.add, width) / np.float32(size) if rank == size - 1 else mine)
    for source in range(size):
        x = sg.tensor(mine)
        dist.broadcast(x, src=source)
        same(x, values(source, width))
    found = [sg.empty(width) for _ in range(size)]
    dist.all_gather(found, sg.tensor(mine))
    for other in range(size):
        same(found[other], values(other, width))
    one = sg.empty(size * width)
    dist.all_gather_into_tensor(one, sg.tensor(mine))
    same(one, np.concatenate([values(other, width) for other in range(size)]))
    found = [sg.empty(width) for _ in range(size)] if rank == 0 else None
    dist.gather(sg.tensor(mine), found, dst=0)
    for other in range(size) if rank == 0 else ():
        same(found[other], values(other, width))
    out = sg.empty(width)
    dist.scatter(out, [sg.tensor(values(10 + other, width)) for other in range(size)] if rank == 0 else None, src=0)
    same(out, values(10 + rank, width))
    dist.reduce_scatter(out, [sg.tensor(mine + other) for other in range(size)])
    total = values(0, width) + rank
    for other in range(1, size):
        total = total + (values(other, width) + rank)
    same(out, total.astype(np.float32))
    parts = sg.tensor(np.tile(mine, size))
    dist.reduce_scatter_tensor(out, parts)
    same(out, in_order(np.add, width))
    found = [sg.empty(width) for _ in range(size)]
    dist.all_to_all(found, [sg.tensor(mine * other) for other in range(size)])
    for other in range(size):
        same(found[other], values(other, width) * rank)
    out = sg.empty(sum(range(1, size + 1)))
    sizes = [other + 1 for other in range(size)]
    dist.all_to_all_single(out, sg.full((size * (rank + 1),), float(rank)), sizes, [rank + 1] * size)
    same(out, np.repeat(np.arange(size), sizes).astype(np.float32))

for dtype in (sg.float64, sg.bfloat16, sg.int64, sg.complex64, sg.bool):
    x = (sg.arange(6) % 2 + rank).to(dtype)
    wanted = (sg.arange(6) % 2).to(dtype)
    for other in range(1, size):
        wanted = (wanted + (sg.arange(6) % 2 + other).to(dtype)).to(dtype)
    dist.all_reduce(x)
    assert sg.equal(x, wanted), (dtype, x, wanted)
x = sg.full((5000,), 3e38)
dist.all_reduce(x)  # the sum is infinite, and nobody warns
assert x[0].item() == float("inf")
for call in (
    lambda: dist.all_gather_into_tensor(sg.empty(4 * size), sg.ones(4, dtype=sg.int32)),
    lambda: dist.all_reduce(sg.ones(1, dtype=sg.complex64), dist.ReduceOp.MAX),
    lambda: dist.all_gather_object([None] * size, lambda: 0),
    lambda: dist.send(x, (rank + 1) % size, tag=1 << 20),
):
    try:
        call()
        raise AssertionError("it does not fail")
    except (sg.errors.DistributedError, AttributeError, TypeError) as error:
        assert "fail" not in str(error), error
work = dist.all_reduce(polled := sg.ones(1000), async_op=True)
while not work.is_completed():
    pass
assert polled[0].item() == size
bits = sg.tensor([1 << rank])
dist.all_reduce(bits, dist.ReduceOp.BOR)
assert bits.item() == (1 << size) - 1

leaf = sg.ones(3, requires_grad=True)
dist.all_reduce(leaf)  # in place, as PyTorch does
assert leaf.tolist() == [size] * 3
transposed = sg.arange(6.0).reshape(2, 3).t()
dist.all_reduce(transposed)
assert sg.equal(transposed, sg.arange(6.0).reshape(2, 3).t() * size)

strided = sg.arange(6.0)[::2]
dist.broadcast(strided, src=0)
assert strided.tolist() == [0, 2, 4]
conjugate = sg.full((2,), 1 + 1j).conj()
dist.all_reduce(conjugate)
assert conjugate.tolist() == [size * (1 - 1j)] * 2

# A result goes into the tensor's own memory, also where that is sent; what backward saved is known to have changed.
memory = np.zeros(size * 3, np.float32)
whole = sg.from_numpy(memory)
piece = whole[3 * rank : 3 * rank + 3].fill_(rank + 1)
dist.all_gather_into_tensor(whole, piece)
assert memory.tolist() == np.repeat(np.arange(1.0, size + 1), 3).tolist()
dist.reduce_scatter_tensor(piece, whole)
assert memory[3 * rank : 3 * rank + 3].tolist() == [size * (rank + 1)] * 3
pairs = sg.arange(float(size)) + rank * size
dist.all_to_all_single(pairs, pairs)
assert pairs.tolist() == [other * size + rank for other in range(size)]
saved = sg.ones(3)
square = (leaf := sg.ones(3, requires_grad=True)) * saved
dist.all_reduce(saved)
try:
    square.sum().backward()
    raise AssertionError("backward does not see the change")
except sg.errors.GraphError as error:
    assert "version" in str(error), error

objects = [None] * size
dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank * 1000})
assert [found["rank"] for found in objects] == list(range(size))
sent = ["a", {"b": size}] if rank == 0 else [None, None]
dist.broadcast_object_list(sent, src=0)
assert sent == ["a", {"b": size}]
found = [None] * size if rank == size - 1 else None
dist.gather_object(rank * 2, found, dst=size - 1)
assert found is None or found == [other * 2 for other in range(size)]
out = [None]
dist.scatter_object_list(out, [f"for {other}" for other in range(size)] if rank == 0 else None, src=0)
assert out == [f"for {rank}"]

# Messages: around a ring, in both orders, with tags.
right, left = (rank + 1) % size, (rank - 1) % size
received = sg.empty(1 << 20)
works = [dist.isend(sg.full((1 << 20,), float(rank)), right, tag=3), dist.irecv(received, left, tag=3)]
for work in works:
    work.wait()
assert received[0].item() == received[-1].item() == left
if rank == 0:
    for number in range(3):
        dist.send(sg.tensor([number]), 1)
elif rank == 1:
    for number in range(3):
        out = sg.tensor([-1])
        assert dist.recv(out, 0) == 0
        assert out.item() == number

# Groups: all ranks make them, in one order; only members use them.
evens = dist.new_group(range(0, size, 2))
last = dist.new_group([size - 1])
dist.destroy_process_group(own := dist.new_group(range(size)))
try:
    dist.all_reduce(sg.ones(1), group=own)
    raise AssertionError("it does not fail")
except sg.errors.DistributedError as error:
    assert "destroy_process_group has ended" in str(error)
if rank % 2 == 0:
    x = sg.tensor([1.0])
    dist.all_reduce(x, group=evens)
    assert x.item() == len(range(0, size, 2)) == dist.get_world_size(evens)
    assert dist.get_process_group_ranks(evens) == list(range(0, size, 2))
    assert dist.get_global_rank(evens, dist.get_rank(evens)) == rank
    x = sg.tensor([float(rank)])
    dist.broadcast(x, src=dist.get_process_group_ranks(evens)[-1], group=evens)
    assert x.item() == dist.get_process_group_ranks(evens)[-1]
else:
    assert evens is dist.GroupMember.NON_GROUP_MEMBER
    assert dist.get_rank(evens) == dist.get_world_size(evens) == -1

# Many at once: each waits for nobody but its own messages.
tensors = [sg.full((1000 + number,), float(rank)) for number in range(50)]
works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
for work in reversed(works):
    work.wait()
assert all(tensor[0].item() == sum(range(size)) for tensor in tensors)

dist.barrier()
dist.destroy_process_group()
assert not dist.is_initialized()
dist.init_process_group("gloo")
x = sg.ones(2)
dist.all_reduce(x)
assert x.tolist() == [size] * 2
print(f"rank {rank} of {size} is well", flush=True)
