"""A denoising diffusion model with a small U-Net on scikit-learn's digits, written for PyTorch: prints the loss of
every step, and the mean of one denoised batch, as a JSON list.
"""

import copy
import json
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits

WIDTH, TIMES, BATCH, STEPS = 16, 50, 32, 40


def embedding(t, width):
    frequencies = torch.exp(-math.log(10000) * torch.arange(width // 2, dtype=torch.float32) / (width // 2))
    angles = t[:, None].float() * frequencies[None, :]
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class Block(nn.Module):
    def __init__(self, channels_in, channels_out):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, channels_in), nn.GroupNorm(4, channels_out)
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, padding=1)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1)
        self.time = nn.Linear(4 * WIDTH, channels_out)
        self.skip = nn.Conv2d(channels_in, channels_out, 1) if channels_in != channels_out else nn.Identity()

    def forward(self, x, t):
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.time(F.silu(t))[..., None, None]
        return self.conv2(F.silu(self.norm2(h))) + self.skip(x)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.SiLU(), nn.Linear(4 * WIDTH, 4 * WIDTH))
        self.first = nn.Conv2d(1, WIDTH, 3, padding=1)
        self.down, self.middle, self.up = Block(WIDTH, WIDTH), Block(WIDTH, 2 * WIDTH), Block(3 * WIDTH, WIDTH)
        self.pool, self.last = nn.AvgPool2d(2), nn.Conv2d(WIDTH, 1, 3, padding=1)

    def forward(self, x, t):
        t = self.time(embedding(t, WIDTH))
        fine = self.down(self.first(x), t)
        coarse = self.middle(self.pool(fine), t)
        coarse = F.interpolate(coarse, scale_factor=2, mode="nearest")
        return self.last(self.up(torch.cat((coarse, fine), dim=1), t))


torch.manual_seed(0)
torch.set_num_threads(2)
model = UNet()
random = np.random.default_rng(0)
with torch.no_grad():  # the same weights everywhere
    for p in model.parameters():
        if p.ndim > 1:
            p.copy_(torch.from_numpy(random.normal(0, p[0].numel() ** -0.5, tuple(p.shape)).astype(np.float32)))
        elif p.mean() == 0:
            p.zero_()
    for m in model.modules():
        if isinstance(m, (nn.Conv2d, nn.Linear)) and m.bias is not None:
            nn.init.zeros_(m.bias)
average = copy.deepcopy(model).eval().requires_grad_(False)

betas = torch.linspace(1e-3, 0.1, TIMES)
alphas_bar = torch.cumprod(1 - betas, dim=0)
digits = torch.tensor(load_digits().data, dtype=torch.float32).view(-1, 1, 8, 8) / 8 - 1
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

losses = []
for _ in range(STEPS):
    x0 = digits[torch.from_numpy(random.integers(0, len(digits), BATCH))]
    t = torch.from_numpy(random.integers(0, TIMES, BATCH))
    noise = torch.from_numpy(random.standard_normal(tuple(x0.shape)).astype(np.float32))
    kept = alphas_bar.gather(0, t).view(-1, 1, 1, 1)
    noisy = kept.sqrt() * x0 + (1 - kept).sqrt() * noise
    loss = F.mse_loss(model(noisy, t), noise)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    with torch.no_grad():  # an exponential moving average of the weights
        for ours, theirs in zip(average.parameters(), model.parameters()):
            ours.lerp_(theirs, 0.1)
    losses.append(loss.item())

with torch.no_grad():
    x = torch.from_numpy(random.standard_normal((8, 1, 8, 8)).astype(np.float32))
    for i in reversed(range(TIMES)):
        noise = average(x, torch.full((8,), i, dtype=torch.long))
        x = (x - betas[i] / (1 - alphas_bar[i]).sqrt() * noise) / (1 - betas[i]).sqrt()
        x = x.clamp(-3, 3)
print(json.dumps([*losses, x.mean().item()]))
