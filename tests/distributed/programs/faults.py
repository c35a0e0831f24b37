"""Programs whose processes do not do the same: the first argument says which."""

import contextlib
import datetime
import os
import signal
import sys
import time

import spillgrad as sg
import spillgrad.distributed as dist

fault = sys.argv[1]
dist.init_process_group("mpi", timeout=datetime.timedelta(seconds=2 if fault == "late" else 60))
rank = dist.get_rank()
x = sg.ones(1000)
dist.all_reduce(x)
if fault == "other":
    if rank == 1:
        dist.broadcast(x, src=0)
    else:
        dist.all_reduce(x)
elif fault == "size":
    dist.all_reduce(sg.ones(1000 + rank))
elif fault == "fewer":
    for _ in range(3 if rank == 0 else 2):
        dist.barrier()
elif fault == "raise":
    if rank == 1:
        raise KeyError("a mistake of the program")
    dist.all_reduce(x)
elif fault == "killed":
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(x)
elif fault == "late":
    if rank == 1:
        time.sleep(30)
    dist.all_reduce(x)
elif fault == "module":
    sg.nn.parallel.DistributedDataParallel(sg.nn.Linear(3, 2 + rank))
elif fault == "rounds":
    model = sg.nn.parallel.DistributedDataParallel(sg.nn.Linear(3, 2))
    for _ in range(2):
        model.zero_grad()
        for _ in range(2 - rank):
            model(sg.ones(1, 3)).sum().backward()
elif fault == "fails":  # one has sent a sum that the other has not, when both fail
    a, b = sg.nn.Linear(400, 400, bias=False), sg.nn.Linear(400, 800, bias=False)

    class Model(sg.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = a, b

        def forward(self, x, fails):
            x = self.a(x)
            x.register_hook(lambda grad: 1 / 0 if fails else grad)
            return x.sum() + (self.b(x.detach()).sum() if rank == 1 or not fails else 0)

    model = sg.nn.parallel.DistributedDataParallel(Model(), bucket_cap_mb=1)
    for fails in (False, True, False):
        with contextlib.suppress(ZeroDivisionError):
            model(sg.ones(1, 400), fails).backward()
        model.zero_grad()
elif fault == "splits":
    dist.all_to_all_single(sg.empty(3 + rank), sg.ones(3), [1, 2 + rank], [1, 2])
print(f"rank {rank} went on", flush=True)
