"""Paddle models on disk are trained as in RAM, bit for bit; their memory is on disk, and goes with them."""

import concurrent.futures
import contextlib
import copy
import gc
import os
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

paddle = pytest.importorskip("paddle", reason="`make test-peers` installs Paddle")

import numpy as np  # noqa: E402
from paddle.distributed.fleet.utils import recompute  # noqa: E402

from spillgrad.errors import ArgumentError, BudgetError, OperandError, SpillError  # noqa: E402
from spillgrad.interop.paddle import disk_offload, save_on_disk  # noqa: E402
from spillgrad.interop.paddle.offloaded_parameter import OffloadedParameter  # noqa: E402
from spillgrad.storage import inspect_segment, verify  # noqa: E402
from tests.interop.paddle_models import bits  # noqa: E402
from tests.waiting import wait_until_no_spill_file_is_below  # noqa: E402

# Paddle's own warnings
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{text}")
    for text in ("amp_guard can only be enabled", "When training, we now always track", "Accumulating with FP16")
]

nn, functional = paddle.nn, paddle.nn.functional
WIDTH = 160
NBYTES = WIDTH * WIDTH * 4
LARGE = "1GiB"


def batch(step: int, *shape: int) -> Any:
    return paddle.to_tensor(np.random.RandomState(step).randn(*shape).astype("float32"))


def tokens(step: int) -> Any:
    return paddle.to_tensor(np.random.RandomState(step).randint(0, 120, (3, 9)))


# Models


class TwoLayers(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, step: int) -> Any:
        return self.layers(batch(step, 8, WIDTH)).square().mean()


class Tied(nn.Layer):
    """An embedding whose weight is the last product's, too, with a layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layer = nn.Embedding(128, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.scale = self.create_parameter([1])

    def forward(self, step: int) -> Any:
        hidden = self.layer(paddle.tanh(self.layer(self.words(tokens(step))))) * self.scale
        scores = paddle.matmul(hidden, self.words.weight, transpose_y=True)
        return functional.cross_entropy(scores, tokens(step).unsqueeze(-1))


class TiedByName(nn.Layer):
    """The same parameter under two layers' names, and used by way of a transposed view."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.second.weight = self.first.weight
        self.third = nn.Linear(WIDTH, WIDTH)

    def forward(self, step: int) -> Any:
        x = self.third(self.second(self.first(batch(step, 8, WIDTH))))
        return ((x @ self.first.weight.t()) * self.second.weight[3]).square().mean()


class Transformer(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.1), 2)

    def forward(self, step: int) -> Any:
        return self.layers(batch(step, 2, 7, WIDTH)).square().mean()


class Convolutions(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2D(16, 128, 3), nn.BatchNorm2D(128), nn.PReLU(), nn.Conv2DTranspose(128, 16, 3)
        )

    def forward(self, step: int) -> Any:
        return self.layers(batch(step, 2, 16, 6, 6)).square().mean()


class WideNorm(nn.Layer):
    """Averages large enough to be offloaded, which forward changes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1D(20000)

    def forward(self, step: int) -> Any:
        return (self.norm(batch(step, 4, 20000)) ** 3).mean() + self.norm._mean.abs().sum()


class Recurrent(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.cell = nn.LSTM(WIDTH, WIDTH, 2), nn.GRUCell(WIDTH, WIDTH)

    def forward(self, step: int) -> Any:
        outputs, _ = self.lstm(batch(step, 2, 5, WIDTH))
        return self.cell(outputs[:, -1])[0].square().mean()


class Frozen(nn.Layer):
    """A frozen part, through which gradients flow, and one that is thawed later."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))
        for layer in self.layers[1:3]:
            for parameter in layer.parameters():
                parameter.stop_gradient = True

    def forward(self, step: int) -> Any:
        if step == 2:
            self.layers[1].weight.stop_gradient = False
        return self.layers(batch(step, 8, WIDTH)).square().mean()


class Recomputed(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.LayerList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2), nn.Linear(WIDTH, WIDTH)) for _ in range(2)
        )

    def forward(self, step: int) -> Any:
        x = batch(step, 8, WIDTH)
        x.stop_gradient = False
        for block in self.blocks:
            x = recompute(block, x)
        return x.square().mean()


class Mixed(TwoLayers):
    def forward(self, step: int) -> Any:
        with paddle.amp.auto_cast(level="O1", dtype="bfloat16"):
            return super().forward(step)


class Normed(nn.Layer):
    """Hooks of Paddle's own that compute the weight from parameters before the layer runs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.utils.weight_norm(nn.Linear(WIDTH, WIDTH))
        self.second = nn.utils.spectral_norm(nn.Linear(WIDTH, WIDTH))

    def forward(self, step: int) -> Any:
        return self.second(self.first(batch(step, 8, WIDTH))).square().mean()


class Listed(nn.Layer):
    """Parameters in a list, and a PyLayer that saves one."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([self.create_parameter([WIDTH, WIDTH]) for _ in range(3)])

    def forward(self, step: int) -> Any:
        x = batch(step, 8, WIDTH)
        x.stop_gradient = False
        for weight in self.weights:
            x = Product.apply(x, weight)
        return (x @ self.weights[0]).square().mean()


class Product(paddle.autograd.PyLayer):
    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, weight = ctx.saved_tensor()
        return grad @ weight.t(), x.t() @ grad


class Wide(TwoLayers):
    """Double precision."""

    def __init__(self) -> None:
        super().__init__()
        self.to(dtype="float64")

    def forward(self, step: int) -> Any:
        return self.layers(batch(step, 8, WIDTH).astype("float64")).square().mean()


