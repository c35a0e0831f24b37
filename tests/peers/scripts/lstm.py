"""A character model of two LSTM layers, written for PyTorch: prints the loss of every step as a JSON list."""

import json

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

TEXT = """It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness,
it was the epoch of belief, it was the epoch of incredulity, it was the season of Light, it was the season of Darkness,
it was the spring of hope, it was the winter of despair."""
LENGTH, BATCH, WIDTH, STEPS = 24, 8, 48, 30


class CharacterModel(nn.Module):
    def __init__(self, characters):
        super().__init__()
        self.embedding = nn.Embedding(characters, 24)
        self.lstm = nn.LSTM(24, WIDTH, num_layers=2, batch_first=True)
        self.head = nn.Linear(WIDTH, characters)

    def forward(self, x, state=None):
        y, state = self.lstm(self.embedding(x), state)
        return self.head(y), state


torch.manual_seed(0)
torch.set_num_threads(2)
characters = sorted(set(TEXT))
data = torch.tensor([characters.index(c) for c in TEXT])
model = CharacterModel(len(characters))
random = np.random.default_rng(0)
with torch.no_grad():  # the same weights everywhere
    for p in model.parameters():
        p.copy_(torch.tensor(random.uniform(-0.2, 0.2, tuple(p.shape)).astype(np.float32)))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

losses, state = [], None
for step in range(STEPS):
    if step % 5 == 0:  # truncated backpropagation: the state goes on, its graph does not
        state = None
    starts = random.integers(0, len(data) - LENGTH - 1, BATCH)
    x = torch.stack([data[s : s + LENGTH] for s in starts])
    y = torch.stack([data[s + 1 : s + 1 + LENGTH] for s in starts])
    logits, (h, c) = model(x, state)
    state = h.detach(), c.detach()
    loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    losses.append(loss.item())
print(json.dumps(losses))
