"""Models of PyTorch whose parameters, gradients and optimizer state are on disk: they train as in RAM, bit for bit."""

import contextlib
import copy
import gc
import math
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="`make test-peers` installs PyTorch")

from spillgrad.errors import ArgumentError, BudgetError, GraphError, OperandError, SpillError  # noqa: E402
from spillgrad.interop.arrays import MIN_BYTES  # noqa: E402
from spillgrad.interop.torch import disk_offload, pieces, save_on_disk  # noqa: E402
from spillgrad.interop.torch.offloaded_tensor import OffloadedParameter, OffloadedTensor  # noqa: E402

torch.set_num_threads(1)  # as in `torch_models`
functional = torch.nn.functional
LARGE = "1GiB"


class Tied(torch.nn.Module):
    """An embedding whose weight is the last layer's, too, a layer that is called twice, and one that is not called."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layer = torch.nn.Embedding(128, 160), torch.nn.Linear(160, 160)
        self.head, self.unused = torch.nn.Linear(160, 128, bias=False), torch.nn.Linear(160, 160)
        self.head.weight = self.words.weight
        self.dropout = torch.nn.Dropout(0.1)
        self.scale = torch.nn.Parameter(torch.tensor(0.5))
        self.recomputes: dict[str, Any] | None = None

    def hidden(self, x: Any) -> Any:
        return self.layer(torch.tanh(self.dropout(self.layer(x)))) * self.scale

    def forward(self, x: Any) -> Any:
        x = self.words(x)
        if self.recomputes is None:
            return self.head(self.hidden(x))
        return self.head(torch.utils.checkpoint.checkpoint(self.hidden, x, **self.recomputes))


def recomputed(use_reentrant: bool) -> Any:
    model = Tied()
    model.recomputes = {"use_reentrant": use_reentrant}
    return model


class Viewed(torch.nn.Module):
    """Uses views of its parameters, as mixtures of experts do."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = torch.nn.Parameter(torch.randn(4, 96, 96) / 10)

    def forward(self, x: Any) -> Any:
        first, *others = self.experts
        for weight in others:
            x = torch.tanh(x @ weight.t())
        return x @ first + x @ self.experts[0].view(96, 96)


def layers(count: int = 3, width: int = 160, dtype: Any = None) -> Any:
    return torch.nn.Sequential(*(torch.nn.Linear(width, width, dtype=dtype) for _ in range(count)))


def convolutions() -> Any:
    return torch.nn.Sequential(
        torch.nn.Conv2d(16, 128, 3), torch.nn.BatchNorm2d(128), torch.nn.PReLU(), torch.nn.ConvTranspose2d(128, 16, 3)
    )


def partly_frozen() -> Any:
    model = layers()
    model[1].requires_grad_(False)
    return model


def rows() -> Any:
    return torch.randn(4, 160)


def words() -> Any:
    return torch.randint(0, 128, (2, 5))


MODELS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "layers": (layers, rows),
    "tied": (Tied, words),
    "recomputed": (lambda: recomputed(use_reentrant=False), words),
    "views": (Viewed, lambda: torch.randn(3, 96)),
    "convolutions": (convolutions, lambda: torch.randn(2, 16, 8, 8)),
    "channels last": (
        lambda: convolutions().to(memory_format=torch.channels_last),
        lambda: torch.randn(2, 16, 8, 8).to(memory_format=torch.channels_last),
    ),
    "attention": (lambda: torch.nn.TransformerEncoderLayer(96, 2, 192), lambda: torch.randn(5, 2, 96)),
    "lstm": (lambda: torch.nn.LSTM(96, 64, 2, bidirectional=True), lambda: torch.randn(7, 2, 96)),
    "weight norm": (
        lambda: torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(160, 120)),
        rows,
    ),
    "orthogonal": (lambda: torch.nn.utils.parametrizations.orthogonal(torch.nn.Linear(160, 120)), rows),
    "frozen": (partly_frozen, rows),
    "bfloat16": (lambda: layers(3, 192, torch.bfloat16), lambda: torch.randn(4, 192, dtype=torch.bfloat16)),
    "complex": (lambda: layers(dtype=torch.complex64), lambda: torch.randn(4, 160, dtype=torch.complex64)),
}


def adamw(params: Any) -> Any:
    return torch.optim.AdamW(params, lr=1e-2)


def loss_of(model: Any, x: Any) -> Any:
    result = model(x)
    result = result[0] if isinstance(result, tuple) else result
    return result.abs().float().square().mean()