class Narrow(nn.Layer):
    """Half precision, of which Paddle has few operations on the CPU."""

    make = staticmethod(lambda p: paddle.optimizer.SGD(0.1, parameters=p))

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.LayerList(nn.Linear(WIDTH, 2 * WIDTH) for _ in range(3))
        self.weights.to(dtype="bfloat16")

    def forward(self, step: int) -> Any:
        x = batch(step, 8, WIDTH)
        return sum(
            (x @ layer.weight.astype("float32") + layer.bias.astype("float32")).square().mean()
            for layer in self.weights
        )


MODELS = [
    TwoLayers, Tied, TiedByName, Transformer, Convolutions, WideNorm, Recurrent, Frozen, Recomputed, Mixed, Normed,
    Listed, Wide, Narrow,
]  # fmt: skip


def adamw(parameters: Any, **options: Any) -> Any:
    return paddle.optimizer.AdamW(1e-2, parameters=parameters, weight_decay=0.1, **options)


OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "SGD": lambda p, **o: paddle.optimizer.SGD(0.1, parameters=p, weight_decay=0.01, **o),
    "Momentum": lambda p, **o: paddle.optimizer.Momentum(0.1, parameters=p, use_nesterov=True, **o),
    "Adam": lambda p, **o: paddle.optimizer.Adam(1e-2, parameters=p, amsgrad=True, **o),
    "AdamW": adamw,
    "Lamb": lambda p, **o: paddle.optimizer.Lamb(1e-2, parameters=p, **o),
    "Adamax": lambda p, **o: paddle.optimizer.Adamax(1e-2, parameters=p, **o),
    "Adagrad": lambda p, **o: paddle.optimizer.Adagrad(1e-2, parameters=p, **o),
    "Adadelta": lambda p, **o: paddle.optimizer.Adadelta(1e-2, parameters=p, **o),
    "RMSProp": lambda p, **o: paddle.optimizer.RMSProp(1e-2, parameters=p, centered=True, **o),
    "NAdam": lambda p, **o: paddle.optimizer.NAdam(1e-2, parameters=p, **o),
    "RAdam": lambda p, **o: paddle.optimizer.RAdam(1e-2, parameters=p, **o),
    "ASGD": lambda p, **o: paddle.optimizer.ASGD(1e-2, parameters=p, batch_num=2, **o),
    "Rprop": lambda p, **o: paddle.optimizer.Rprop(1e-2, parameters=p, **o),
}


def offloaded(model: Any, make: Any, directory: Path, budget: int | str, **options: Any) -> Any:
    """Offload a model; a budget of 0 stands for the least one."""
    optimizer = None if make is None else make(model.parameters())
    if budget == 0:
        with pytest.raises(BudgetError, match="give at least") as refused:
            disk_offload(model, optimizer, directory, ram_budget=0, **options)
        budget = int(str(refused.value).partition("give at least ")[2].split()[0])
    return disk_offload(model, optimizer, directory, ram_budget=budget, **options)


def train(
    kind: Any, make: Any = None, directory: Path | None = None, budget: int | str = LARGE, steps: int = 4,
    accumulate: int = 1, saved: bool = False, set_to_zero: bool = True, **options: Any,
) -> tuple[list[Any], Any]:  # fmt: skip
    """Return all that a training computes, as bytes: losses, gradients, parameters and state; and the offload."""
    paddle.seed(0)
    model, offload = kind(), None
    make = make or getattr(kind, "make", adamw)
    if directory is None:
        optimizer = make(model.parameters())
    else:
        offload = offloaded(model, make, directory, budget, **options)
        optimizer = offload.optimizer
    found: list[Any] = []
    for step in range(steps):
        for number in range(accumulate):
            with contextlib.nullcontext() if not saved or offload is None else save_on_disk(offload, min_bytes=0):
                loss = model(10 * number + step)
            loss.backward()
            found.append(loss.item())
            del loss
        if not options.get("step_in_backward"):
            found += [None if p.grad is None else bits(p.grad) for p in model.parameters()]
        optimizer.step()
        optimizer.clear_grad(set_to_zero)
    found += [bits(parameter) for parameter in model.parameters()]
    names = {parameter.name: number for number, parameter in enumerate(model.parameters())}
    state = {key: value for key, value in optimizer.state_dict().items() if isinstance(value, paddle.Tensor)}
    owners = {key: next(name for name in names if key.startswith(f"{name}_")) for key in state}
    found.append({(names[name], key.removeprefix(name)): bits(state[key]) for key, name in owners.items()})
    return found, offload


def without_gradients(found: list[Any], parameters: int, steps: int = 4) -> list[Any]:
    """Return what `train` found without the gradients, which `step_in_backward` frees."""
    length = 1 + parameters
    return [found[step * length] for step in range(steps)] + found[steps * length :]


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("budget", [0, LARGE])
def test_training_is_that_in_ram(kind: Any, budget: Any, directory: Path):
    wanted, _ = train(kind)
    got, offload = train(kind, directory=directory, budget=budget)
    assert got == wanted
    assert offload.stats().live_bytes > 0
    assert (offload.stats().read_bytes > 0) == (budget == 0)
    got, _ = train(kind, directory=directory, budget=budget, saved=True)
    assert got == wanted


