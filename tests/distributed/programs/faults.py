"""Programs whose processes do not do the same: the first argument says which."""

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
elif fault == "splits":
    dist.all_to_all_single(sg.empty(3 + rank), sg.ones(3), [1, 2 + rank], [1, 2])
print(f"rank {rank} went on", flush=True)