class Run:
    """The losses, weights, gradients and optimizer state of a training, in RAM or with an offload."""

    def __init__(
        self, build: Callable[[], Any], given: Callable[[], Any], make: Callable[[Any], Any] = adamw, *,
        place: Path | None = None, ram_budget: Any = LARGE, spills: bool = False, builds: bool = False,
        steps: int = 3, pieces: int = 1, clip: float | None = None, clips_itself: bool = False,
        to_none: bool = True, around: Any = contextlib.nullcontext, prepare: Callable[[Any], None] = lambda model: None,
        in_backward: bool = False,
    ) -> None:  # fmt: skip
        torch.manual_seed(0)
        offload: Any = None
        if place is None:
            self.model = build()
            self.optimizer = make([param for param in self.model.parameters() if param.requires_grad])
        else:
            offload = disk_offload(
                build if builds else build(), make, place, ram_budget=ram_budget, step_in_backward=in_backward,
                max_grad_norm=None if clips_itself else clip,
            )  # fmt: skip
            self.model, self.optimizer = offload.model, offload.optimizer
        self.offload = offload
        prepare(self.model)
        torch.manual_seed(1)
        self.losses, self.norms = [], []
        for _ in range(steps):
            for _ in range(pieces):
                with save_on_disk(offload) if spills and offload else contextlib.nullcontext(), around():
                    loss = loss_of(self.model, given())
                loss.backward()
                self.losses.append(loss.item())
            if clip is not None and (offload is None or clips_itself):
                norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip)
                self.norms.append(float(norm))
            elif clip is not None and in_backward:
                self.norms.append(offload.grad_norm)
            self.gradients = [None if p.grad is None else p.grad.clone() for p in self.model.parameters()]
            if not in_backward:
                self.optimizer.step()
                if clip is not None and offload is not None and not clips_itself:
                    self.norms.append(offload.grad_norm)
                self.optimizer.zero_grad(set_to_none=to_none)
        self.weights = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.state = copy.deepcopy(self.optimizer.state_dict()["state"])


def same(got: Any, wanted: Any) -> bool:
    if isinstance(wanted, torch.Tensor):
        return torch.equal(got, wanted) and got.stride() == wanted.stride() and got.dtype == wanted.dtype
    if isinstance(wanted, dict):
        return got.keys() == wanted.keys() and all(same(got[key], wanted[key]) for key in wanted)
    return bool(got == wanted)


def require_same(got: Run, wanted: Run) -> None:
    assert got.losses == wanted.losses
    assert same(got.weights, wanted.weights)
    assert same(got.state, wanted.state)
    assert got.norms == wanted.norms


def least_budget(build: Callable[[], Any], make: Callable[[Any], Any], **options: Any) -> int:
    """Return the least budget, as the error for a budget of 0 says it."""
    with pytest.raises(BudgetError, match=r"got a ram_budget of 0 bytes, but .*; give at least \d+ bytes") as raised:
        disk_offload(build(), make, ram_budget=0, **options)
    return int(str(raised.value).split("give at least ")[1].split(" ")[0])


@pytest.mark.parametrize("in_backward", [False, True], ids=["step", "in backward"])
@pytest.mark.parametrize("name", MODELS)
def test_training_is_the_same_bit_for_bit(name: str, in_backward: bool, directory: Path):
    build, given = MODELS[name]
    least = least_budget(build, adamw, step_in_backward=in_backward)
    wanted = Run(build, given)
    for budget in (least, LARGE):
        got = Run(build, given, place=directory, ram_budget=budget, in_backward=in_backward)
        require_same(got, wanted)
        assert in_backward or all(
            (a is None) == (b is None) and (a is None or same(a, b))
            for a, b in zip(got.gradients, wanted.gradients, strict=True)
        )
        assert any(isinstance(param, OffloadedParameter) for param in got.model.parameters())
    stats = Run(build, given, place=directory, ram_budget=least, spills=True, in_backward=in_backward).offload.stats()
    assert stats.peak_ram_bytes <= least


@pytest.mark.parametrize(
    ("in_backward", "clips_itself"),
    [(False, False), (True, False), (False, True)],
    ids=["step", "in backward", "clip_grad_norm_"],
)
@pytest.mark.parametrize("name", ["tied", "convolutions", "bfloat16"])
def test_clipping_is_the_same(name: str, in_backward: bool, clips_itself: bool, directory: Path):
    build, given = MODELS[name]
    wanted = Run(build, given, clip=0.01)
    for spills in (False, True):
        got = Run(
            build, given, place=directory, clip=0.01, clips_itself=clips_itself, in_backward=in_backward, spills=spills,
            ram_budget=least_budget(build, adamw, max_grad_norm=0.01),
        )  # fmt: skip
        require_same(got, wanted)


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "SGD, no state": lambda p: torch.optim.SGD(p, lr=0.1),
    "Adam, amsgrad": lambda p: torch.optim.Adam(p, amsgrad=True),
    "Adam, foreach": lambda p: torch.optim.Adam(p, foreach=True),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, fused=True),
    "Adagrad": torch.optim.Adagrad,
    "Adafactor": torch.optim.Adafactor,
    "RMSprop": lambda p: torch.optim.RMSprop(p, momentum=0.5, centered=True),
    "NAdam": torch.optim.NAdam,
    "ASGD": torch.optim.ASGD,
    "Rprop": torch.optim.Rprop,
    "Muon": lambda p: torch.optim.Muon([param for param in p if param.ndim == 2]),
    "groups": lambda p: torch.optim.AdamW(
        [{"params": [q for q in p if q.ndim > 1]}, {"params": [q for q in p if q.ndim == 1], "weight_decay": 0.0}]
    ),
}