@pytest.mark.parametrize("kind", MODELS)
def test_updates_in_backward_are_those_of_step(kind: Any, directory: Path):
    wanted, _ = train(kind, set_to_zero=False)
    got, offload = train(kind, directory=directory, budget=0, step_in_backward=True)
    assert got == without_gradients(wanted, len(offload.model.parameters()))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_updates_as_in_ram(name: str, directory: Path):
    wanted, _ = train(TwoLayers, OPTIMIZERS[name])
    got, offload = train(TwoLayers, OPTIMIZERS[name], directory, budget=0)
    assert got == wanted
    assert offload.optimizer.__class__.__name__ == name


# Clipping, accumulation, groups


def global_norm(**options: Any) -> Any:
    return nn.ClipGradByGlobalNorm(0.01, **options)


CLIPS: dict[str, Callable[[], Any]] = {
    "global norm": global_norm,
    "global norm, skipped": lambda: nn.ClipGradByGlobalNorm(100.0, auto_skip_clip=True),
    "global norm, perhaps skipped": lambda: global_norm(auto_skip_clip=True),
    "norm": lambda: nn.ClipGradByNorm(0.001),
    "value": lambda: nn.ClipGradByValue(1e-4),
}


class Unclipped(TwoLayers):
    """A large and a small parameter whose gradients are not clipped."""

    def __init__(self) -> None:
        super().__init__()
        self.layers[0].weight.need_clip = self.layers[2].bias.need_clip = False


@pytest.mark.parametrize("kind", [TwoLayers, Unclipped, Recomputed])
@pytest.mark.parametrize("name", CLIPS)
def test_clipping_is_paddles(kind: Any, name: str, directory: Path):
    def make(parameters: Any) -> Any:
        return paddle.optimizer.Momentum(0.1, parameters=parameters, grad_clip=CLIPS[name]())

    wanted, _ = train(kind, make)
    got, offload = train(kind, make, directory, budget=0)
    assert got == wanted
    assert (offload.grad_norm is None) == ("global" not in name)


def test_max_grad_norm_clips_all_groups_together(directory: Path):
    wanted, _ = train(TwoLayers, lambda parameters: adamw(parameters, grad_clip=global_norm()))
    got, offload = train(TwoLayers, in_groups, directory, budget=0, max_grad_norm=0.01)
    assert got == wanted
    assert offload.grad_norm > 0.01


def in_groups(parameters: Any, **options: Any) -> Any:
    return adamw([{"params": parameters[:1]}, {"params": parameters[1:]}], **options)


def in_other_groups(parameters: Any) -> Any:
    groups = [
        {"params": parameters[:2], "learning_rate": 0.5, "grad_clip": nn.ClipGradByGlobalNorm(0.02)},
        {"params": parameters[2:], "weight_decay": 0.3, "beta1": 0.5},
    ]
    return adamw(groups, grad_clip=global_norm())


@pytest.mark.parametrize("make", [in_groups, in_other_groups])
def test_groups_keep_their_options(make: Any, directory: Path):
    wanted, _ = train(TwoLayers, make)
    got, _ = train(TwoLayers, make, directory, budget=0)
    assert got == wanted


@pytest.mark.parametrize("kind", [TwoLayers, Tied, Narrow])
@pytest.mark.parametrize("set_to_zero", [True, False])
def test_gradients_add_up_over_batches(kind: Any, set_to_zero: bool, directory: Path):
    wanted, _ = train(kind, accumulate=3, set_to_zero=set_to_zero)
    got, _ = train(kind, directory=directory, budget=0, accumulate=3, set_to_zero=set_to_zero)
    assert got == wanted


class Alternating(nn.Layer):
    """Layers that are used in turns: Paddle updates the others with gradients of zero."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LayerList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, step: int) -> Any:
        return self.layers[step % 3](batch(step, 8, WIDTH)).square().mean()


@pytest.mark.parametrize("set_to_zero", [True, False])
def test_layers_that_are_not_used_are_updated_as_in_ram(set_to_zero: bool, directory: Path):
    wanted, _ = train(Alternating, steps=6, set_to_zero=set_to_zero)
    got, _ = train(Alternating, directory=directory, budget=0, steps=6, set_to_zero=set_to_zero)
    assert got == wanted


def test_a_group_that_is_added_later_is_updated(directory: Path):
    def trained(directory: Path | None) -> list[bytes]:
        paddle.seed(0)
        model = TwoLayers()
        parameters = model.parameters()
        optimizer = adamw([{"params": parameters[:2]}])
        if directory:
            disk_offload(model, optimizer, directory, ram_budget=LARGE)
        for step in range(4):
            if step == 2:
                optimizer._add_param_group({"params": parameters[2:], "learning_rate": 0.5})
            model(step).backward()
            optimizer.step()
            optimizer.clear_grad()
        return [bits(parameter) for parameter in parameters]

    assert trained(directory) == trained(None)


def test_learning_rates_follow_their_schedule(directory: Path):
    def trained(directory: Path | None) -> list[bytes]:
        paddle.seed(0)
        model = TwoLayers()
        schedule = paddle.optimizer.lr.CosineAnnealingDecay(0.01, 5)
        optimizer = paddle.optimizer.AdamW(schedule, parameters=model.parameters())
        if directory:
            disk_offload(model, optimizer, directory, ram_budget=LARGE)
        for step in range(4):
            loss = model(step)
            loss.backward()
            optimizer.minimize(loss)
            optimizer.clear_grad()
            schedule.step()
        return [bits(parameter) for parameter in model.parameters()]

    assert trained(directory) == trained(None)


def test_gradients_of_gradients_are_those_in_ram(directory: Path):
    def trained(directory: Path | None) -> list[bytes]:
        paddle.seed(0)
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        if directory:
            disk_offload(model, None, directory, ram_budget=LARGE)
        x = batch(0, 8, WIDTH)
        x.stop_gradient = False
        (slope,) = paddle.grad(model(x).sum(), x, create_graph=True)
        (slope.square().sum() + model(x).sum()).backward()
        return [bits(x.grad), *(bits(p.grad) for p in model.parameters() if p.grad is not None)]

    assert trained(directory) == trained(None)


# Parameters between layers


@pytest.fixture
def layer(directory: Path) -> Iterator[Any]:
    paddle.seed(0)
    layer = nn.Linear(WIDTH, WIDTH)
    layer.former = layer.weight.numpy()
    layer.offload = disk_offload(layer, None, directory, ram_budget=LARGE)
    yield layer
    vars(layer).clear()
    gc.collect()


def values(layer: Any) -> Any:
    """Return the stored values of a layer's weight."""
    gc.collect()
    layer.offload.flush()
    return layer.weight._stored.copy().numpy()


