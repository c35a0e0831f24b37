"""Offloaded gradients are clipped as `clip_grad_norm_` before `step` does it in RAM, bit for bit."""

import math
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

import spillgrad as sg
from spillgrad import nn
from spillgrad.errors import ArgumentError, GraphError
from spillgrad.spill.offload.needs import largest_need
from spillgrad.spill.offload.training import FRAMEWORK
from spillgrad_kernels.cpu import optim as kernels
from spillgrad_kernels.memory import buffers
from spillgrad_kernels.tables.optim import Update

MAX_NORM = 0.05
TOKENS = np.random.default_rng(0).integers(0, 12, (6, 4, 9))
MakeOptimizer = Callable[[nn.Module], sg.optim.Optimizer]


class Model(nn.Module):
    """Embedding rows of which most get no gradient, a tied head, a layer used twice, one never, one frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(60, 24)
        self.twice = nn.Linear(24, 24)
        self.norm = nn.LayerNorm(24)
        self.frozen = nn.Linear(24, 24).requires_grad_(False)
        self.never = nn.Linear(24, 24)
        self.head = nn.Linear(24, 60, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: np.ndarray) -> sg.Tensor:
        x = self.table(sg.tensor(tokens[:, :-1]))
        x = self.norm(self.twice(self.twice(x).tanh()) + self.frozen(x))
        return sg.nn.functional.cross_entropy(self.head(x).reshape(-1, 60), sg.tensor(tokens[:, 1:]).reshape(-1))


def groups(model: nn.Module) -> list[dict[str, object]]:
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    return [{"params": matrices, "weight_decay": 0.1}, {"params": others, "lr": 0.1}]


OPTIMIZERS: dict[str, MakeOptimizer] = {
    "AdamW": lambda model: sg.optim.AdamW(groups(model), lr=0.01),
    "SGD": lambda model: sg.optim.SGD(groups(model), lr=0.5),
    "momentum": lambda model: sg.optim.SGD(groups(model), lr=0.5, momentum=0.9),
}
CLOSE_BY = 1e9  # no norm reaches it


def build() -> Model:
    sg.manual_seed(0)
    return Model()


def train(
    model: nn.Module,
    optimizer: sg.optim.Optimizer,
    clip: float | None = None,
    accumulate: int = 1,
    backward: Callable[[nn.Module, sg.Tensor], None] = lambda model, loss: loss.backward(),
    between: Callable[[nn.Module], None] = lambda model: None,
) -> list[str]:
    """Train; return losses, norms where `clip` is given, and weights, exactly."""
    schedule = sg.optim.lr_scheduler.CosineAnnealingLR(optimizer, 7)
    found = []
    for number, tokens in enumerate(TOKENS):
        loss = model(tokens)
        backward(model, loss)
        found.append(loss.item().hex())
        if (number + 1) % accumulate == 0:
            between(model)
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    return found + [parameter.numpy().tobytes().hex() for parameter in model.parameters()]


def least_bytes(model: nn.Module, optimizer: sg.optim.Optimizer, in_backward: bool, clip: float | None) -> int:
    gradients = 2 if clip is not None and not in_backward else 1
    return largest_need(FRAMEWORK, model, optimizer, gradients).nbytes


def offloaded(directory: Path, make: MakeOptimizer, in_backward: bool, clip: float | None) -> sg.disk_offload:
    model = build()
    optimizer = make(model)
    return sg.disk_offload(
        model, optimizer, directory, step_in_backward=in_backward, max_grad_norm=clip,
        ram_budget=least_bytes(model, optimizer, in_backward, clip),
    )  # fmt: skip


@pytest.mark.parametrize("in_backward", [False, True], ids=["in step", "in backward"])
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("clip", [MAX_NORM, CLOSE_BY, 0.0], ids=["smaller", "as they are", "zero"])
def test_clipped_training_is_bit_for_bit_that_in_ram(
    tmp_path: Path, in_backward: bool, make: MakeOptimizer, clip: float
):
    model = build()
    wanted = train(model, make(model), clip)
    offload = offloaded(tmp_path, make, in_backward, clip)
    assert train(offload.model, offload.optimizer) == wanted
    stats = offload.stats()
    assert stats.read_bytes > 0
    assert stats.peak_ram_bytes <= offload.least_budget


@pytest.mark.parametrize("in_backward", [False, True], ids=["in step", "in backward"])
@pytest.mark.parametrize("dtype", [sg.bfloat16, sg.float64], ids=["bfloat16", "float64"])
def test_gradients_of_other_dtypes_are_clipped_as_in_ram(tmp_path: Path, in_backward: bool, dtype: sg.dtype):
    def start() -> tuple[nn.Module, sg.optim.Optimizer]:
        model = build().to(dtype)
        return model, OPTIMIZERS["AdamW"](model)

    wanted = train(*start(), MAX_NORM)
    model, optimizer = start()
    budget = least_bytes(model, optimizer, in_backward, MAX_NORM)
    sg.disk_offload(model, optimizer, tmp_path, ram_budget=budget, step_in_backward=in_backward, max_grad_norm=MAX_NORM)
    assert train(model, optimizer) == wanted


def test_gradients_that_accumulate_are_clipped_together(tmp_path: Path):
    model = build()
    wanted = train(model, OPTIMIZERS["AdamW"](model), MAX_NORM, accumulate=3)
    offload = offloaded(tmp_path, OPTIMIZERS["AdamW"], False, MAX_NORM)
    assert train(offload.model, offload.optimizer, accumulate=3) == wanted


def change_gradients(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(1.5)


def write_to_gradients(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.numpy()[...] *= 1.5


def replace_gradients(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad = parameter.grad * 1.5


def give_gradients(model: nn.Module) -> None:
    for parameter in model.never.parameters():
        parameter.grad = sg.ones(*parameter.shape)


def forget_gradients(model: nn.Module) -> None:
    model.table.weight.grad = None


@pytest.mark.parametrize(
    "touch", [change_gradients, write_to_gradients, replace_gradients, give_gradients, forget_gradients]
)
def test_the_norm_is_that_of_the_gradients_as_they_are_at_the_step(tmp_path: Path, touch: Callable[[nn.Module], None]):
    model = build()
    wanted = train(model, OPTIMIZERS["AdamW"](model), MAX_NORM, between=touch)
    offload = offloaded(tmp_path, OPTIMIZERS["AdamW"], False, MAX_NORM)
    assert train(offload.model, offload.optimizer, between=touch) == wanted


def with_penalty(model: nn.Module, loss: sg.Tensor) -> None:
    (gradient,) = sg.grad(loss, [model.twice.weight], create_graph=True)
    (loss + gradient.square().sum()).backward()


class _Nested(sg.autograd.Function):
    """Multiplies by the sum of a weight's squares, whose gradient a backward gives that runs `depth` levels inside."""

    @staticmethod
    def forward(ctx, x, weight, depth):
        ctx.weight, ctx.depth = weight, depth
        ctx.save_for_backward(x)
        return x * weight.detach().square().sum()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        with sg.enable_grad():
            inner = x.detach().requires_grad_()
            if ctx.depth > 1:
                _Nested.apply(inner, ctx.weight, ctx.depth - 1).backward(grad)
            else:
                (inner * ctx.weight.square().sum()).backward(grad)
        return inner.grad, None, None


