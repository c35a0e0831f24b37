"""A small model whose gradients come in all ways, for the programs of this folder."""

import numpy as np

import spillgrad as sg
from spillgrad import nn
from spillgrad.generator import GeneratorState

F = nn.functional


class Net(nn.Module):
    """Tied weights, dropout, a layer that some batches skip, one that all skip, a frozen one, a number as parameter."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(300, 64)
        self.hidden = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.2), nn.Linear(256, 64))
        self.sometimes = nn.Linear(64, 64)
        self.never = nn.Linear(64, 64)
        self.frozen = nn.Linear(64, 64).requires_grad_(False)
        self.scale = nn.Parameter(sg.tensor(1.5))

    def forward(self, tokens, often):
        x = self.embedding(tokens)
        x = self.frozen(x + self.hidden(x)) * self.scale
        return F.linear(self.sometimes(x) if often else x, self.embedding.weight)


def batch(step, number):
    rng = np.random.default_rng((step, number))
    return sg.tensor(rng.integers(0, 300, (2, 16))), sg.tensor(rng.integers(0, 300, (2, 16)))


def loss_of(model, step, number):
    """Return the loss of a batch. Random numbers hang on the batch's number, not on the process."""
    tokens, targets = batch(step, number)
    with sg.default_generator.replay(GeneratorState(step, number << 40)):
        logits = model(tokens, often=number % 3 != 1)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
