"""Programs of two or three processes, of which one ends, stops or fails: the first argument says which."""

import os
import signal
import sys
import time

import spillgrad as sg
import spillgrad.distributed as dist

fault = sys.argv[1]
dist.init_process_group("mpi")
rank = dist.get_rank()
pair = dist.new_group([0, 1])
x = sg.ones(1000)
dist.all_reduce(x)
if fault == "recv":
    if rank == 0:
        dist.recv(x, 1)
elif fault == "subgroup":
    if rank == 0:
        dist.all_reduce(x, group=pair)
elif fault == "part":
    if rank == 2:
        dist.recv(x, 0)
    else:
        dist.all_to_all_single(sg.empty(3 + rank), sg.ones(3), [1, 2 + rank], [1, 2], group=pair)
elif fault == "sent":  # what a process has begun arrives, although its program has ended
    if rank == 1:
        work = dist.isend(x, 0)
    elif rank == 0:
        dist.recv(x, 1)
elif fault == "stopped":
    if rank == 1:
        time.sleep(2)  # its next sign of life tells of the collective
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(x)
elif fault == "interrupted":
    print("here", flush=True)
    signal.pause()
print(f"rank {rank} went on", flush=True)
