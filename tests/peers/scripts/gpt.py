"""A small GPT on the bytes of a text, written for PyTorch: prints the loss of every step as a JSON list."""

import json

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

TEXT = b"""Shall I compare thee to a summer's day? Thou art more lovely and more temperate: Rough winds do shake the
darling buds of May, And summer's lease hath all too short a date; Sometime too hot the eye of heaven shines, And often
is his gold complexion dimm'd; And every fair from fair sometime declines, By chance or nature's changing course."""
CONTEXT, BATCH, WIDTH, HEADS, LAYERS, STEPS = 32, 8, 64, 4, 2, 30


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        batch, time, width = x.shape
        q, k, v = self.qkv(x).view(batch, time, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, time, width))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 256, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.size(1)))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


torch.manual_seed(0)
torch.set_num_threads(2)
model = GPT()
random = np.random.default_rng(0)
with torch.no_grad():  # the same weights everywhere
    for name, p in model.named_parameters():
        if name.endswith("bias"):
            p.zero_()
        elif p.dim() > 1:
            p.copy_(torch.tensor(random.normal(0, 0.05, tuple(p.shape)).astype(np.float32)))
decayed = [p for p in model.parameters() if p.dim() > 1]
others = [p for p in model.parameters() if p.dim() < 2]
groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))

data = torch.tensor(np.frombuffer(TEXT, np.uint8).astype(np.int64))
losses = []
for _ in range(STEPS):
    starts = random.integers(0, len(data) - CONTEXT - 1, BATCH)
    x = torch.stack([data[s : s + CONTEXT] for s in starts])
    y = torch.stack([data[s + 1 : s + 1 + CONTEXT] for s in starts])
    loss = model(x, y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    losses.append(loss.item())
print(json.dumps(losses))
