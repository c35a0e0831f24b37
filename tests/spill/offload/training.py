"""Training to compare: in RAM, and with what it needs on disk."""

from collections.abc import Callable

import numpy as np

import spillgrad as sg
from spillgrad import nn
from spillgrad.spill.offload.needs import largest_need
from spillgrad.spill.offload.training import FRAMEWORK

BATCHES = [np.random.default_rng(i).integers(0, 256, (4, 33)) for i in range(6)]

Trained = tuple[list[str], list[np.ndarray]]


def train(
    model: nn.Module,
    optimizer: sg.optim.Optimizer,
    context: Callable[[], object] = sg.enable_grad,
    accumulate: int = 1,
    clip: bool = False,
) -> Trained:
    """Go through the batches, each forward in a context of its own; return every bit of the losses, and the weights."""
    losses = []
    for i, batch in enumerate(BATCHES):
        if i % accumulate == 0:
            optimizer.zero_grad()
        with context():  # type: ignore[attr-defined]
            loss = model(batch[:, :-1].copy(), batch[:, 1:].copy())[1]
        loss.backward()
        if (i + 1) % accumulate == 0:
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
        losses.append(loss.item().hex())
    return losses, [parameter.numpy().copy() for parameter in model.parameters()]


def assert_same(got: Trained, wanted: Trained) -> None:
    assert got[0] == wanted[0]
    for mine, theirs in zip(got[1], wanted[1], strict=True):
        np.testing.assert_array_equal(mine, theirs)


def least_bytes(model: nn.Module, optimizer: sg.optim.Optimizer | None = None) -> int:
    return largest_need(FRAMEWORK, model, optimizer).nbytes


def held_bytes(offload: sg.disk_offload) -> int:
    """What callers, or changes, keep in RAM: what the store could not evict."""
    return offload._store._state.tier.pinned_bytes
