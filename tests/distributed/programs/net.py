"""A small model whose gradients come in all ways, for the programs of this folder."""

import numpy as np

import spillgrad as sg
from spillgrad import nn
from spillgrad.distributed.wires import WIRES
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


def rounded(tensor, wire):
    """Return the numbers of a float32 tensor after they have travelled in a format."""
    wire, flat = WIRES[wire], tensor.detach().numpy().reshape(-1)
    whole = slice(0, flat.size)
    packed = wire.pack(flat, [whole])
    return sg.tensor(wire.unpack(packed.values, packed.scales_in(packed.scales, whole, whole))).reshape(tensor.shape)


def add_rounded(model, loss, wire):
    """Add the gradients of a loss to those of the model, each rounded first, as several processes do."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = sg.autograd.grad(loss, parameters, allow_unused=True)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None:
            term = rounded(gradient, wire)
            parameter.grad = term if parameter.grad is None else parameter.grad + term