def nested(model: nn.Module, loss: sg.Tensor) -> None:
    """Let the tied table, and a layer, get part of their gradients in backwards that run inside."""
    _Nested.apply(_Nested.apply(loss, model.table.weight, 1), model.twice.weight, 20).backward()


@pytest.mark.parametrize("in_backward", [False, True], ids=["in step", "in backward"])
@pytest.mark.parametrize("backward", [with_penalty, nested])
def test_a_backward_inside_backward_counts_once(
    tmp_path: Path, in_backward: bool, backward: Callable[[nn.Module, sg.Tensor], None]
):
    model = build()
    wanted = train(model, OPTIMIZERS["AdamW"](model), MAX_NORM, backward=backward)
    offload = offloaded(tmp_path, OPTIMIZERS["AdamW"], in_backward, MAX_NORM)
    assert train(offload.model, offload.optimizer, backward=backward) == wanted


def test_a_parameter_that_would_be_updated_twice_in_one_backward_is_told(tmp_path: Path):
    offload = offloaded(tmp_path, OPTIMIZERS["AdamW"], True, None)
    weight = offload.model.never.weight
    with pytest.raises(
        GraphError, match=r"never\.weight got another gradient after backward had updated it.*math\.inf"
    ):
        _Nested.apply(_Nested.apply(sg.ones(1, requires_grad=True), weight, 1), weight, 1).backward()
    offload.optimizer.zero_grad()
    offload.model(TOKENS[0]).backward()