METHODS: dict[str, Callable[[Any], Any]] = {
    "numpy": lambda w: w.numpy(),
    "array": lambda w: np.asarray(w),
    "item": lambda w: w[3, 5].item(),
    "sum": lambda w: w.sum().numpy(),
    "number": lambda w: (w * 2).numpy(),
    "other operand": lambda w: (paddle.ones([WIDTH]) @ w + w[0] - 1).numpy(),
    "comparison": lambda w: (w > 0).numpy(),
    "argmax": lambda w: w.argmax().numpy(),
    "view": lambda w: w.t()[3:5].numpy(),
    "slice": lambda w: w[3:].numpy(),
    "clone": lambda w: w.clone().numpy(),
    "cpu": lambda w: w.cpu().numpy(),
    "list": lambda w: w.tolist(),
    "norm": lambda w: w.norm().numpy(),
    "data": lambda w: w.data.numpy(),
    "T": lambda w: w.T.numpy(),
    "numel": lambda w: int(w.numel()),
    "iteration": lambda w: [row.numpy().tolist() for row in w][3],
    "into another": lambda w: paddle.zeros(w.shape).copy_(w, True).numpy(),
    "pickle": lambda w: pickle.loads(pickle.dumps(w)).numpy(),
    "shape": lambda w: (w.shape, w.dtype, w.ndim, w.size, w.strides, w.place.is_cpu_place(), len(w), w.is_leaf),
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_of_a_parameter_have_its_memory(name: str, layer: Any):
    weight = paddle.base.framework.EagerParamBase(layer.weight.shape, "float32")
    weight.set_value(layer.former)
    wanted, got = METHODS[name](weight), METHODS[name](layer.weight)
    assert np.array_equal(got, wanted) if isinstance(got, np.ndarray) else got == wanted
    assert not paddle.Tensor._is_dense_tensor_hold_allocation(layer.weight)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "set_value": lambda w: w.set_value(np.full(w.shape, 2.0, "float32")),
    "copy_": lambda w: w.copy_(paddle.full(w.shape, 2.0), True),
    "fill_": lambda w: w.fill_(2.0),
    "element": lambda w: w.__setitem__((3, 5), 2.0),
    "initializer": lambda w: nn.initializer.Constant(2.0)(w),
    "a view": lambda w: w.detach()[3].fill_(2.0),
    "data": lambda w: w.data.scale_(2.0),
    "new data": lambda w: setattr(w, "data", paddle.full(w.shape, 2.0)),
    "operator": lambda w: w.__iadd__(1.0) if hasattr(w, "__iadd__") else w.add_(paddle.ones([])),
    "assign": lambda w: assigned(w),
}


def assigned(weight: Any) -> None:
    weight.set_value(weight * 2 + paddle.ones(weight.shape))


@pytest.mark.parametrize("name", CHANGES)
def test_changes_of_a_parameter_are_stored(name: str, layer: Any):
    weight = paddle.base.framework.EagerParamBase(layer.weight.shape, "float32")
    weight.set_value(layer.former)
    with paddle.no_grad():
        CHANGES[name](weight)
        CHANGES[name](layer.weight)
    wanted = weight.numpy()
    assert np.array_equal(layer.weight.numpy(), wanted)
    assert np.array_equal(values(layer), wanted)
    x = batch(0, 8, WIDTH)
    assert np.array_equal(layer(x).numpy(), functional.linear(x, weight, layer.bias).numpy())


def test_a_change_while_the_layer_runs_is_stored(directory: Path):
    class Decaying(nn.Linear):
        def forward(self, x: Any) -> Any:
            with paddle.no_grad():
                self.weight.scale_(0.5)
                paddle.assign(self.weight * 0.5, self.weight)
                self.weight.detach()[0].fill_(3.0)
            return super().forward(x)

    paddle.seed(0)
    layer, x = Decaying(WIDTH, WIDTH), batch(0, 8, WIDTH)
    twin = copy.deepcopy(layer)
    disk_offload(layer, None, directory, ram_budget=LARGE)
    for _ in range(2):
        assert np.array_equal(layer(x).numpy(), twin(x).numpy())
    assert np.array_equal(layer.weight.numpy(), twin.weight.numpy())


def test_a_model_can_be_cast(directory: Path):
    paddle.seed(0)
    model, x = two(), batch(0, 8, WIDTH)
    twin = copy.deepcopy(model)
    disk_offload(model, None, directory, ram_budget=LARGE)
    for dtype in ("float32", "float64", "float32"):
        model.to(dtype=dtype)
        twin.to(dtype=dtype)
        assert np.array_equal(model(x.astype(dtype)).numpy(), twin(x.astype(dtype)).numpy())
        assert isinstance(model[0].weight, OffloadedParameter)


