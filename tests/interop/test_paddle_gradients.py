"""Gradients of Paddle's models are those without the store, bit for bit, however they are computed."""

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

paddle = pytest.importorskip("paddle", reason="`make test-peers` installs Paddle")

from paddle.distributed.fleet.utils import recompute  # noqa: E402

from spillgrad.errors import ArgumentError  # noqa: E402
from spillgrad.interop.paddle import save_on_disk  # noqa: E402
from tests.interop.paddle_models import (  # noqa: E402
    BUDGETS,
    GPT,
    LARGE,
    NBYTES,
    SHAPE,
    WIDTH,
    Block,
    all_same,
    batch,
    bits,
    gradients,
    weight,
)

# Models


def convolutions() -> Any:
    return paddle.nn.Sequential(
        paddle.nn.Conv2D(3, 8, 3),
        paddle.nn.BatchNorm2D(8),
        paddle.nn.ReLU(),
        paddle.nn.MaxPool2D(2),
        paddle.nn.Dropout(0.3),
        paddle.nn.Conv2D(8, 8, 3, groups=2),
        paddle.nn.Softplus(),
        paddle.nn.AdaptiveAvgPool2D(3),
        paddle.nn.Flatten(),
    )


class Recurrent(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = paddle.nn.LSTM(16, 32, num_layers=2, direction="bidirect")

    def forward(self, x: Any) -> Any:
        return self.rnn(x)[0]


class Spectral(paddle.nn.Layer):
    """What has complex tensors in it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = paddle.nn.Linear(60, 60)

    def forward(self, x: Any) -> Any:
        spectrum = paddle.fft.rfft(self.linear(x))
        return paddle.fft.irfft(spectrum * spectrum.abs()) * paddle.complex(x, self.linear(x)).angle()


MODELS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "transformer": (GPT, lambda: paddle.randint(0, 100, [4, 16])),
    "attention": (lambda: paddle.nn.TransformerEncoderLayer(32, 4, 64), lambda: paddle.randn([4, 16, 32])),
    "convolutions": (convolutions, lambda: paddle.randn([5, 3, 32, 32])),
    "recurrent": (Recurrent, lambda: paddle.randn([20, 4, 16])),
    "complex": (Spectral, batch),
    "float64": (lambda: paddle.nn.Linear(60, 60).to(dtype="float64"), lambda: batch().astype("float64")),
}


@pytest.mark.filterwarnings("ignore:When training, we now always track")
@pytest.mark.parametrize("name", MODELS)
def test_gradients_of_models_are_the_same_bit_for_bit(directory: Path, name: str):
    make_model, make_input = MODELS[name]
    model, x = make_model(), make_input()
    wanted = gradients(model, lambda: model(x))
    for budget in (0, 20_000, LARGE):
        spill = save_on_disk(directory, ram_budget=budget, min_bytes=1)
        for _ in range(2):  # from the second step on a plan is known
            assert all_same(gradients(model, lambda: model(x), spill), wanted)
        assert spill.stats().packed_bytes > 0
        assert spill.stats().live_bytes == 0


def test_all_that_a_transformer_saves_goes_through_the_store(directory: Path):
    model, x = GPT(), paddle.randint(0, 100, [4, 16])
    parameters = {parameter.data_ptr() for parameter in model.parameters()}
    saved: list[int] = []

    def note(tensor: Any) -> Any:
        if tensor.data_ptr() not in parameters:
            saved.append(tensor.numel().item() * tensor.element_size())
        return tensor.detach()

    with paddle.autograd.saved_tensors_hooks(note, lambda packed: packed):
        model(x)
    with save_on_disk(directory, ram_budget=LARGE, min_bytes=0) as spill:
        loss = model(x)
    assert spill.stats().packed_bytes >= sum(saved) > 500_000  # a view is stored with its whole memory
    assert spill.stats().deduplicated_bytes > 0
    del loss
    assert spill.stats().live_bytes == 0


# Graphs that run again, and gradients of gradients


@pytest.mark.parametrize("budget", BUDGETS)
def test_a_retained_graph_runs_again(directory: Path, budget: int | str):
    spill, w = save_on_disk(directory, ram_budget=budget), weight()
    with spill:
        loss = (w.exp() * w.sin().exp()).sum()
    loss.backward(retain_graph=True)
    once = w.grad.clone()
    live = spill.stats().live_bytes
    assert live > 0
    w.clear_grad()
    paddle.autograd.backward([loss], retain_graph=True)
    assert (bits(w.grad), spill.stats().live_bytes) == (bits(once), live)
    w.clear_grad()
    loss.backward()
    assert bits(w.grad) == bits(once)
    assert spill.stats().live_bytes == 0
    with pytest.raises(SystemError, match="retain_graph=True"):  # Paddle's own
        loss.backward()


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("second_spilled", [True, False])
def test_double_backward_is_the_same(directory: Path, budget: int | str, second_spilled: bool):
    spill, start = save_on_disk(directory, ram_budget=budget), weight()

    def second_derivative(first: Any, second: Any) -> Any:
        x = start.detach().clone()
        x.stop_gradient = False
        with first:
            y = ((x * 0.5).tanh() * x.exp()).sum()
        with second:
            (g,) = paddle.grad(y, x, create_graph=True)
            loss = (g * g).sum()
        loss.backward()
        return x.grad

    wanted = second_derivative(contextlib.nullcontext(), contextlib.nullcontext())
    got = second_derivative(spill, spill if second_spilled else contextlib.nullcontext())
    assert bits(got) == bits(wanted)
    assert spill.stats().live_bytes == 0


def test_what_was_read_back_and_is_saved_again_is_not_stored_again(directory: Path):
    spill, x = save_on_disk(directory, ram_budget=0), weight()
    with spill:
        total = x.exp().sum()
        assert spill.stats().live_bytes == NBYTES
        (g,) = paddle.grad(total, x, create_graph=True)
        assert spill.stats().deduplicated_bytes == NBYTES
        assert spill.stats().live_bytes == 2 * NBYTES  # with the gradient of exp's result
    del total
    g.sum().backward()
    assert bits(x.grad) == bits(x.detach().exp())


def test_part_of_a_graph_runs_by_grad_and_then_all_of_it(directory: Path):
    spill, x, w = save_on_disk(directory, ram_budget=0), weight(), weight()
    with spill:
        hidden = (x * 2).exp()
        loss = (hidden * w.sin()).sum()
    (inner,) = paddle.grad(loss, hidden, retain_graph=True)
    assert bits(inner) == bits(w.sin())
    loss.backward()
    assert bits(w.grad) == bits((x * 2).exp() * w.cos())
    del hidden, loss
    assert spill.stats().live_bytes == 0


# PyLayers and recomputation


class Cube(paddle.autograd.PyLayer):
    """x³, which saves its input and its result."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        result = x * x * x
        ctx.save_for_backward(x, None, result)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, nothing, result = ctx.saved_tensor()
        again, _, _ = ctx.saved_tensor()
        assert nothing is None
        assert bits(x) == bits(again)
        return grad * 3 * result / x


class DoubledInPlace(paddle.autograd.PyLayer):
    """2x in place, which saves its result."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        x.scale_(2.0)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (result,) = ctx.saved_tensor()
        return grad * 2 + result


@pytest.mark.parametrize("shape", [SHAPE, (3,)])
@pytest.mark.parametrize("budget", BUDGETS)
def test_pylayers_save_into_the_store(directory: Path, budget: int | str, shape: tuple[int, ...]):
    start = paddle.randn(shape)

    def run(context: Any) -> list[Any]:
        w = start.detach().clone()
        w.stop_gradient = False
        with context:
            hidden = DoubledInPlace.apply(Cube.apply(w.exp()).clone())
            loss = hidden.sin().sum()
        loss.backward()
        return [w.grad]

    spill = save_on_disk(directory, ram_budget=budget)
    assert all_same(run(spill), run(contextlib.nullcontext()))
    assert (spill.stats().packed_bytes > 3 * NBYTES) == (shape == SHAPE)
    assert spill.stats().live_bytes == 0


class Square(paddle.autograd.PyLayer):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensor()
        return grad * 2 * x


@pytest.mark.parametrize("budget", BUDGETS)
def test_double_backward_through_a_pylayer_is_the_same(directory: Path, budget: int | str):
    spill, start = save_on_disk(directory, ram_budget=budget), weight()

    def second_derivative(context: Any, of_leaf: bool) -> Any:
        w = start.detach().clone()
        w.stop_gradient = False
        with context:
            y = Square.apply(w if of_leaf else w.exp()).sin().sum()
            (g,) = paddle.grad(y, w, create_graph=True)
        g.square().sum().backward()
        return w.grad

    for of_leaf in (True, False):
        wanted = second_derivative(contextlib.nullcontext(), of_leaf)
        assert bits(second_derivative(spill, of_leaf)) == bits(wanted)
    assert spill.stats().live_bytes == 0


@pytest.mark.parametrize("budget", [0, LARGE])
def test_recomputation_inside_the_context_is_spilled_but_for_what_is_recomputed(directory: Path, budget: int | str):
    blocks = paddle.nn.LayerList([Block(), Block(), Block()])
    x = paddle.randn([4, 16, WIDTH])
    x.stop_gradient = False

    def forward() -> Any:
        hidden = x * 1
        for block in blocks:
            hidden = recompute(block, hidden)
        return hidden

    wanted = gradients(blocks, forward)
    spill = save_on_disk(directory, ram_budget=budget, min_bytes=0)
    for _ in range(2):
        assert all_same(gradients(blocks, forward, spill), wanted)
    with spill:  # backward inside as well
        assert all_same(gradients(blocks, forward), wanted)
    before = spill.stats().packed_bytes
    with spill:
        kept = forward()
    assert spill.stats().packed_bytes - before == 3 * x.numel() * 4  # the input of each block
    del kept
    assert spill.stats().live_bytes == 0


def test_the_context_inside_a_recomputed_function(directory: Path):
    first, second = Block(), Block()
    both = paddle.nn.LayerList([first, second])
    x = paddle.randn([4, 16, WIDTH])
    x.stop_gradient = False
    spill = save_on_disk(directory, ram_budget=0, min_bytes=0)

    def partly(x: Any) -> Any:
        hidden = first(x)
        with spill:
            return second(hidden)

    wanted = gradients(both, lambda: recompute(lambda x: second(first(x)), x))
    assert all_same(gradients(both, lambda: recompute(partly, x)), wanted)
    assert spill.stats().packed_bytes > 0
    assert spill.stats().live_bytes == 0


def test_recomputation_that_has_hooks_of_its_own_is_refused_clearly(directory: Path):
    spill, block = save_on_disk(directory, ram_budget=0), Block()
    x = paddle.randn([4, 16, WIDTH])
    x.stop_gradient = False
    with spill, pytest.raises(ValueError, match="only one pair of hooks"):  # Paddle's own
        recompute(block, x, use_reentrant=False)

    def within(x: Any) -> Any:
        with spill:
            return block(x)

    with pytest.raises(ArgumentError, match=r"other ones are active; .*use_reentrant=False"):
        recompute(within, x, use_reentrant=False)
    assert all_same(gradients(block, lambda: block(x), spill), gradients(block, lambda: block(x)))


# Threads


def test_several_threads_share_one_object(directory: Path):
    spill = save_on_disk(directory, ram_budget=3 * NBYTES)
    x = batch()
    found: dict[int, Any] = {}

    def loss_of(w: Any) -> Any:
        return ((w.sin().exp() * w.cos().exp()) * x).sum()

    def work(number: int) -> None:
        w = paddle.full(SHAPE, float(number))
        w.stop_gradient = False
        for _ in range(10):
            w.clear_grad()
            with spill if number else contextlib.nullcontext():
                loss = loss_of(w)
            loss.backward()
        found[number] = w.grad

    with spill:  # so that hooks are there for all of them, of whom one is in no context
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for number in range(4):
        w = paddle.full(SHAPE, float(number))
        w.stop_gradient = False
        loss_of(w).backward()
        assert bits(found[number]) == bits(w.grad)
    assert spill.stats().live_bytes == 0