@pytest.mark.parametrize("in_backward", [False, True], ids=["step", "in backward"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_does_the_same_steps(name: str, in_backward: bool, directory: Path):
    make = OPTIMIZERS[name]
    wanted = Run(layers, rows, make)
    got = Run(layers, rows, make, place=directory, in_backward=in_backward, ram_budget=least_budget(layers, make))
    require_same(got, wanted)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name not in ("Adafactor", "Muon")])
def test_an_update_in_pieces_is_the_same(name: str, threads: int, directory: Path, monkeypatch: pytest.MonkeyPatch):
    def large() -> Any:
        return torch.nn.Sequential(torch.nn.Linear(307, 401), torch.nn.Linear(401, 257))

    def given() -> Any:
        return torch.randn(4, 307)

    torch.set_num_threads(threads)
    try:
        wanted = Run(large, given, OPTIMIZERS[name])
        whole = least_budget(large, OPTIMIZERS[name])
        monkeypatch.setattr(pieces, "PIECE_BYTES", 128 << 10)
        least = least_budget(large, OPTIMIZERS[name])
        assert least < whole or name == "SGD, no state"
        for in_backward, clip in ((False, None), (True, None), (True, 1e9)):
            got = Run(
                large, given, OPTIMIZERS[name], place=directory, ram_budget=least + 401 * 307 * 4 * (clip is not None),
                in_backward=in_backward, clip=clip,
            )  # fmt: skip
            assert got.offload.stats().peak_ram_bytes <= got.offload._store.ram_budget
            got.norms = []
            require_same(got, wanted)
    finally:
        torch.set_num_threads(1)


def test_state_in_pieces_is_kept_when_the_dtype_changes(directory: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pieces, "PIECE_BYTES", 32 << 10)
    found = []
    for place in (None, directory):
        run = Run(layers, rows, OPTIMIZERS["SGD"], steps=1, place=place)
        run.model.double()  # a piece has half as many elements
        loss_of(run.model, torch.ones(4, 160, dtype=torch.float64)).backward()
        run.optimizer.step()
        found.append((dict(run.model.state_dict()), run.optimizer.state_dict()["state"]))
    assert same(*[state for _, state in found])
    assert same(*[weights for weights, _ in found])


def test_state_in_pieces_can_be_read_changed_and_loaded(directory: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pieces, "PIECE_BYTES", 32 << 10)
    wanted, got = Run(layers, rows, steps=2), Run(layers, rows, steps=2, place=directory, ram_budget="512KiB")
    for run in (wanted, got):
        weight = run.model[0].weight
        run.optimizer.state[weight]["exp_avg"].mul_(2)
        loss_of(run.model, torch.ones(4, 160)).backward()
        run.optimizer.step()
        run.optimizer.load_state_dict(copy.deepcopy(run.optimizer.state_dict()))
        weight.grad.t_()  # not contiguous: the whole parameter is updated at once
        run.optimizer.step()
        weight.grad.t_()
        run.optimizer.step()
    assert repr(got.optimizer.state[got.model[0].weight].values_there["exp_avg"]) == (
        "<state.exp_avg in 0.weight, (160, 160), in 4 pieces>"
    )
    assert same(got.optimizer.state_dict()["state"], wanted.optimizer.state_dict()["state"])
    assert same(dict(got.model.state_dict()), dict(wanted.model.state_dict()))


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("name", ["tied", "channels last", "attention"])
def test_gradients_accumulate_the_same(name: str, to_none: bool, directory: Path):
    build, given = MODELS[name]
    wanted = Run(build, given, pieces=3, to_none=to_none, clip=0.01)
    for clips_itself in (False, True):
        budget = least_budget(build, adamw, max_grad_norm=0.01)
        got = Run(
            build, given, place=directory, pieces=3, to_none=to_none, clip=0.01, clips_itself=clips_itself,
            ram_budget=budget,
        )  # fmt: skip
        require_same(got, wanted)


def test_autocast_is_the_same(directory: Path):
    def around() -> Any:
        return torch.autocast("cpu", torch.bfloat16)

    wanted = Run(Tied, words, around=around)
    for in_backward in (False, True):
        require_same(
            Run(Tied, words, around=around, place=directory, ram_budget=LARGE, in_backward=in_backward), wanted
        )


