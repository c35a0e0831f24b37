"""A small model whose gradients come in all ways, and what one process makes of it, for the programs of this folder."""

import contextlib

import numpy as np

import spillgrad as sg
from spillgrad import nn
from spillgrad.distributed.sharded_tensor import ShardedTensor
from spillgrad.distributed.wires import WIRES
from spillgrad.generator import GeneratorState

F = nn.functional
STEPS, BATCHES = 3, 8
OPTIMIZERS = {
    "adamw": lambda params: sg.optim.AdamW(params, lr=1e-2),
    "sgd": lambda params: sg.optim.SGD(params, lr=1e-1, momentum=0.9),
    "in 8 bits": lambda params: sg.optim.AdamW(params, lr=1e-2, state="int8", keep_exact=False),
    "in bfloat16": lambda params: sg.optim.Lion(params, lr=1e-3, state="bf16", keep_exact=False),
}


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


def as_bytes(model, optimizer):
    """Return the bytes of parameters and of the optimizer's state; all processes that share these call it."""
    found = {name: value.numpy().tobytes() for name, value in model.state_dict().items()}
    for number, state in optimizer.state_dict()["state"].items():
        for key, value in state.items():
            if isinstance(value, ShardedTensor):
                value = value.full_tensor()
            found[f"{number}.{key}"] = value.numpy().tobytes() if isinstance(value, sg.Tensor) else value
    return found


def adapted():
    """Return a net that is frozen, but for the adapters of its hidden layers."""
    return nn.lora(Net(), rank=64, target="hidden.*")


def one_process(kind, autocast, max_norm, seed=1, wire="float32", steps=STEPS, make=Net):
    sg.manual_seed(seed)
    model = make()
    optimizer = OPTIMIZERS[kind]([p for p in model.parameters() if p.requires_grad])
    for step in range(steps):
        optimizer.zero_grad()
        with sg.autocast("cpu") if autocast else contextlib.nullcontext():
            for number in range(BATCHES):
                add_rounded(model, loss_of(model, step, number) * (1 / BATCHES), wire)
        if max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
    return as_bytes(model, optimizer)


def require_same(found, wanted):
    assert list(found) == list(wanted)
    differing = [name for name, value in wanted.items() if found[name] != value]
    assert not differing, differing