def test_threads_may_use_a_model_at_once(directory: Path):
    paddle.seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(6)))
    xs = [batch(number, 8, WIDTH) for number in range(4)]
    wanted = [bits(model(x)) for x in xs]
    disk_offload(model, None, directory, ram_budget=2 * NBYTES)

    def run(x: Any) -> set[bytes]:
        with paddle.no_grad():
            return {bits(model(x)) for _ in range(10)}

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, xs)) == [{each} for each in wanted]


def test_gradients_can_be_read_changed_and_set(layer: Any):
    weight = layer.weight
    assert weight.grad is None
    layer(batch(0, 8, WIDTH)).sum().backward()
    wanted = np.repeat(batch(0, 8, WIDTH).numpy().sum(0)[:, None], WIDTH, 1)
    assert np.allclose(weight.grad.numpy(), wanted, atol=1e-4)
    assert np.array_equal(weight.gradient(), weight.grad.numpy())
    before = weight.grad.numpy()
    weight.grad.scale_(2.0)
    assert np.array_equal(weight.grad.numpy(), 2 * before)
    weight.clear_grad()
    assert not weight.grad.numpy().any()
    weight.grad = paddle.full(weight.shape, 3.0)
    assert (weight.grad.numpy() == 3).all()
    with pytest.raises(OperandError, match=r"got a gradient of paddle.float32 \[3\]; wanted one of .* \[160, 160\]"):
        weight.grad = paddle.ones([3])
    weight.grad = None
    assert weight.grad is None


def test_the_norm_of_all_gradients_can_be_clipped_by_paddles_function(directory: Path):
    def clipped(directory: Path | None) -> list[bytes]:
        paddle.seed(0)
        model = TwoLayers()
        if directory:
            disk_offload(model, None, directory, ram_budget=LARGE)
        model(0).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        return [bits(parameter.grad) for parameter in model.parameters()]

    assert clipped(directory) == clipped(None)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "matmul": lambda w: paddle.matmul(paddle.ones([3, WIDTH]), w),
    "norm": lambda w: paddle.norm(w),
    "linear": lambda w: functional.linear(paddle.ones([3, WIDTH]), w),
    "embedding": lambda w: functional.embedding(paddle.to_tensor([1]), w),
    "add": lambda w: paddle.add(paddle.ones([WIDTH]), w),
    "transposed": lambda w: paddle.transpose(w, [1, 0]),
    "stack": lambda w: paddle.stack([w, w]),
    "cast": lambda w: paddle.cast(w, "float64"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_outside_of_layers_need_the_memory_asked_for(name: str, layer: Any):
    with pytest.raises((RuntimeError, ValueError), match="holder_ should not be null"):
        FUNCTIONS[name](layer.weight)
    with layer.offload.in_ram(layer.weight):
        result = FUNCTIONS[name](layer.weight)
    assert np.array_equal(result.numpy(), FUNCTIONS[name](paddle.to_tensor(layer.former)).numpy())
    result.sum().backward()
    assert layer.weight.grad is not None


def test_the_error_of_a_use_outside_of_the_layer_says_what_to_do(directory: Path):
    class Hidden(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(WIDTH, WIDTH)
            self.hidden = [self.inner.weight]

        def forward(self, x: Any) -> Any:
            return paddle.matmul(x, self.hidden[0])

    model = Hidden()
    disk_offload(model, None, directory, ram_budget=LARGE)
    with pytest.raises(RuntimeError) as raised:
        model(batch(0, 8, WIDTH))
    assert raised.value.__notes__ == [
        "disk_offload: a parameter was used outside of its layer, where it has no memory; take it as an attribute "
        "of its layer (layer.weight) while a layer runs, or use it inside offload.in_ram(parameter)"
    ]
    model.inner(batch(0, 8, WIDTH)).sum().backward()


def test_only_parameters_of_the_model_can_be_asked_for(layer: Any):
    for wrong in (paddle.ones([3]), nn.Linear(3, 3).weight, [layer.weight]):
        with pytest.raises(OperandError, match=r"in_ram: got .*, which is no parameter of this model; give some of"):
            layer.offload.in_ram(wrong)


# Changes that a graph does not expect


def test_backward_after_a_change_of_a_saved_parameter_is_an_error(layer: Any):
    x = batch(0, 8, WIDTH)
    x.stop_gradient = False
    for change in (CHANGES["fill_"], CHANGES["set_value"], CHANGES["new data"], CHANGES["initializer"]):
        loss = layer(x).sum()
        with paddle.no_grad():
            change(layer.weight)
        with pytest.raises(OSError, match="modified by an inplace operation"):
            loss.backward()
        layer.clear_gradients()


def test_a_graph_that_needs_a_weight_after_its_update_is_an_error(directory: Path):
    model = TwoLayers()
    optimizer = adamw(model.parameters())
    disk_offload(model, optimizer, directory, ram_budget=LARGE, step_in_backward=True)
    loss = model(0)
    loss.backward(retain_graph=True)
    with pytest.raises(OSError, match="modified by an inplace operation"):
        loss.backward()


def test_a_second_gradient_after_an_update_is_an_error(tmp_path: Path):
    # In a process of its own: after an error in the backward that recompute runs, Paddle keeps the graph for ever.
    program = """
        import sys
        import warnings
        import paddle
        from paddle.distributed.fleet.utils import recompute
        from spillgrad.interop.paddle import disk_offload

        layer = paddle.nn.Linear(160, 160)
        model = paddle.nn.Sequential(layer)
        optimizer = paddle.optimizer.AdamW(parameters=model.parameters())
        disk_offload(model, optimizer, sys.argv[1], ram_budget="1GiB", step_in_backward=True)
        for times in (1, 2, 2, 1):
            x = paddle.ones([2, 160])
            x.stop_gradient = False
            for _ in range(times):
                x = recompute(model, x)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                try:
                    x.sum().backward()
                    print(times, "updated")
                except OSError:
                    print(times, *(str(w.message) for w in caught if "disk_offload" in str(w.message)))
    """
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program), str(tmp_path)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line[:9] for line in lines] == ["1 updated", "2 the err", "2 the err", "1 updated"]
    assert "got another gradient after backward had updated it: a backward runs inside this one" in lines[1]


