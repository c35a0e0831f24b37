"""Optimizers of PyTorch with their state in the store: every step is the one they do without it, bit for bit."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="`make test-peers` installs PyTorch")

from spillgrad.errors import ArgumentError, BudgetError, OperandError, SpillError  # noqa: E402
from spillgrad.interop.torch import OffloadedOptimizer, disk_offload_optimizer, save_on_disk  # noqa: E402
from tests.waiting import wait_until  # noqa: E402

torch.set_num_threads(1)  # as in `torch_models`

WIDTH = 96
NBYTES = WIDTH * WIDTH * 4


def model(dtype: Any = None) -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, dtype=dtype) for _ in range(3)))


def steps(network: Any, optimizer: Any, count: int = 4, first: int = 0) -> list[Any]:
    """Do some steps, of which one leaves a layer without gradients; return the parameters."""
    for number in range(first, first + count):
        torch.manual_seed(number)
        x = torch.randn(8, WIDTH, dtype=network[0].weight.dtype)
        out = network[0](x) if number == 1 else network(x)
        optimizer.zero_grad()
        out.abs().square().mean().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in network.parameters()]


def same(got: list[Any], wanted: list[Any]) -> bool:
    return len(got) == len(wanted) and all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


KINDS: dict[str, Callable[[Any], Any]] = {
    "Adam": torch.optim.Adam,
    "Adam, amsgrad": lambda p: torch.optim.Adam(p, amsgrad=True),
    "Adam, foreach": lambda p: torch.optim.Adam(p, foreach=True),
    "Adam, fused": lambda p: torch.optim.Adam(p, fused=True),
    "AdamW": torch.optim.AdamW,
    "AdamW, foreach, maximize": lambda p: torch.optim.AdamW(p, foreach=True, maximize=True),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, fused=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD, momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "SGD, fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "SGD, foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "Adagrad": torch.optim.Adagrad,
    "Adagrad, fused": lambda p: torch.optim.Adagrad(p, fused=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, momentum=0.5, centered=True),
    "Adamax": torch.optim.Adamax,
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "Adadelta": torch.optim.Adadelta,
    "ASGD": torch.optim.ASGD,
    "Rprop": torch.optim.Rprop,
    "Adafactor": torch.optim.Adafactor,
    "two groups": lambda p: torch.optim.Adam([{"params": list(p)[:2], "lr": 0.1}, {"params": list(p)[2:]}]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_the_same_bit_for_bit(directory: Path, kind: str):
    def parameters(network: Any) -> list[Any]:
        return list(network.parameters())

    plain = model()
    wanted = steps(plain, KINDS[kind](parameters(plain)))
    for budget in (0, 5 * NBYTES, "1GiB"):
        network = model()
        optimizer = disk_offload_optimizer(KINDS[kind](parameters(network)), directory, ram_budget=budget)
        assert same(steps(network, optimizer), wanted)
        large = sum(
            state.nbytes >= 4096
            for each in optimizer.state_dict()["state"].values()
            for state in each.values()
            if isinstance(state, torch.Tensor)
        )
        assert optimizer.stats().live_bytes == large * NBYTES
        if budget == 0 and large:
            assert optimizer.stats().read_bytes > 0
        del optimizer


def test_only_the_state_of_one_parameter_is_in_ram(directory: Path):
    network = model()
    optimizer = disk_offload_optimizer(torch.optim.Adam(network.parameters()), directory, ram_budget=0)
    steps(network, optimizer)
    stats = optimizer.stats()
    assert (stats.packed_bytes, stats.live_bytes, stats.ram_bytes) == (6 * NBYTES, 6 * NBYTES, 0)
    assert stats.peak_ram_bytes == 2 * NBYTES


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.complex64])
def test_states_of_other_dtypes_are_kept(directory: Path, dtype: Any):
    plain, network = model(dtype), model(dtype)
    wanted = steps(plain, torch.optim.Adam(plain.parameters()))
    optimizer = disk_offload_optimizer(torch.optim.Adam(network.parameters()), directory, ram_budget=0)
    assert same(steps(network, optimizer), wanted)


def test_a_state_dict_goes_to_and_comes_from_an_optimizer_in_ram(directory: Path, tmp_path: Path):
    plain = model()
    wanted = steps(plain, torch.optim.AdamW(plain.parameters()), 6)
    network = model()
    optimizer = disk_offload_optimizer(torch.optim.AdamW(network.parameters()), directory, ram_budget=0)
    steps(network, optimizer, 3)
    saved = optimizer.state_dict()
    torch.save(saved, tmp_path / "optimizer.pt")
    before, weights = copy.deepcopy(saved), copy.deepcopy(network.state_dict())
    assert same(steps(network, optimizer, 3, 3), wanted)
    assert all(same(list(before["state"][i].values()), list(saved["state"][i].values())) for i in before["state"])
    in_ram, again = model(), model()
    for other, make in (
        (in_ram, torch.optim.AdamW),
        (again, lambda p: disk_offload_optimizer(torch.optim.AdamW(p), directory, ram_budget=0)),
    ):
        other.load_state_dict(weights)
        loaded = make(other.parameters())
        loaded.load_state_dict(torch.load(tmp_path / "optimizer.pt"))
        assert same(steps(other, loaded, 3, 3), wanted)
    optimizer.load_state_dict(before)  # over what is there
    network.load_state_dict(weights)
    assert same(steps(network, optimizer, 3, 3), wanted)
    assert optimizer.stats().live_bytes == 6 * NBYTES


def test_an_optimizer_in_the_middle_of_training_is_taken_over(directory: Path):
    plain, network = model(), model()
    wanted = steps(plain, torch.optim.Adam(plain.parameters()), 5)
    optimizer = torch.optim.Adam(network.parameters())
    steps(network, optimizer, 2)
    assert disk_offload_optimizer(optimizer, directory, ram_budget=0) is optimizer
    assert isinstance(optimizer, OffloadedOptimizer)
    assert isinstance(optimizer, torch.optim.Adam)
    assert same(steps(network, optimizer, 3, 2), wanted)


def test_state_can_be_looked_at_and_changed_between_steps(directory: Path):
    def scaled(network: Any, optimizer: Any) -> list[Any]:
        steps(network, optimizer, 2)
        state = optimizer.state[network[1].weight]
        assert sorted(state) == ["exp_avg", "exp_avg_sq", "step"]
        state["exp_avg"].mul_(0.5)
        dict(state)["exp_avg_sq"].add_(1)
        optimizer.state[network[2].weight]["step"] = torch.tensor(7.0)
        return steps(network, optimizer, 2, 2)

    plain, network = model(), model()
    wanted = scaled(plain, torch.optim.Adam(plain.parameters()))
    optimizer = disk_offload_optimizer(torch.optim.Adam(network.parameters()), directory, ram_budget=0)
    assert same(scaled(network, optimizer), wanted)
    assert optimizer.stats().live_bytes == 6 * NBYTES


@pytest.mark.parametrize("scheduler_first", [True, False])
def test_schedulers_hooks_closures_and_further_groups_work(directory: Path, scheduler_first: bool):
    def train(offload: Callable[[Any], Any]) -> tuple[list[Any], list[str]]:
        network, seen = model(), []
        optimizer = torch.optim.SGD(network[:2].parameters(), lr=0.1, momentum=0.9)
        if not scheduler_first:
            optimizer = offload(optimizer)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        if scheduler_first:
            optimizer = offload(optimizer)
        optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
        optimizer.register_step_post_hook(lambda *_: seen.append("after"))
        optimizer.add_param_group({"params": network[2].parameters(), "lr": 0.3})

        def closure() -> Any:
            seen.append("closure")
            optimizer.zero_grad()
            loss = network(torch.ones(3, WIDTH)).square().mean()
            loss.backward()
            return loss

        for give in (lambda: optimizer.step(closure), lambda: optimizer.step(closure=closure)):
            seen.append(f"{give().item()}")
            scheduler.step()
        return [parameter.detach() for parameter in network.parameters()], seen

    wanted, wanted_events = train(lambda optimizer: optimizer)
    got, events = train(lambda optimizer: disk_offload_optimizer(optimizer, directory, ram_budget=0))
    assert same(got, wanted)
    assert events == wanted_events


@pytest.mark.parametrize("fused", [True, False])
def test_a_gradient_scaler_scales_and_skips(directory: Path, fused: bool):
    def train(offload: Callable[[Any], Any]) -> list[Any]:
        network = model()
        optimizer = offload(torch.optim.Adam(network.parameters(), fused=fused))
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
        for number in range(5):
            torch.manual_seed(number)
            optimizer.zero_grad()
            loss = network(torch.randn(8, WIDTH) * (float("inf") if number == 2 else 1)).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return [parameter.detach() for parameter in network.parameters()]

    wanted = train(lambda optimizer: optimizer)
    assert same(train(lambda optimizer: disk_offload_optimizer(optimizer, directory, ram_budget=0)), wanted)


class Counting(torch.optim.Optimizer):
    """An optimizer that counts steps in its group, and keeps hold of a state tensor."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1, "steps": 0})
        self.held: list[Any] = []

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["steps"] += 1
            for param in group["params"]:
                state = self.state[param]
                state.setdefault("sum", torch.zeros_like(param)).add_(param.grad)
                self.held.append(state["sum"])
                param.sub_(state["sum"], alpha=group["lr"] / group["steps"])