def test_a_parameter_updated_before_backward_is_done_with_it_raises(tmp_path: Path):
    offload = offloaded(tmp_path, OPTIMIZERS["AdamW"], True, None)
    with pytest.raises(GraphError, match="modified by an inplace operation"):
        nested(offload.model, offload.model(TOKENS[0]))


def test_with_an_infinite_norm_updates_wait_for_the_end_of_backward(tmp_path: Path):
    model = build()
    wanted = train(model, OPTIMIZERS["AdamW"](model), backward=nested)
    offload = offloaded(tmp_path, OPTIMIZERS["AdamW"], True, math.inf)
    assert train(offload.model, offload.optimizer, backward=nested) == wanted


@pytest.mark.parametrize("in_backward", [False, True], ids=["in step", "in backward"])
def test_the_last_norm_is_told(tmp_path: Path, in_backward: bool):
    model = build()
    model(TOKENS[0]).backward()
    wanted = nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM).item()
    offload = offloaded(tmp_path, OPTIMIZERS["SGD"], in_backward, MAX_NORM)
    assert offload.grad_norm is None
    offload.model(TOKENS[0]).backward()
    offload.optimizer.step()
    assert isinstance(offload.grad_norm, float)
    assert np.float32(offload.grad_norm) == np.float32(wanted)
    offload.optimizer.zero_grad()
    offload.optimizer.step()
    assert np.float32(offload.grad_norm) == np.float32(wanted)  # a step without gradients has none


@pytest.mark.parametrize("in_backward", [False, True], ids=["in step", "in backward"])
def test_a_norm_that_is_not_finite_reaches_the_weights_as_in_ram(tmp_path: Path, in_backward: bool):
    def spoilt(model: nn.Module, loss: sg.Tensor) -> None:
        (loss * math.inf).backward()

    model = build()
    wanted = train(model, OPTIMIZERS["SGD"](model), MAX_NORM, backward=spoilt)
    offload = offloaded(tmp_path, OPTIMIZERS["SGD"], in_backward, MAX_NORM)
    assert train(offload.model, offload.optimizer, backward=spoilt) == wanted
    assert not math.isfinite(offload.grad_norm)


@pytest.mark.parametrize("clip", [MAX_NORM, None])
@pytest.mark.parametrize(
    "clipping",
    [
        lambda parameters: nn.utils.clip_grad_norm_(parameters, 1.0),
        lambda parameters: nn.utils.clip_grad_value_(parameters, 1.0),
    ],
    ids=["norm", "value"],
)
def test_clipping_gradients_that_backward_has_used_up_is_an_error(
    tmp_path: Path, clipping: Callable[[object], object], clip: float | None
):
    offload = offloaded(tmp_path, OPTIMIZERS["SGD"], True, clip)
    offload.model(TOKENS[0]).backward()
    with pytest.raises(GraphError, match=r"^clip_grad_\w+_: .* give disk_offload max_grad_norm"):
        clipping(offload.model.parameters())


def test_gradients_clipped_in_step_are_written_once_and_stay_as_they_were(tmp_path: Path):
    def moved(clip: float | None) -> tuple[int, int]:
        offload = offloaded(tmp_path, OPTIMIZERS["SGD"], False, clip)
        for tokens in TOKENS:
            offload.model(tokens).backward()
            before = [p.grad.tolist() for p in offload.model.parameters() if p.grad is not None]
            offload.flush()
            offload.optimizer.step()
            assert before == [p.grad.tolist() for p in offload.model.parameters() if p.grad is not None]
            offload.optimizer.zero_grad()
        offload.flush()
        return offload.stats().written_bytes

    assert moved(MAX_NORM) == moved(None)


@pytest.mark.parametrize("clip", [MAX_NORM, None], ids=["when backward ends", "at once"])
def test_after_an_exception_in_backward_no_update_is_left_to_be_done(tmp_path: Path, clip: float | None):
    offload = offloaded(tmp_path, OPTIMIZERS["SGD"], True, clip)
    model = offload.model
    before = [parameter.tolist() for parameter in model.parameters()]

    def fail(grad: sg.Tensor) -> None:
        raise ZeroDivisionError

    # The head's gradient, and so the table's part of it, comes before this one.
    with model.norm.weight.register_hook(fail), pytest.raises(ZeroDivisionError):
        model(TOKENS[0]).backward()
    offload.optimizer.zero_grad()
    assert not offload._training._finished
    if clip is not None:
        assert before == [parameter.tolist() for parameter in model.parameters()]
        in_ram = build()
        assert train(model, offload.optimizer) == train(in_ram, OPTIMIZERS["SGD"](in_ram), clip)


