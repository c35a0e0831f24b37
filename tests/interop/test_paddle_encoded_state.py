"""State of Paddle's optimizers in fewer bits: each step is Paddle's, from and to what the codes stand for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

paddle = pytest.importorskip("paddle", reason="`make test-peers` installs Paddle")

import numpy as np  # noqa: E402

from spillgrad.errors import ArgumentError, BudgetError  # noqa: E402
from spillgrad.interop.paddle import disk_offload  # noqa: E402
from spillgrad.optim.state_formats import kind_of  # noqa: E402
from spillgrad_kernels.cpu import state_codes  # noqa: E402
from tests.interop.paddle_models import bits  # noqa: E402

WIDTH = 160
LARGE = "1GiB"
SIGNS = {"moment1": True, "moment2": False, "moment2_max": False, "velocity": True}
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "AdamW": lambda parameters: paddle.optimizer.AdamW(1e-2, parameters=parameters),
    "Adam with amsgrad": lambda parameters: paddle.optimizer.Adam(1e-2, parameters=parameters, amsgrad=True),
    "Momentum": lambda parameters: paddle.optimizer.Momentum(1e-2, 0.9, parameters=parameters),
}
Optimizer = Callable[[Any], Any]


def model() -> Any:
    paddle.seed(0)
    return paddle.nn.Sequential(
        paddle.nn.Embedding(120, WIDTH), paddle.nn.Linear(WIDTH, 3 * WIDTH), paddle.nn.GELU(),
        paddle.nn.Linear(3 * WIDTH, WIDTH), paddle.nn.LayerNorm(WIDTH), paddle.nn.Linear(WIDTH, 8),
    )  # fmt: skip


def step_of(whole: Any, optimizer: Any, step: int) -> None:
    tokens = paddle.to_tensor(np.random.RandomState(step).randint(0, 120, (4, 16)))
    whole(tokens).square().mean().backward()
    optimizer.step()
    optimizer.clear_grad()


def encoded(whole: Any) -> list[Any]:
    return [whole[1].weight, whole[3].weight]


def in_ram(make: Optimizer, steps: int) -> tuple[Any, Any]:
    whole = model()
    optimizer = make(whole.parameters())
    for step in range(steps):
        step_of(whole, optimizer, step)
        for key, tensors in optimizer._accumulators.items():
            for parameter in encoded(whole) if key in SIGNS else ():
                codes = state_codes.encode(
                    tensors[parameter.name].numpy(), kind_of("int8", SIGNS[key]), recovers_scales=True
                )
                tensors[parameter.name].set_value(state_codes.decode(codes))
    return whole, optimizer


def on_disk(make: Optimizer, steps: int, directory: Path, **options: Any) -> tuple[Any, Any]:
    options = {"ram_budget": LARGE, "state": "int8", **options}
    offload = disk_offload(model(), make, directory, **options)
    for step in range(steps):
        step_of(offload.model, offload.optimizer, step)
    return offload, offload.model


def parameters(whole: Any) -> list[bytes]:
    return [bits(value) for value in whole.state_dict().values()]


def states(optimizer: Any) -> list[bytes]:
    found = optimizer.state_dict().items()
    return [bits(value) for key, value in found if any(f"_{name}_" in key for name in SIGNS)]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_state_that_went_through_codes(name: str, tmp_path: Path) -> None:
    offload, trained = on_disk(OPTIMIZERS[name], 4, tmp_path)
    whole, optimizer = in_ram(OPTIMIZERS[name], 4)
    assert parameters(trained) == parameters(whole)
    assert states(offload.optimizer) == states(optimizer) != []
    formats = offload.optimizer.state_formats()
    assert {each.name for each in encoded(trained)} == {each for each in formats if formats[each] == "int8"}


def test_a_state_dict_goes_to_ram_and_back(tmp_path: Path) -> None:
    make = OPTIMIZERS["AdamW"]
    offload, trained = on_disk(make, 3, tmp_path)
    saved = states(offload.optimizer)
    offload.optimizer.set_state_dict(offload.optimizer.state_dict())
    assert states(offload.optimizer) == saved
    step_of(trained, offload.optimizer, 3)
    whole, _ = in_ram(make, 4)
    assert parameters(trained) == parameters(whole)


def test_codes_are_what_is_stored_and_what_the_budget_counts(tmp_path: Path) -> None:
    sizes = {}
    for state_format in ("float32", "int8"):
        with pytest.raises(BudgetError) as caught:
            on_disk(OPTIMIZERS["AdamW"], 0, tmp_path, ram_budget=0, state=state_format)
        least_bytes = caught.value.least_bytes
        offload, trained = on_disk(OPTIMIZERS["AdamW"], 3, tmp_path, ram_budget=least_bytes, state=state_format)
        assert offload.stats().peak_ram_bytes <= least_bytes
        sizes[state_format] = offload._store.live_bytes
    count = sum(int(np.prod(each.shape)) for each in encoded(trained))
    assert sizes["float32"] - sizes["int8"] == 2 * count * (4 - 1 - 4 / 256)


@pytest.mark.parametrize(
    ("make", "state", "said"),
    [
        (lambda them: paddle.optimizer.RMSProp(1e-3, parameters=them), "int8", "for RMSProp, .* Adam, AdamW, Momentum"),
        (OPTIMIZERS["AdamW"], "int4", r"got state='int4'; wanted 'float32', 'bf16' or 'int8'"),
        (None, "int8", r"got state='int8' without an optimizer"),
    ],
)  # fmt: skip
def test_what_has_no_fewer_bits_is_refused(make: Any, state: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=said):
        disk_offload(model(), make, tmp_path, ram_budget=LARGE, state=state)