def test_what_an_optimizer_of_ones_own_counts_and_holds_stays_right(directory: Path):
    def train(offload: Callable[[Any], Any]) -> tuple[list[Any], int]:
        network = model()
        optimizer = offload(Counting(network.parameters()))
        for _ in range(3):
            optimizer.zero_grad()
            network(torch.ones(3, WIDTH)).square().mean().backward()
            optimizer.step()
        return [parameter.detach() for parameter in network.parameters()], optimizer.param_groups[0]["steps"]

    wanted, count = train(lambda optimizer: optimizer)
    got, got_count = train(lambda optimizer: disk_offload_optimizer(optimizer, directory, ram_budget=0))
    assert same(got, wanted)
    assert got_count == count == 3


def test_a_step_that_fails_loses_nothing(directory: Path):
    network = model()
    optimizer = disk_offload_optimizer(torch.optim.Adam(network.parameters()), directory, ram_budget=0)
    steps(network, optimizer, 2)
    state = optimizer.state_dict()["state"]
    network[1].weight.grad = torch.eye(WIDTH).to_sparse()
    for parameter in (network[0].weight, network[0].bias, network[2].weight):
        parameter.grad = None
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()
    assert same(list(optimizer.state_dict()["state"][2].values()), list(state[2].values()))
    assert optimizer.param_groups[0]["params"] == list(network.parameters())
    steps(network, optimizer, 2)


