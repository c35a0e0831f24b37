"""The adaptive softmax: parameters, outputs, losses and gradients, predictions, and what is refused."""

import numpy as np


def _layer(torch, **options):
    layer = torch.nn.AdaptiveLogSoftmaxWithLoss(6, 12, [3, 7], div_value=2, **options).double()
    with torch.no_grad():
        for i, parameter in enumerate(layer.parameters()):
            steps = torch.arange(parameter.numel(), dtype=torch.float64) * 1.7 + i
            parameter.copy_(steps.sin().view(parameter.shape))
    return layer


def losses(torch, note):
    x = torch.tensor(np.cos(np.arange(30.0)).reshape(5, 6), requires_grad=True)
    for options in ({}, {"head_bias": True}):
        layer = _layer(torch, **options)
        note("parameters", {name: list(p.shape) for name, p in layer.named_parameters()})
        for targets in ([0, 5, 11, 2, 4], [1, 2, 0, 1, 1], [8, 9, 10, 11, 7]):
            found = layer(x, torch.tensor(targets))
            note("found", found.output, found.loss)
            note("gradients", torch.autograd.grad(found.loss, [x, layer.head.weight]))
        one = layer(x[0], torch.tensor(6))
        note("one", one.output, one.loss)
        note("all classes", layer.log_prob(x), layer.predict(x))
        note("attributes", layer.cutoffs, layer.shortlist_size, layer.n_clusters, layer.head_size)


def predictions(torch, note):
    layer = _layer(torch)
    for seed in range(4):
        x = torch.tensor(np.random.default_rng(seed).normal(size=(7, 6)) * 3)
        note("predicted", layer.predict(x))


def refusals(torch, note):
    layer, x = _layer(torch), torch.zeros(2, 6, dtype=torch.float64)
    make = torch.nn.AdaptiveLogSoftmaxWithLoss
    for name, call, phrase in (
        ("none", lambda: make(6, 12, []), "cutoffs should be a sequence of length larger than 0"),
        ("order", lambda: make(6, 12, [7, 3]), "cutoffs should be a sequence of unique, positive integers sorted in"),
        ("twice", lambda: make(6, 12, [3, 3]), "cutoffs should be a sequence of unique"),
        ("last", lambda: make(6, 12, [3, 12]), "cutoffs should be a sequence of unique"),
        ("target", lambda: layer(x, torch.tensor([0, 12])), "Target values should be in [0, 11], but values in range"),
        ("sizes", lambda: layer(x, torch.tensor([0])), "Input and target should have the same size in the batch"),
        ("one target", lambda: layer(x, torch.tensor(0)), "0D target tensor expects 1D input tensors, but found"),
        ("matrix", lambda: layer(x, torch.zeros(2, 2).long()), "multi-target not supported"),
    ):
        note.error(name, call, phrase)
