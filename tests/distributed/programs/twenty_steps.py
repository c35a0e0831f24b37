"""Twenty steps in every way in which processes share a training, compared bit for bit with one process."""

import contextlib
import sys
import tempfile

from net import BATCHES, OPTIMIZERS, Net, adapted, as_bytes, loss_of, one_process, require_same

import spillgrad as sg
import spillgrad.distributed as dist
from spillgrad import nn
from spillgrad.distributed.fsdp import fully_shard
from spillgrad.nn.parallel import DistributedDataParallel
from spillgrad.spill.offload import needs

STEPS = 20
dist.init_process_group("mpi")
rank, size = dist.get_rank(), dist.get_world_size()
folder = tempfile.mkdtemp(prefix=f"rank{rank}-", dir=sys.argv[1])
needs._LEAST_PART_BYTES = (32 << 10) // size


def shared(way, make, kind, max_norm):
    """Return what all call, the model and the optimizer, of a training that is shared in a way."""
    sg.manual_seed(1 + rank)  # all get the first one's values
    if way in ("state", "all"):
        offload = sg.disk_offload(
            make, OPTIMIZERS[kind], folder, ram_budget="600KiB", max_grad_norm=max_norm, shard=way
        )
        return offload, offload.model, offload.optimizer
    model = make()
    if way == "fully_shard":
        fully_shard(model)
    caller = DistributedDataParallel(model) if way == "replicated" else model
    return caller, model, OPTIMIZERS[kind]([p for p in model.parameters() if p.requires_grad])


for make in (Net, adapted):
    for kind, autocast, max_norm in (("adamw", False, 0.5), ("adamw", True, 0.5), ("sgd", False, None)):
        wanted = one_process(kind, autocast, max_norm, steps=STEPS, make=make)
        for way in ("replicated", "state", "all", "fully_shard"):
            caller, model, optimizer = shared(way, make, kind, max_norm)
            caller.set_gradient_divide_factor(1)
            called = caller if way == "replicated" else model
            for step in range(STEPS):
                optimizer.zero_grad()
                with sg.autocast("cpu") if autocast else contextlib.nullcontext():
                    for first in range(0, BATCHES, size):
                        if first + rank >= BATCHES:
                            caller.contribute_nothing()
                            continue
                        with sg.save_on_disk(caller) if way in ("state", "all") else contextlib.nullcontext():
                            loss = loss_of(called, step, first + rank) * (1 / BATCHES)
                        loss.backward()
                if max_norm is not None and way in ("replicated", "fully_shard"):
                    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
                optimizer.step()
            require_same(as_bytes(model, optimizer), wanted)
            if rank == 0:
                print(f"{make.__name__}, {kind}, autocast {autocast}, clipped {max_norm}, {way}: the bits", flush=True)
print(f"rank {rank} of {size}: the bits of one process")