def test_the_hooks_of_users_see_the_same(directory: Path):
    def prepare(seen: list[Any]) -> Callable[[Any], None]:
        def hook(model: Any) -> None:
            weight = model[0].weight
            weight.register_hook(lambda grad: seen.append(grad.sum()) or grad * 2)
            weight.register_post_accumulate_grad_hook(lambda param: seen.append(param.grad.sum()))
            model[1].register_forward_hook(lambda module, args, result: seen.append(module.weight.sum()) or result * 2)
            model[1].register_full_backward_hook(lambda module, gave, got: seen.append(got[0].sum()))

        return hook

    seen: list[list[Any]] = [[], []]
    wanted = Run(layers, rows, prepare=prepare(seen[0]))
    require_same(Run(layers, rows, prepare=prepare(seen[1]), place=directory), wanted)
    assert [value.item() for value in seen[0]] == [value.item() for value in seen[1]]
    assert len(seen[0]) == 12


def test_gradients_can_be_read_and_changed(directory: Path):
    model, wanted = layers(), layers()
    wanted.load_state_dict(model.state_dict())
    disk_offload(model, None, directory, ram_budget="128KiB")
    x = rows()
    for module in (model, wanted):
        loss_of(module, x).backward()
        for param in module.parameters():
            param.grad.mul_(3)
            param.grad.view(-1)[1] = 7.0
            param.grad.data.add_(1)
    grad = model[0].weight.grad
    assert type(grad) is OffloadedTensor
    assert model[0].weight.grad is grad
    assert repr(grad) == "<gradient in 0.weight, torch.float32 (160, 160), in a store>"
    for a, b in zip(model.parameters(), wanted.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)
    other = torch.ones(160, 160)
    model[0].weight.grad = other
    assert model[0].weight.grad is other
    model[0].weight.grad = None
    assert model[0].weight.grad is None


@pytest.mark.filterwarnings("ignore:Using backward:UserWarning")  # it was asked for
def test_gradients_of_autograd_grad_and_second_derivatives_are_the_same(directory: Path):
    torch.manual_seed(0)
    wanted, x = layers(), rows()
    model = copy.deepcopy(wanted)
    disk_offload(model, None, directory, ram_budget="128KiB")
    for _ in range(2):
        found = []
        for module in (model, wanted):
            first = torch.autograd.grad(module(x).tanh().sum(), list(module.parameters()), create_graph=True)
            sum(grad.square().sum() for grad in first).backward(create_graph=True)
            found.append([param.grad for param in module.parameters()])
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    model.zero_grad()  # each gradient holds a graph, which holds the parameter


def test_a_gradient_scaler_works(directory: Path):
    def trained(place: Path | None) -> list[Any]:
        torch.manual_seed(0)
        model = layers()
        optimizer = adamw(model.parameters())
        if place is not None:
            disk_offload(model, optimizer, place, ram_budget="512KiB")
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for number in range(3):
            scaler.scale(loss_of(model, rows() * (math.inf if number == 1 else 1))).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return [param.detach().clone() for param in model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(trained(directory), trained(None), strict=True))


def test_a_scheduler_works(directory: Path):
    schedulers: list[Any] = []

    def make(params: Any) -> Any:
        optimizer = adamw(params)
        schedulers.append(torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3))
        return optimizer

    rates = []
    for place in (None, directory):
        run = Run(layers, rows, make, place=place, steps=1)
        schedulers[-1].step()
        run.optimizer.step()
        rates.append(run.optimizer.param_groups[0]["lr"])
    assert rates[0] == rates[1] != 1e-3


def test_what_is_frozen_later_and_unfrozen_later(directory: Path):
    def trained(place: Path | None) -> dict[str, Any]:
        torch.manual_seed(0)
        model = partly_frozen()
        optimizer = adamw(model.parameters())
        if place is not None:
            disk_offload(model, optimizer, place, ram_budget="512KiB")
        for number in range(4):
            model[1].requires_grad_(number > 1)
            model[0].requires_grad_(number < 2)
            loss_of(model, rows()).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert place is None or isinstance(model[1].weight, OffloadedParameter)
        return {name: value.clone() for name, value in model.state_dict().items()}

    assert same(trained(directory), trained(None))


def forget_failed_backward() -> None:
    """After an error in a backward within another one, PyTorch holds their graphs until the thread's next backward."""
    torch.ones(1, requires_grad=True).sum().backward()
    gc.collect()


