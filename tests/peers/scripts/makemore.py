"""A character model of names by a perceptron with batch normalization, its parameters updated by hand, written for
PyTorch: prints the loss of every step as a JSON list.
"""

import json

import numpy as np
import torch
import torch.nn.functional as F

NAMES = """emma olivia ava isabella sophia charlotte mia amelia harper evelyn abigail emily ella elizabeth camila luna
sofia avery mila aria scarlett penelope layla chloe victoria madison eleanor grace nora riley zoey hannah hazel lily
ellie violet lillian zoe stella aurora natalie emilia everly leah aubrey willow addison lucy audrey bella""".split()
BLOCK, WIDTH, EMBEDDED, BATCH, STEPS = 3, 64, 10, 32, 60

letters = ["."] + sorted(set("".join(NAMES)))
number = {letter: i for i, letter in enumerate(letters)}
contexts, nexts = [], []
for name in NAMES:
    context = [0] * BLOCK
    for letter in name + ".":
        contexts.append(context)
        nexts.append(number[letter])
        context = context[1:] + [number[letter]]
X, Y = torch.tensor(contexts), torch.tensor(nexts)

random = np.random.default_rng(0)


def drawn(*shape, scale=1.0):
    return torch.tensor(random.normal(0, scale, shape), dtype=torch.float32)


torch.set_num_threads(2)
C = drawn(len(letters), EMBEDDED)
W1 = drawn(BLOCK * EMBEDDED, WIDTH, scale=5 / 3 / (BLOCK * EMBEDDED) ** 0.5)
W2, b2 = drawn(WIDTH, len(letters), scale=0.1), torch.zeros(len(letters))
gain, bias = torch.ones(1, WIDTH), torch.zeros(1, WIDTH)
mean_running, std_running = torch.zeros(1, WIDTH), torch.ones(1, WIDTH)
parameters = [C, W1, W2, b2, gain, bias]
for p in parameters:
    p.requires_grad = True

losses = []
for step in range(STEPS):
    rows = torch.from_numpy(random.integers(0, len(X), BATCH))
    hidden = C[X[rows]].view(BATCH, -1) @ W1
    mean, std = hidden.mean(0, keepdim=True), hidden.std(0, keepdim=True)
    h = torch.tanh(gain * (hidden - mean) / std + bias)
    with torch.no_grad():
        mean_running = 0.9 * mean_running + 0.1 * mean
        std_running = 0.9 * std_running + 0.1 * std
    h.retain_grad()
    loss = F.cross_entropy(h @ W2 + b2, Y[rows])
    for p in parameters:
        p.grad = None
    loss.backward()
    rate = 0.2 if step < 40 else 0.02
    for p in parameters:
        p.data += -rate * p.grad
    losses.append(loss.item())

with torch.no_grad():  # all names, with the running statistics
    h = torch.tanh(gain * (C[X].view(len(X), -1) @ W1 - mean_running) / std_running + bias)
    log_probabilities = F.log_softmax(h @ W2 + b2, dim=1)
    losses.append(-log_probabilities[torch.arange(len(X)), Y].mean().item())
print(json.dumps([*losses, h.grad.abs().max().item() if h.grad is not None else 0.0]))