# State dicts


def test_state_dicts_go_to_ram_and_back(directory: Path):
    with paddle.utils.unique_name.guard():
        _, offload = train(TwoLayers, directory=directory, budget=0)
    path = directory.parent
    paddle.save(offload.model.state_dict(), f"{path}/m.pdparams")
    paddle.save({"all": offload.model.state_dict()}, f"{path}/nested.pdparams")
    paddle.save(offload.optimizer.state_dict(), f"{path}/o.pdopt")
    wanted = [bits(parameter) for parameter in offload.model.parameters()]
    for state in (
        paddle.load(f"{path}/m.pdparams"), paddle.load(f"{path}/nested.pdparams")["all"], offload.model.state_dict()
    ):  # fmt: skip
        other = TwoLayers()
        other.set_state_dict(state)
        assert [bits(parameter) for parameter in other.parameters()] == wanted

    # To another offload, whose next steps are those of the first
    with paddle.utils.unique_name.guard():
        again = TwoLayers()
        resumed = disk_offload(again, adamw(again.parameters()), directory, ram_budget=LARGE)
        again.set_state_dict(paddle.load(f"{path}/m.pdparams"))
        resumed.optimizer.set_state_dict(paddle.load(f"{path}/o.pdopt"))
        resumed.model(4).backward()
        resumed.optimizer.step()
        resumed.optimizer.clear_grad()
    offload.model(4).backward()
    offload.optimizer.step()
    offload.optimizer.clear_grad()
    for model, optimizer in ((offload.model, offload.optimizer), (again, resumed.optimizer)):
        model(5).backward()
        optimizer.step()
        optimizer.clear_grad()
    assert [bits(p) for p in again.parameters()] == [bits(p) for p in offload.model.parameters()]
    # And back into an optimizer that has a state already
    offload.optimizer.set_state_dict(paddle.load(f"{path}/o.pdopt"))
    state, loaded = offload.optimizer.state_dict(), paddle.load(f"{path}/o.pdopt")
    assert all(np.array_equal(state[key].numpy(), np.asarray(loaded[key])) for key in loaded if key != "LR_Scheduler")


def test_a_state_that_is_there_goes_to_disk(directory: Path):
    def trained(directory: Path | None) -> list[bytes]:
        paddle.seed(0)
        model = TwoLayers()
        optimizer = adamw(model.parameters())
        for step in range(4):
            if step == 2 and directory:
                offload = disk_offload(model, optimizer, directory, ram_budget=LARGE)
                assert offload.stats().live_bytes == 2 * 3 * 2 * NBYTES
            model(step).backward()
            optimizer.step()
            optimizer.clear_grad()
        return [bits(parameter) for parameter in model.parameters()]

    assert trained(directory) == trained(None)


# Models that are built on disk


def test_a_model_is_built_on_disk(directory: Path):
    class Deep(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(512, WIDTH, padding_idx=3)
            self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(10)))
            self.lstm = nn.LSTM(WIDTH, WIDTH)

        def forward(self, step: int) -> Any:
            return self.lstm(self.layers(self.words(tokens(step))))[0].square().mean()

    def trained(budget: Any) -> Any:
        paddle.seed(0)
        if budget is None:
            model = Deep()
            optimizer = adamw(model.parameters())
        else:
            offload = disk_offload(Deep, adamw, directory, ram_budget=budget)
            model, optimizer = offload.model, offload.optimizer
            assert offload.stats().peak_ram_bytes <= budget
            assert offload.least_budget <= budget < offload.stats().live_bytes
        for step in range(3):
            model(step).backward()
            optimizer.step()
            optimizer.clear_grad()
        return [bits(parameter) for parameter in model.parameters()]

    assert trained(16 * NBYTES) == trained(None)
    assert paddle.nn.Layer.create_parameter.__module__ == "paddle.nn.layer.layers"


def test_updates_in_backward_need_no_reference_to_the_offload(directory: Path):
    wanted, _ = train(Tied, sgd, set_to_zero=False)
    paddle.seed(0)
    model = Tied()
    disk_offload(model, sgd(model.parameters()), directory, ram_budget=LARGE, step_in_backward=True)
    gc.collect()
    losses = []
    for step in range(4):
        loss = model(step)
        loss.backward()
        losses.append(loss.item())
        del loss
    parameters = len(model.parameters())
    assert losses + [bits(parameter) for parameter in model.parameters()] == without_gradients(wanted, parameters)[:-1]


# Errors


def two() -> Any:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))


class OwnStep(paddle.optimizer.SGD):
    def step(self) -> None:
        raise AssertionError


class OwnClip(nn.ClipGradByNorm):
    pass


def sgd(parameters: Any, **options: Any) -> Any:
    return paddle.optimizer.SGD(0.1, parameters=parameters, **options)


def foreign(parameters: Any) -> Any:
    return sgd([*parameters, *two().parameters()])


def sharing() -> Any:
    model = two()
    model[0].weight.get_tensor()._share_data_with(model[1].weight.get_tensor())
    return model