@pytest.mark.parametrize("clip", [None, 0.1])
def test_a_backward_within_a_backward_is_the_same_or_an_error(clip: float | None, directory: Path):
    def build() -> Any:
        return recomputed(use_reentrant=True)

    def given() -> Any:
        return words()

    wanted = Run(build, given, clip=clip)
    require_same(Run(build, given, clip=clip, place=directory), wanted)
    if clip is None:  # each parameter gets its gradient once
        require_same(Run(build, given, place=directory, in_backward=True), wanted)
    else:
        with pytest.raises(GraphError, match=r"runs inside another one, as checkpoint\(use_reentrant=True\)"):
            Run(build, given, clip=clip, place=directory, in_backward=True)
        forget_failed_backward()


def test_a_second_gradient_after_the_update_is_an_error(directory: Path):
    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(160, 160)

        def forward(self, x: Any) -> Any:
            for _ in range(2):
                x = torch.utils.checkpoint.checkpoint(self.layer, x, use_reentrant=True)
            return x

    def given() -> Any:
        return rows().requires_grad_()

    require_same(Run(Twice, given, place=directory), Run(Twice, given))
    with pytest.raises((GraphError, RuntimeError), match=r"got another gradient after backward had updated it"):
        Run(Twice, given, place=directory, in_backward=True)
    forget_failed_backward()


@pytest.mark.parametrize("name", ["tied", "convolutions", "lstm", "weight norm", "views"])
def test_a_model_that_is_built_on_disk_is_the_same(name: str, directory: Path):
    build, given = MODELS[name]
    wanted = Run(build, given)
    got = Run(build, given, place=directory, builds=True, ram_budget=least_budget(build, adamw))
    require_same(got, wanted)


def test_state_dicts_are_copies_on_disk(directory: Path, tmp_path: Path):
    run = Run(Tied, words, place=directory)
    state = run.model.state_dict()
    for name, value in state.items():
        if value.nbytes < MIN_BYTES:  # it stays in RAM, and the state dict has the parameter's memory
            state[name] = value.clone()
    wanted = {name: value.clone() for name, value in run.weights.items()}
    optimizer_state = copy.deepcopy(run.optimizer.state_dict())
    loss_of(run.model, words()).backward()
    run.optimizer.step()
    assert same(dict(state), wanted)
    assert not same(dict(run.model.state_dict()), wanted)
    torch.save(state, tmp_path / "model.pt")
    assert same(torch.load(tmp_path / "model.pt"), wanted)
    run.model.load_state_dict(state)
    run.optimizer.load_state_dict(optimizer_state)
    assert same(dict(run.model.state_dict()), wanted)
    assert same(run.optimizer.state_dict(), optimizer_state)
    assert isinstance(run.model.words.weight, OffloadedParameter)
    in_ram = Tied()
    in_ram.load_state_dict(state)
    assert same(dict(in_ram.state_dict()), wanted)
    assert run.model.state_dict(keep_vars=True)["words.weight"] is run.model.words.weight


def test_a_training_is_resumed_from_its_state_dicts(directory: Path):
    wanted = Run(Tied, words, steps=6)
    first = Run(Tied, words, steps=3, place=directory)
    state, optimizer_state, generator = first.model.state_dict(), first.optimizer.state_dict(), torch.get_rng_state()
    del first
    torch.manual_seed(5)
    offload = disk_offload(Tied(), adamw, directory, ram_budget=LARGE)
    offload.model.load_state_dict(state)
    offload.optimizer.load_state_dict(optimizer_state)
    torch.set_rng_state(generator)
    losses = []
    for _ in range(3):
        loss = loss_of(offload.model, words())
        loss.backward()
        losses.append(loss.item())
        offload.optimizer.step()
        offload.optimizer.zero_grad()
    assert losses == wanted.losses[3:]
    assert same(dict(offload.model.state_dict()), wanted.weights)
    assert same(offload.optimizer.state_dict()["state"], wanted.state)


def test_arrays_are_labelled_with_the_names_of_parameters(directory: Path):
    run = Run(layers, rows, place=directory, ram_budget=least_budget(layers, adamw))
    assert str(run.model[1].weight._stored.label) == "parameter in 1.weight"
    labels = {str(value.label) for value in run.optimizer.state[run.model[1].weight].values_there.values()
              if hasattr(value, "label")}  # fmt: skip
    assert labels == {"state.exp_avg in 1.weight", "state.exp_avg_sq in 1.weight"}


def test_memory_is_given_back_and_nothing_grows(directory: Path):
    run = Run(layers, rows, place=directory, ram_budget="512KiB", spills=True)
    run.offload.flush()
    wanted = None
    for number in range(40):
        with save_on_disk(run.offload):
            loss = loss_of(run.model, rows())
        loss.backward()
        run.optimizer.step()
        run.optimizer.zero_grad()
        if number in (9, 39):
            del loss
            gc.collect()
            run.offload.flush()
            stats = run.offload.stats()
            found = stats.live_bytes, stats.disk_bytes <= 2 * stats.live_bytes, len(run.offload._residents.changing)
            assert wanted is None or found == wanted
            wanted = found
    assert wanted is not None
    assert wanted[0] == 3 * 3 * 4 * 160 * 160  # parameters and two tensors of state; biases stay in RAM


