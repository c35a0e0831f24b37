"""State of PyTorch's optimizers in fewer bits: each step is PyTorch's, from and to what the codes stand for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="`make test-peers` installs PyTorch")

from spillgrad.errors import ArgumentError, BudgetError  # noqa: E402
from spillgrad.interop.torch import disk_offload, disk_offload_optimizer, pieces  # noqa: E402
from spillgrad.optim.state_formats import kind_of  # noqa: E402
from spillgrad_kernels.cpu import state_codes  # noqa: E402
from tests.interop.torch_models import all_same  # noqa: E402

WIDTH = 160
LARGE = "1GiB"
SIGNS = {"exp_avg": True, "exp_avg_sq": False, "max_exp_avg_sq": False, "momentum_buffer": True}
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "AdamW": lambda params: torch.optim.AdamW(params, lr=1e-2),
    "Adam with amsgrad": lambda params: torch.optim.Adam(params, lr=1e-2, amsgrad=True, fused=False),
    "SGD with momentum": lambda params: torch.optim.SGD(params, lr=1e-2, momentum=0.9, nesterov=True),
}
Optimizer = Callable[[Any], Any]


def model() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Embedding(120, WIDTH), torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.GELU(),
        torch.nn.Linear(3 * WIDTH, WIDTH), torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, 8),
    )  # fmt: skip


def backward(whole: Any, step: int) -> None:
    torch.manual_seed(step)
    whole(torch.randint(0, 120, (4, 16))).square().mean().backward()


def is_encoded(param: Any, whole: Any) -> bool:
    return param.ndim > 1 and param.numel() >= 4096 and param is not whole[0].weight


def through_codes(whole: Any, optimizer: Any, state_format: str) -> None:
    """Give encoded state the numbers that its codes stand for."""
    for param, state in optimizer.state.items():
        if is_encoded(param, whole):
            for key, value in state.items():
                if key in SIGNS:
                    kind = kind_of(state_format, SIGNS[key])
                    decoded = state_codes.decode(state_codes.encode(value.numpy(), kind, recovers_scales=True))
                    value.copy_(torch.from_numpy(decoded))


def in_ram(make: Optimizer, steps: int, state_format: str = "int8") -> tuple[Any, Any]:
    whole = model()
    optimizer = make(whole.parameters())
    for step in range(steps):
        backward(whole, step)
        optimizer.step()
        optimizer.zero_grad()
        through_codes(whole, optimizer, state_format)
    return whole, optimizer


def on_disk(make: Optimizer, steps: int, directory: Path, **options: Any) -> tuple[Any, Any]:
    options = {"ram_budget": LARGE, "state": "int8", **options}
    offload = disk_offload(model(), make, directory, **options)
    for step in range(steps):
        backward(offload.model, step)
        offload.optimizer.step()
        offload.optimizer.zero_grad()
    return offload, offload.model


def states(optimizer: Any) -> list[Any]:
    found = optimizer.state_dict()["state"]
    return [found[number][key] for number in sorted(found) for key in sorted(found[number]) if key in SIGNS]


@pytest.mark.parametrize("piece_bytes", [None, 4096 * 4], ids=["whole", "in pieces"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_state_that_went_through_codes(
    name: str, piece_bytes: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if piece_bytes is not None:
        monkeypatch.setattr(pieces, "PIECE_BYTES", piece_bytes)
    offload, trained = on_disk(OPTIMIZERS[name], 4, tmp_path)
    whole, optimizer = in_ram(OPTIMIZERS[name], 4)
    assert all_same(list(trained.state_dict().values()), list(whole.state_dict().values()))
    assert all_same(states(offload.optimizer), states(optimizer))


def test_with_step_in_backward_too(tmp_path: Path) -> None:
    _, trained = on_disk(OPTIMIZERS["AdamW"], 4, tmp_path, step_in_backward=True)
    whole, _ = in_ram(OPTIMIZERS["AdamW"], 4)
    assert all_same(list(trained.state_dict().values()), list(whole.state_dict().values()))


def test_the_state_of_an_optimizer_is_encoded_without_a_model_too(tmp_path: Path) -> None:
    offloaded, plain = model(), model()
    offloaded[0].weight.exact_state = True
    optimizer = torch.optim.AdamW(offloaded.parameters(), lr=1e-2)
    wanted = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    disk_offload_optimizer(optimizer, tmp_path, ram_budget=0, state="int8")
    for step in range(4):
        for whole, each in ((offloaded, optimizer), (plain, wanted)):
            backward(whole, step)
            each.step()
            each.zero_grad()
        through_codes(plain, wanted, "int8")
    assert all_same(list(offloaded.parameters()), list(plain.parameters()))
    formats = optimizer.state_formats()
    assert {param: formats[param] == "int8" for param in formats} == {
        param: is_encoded(param, offloaded) for param in offloaded.parameters()
    }


def test_second_moments_in_bf16_are_rounded_at_random(tmp_path: Path) -> None:
    beta = 0.999
    whole = torch.nn.Linear(64, 64, bias=False)
    optimizer = torch.optim.AdamW(whole.parameters(), betas=(0.9, beta))
    offload = disk_offload(whole, optimizer, tmp_path, ram_budget=LARGE, state="bf16")
    whole.weight.grad = torch.ones(64, 64)
    optimizer.step()
    for _ in range(300):  # rounded to the nearest number, it would never fall
        whole.weight.grad = torch.zeros(64, 64)
        optimizer.step()
    (state,) = offload.optimizer.state_dict()["state"].values()
    fallen = state["exp_avg_sq"] / (1 - beta)
    assert fallen.mean().item() == pytest.approx(beta**300, rel=0.02)
    halves = state["exp_avg_sq"].numpy().view(np.uint32)
    assert not (halves & 0xFFFF).any()


def test_a_state_dict_goes_to_ram_and_back(tmp_path: Path) -> None:
    make = OPTIMIZERS["AdamW"]
    offload, trained = on_disk(make, 3, tmp_path)
    saved = offload.optimizer.state_dict()
    plain = model()
    plain.load_state_dict(trained.state_dict())
    optimizer = make(plain.parameters())
    optimizer.load_state_dict(saved)
    again = disk_offload(plain, optimizer, tmp_path, ram_budget=LARGE, state="int8")
    assert all_same(states(again.optimizer), states(offload.optimizer))
    again.optimizer.load_state_dict(saved)
    assert all_same(states(again.optimizer), states(offload.optimizer))
    for whole, each in ((trained, offload.optimizer), (plain, again.optimizer)):
        backward(whole, 3)
        each.step()
    assert all_same(list(plain.state_dict().values()), list(trained.state_dict().values()))


def test_codes_are_what_is_stored_and_what_the_budget_counts(tmp_path: Path) -> None:
    sizes = {}
    for state_format in ("float32", "int8"):
        with pytest.raises(BudgetError) as caught:
            on_disk(OPTIMIZERS["AdamW"], 0, tmp_path, ram_budget=0, state=state_format)
        least_bytes = caught.value.least_bytes
        offload, _ = on_disk(OPTIMIZERS["AdamW"], 3, tmp_path, ram_budget=least_bytes, state=state_format)
        assert offload.stats().peak_ram_bytes <= least_bytes
        sizes[state_format] = offload._store.live_bytes
    encoded = sum(param.numel() for param in model()[1:].parameters() if param.ndim > 1 and param.numel() >= 4096)
    assert sizes["float32"] - sizes["int8"] == 2 * encoded * (4 - 1 - 4 / 256)


def test_state_that_is_read_stays_as_it_is_read(tmp_path: Path) -> None:
    offload, trained = on_disk(OPTIMIZERS["AdamW"], 2, tmp_path)
    weight = trained[1].weight
    seen = offload.optimizer.state[weight]["exp_avg"]
    assert seen.dtype is torch.float32
    backward(trained, 2)
    offload.optimizer.step()
    whole, _ = in_ram(OPTIMIZERS["AdamW"], 3)
    assert all_same(list(trained.state_dict().values()), list(whole.state_dict().values()))


@pytest.mark.parametrize("does_read", [False, True], ids=["unread", "read between steps"])
@pytest.mark.parametrize("state_format", ["bf16", "int8"])
def test_a_resumed_run_is_the_one_that_was_not_interrupted(
    state_format: str, does_read: bool, tmp_path: Path
) -> None:  # fmt: skip
    make = OPTIMIZERS["AdamW"]
    straight, trained = on_disk(make, 4, tmp_path, state=state_format)
    first, whole = on_disk(make, 2, tmp_path, state=state_format)
    plain = model()
    plain.load_state_dict(whole.state_dict())
    optimizer = make(plain.parameters())
    optimizer.load_state_dict(first.optimizer.state_dict())
    disk_offload(plain, optimizer, tmp_path, ram_budget="2MiB", state=state_format)
    for step in (2, 3):
        if does_read:
            assert optimizer.state[plain[1].weight]["exp_avg_sq"].min() >= 0
        backward(plain, step)
        optimizer.step()
        optimizer.zero_grad()
    assert all_same(list(plain.state_dict().values()), list(trained.state_dict().values()))
    assert all_same(states(optimizer), states(straight.optimizer))


@pytest.mark.parametrize(
    ("make", "state", "said"),
    [
        (torch.optim.RMSprop, "int8", r"got state='int8' for RMSprop, whose .* no other format.*Adam, AdamW, SGD"),
        (torch.optim.AdamW, "int4", r"got state='int4'; wanted 'float32', 'bf16' or 'int8'"),
        (None, "int8", r"got state='int8' without an optimizer"),
    ],
)  # fmt: skip
def test_what_has_no_fewer_bits_is_refused(make: Any, state: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=said):
        disk_offload(model(), make, tmp_path, ram_budget=LARGE, state=state)
    if make is not None:
        whole = model()
        optimizer = make(whole.parameters())
        with pytest.raises(ArgumentError, match=said):
            disk_offload_optimizer(optimizer, tmp_path, ram_budget=LARGE, state=state)
        assert type(optimizer) is make


def test_state_that_is_not_of_float32_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"state='bf16' for a parameter of torch.bfloat16, whose state is not flo"):
        disk_offload(model().bfloat16(), torch.optim.AdamW, tmp_path, ram_budget=LARGE, state="bf16")
    offload = disk_offload(model().bfloat16(), torch.optim.RMSprop, tmp_path, ram_budget=LARGE, state="float32")
    assert set(offload.optimizer.state_formats().values()) == {"float32"}