WRONG: dict[str, tuple[Any, Any, dict[str, Any], type[Exception], str]] = {
    "no layer": (lambda: 3, sgd, {}, ArgumentError, "the function returned int; it must return a paddle.nn.Layer"),
    "no model": (None, sgd, {}, ArgumentError, "got NoneType as model; wanted a paddle.nn.Layer, or a function"),
    "no optimizer": (
        two(), lambda p: 3, {}, ArgumentError, "got int as optimizer; wanted a paddle.optimizer.Optimizer, or a fun",
    ),
    "foreign parameters": (two(), foreign, {}, ArgumentError, "the optimizer updates linear_.*, …, which the"),
    "LBFGS": (
        two(), lambda p: paddle.optimizer.LBFGS(parameters=p), {}, ArgumentError,
        r"got LBFGS, whose step\(\) is its own, as it updates all parameters together; use an optimizer whose",
    ),
    "LookAhead": (
        two(), lambda p: paddle.incubate.LookAhead(sgd(p)), {}, ArgumentError, r"got LookAhead, whose step\(\) is its",
    ),
    "own step": (two(), lambda p: OwnStep(parameters=p), {}, ArgumentError, r"got OwnStep, whose step\(\) is its own"),
    "several at once": (
        two(), lambda p: paddle.optimizer.Momentum(0.1, parameters=p, use_multi_tensor=True), {}, ArgumentError,
        "got Momentum with use_multi_tensor=True, which updates all parameters together; leave it out",
    ),
    "own clip": (
        two(), lambda p: sgd(p, grad_clip=OwnClip(1.0)), {}, ArgumentError, "got OwnClip as grad_clip; wanted Clip",
    ),
    "two clips": (
        two(), lambda p: sgd(p, grad_clip=nn.ClipGradByNorm(1.0)), {"max_grad_norm": 1}, ArgumentError,
        "got max_grad_norm=1, and an optimizer with ClipGradByNorm as grad_clip; give one of the two",
    ),
    "norm in backward": (
        two(), sgd, {"max_grad_norm": 1, "step_in_backward": True}, ArgumentError,
        "got step_in_backward=True and max_grad_norm, with a clip by global norm, which is known only when backward",
    ),
    "clip in backward": (
        two(), lambda p: sgd(p, grad_clip=global_norm()), {"step_in_backward": True}, ArgumentError,
        "got step_in_backward=True with a clip by global norm, which is known only when",
    ),
    "negative norm": (two(), sgd, {"max_grad_norm": -1}, ArgumentError, "got max_grad_norm=-1; wanted a number"),
    "nothing to step": (two(), None, {"step_in_backward": True}, ArgumentError, "got step_in_backward=True without"),
    "little budget": (
        two(), adamw, {"ram_budget": 100}, BudgetError,
        "got a ram_budget of 100 bytes, but 0.weight needs 400 KiB when it is updated: 100 KiB itself, as much for its "
        "gradient and 200 KiB of AdamW's state; give at least 409600 bytes",
    ),
    "little budget for a layer": (
        two(), None, {"ram_budget": "9KiB"}, BudgetError, "0 needs 100 KiB of parameters; give at least 102400 bytes",
    ),
    "shared memory": (sharing(), sgd, {}, ArgumentError, "1.weight and 0.weight share memory; clone"),
    "compiled": (
        paddle.jit.to_static(two()), sgd, {}, ArgumentError, "Sequential is compiled by to_static, and its",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_offloaded_is_an_error(name: str, directory: Path):
    model, make, options, kind, says = WRONG[name]
    optimizer = make
    if isinstance(model, nn.Layer) and make is not None:
        optimizer = make(model.parameters())
    with pytest.raises(kind, match=says):
        disk_offload(model, optimizer, directory, **{"ram_budget": LARGE, **options})
    if isinstance(model, nn.Layer):
        assert type(next(iter(model.parameters()))) is paddle.base.framework.EagerParamBase


def test_a_model_and_an_optimizer_are_offloaded_once(directory: Path):
    model = two()
    optimizer = sgd(model.parameters())
    disk_offload(model, optimizer, directory, ram_budget=LARGE)
    with pytest.raises(ArgumentError, match=r"0.weight is offloaded already; offload a model once"):
        disk_offload(model, sgd(model.parameters()), directory, ram_budget=LARGE)
    with pytest.raises(ArgumentError, match="the optimizer is that of another offload already"):
        disk_offload(two(), optimizer, directory, ram_budget=LARGE)


def test_nothing_of_an_offload_can_be_copied(directory: Path):
    model = two()
    offload = disk_offload(model, sgd(model.parameters()), directory, ram_budget=LARGE)
    for thing in (model, model[0].weight, offload, offload.optimizer):
        with pytest.raises(OperandError, match="cannot be copied"):
            copy.deepcopy(thing)
    with pytest.raises(ArgumentError, match="minimize: got parameters or no_grad_set"):
        offload.optimizer.minimize(None, parameters=model.parameters())


def test_other_hooks_are_an_error_and_the_model_goes_on(directory: Path):
    model = TwoLayers()
    disk_offload(model, None, directory, ram_budget=LARGE)
    with (
        paddle.autograd.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor),
        pytest.raises(ArgumentError, match="disk_offload: Paddle has one pair of hooks at a time, and other ones"),
    ):
        model(0)
    with pytest.raises(ValueError, match=r"(?i)hook"):
        recompute(model.layers, batch(0, 8, WIDTH), use_reentrant=False)
    model(0).backward()
    assert model.layers[0].weight.grad is not None


class Stopped(BaseException):
    pass


@pytest.mark.parametrize("kind", [RuntimeError, Stopped])
def test_after_an_error_in_forward_training_goes_on(kind: Any, directory: Path):
    class Stopping(TwoLayers):
        fails = False

        def __init__(self) -> None:
            super().__init__()
            self.layers[1].register_forward_post_hook(self.fail)

        def fail(self, *given: Any) -> None:
            if self.fails:
                raise kind("as it was told")

        def forward(self, step: int) -> Any:
            self.fails = step == 7
            return super().forward(step)

    wanted, _ = train(TwoLayers)
    paddle.seed(0)
    model = Stopping()
    optimizer = adamw(model.parameters())
    disk_offload(model, optimizer, directory, ram_budget=12 * NBYTES)
    for step in range(4):
        with pytest.raises(kind, match="as it was told"):
            model(7)
        model(step).backward()
        optimizer.step()
        optimizer.clear_grad()
    assert [bits(parameter) for parameter in model.parameters()] == wanted[-5:-1]
    model(0)
    assert not any(
        map(paddle.Tensor._is_dense_tensor_hold_allocation, (model.layers[0].weight, model.layers[2].weight))
    )


def test_damage_on_disk_is_an_error(directory: Path):
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(9)))
    offload = disk_offload(model, None, directory, ram_budget=NBYTES)
    offload.flush()
    (segment,) = offload.directory.glob("*.h5")
    content = bytearray(segment.read_bytes())
    content[len(content) // 3 : -len(content) // 3] = bytes(len(content) - 2 * (len(content) // 3))
    segment.write_bytes(content)
    with pytest.raises(SpillError, match="checksum"):
        model(batch(0, 8, WIDTH))


# What is on disk, and what is left


def test_files_say_what_they_hold(directory: Path):
    _, offload = train(TwoLayers, directory=directory, budget=0, steps=2)
    offload.model(0).backward()
    offload.flush()
    (segment,) = offload.directory.glob("*.h5")
    arrays = inspect_segment(segment).arrays
    assert {(array.label.op, array.label.slot, array.label.module) for array in arrays} >= {
        ("parameter", None, "layers.0.weight"), ("gradient", None, "layers.2.weight"),
        ("state", "moment1_0", "layers.0.weight"),
    }  # fmt: skip
    assert {(array.dtype.name, array.shape) for array in arrays} == {
        ("float32", (WIDTH, 2 * WIDTH)), ("float32", (2 * WIDTH, WIDTH))
    }  # fmt: skip
    assert not verify(offload.directory).problems


def test_saved_tensors_share_the_store_and_its_budget(directory: Path):
    _, offload = train(Transformer, directory=directory, budget=0, saved=True)
    assert offload.stats().peak_ram_bytes <= 1.5 * offload.least_budget
    with pytest.raises(
        ArgumentError, match="got ram_budget with an offload, whose store, budget and options it shares"
    ):
        save_on_disk(offload, ram_budget=3)


def test_nothing_piles_up_over_many_steps(directory: Path):
    model = Tied()
    optimizer = adamw(model.parameters(), grad_clip=global_norm())
    offload = disk_offload(model, optimizer, directory, ram_budget=8 * NBYTES)
    live, resident = [], []
    for step in range(100):
        with save_on_disk(offload):
            loss = model(step % 4)
        loss.backward()
        del loss
        optimizer.step()
        optimizer.clear_grad()
        live.append(offload.stats().live_bytes)
        resident.append(int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
    assert set(live[5:]) == {live[5]}
    assert offload.stats().peak_disk_bytes <= 1.2 * live[5]
    assert resident[-1] - resident[30] < 4 << 20


def test_files_go_with_the_model(directory: Path):
    model = two()
    optimizer = adamw(model.parameters())
    offload = disk_offload(model, optimizer, directory, ram_budget=4 * NBYTES)
    model(batch(0, 8, WIDTH)).sum().backward()
    optimizer.step()
    del offload
    model(batch(0, 8, WIDTH))  # the model keeps them
    assert list(directory.rglob("*.h5"))
    del model, optimizer
    gc.collect()
    wait_until_no_spill_file_is_below(directory)


def test_memory_leaves_ram(tmp_path: Path):
    program = """
        import sys
        import paddle
        from spillgrad.interop.paddle import disk_offload, save_on_disk

        def resident(name):
            lines = open("/proc/self/status").read().splitlines()
            return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))

        layers, width = 24, 1024
        paddle.seed(0)
        build = lambda: paddle.nn.Sequential(*(paddle.nn.Linear(width, width) for _ in range(layers)))
        make = lambda parameters: paddle.optimizer.AdamW(1e-3, parameters=parameters)
        x = paddle.ones([2, width])
        paddle.nn.Linear(width, width)(x).sum().backward()
        before = resident("VmRSS")
        if sys.argv[1] == "disk":
            offload = disk_offload(build, make, sys.argv[2], ram_budget="24MiB", direct_io=False)
            model, optimizer = offload.model, offload.optimizer
        else:
            model = build()
            optimizer = make(model.parameters())
        for step in range(3):
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.clear_grad(set_to_zero=False)
        print(loss.item().hex(), resident("VmHWM") - before)
    """

    def ran(where: str) -> tuple[str, int]:
        command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program), where, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        loss, peak = done.stdout.split()[-2:]
        return loss, int(peak)

    (wanted, in_ram), (got, on_disk) = ran("ram"), ran("disk")
    assert got == wanted
    assert in_ram > 24 * 4 * (4 << 20)
    assert on_disk < in_ram / 3