def test_a_program_that_ends_anywhere_leaves_no_file(tmp_path: Path):
    program = """
import sys, os, torch
from spillgrad.interop.torch import disk_offload, save_on_disk
line = int(sys.argv[1])
def leave(here):
    if here == line:
        sys.exit(3)
model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(3)))
offload = disk_offload(model, torch.optim.AdamW, sys.argv[2], ram_budget="2MiB", step_in_backward=True, max_grad_norm=1)
leave(0)
model[0].weight.register_hook(lambda grad: leave(1))
with save_on_disk(offload):
    leave(2)
    loss = model(torch.ones(8, 256)).sum()
    leave(3)
state = model.state_dict()
leave(4)
loss.backward()
leave(5)
raise RuntimeError("an error of the user's")
"""
    for line in range(7):
        done = subprocess.run(
            [sys.executable, "-c", program, str(line), str(tmp_path)], capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip
        assert done.returncode == (3 if line < 6 else 1), done.stderr
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def foreign(params: Any) -> Any:
    return torch.optim.SGD([*params, torch.nn.Parameter(torch.ones(3, 4))], lr=0.1)


def sharing() -> Any:
    model = layers(2)
    model[1].weight = torch.nn.Parameter(model[0].weight)
    return model


def buffered() -> Any:
    model = layers(2)
    model.register_buffer("same", model[0].weight.data)
    return model


def compiled() -> Any:
    model = layers(2)
    model.compile(backend="eager")
    return model


class Scripted(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x


REFUSED: dict[str, tuple[Any, Any, dict[str, Any], type[Exception], str]] = {
    "no model": (lambda: 3, None, {}, ArgumentError, "got int as model; wanted a torch.nn.Module, or"),
    "a function that returns none": (lambda: lambda: 3, None, {}, ArgumentError, "the function returned int; it must"),
    "no optimizer": (layers, 3, {}, ArgumentError, "got int as optimizer; wanted a torch.optim.Optimizer, or"),
    "a foreign parameter": (
        layers, foreign, {}, ArgumentError,
        r"parameter 6 of the optimizer's group 0, of shape \(3, 4\), is not the model's; give an optimizer of the",
    ),
    "LBFGS": (layers, torch.optim.LBFGS, {}, ArgumentError, "got LBFGS, which updates all parameters together"),
    "another device": (
        lambda: layers().to("meta"), None, {}, ArgumentError, "0.weight is on meta; wanted a model on the CPU",
    ),
    "shared memory": (sharing, None, {}, ArgumentError, r"1.weight and 0.weight share memory; clone\(\) one"),
    "shared memory, built": (
        lambda: sharing, None, {}, ArgumentError, r"1.weight and 0.weight share memory; clone\(\) one",
    ),
    "a lazy layer": (lambda: torch.nn.LazyLinear(3), None, {}, ArgumentError, "weight has no shape yet; call the"),
    "a small budget": (
        layers, adamw, {"ram_budget": "64KiB"}, BudgetError,
        "got a ram_budget of 65536 bytes, but 0.weight needs 400 KiB when it is updated: 100 KiB itself, as much for "
        "its gradient and 200 KiB of AdamW's state; give at least 409600 bytes",
    ),
    "no size": (layers, adamw, {"ram_budget": "much"}, BudgetError, "much"),
    "a negative norm": (layers, adamw, {"max_grad_norm": -1}, ArgumentError, "got max_grad_norm=-1; wanted a number"),
    "steps without optimizer": (layers, None, {"step_in_backward": True}, ArgumentError, "without an optimizer"),
    "a closed directory": (layers, adamw, {"directory": "/dev/null/x"}, SpillError, "/dev/null"),
    "a script": (
        lambda: torch.jit.script(torch.nn.Linear(160, 160)), None, {}, ArgumentError, "the model is a ScriptModule",
    ),
    "a buffer that shares memory": (
        buffered, None, {}, ArgumentError, "same and 0.weight share memory, and a buffer does not change with",
    ),
    "a model that was compiled in place": (
        compiled, None, {}, ArgumentError, r"the model was compiled by its compile\(\), whose code does",
    ),
    "a compiled model": (
        lambda: torch.compile(layers()), None, {}, ArgumentError, "the model is compiled by torch.compile as a whole",
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_offloaded_is_refused(name: str, directory: Path):
    build, optimizer, options, error, message = REFUSED[name]
    model = build()
    before = None if not isinstance(model, torch.nn.Module) else [type(p) for p in model.parameters()]
    with pytest.raises(error, match=message) as raised:
        disk_offload(model, optimizer, **{"directory": directory, "ram_budget": LARGE, **options})
    assert str(raised.value).startswith(("disk_offload: ", "budget: ", "spill: "))
    assert before is None or [type(p) for p in model.parameters()] == before


def test_a_model_is_offloaded_once(directory: Path):
    model = layers()
    offload = disk_offload(model, adamw, directory, ram_budget=LARGE)
    with pytest.raises(ArgumentError, match=r"0\.weight is offloaded already; offload a model once"):
        disk_offload(model, None, directory, ram_budget=LARGE)
    with pytest.raises(ArgumentError, match="the state of this OffloadedAdamW is on disk already"):
        disk_offload(layers(), offload.optimizer, directory, ram_budget=LARGE)
    with pytest.raises(OperandError, match="disk_offload: cannot be copied or pickled"):
        copy.deepcopy(offload)
    with pytest.raises(OperandError, match="cannot be copied or pickled"):
        copy.deepcopy(model)
    with pytest.raises(ArgumentError, match="got ram_budget with an offload"):
        save_on_disk(offload, ram_budget=3)


def test_a_model_that_changes_is_refused(directory: Path):
    model = layers()
    offload = disk_offload(model, adamw, directory, ram_budget=LARGE)
    model[0].weight.data = torch.ones(150, 160)
    with pytest.raises(ArgumentError, match=r"0.weight has another shape: \(160, 160\) before, \(150, 160\) now"):
        model(rows())
    model[0].weight = torch.nn.Parameter(torch.ones(160, 160))
    with pytest.raises(ArgumentError, match=r"0.weight was replaced: \(160, 160\) before, \(160, 160\) now; change"):
        model(rows())
    del offload


def test_a_model_can_be_used_without_gradients_and_in_parts(directory: Path):
    model, wanted = layers(), layers()
    wanted.load_state_dict(model.state_dict())
    disk_offload(model, None, directory, ram_budget="128KiB")
    x = rows()
    with torch.no_grad():
        assert torch.equal(model(x), wanted(x))
    with torch.inference_mode():
        assert torch.equal(model(x), wanted(x))
    assert torch.equal(model[1](x), wanted[1](x))
    assert torch.equal(
        torch.nn.utils.parameters_to_vector(model.parameters()),
        torch.nn.utils.parameters_to_vector(wanted.parameters()),
    )
    with torch.no_grad():
        model.apply(lambda module: module.weight.fill_(0.5) if isinstance(module, torch.nn.Linear) else None)
        assert torch.equal(model[2].weight, torch.full((160, 160), 0.5))
    model.double()
    assert model[0].weight.dtype == torch.float64
    assert isinstance(model[0].weight, OffloadedParameter)


def test_saved_tensors_are_labelled_with_the_path_of_their_module(directory: Path):
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = torch.nn.ModuleList([layers(2, 32), layers(2, 32)])

        def forward(self, x: Any) -> Any:
            for block in self.blocks:
                x = block(x).sigmoid()
            return x

    model, x = Model(), torch.randn(64, 32, requires_grad=True)
    for _ in range(2):
        with save_on_disk(directory, ram_budget=0) as spill:
            kept = [model(x), x.exp()]
        paths = [str(handle.label.module) for handle in spill._stored.values()]
        assert sorted(paths) == ["", "", "None", "blocks.0.1", "blocks.1.1"]
        del kept, spill


def test_threads_that_use_views_of_the_same_parameters_do_not_wait_for_each_other(directory: Path):
    model = torch.nn.Sequential(Viewed(), Viewed(), Viewed())
    x = torch.randn(3, 96)
    wanted = model(x).detach()
    disk_offload(model, None, directory, ram_budget="512KiB")
    found: list[bool] = []

    def use() -> None:
        with torch.no_grad():
            found.append(all(torch.equal(model(x), wanted) for _ in range(40)))

    threads = [threading.Thread(target=use, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [True] * 4


def test_a_step_in_backward_needs_no_reference_to_the_offload(directory: Path):
    def trained(place: Path | None) -> list[Any]:
        torch.manual_seed(0)
        model = layers()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if place is not None:
            disk_offload(model, optimizer, place, ram_budget="512KiB", step_in_backward=True)
            del optimizer
            gc.collect()
        for _ in range(2):
            loss_of(model, rows()).backward()
            if place is None:
                optimizer.step()
                optimizer.zero_grad()
        return [param.detach().clone() for param in model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(trained(directory), trained(None), strict=True))


def test_a_step_in_backward_works_without_a_forward_and_when_groups_change(directory: Path):
    def trained(place: Path | None) -> list[Any]:
        torch.manual_seed(0)
        model = layers()
        optimizer = torch.optim.SGD([{"params": [p], "lr": 0.1 * n} for n, p in enumerate(model.parameters(), 1)])
        if place is not None:
            disk_offload(model, optimizer, place, ram_budget="512KiB", step_in_backward=True)
        for number in range(3):
            sum((rows() @ layer.weight).square().mean() for layer in model).backward()
            if place is None:
                optimizer.step()
                optimizer.zero_grad()
            optimizer.param_groups.reverse() if not number else optimizer.param_groups.pop()
        return [param.detach().clone() for param in model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(trained(directory), trained(None), strict=True))


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
@pytest.mark.parametrize("where", ["forward", "gradient", "result"])
@pytest.mark.parametrize("in_backward", [False, True], ids=["step", "in backward"])
def test_training_goes_on_after_an_error(error: type[BaseException], where: str, in_backward: bool, directory: Path):
    model = layers()
    offload = disk_offload(model, adamw, directory, ram_budget="512KiB", step_in_backward=in_backward)
    number = 0

    def hook(*args: Any) -> None:
        if number in (1, 2):
            raise error

    if where == "forward":
        model[1].register_forward_pre_hook(hook)
    elif where == "result":
        model[1].register_forward_hook(hook)
    else:
        model[1].weight.register_hook(hook)
    for number in range(5):  # noqa: B007  # the hook reads it
        with contextlib.suppress(error):
            loss_of(model, rows()).backward()
            offload.optimizer.step()
    assert len(offload._residents.thread.frames) == 1
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    assert not offload._training._thread.adding
    assert offload.stats().peak_ram_bytes <= 512 << 10


def test_a_functional_call_with_other_parameters_is_the_same(directory: Path):
    model, wanted = layers(), layers()
    wanted.load_state_dict(model.state_dict())
    disk_offload(model, None, directory, ram_budget="512KiB")
    x, found = rows(), []
    for module in (model, wanted):
        others = {name: param * 0.5 for name, param in module.named_parameters()}
        torch.func.functional_call(module, others, (x,)).square().mean().backward()
        found.append([param.grad for param in module.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_gradients_in_a_buffer_of_the_caller_stay_there(directory: Path):
    found = []
    for place in (None, directory):
        torch.manual_seed(0)
        model = layers()
        if place is not None:
            disk_offload(model, None, place, ram_budget="512KiB")
        flat = torch.zeros(sum(param.numel() for param in model.parameters()))
        for param, part in zip(model.parameters(), flat.split([p.numel() for p in model.parameters()]), strict=True):
            param.grad = part.view_as(param)
        for _ in range(3):
            loss_of(model, rows()).backward()
        found.append(flat)
    assert torch.equal(*found)


def test_gradients_that_are_only_returned_keep_the_budget(directory: Path):
    model = layers(6)
    offload = disk_offload(model, None, directory, ram_budget="256KiB")
    for _ in range(2):
        loss_of(model, rows()).backward()
    del _
    first = torch.autograd.grad(loss_of(model, rows()), list(model.parameters()))
    assert len(first) == 12
    assert offload.stats().peak_ram_bytes <= 256 << 10


def test_parametrizations_may_be_added_later(directory: Path):
    def prepare(model: Any) -> None:
        torch.nn.utils.parametrizations.orthogonal(model[0])
        torch.nn.utils.parametrizations.weight_norm(model[1])

    def trained(place: Path | None) -> Run:
        return Run(layers, rows, lambda p: torch.optim.SGD(p, lr=0.1), place=place, prepare=prepare)

    require_same(trained(directory), trained(None))


def test_vmap_around_functions_of_a_parameter(directory: Path):
    model, x = layers(1), rows()
    wanted = torch.vmap(model)(x).detach()
    disk_offload(model, None, directory, ram_budget="512KiB")
    assert torch.equal(torch.vmap(model)(x), wanted)


def test_gradients_of_some_parameters_of_a_recomputed_model_are_the_same(directory: Path):
    found = []
    for place in (None, directory):
        torch.manual_seed(0)
        model = recomputed(use_reentrant=False)
        if place is not None:
            disk_offload(model, None, place, ram_budget="256KiB")
        for inputs in ([model.words.weight], [model.scale, model.words.weight, model.unused.weight]):
            found.append(torch.autograd.grad(loss_of(model, words()), inputs, materialize_grads=True))
            found.append(torch.autograd.grad(loss_of(model, words()), inputs, allow_unused=True))
    assert all(
        (a is b is None) or torch.equal(a, b)
        for some, others in zip(found[:4], found[4:], strict=True)
        for a, b in zip(some, others, strict=True)
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_model_is_not_traced(directory: Path):
    model = layers()
    disk_offload(model, None, directory, ram_budget="512KiB")
    with pytest.raises(ArgumentError, match=r"torch\.jit\.trace reads parameters other than by functions in Python"):
        torch.jit.trace(model, rows())
    assert not loss_of(model, rows()).isnan()
