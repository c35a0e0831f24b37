"""Optimizers end twenty steps where PyTorch's do."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="`make test-peers` installs PyTorch")

import spillgrad as sg  # noqa: E402

torch.set_num_threads(1)  # as in `torch_models`

STEPS = 20
CASES = [
    ("Adafactor", {}),
    ("Adafactor", {"lr": 0.1, "weight_decay": 0.1, "d": 1.5, "beta2_decay": -0.5}),
    ("Adafactor", {"eps": (1e-3, 0.1), "maximize": True}),
    ("Muon", {}),
    ("Muon", {"lr": 0.02, "adjust_lr_fn": "match_rms_adamw"}),
    ("Muon", {"nesterov": False, "weight_decay": 0.0, "momentum": 0.8}),
    ("Muon", {"ns_steps": 3, "ns_coefficients": (2.0, -1.5, 0.5)}),
]


def ends(kind: str, options: dict[str, Any], shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return where PyTorch's optimizer takes a parameter, and where ours does."""
    random = np.random.default_rng(0)
    start = random.standard_normal(shape).astype(np.float32)
    found = []
    gradients = random.standard_normal((STEPS, *shape)).astype(np.float32)
    for library in (torch, sg):
        param = library.nn.Parameter(library.tensor(start))
        optimizer = getattr(library.optim, kind)([param], **options)
        for gradient in gradients:
            param.grad = library.tensor(gradient)
            optimizer.step()
        found.append(param.detach().numpy())
    return found[0], found[1]


# Larger matrices would not do for Muon: the order in which sums are made decides how bfloat16 rounds them, and
# PyTorch's differ from each other, with oneDNN and without, by more than 1e-6.
@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (1, 7), (10, 10)])
@pytest.mark.parametrize(("kind", "options"), CASES)
def test_twenty_steps_of_small_matrices_are_pytorchs(kind: str, options: dict[str, Any], shape: tuple[int, ...]):
    theirs, ours = ends(kind, options, shape)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", [(64, 48), (200, 300), (7,), (2, 3, 4)])
@pytest.mark.parametrize(("kind", "options"), [case for case in CASES if case[0] == "Adafactor"])
def test_twenty_steps_of_other_tensors_are_pytorchs(kind: str, options: dict[str, Any], shape: tuple[int, ...]):
    theirs, ours = ends(kind, options, shape)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", [(64, 48), (33, 200)])
def test_twenty_steps_of_large_matrices_are_pytorchs_as_exactly_as_bfloat16_is(shape: tuple[int, ...]):
    theirs, ours = ends("Muon", {"lr": 0.02, "adjust_lr_fn": "match_rms_adamw"}, shape)
    moved = 0.02 * 0.2 * max(shape) ** 0.5 * STEPS  # by elements near 1, at most
    assert np.abs(ours - theirs).max() <= moved / 256