def test_saved_tensors_share_the_store_and_its_budget(directory: Path):
    plain, network = model(), model()
    wanted = steps(plain, torch.optim.Adam(plain.parameters()))
    optimizer = disk_offload_optimizer(torch.optim.Adam(network.parameters()), directory, ram_budget=3 * NBYTES)
    spill = save_on_disk(optimizer, min_bytes=1)
    assert spill.directory == optimizer.directory
    with spill:
        assert same(steps(network, optimizer), wanted)
    assert spill.stats().packed_bytes > 6 * NBYTES
    assert spill.stats().peak_ram_bytes <= 6 * NBYTES
    with pytest.raises(
        ArgumentError,
        match=r"got ram_budget with an offload.*give disk_offload or disk_offload_optimizer what it",
    ):
        save_on_disk(optimizer, ram_budget=1)


def test_nothing_is_left_when_the_optimizer_is_gone(directory: Path):
    network = model()
    optimizer = disk_offload_optimizer(torch.optim.Adam(network.parameters()), directory, ram_budget=0)
    steps(network, optimizer, 1)
    place = optimizer.directory
    assert list(place.glob("*.h5"))
    del optimizer
    wait_until(lambda: not place.exists())


def test_an_optimizer_on_disk_is_neither_copied_nor_pickled(directory: Path):
    optimizer = disk_offload_optimizer(torch.optim.Adam(model().parameters()), directory, ram_budget=0)
    for make in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(OperandError, match=r"cannot be copied or pickled.*state_dict\(\)"):
            make(optimizer)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda p: torch.optim.LBFGS(p), ArgumentError, "LBFGS, which updates all parameters together"),
        (lambda p: torch.optim.Adam(p, differentiable=True), ArgumentError, "differentiable=True"),
        (lambda p: "adam", OperandError, "got str; wanted an optimizer"),
    ],
)
def test_what_cannot_be_offloaded_is_refused(directory: Path, make: Any, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        disk_offload_optimizer(make(model().parameters()), directory, ram_budget=0)


def test_bad_arguments_are_refused_and_leave_the_optimizer_as_it_was(directory: Path, tmp_path: Path):
    network = model()
    optimizer = torch.optim.Adam(network.parameters())
    (tmp_path / "file").write_text("")
    for place, options, error in (
        (directory, {"ram_budget": "lots"}, BudgetError),
        (directory, {"ram_budget": 0, "min_bytes": "few"}, BudgetError),
        (directory, {"ram_budget": 0, "on_full": "never"}, ArgumentError),
        (tmp_path / "file", {"ram_budget": 0}, SpillError),
    ):
        with pytest.raises(error):
            disk_offload_optimizer(optimizer, place, **options)
        assert type(optimizer) is torch.optim.Adam
    optimizer.step = lambda: None
    with pytest.raises(ArgumentError, match=r"something has replaced step\(\)"):
        disk_offload_optimizer(optimizer, directory, ram_budget=0)
    del optimizer.step
    disk_offload_optimizer(optimizer, directory, ram_budget=0)
    with pytest.raises(ArgumentError, match="on disk already"):
        disk_offload_optimizer(optimizer, directory, ram_budget=0)
