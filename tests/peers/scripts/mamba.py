"""A selective state space model (as in Mamba) that learns to copy marked symbols, written for PyTorch: prints the loss
of every step as a JSON list.
"""

import json
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

SYMBOLS, LENGTH, WIDTH, STATES, BATCH, STEPS = 8, 24, 32, 4, 16, 40


class RMSNorm(nn.Module):
    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class SelectiveBlock(nn.Module):
    def __init__(self):
        super().__init__()
        inner, self.rank = 2 * WIDTH, math.ceil(WIDTH / 16)
        self.norm = RMSNorm(WIDTH)
        self.in_proj = nn.Linear(WIDTH, 2 * inner, bias=False)
        self.conv = nn.Conv1d(inner, inner, kernel_size=4, groups=inner, padding=3)
        self.x_proj = nn.Linear(inner, self.rank + 2 * STATES, bias=False)
        self.dt_proj = nn.Linear(self.rank, inner)
        self.A_log = nn.Parameter(torch.log(torch.arange(1, STATES + 1, dtype=torch.float32).repeat(inner, 1)))
        self.D = nn.Parameter(torch.ones(inner))
        self.out_proj = nn.Linear(inner, WIDTH, bias=False)

    def forward(self, residual):
        length = residual.shape[1]
        x, gate = self.in_proj(self.norm(residual)).chunk(2, dim=-1)
        x = F.silu(self.conv(x.transpose(1, 2))[..., :length].transpose(1, 2))
        delta, B, C = self.x_proj(x).split([self.rank, STATES, STATES], dim=-1)
        delta = F.softplus(self.dt_proj(delta))
        A = -torch.exp(self.A_log.float())
        decay = torch.exp(torch.einsum("bld,dn->bldn", delta, A))
        pushed = torch.einsum("bld,bln,bld->bldn", delta, B, x)
        state, outputs = torch.zeros_like(pushed[:, 0]), []
        for i in range(length):
            state = decay[:, i] * state + pushed[:, i]
            outputs.append(torch.einsum("bdn,bn->bd", state, C[:, i]))
        y = torch.stack(outputs, dim=1) + x * self.D
        return residual + self.out_proj(y * F.silu(gate))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, WIDTH)
        self.blocks = nn.ModuleList(SelectiveBlock() for _ in range(2))
        self.norm = RMSNorm(WIDTH)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.embedding.weight)


torch.manual_seed(0)
torch.set_num_threads(2)
model = Model()
random = np.random.default_rng(0)
with torch.no_grad():  # the same weights everywhere
    for name, p in model.named_parameters():
        if name.endswith("bias"):
            p.fill_(-2.0 if "dt_proj" in name else 0.0)
        elif p.ndim > 1 and "A_log" not in name:
            p.copy_(torch.from_numpy(random.normal(0, p[0].numel() ** -0.5, tuple(p.shape)).astype(np.float32)))
optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)
scheduler = torch.optim.lr_scheduler.SequentialLR(
    optimizer,
    [
        torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5),
        torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98),
    ],
    milestones=[5],
)

losses = []
for _ in range(STEPS):
    tokens = torch.from_numpy(random.integers(0, SYMBOLS, (BATCH, LENGTH)))
    targets = torch.roll(tokens, 2, dims=1)  # the symbol two places before
    targets[:, :2] = -100  # there is none
    logits = model(tokens)
    loss = F.cross_entropy(logits.reshape(-1, SYMBOLS), targets.reshape(-1), ignore_index=-100)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    losses.append(loss.item())
print(json.dumps([*losses, scheduler.get_last_lr()[0]]))
