"""A training as users of PyTorch write it for `torchrun`, with its imports changed; it prints a digest of weights."""

import contextlib
import hashlib
import os

import spillgrad as torch
from spillgrad.distributed import all_reduce, destroy_process_group, init_process_group
from spillgrad.nn.parallel import DistributedDataParallel as DDP
from spillgrad.utils.data import DataLoader, DistributedSampler, TensorDataset

ddp = int(os.environ.get("RANK", -1)) != -1
gradient_accumulation_steps = 4
if ddp:
    init_process_group(backend="nccl")
    ddp_rank, ddp_world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    ddp_local_rank = int(os.environ["LOCAL_RANK"])
    master_process = ddp_rank == 0
    assert gradient_accumulation_steps % ddp_world_size == 0
    gradient_accumulation_steps //= ddp_world_size
else:
    master_process, ddp_world_size, ddp_rank = True, 1, 0

torch.manual_seed(1337)
data = TensorDataset(torch.randn(64, 16), torch.randint(0, 8, (64,)))
# Neighbours among the samples are in the same round, on different processes.
sampler = DistributedSampler(data, num_replicas=ddp_world_size, rank=ddp_rank, shuffle=False)
loader = DataLoader(data, batch_size=1, sampler=sampler)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", enabled=False)
ctx = torch.amp.autocast("cpu", dtype=torch.bfloat16, enabled=False)
if ddp:
    model = DDP(model)
for epoch in range(2):
    sampler.set_epoch(epoch)
    batches = iter(loader)
    while True:
        lossf = torch.zeros(())
        with contextlib.suppress(StopIteration):
            for micro_step in range(gradient_accumulation_steps):
                X, Y = next(batches)
                if ddp and os.environ.get("SYNC_LAST"):
                    model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
                with ctx:
                    loss = torch.nn.functional.cross_entropy(model(X), Y) / gradient_accumulation_steps
                lossf += loss.detach()
                scaler.scale(loss).backward()
        if model.training and next(iter(model.parameters())).grad is None:
            break
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
if ddp:
    all_reduce(lossf)
raw_model = model.module if ddp else model
digest = hashlib.sha256(b"".join(p.numpy(force=True).tobytes() for p in raw_model.parameters())).hexdigest()
print(f"weights {digest}", flush=True)
if ddp:
    destroy_process_group()