def test_bad_norms_are_refused(tmp_path: Path):
    layer = nn.Linear(3, 3)
    optimizer = sg.optim.SGD(layer.parameters())
    for bad in (-1.0, math.nan, "1", [1.0]):
        with pytest.raises(ArgumentError, match="wanted a number, not negative"):
            sg.disk_offload(layer, optimizer, tmp_path, ram_budget="1MiB", max_grad_norm=bad)
    with pytest.raises(ArgumentError, match=r"max_grad_norm=1\.0 without an optimizer"):
        sg.disk_offload(layer, directory=tmp_path, ram_budget="1MiB", max_grad_norm=1.0)


# Weights of 4 MiB, which are nearly all there is.
@pytest.mark.parametrize("in_backward", [False, True], ids=["in step", "in backward"])
@pytest.mark.parametrize("optimizer", [sg.optim.SGD, sg.optim.AdamW])
def test_clipped_updates_have_no_more_in_ram_than_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_backward: bool, optimizer: type[sg.optim.Optimizer]
):
    others_bytes = buffers.memory_stats().live_bytes
    layers = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(3)))
    made = optimizer(layers.parameters(), lr=0.01)
    budget = least_bytes(layers, made, in_backward, 1e-3)
    offload = sg.disk_offload(
        layers, made, tmp_path, step_in_backward=in_backward, max_grad_norm=1e-3, ram_budget=budget
    )
    held_bytes: list[int] = []
    run = kernels.run

    def watched(updates: Iterable[Update]) -> None:
        held_bytes.append(buffers.memory_stats().live_bytes - others_bytes)
        run(updates)

    monkeypatch.setattr(kernels, "run", watched)
    for _ in range(3):
        layers(sg.ones(1, 1024)).sum().backward()
        offload.optimizer.step()
        offload.optimizer.zero_grad()
    assert len(held_bytes) >= 2 * 9  # gradients are scaled, and used
    assert budget <= max(held_bytes) <= budget + (1 << 18)
    assert offload.stats().peak_ram_bytes <= budget


def test_gradients_that_are_one_are_clipped_once_each(tmp_path: Path):
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(sg.ones(30, 30)), nn.Parameter(sg.ones(30, 30))

        def forward(self) -> sg.Tensor:
            return (self.a + self.b).square().sum()

    def trained(**options: object) -> list[list[float]]:
        model = Sum()
        optimizer = sg.optim.SGD(model.parameters(), lr=1.0)
        if options:
            sg.disk_offload(model, optimizer, tmp_path, ram_budget="1MiB", **options)
        model().backward()
        if not options:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return [parameter.tolist() for parameter in model.parameters()]

    wanted = trained()
    np.testing.assert_allclose(wanted[0], np.full((30, 30), 1 - 0.5 / math.sqrt(1800)), rtol=1e-6)
    for in_backward in (False, True):
        assert trained(max_grad_norm=0.5, step_in_backward=in_backward) == wanted


class Rotated(nn.Module):
    """A complex parameter and a real one."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Parameter(sg.tensor([3 - 4j, 1j] * 40))
        self.size = nn.Parameter(sg.ones(80))

    def forward(self) -> sg.Tensor:
        return ((self.turn * self.size).abs() ** 2).sum()


@pytest.mark.parametrize("in_backward", [False, True], ids=["in step", "in backward"])
def test_the_imaginary_parts_of_gradients_count(tmp_path: Path, in_backward: bool):
    in_ram, model = Rotated(), Rotated()
    in_ram().backward()
    wanted = nn.utils.clip_grad_norm_(in_ram.parameters(), MAX_NORM).item()
    sg.optim.SGD(in_ram.parameters(), lr=0.1).step()
    optimizer = sg.optim.SGD(model.parameters(), lr=0.1)
    offload = sg.disk_offload(
        model, optimizer, tmp_path, ram_budget="1MiB", step_in_backward=in_backward, max_grad_norm=MAX_NORM
    )
    model().backward()
    optimizer.step()
    assert offload.grad_norm == pytest.approx(wanted, rel=1e-6)
    for mine, other in zip(model.parameters(), in_ram.parameters(), strict=True):
        np.testing.assert_array_equal(mine.detach().numpy(), other.detach().numpy())
