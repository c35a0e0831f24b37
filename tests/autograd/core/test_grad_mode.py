"""Recording on and off: per thread, nested, as a context manager and as a decorator."""

import asyncio
import threading

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.autograd.core.grad_mode import inferring
from spillgrad.errors import InferenceTensorError
from tests.ops.checks import leaf


def test_nothing_is_recorded_inside_no_grad():
    x = leaf([1.0])
    with sg.no_grad():
        y = x * x
    assert not y.requires_grad and y.is_leaf and y.grad_fn is None


def test_contexts_nest_and_can_be_entered_again():
    outer = sg.no_grad()
    with outer:
        with sg.enable_grad():
            assert sg.is_grad_enabled()
            with outer:
                assert not sg.is_grad_enabled()
            assert sg.is_grad_enabled()
        assert not sg.is_grad_enabled()
    assert sg.is_grad_enabled()


def test_set_grad_enabled_acts_at_once_and_until_its_block_ends():
    sg.set_grad_enabled(False)
    assert not sg.is_grad_enabled()
    sg.set_grad_enabled(True)
    with sg.set_grad_enabled(False):
        assert not sg.is_grad_enabled()
    assert sg.is_grad_enabled()


@pytest.mark.parametrize("decorator", [lambda: sg.no_grad, sg.no_grad, lambda: sg.set_grad_enabled(False)])
def test_a_decorated_function_runs_without_recording_and_nothing_else_does(decorator):
    @decorator()
    def product(x: sg.Tensor, depth: int = 0) -> sg.Tensor:
        assert not sg.is_grad_enabled()
        return x * x if depth == 0 else product(x, depth - 1)

    assert product.__name__ == "product" and sg.is_grad_enabled()
    assert not product(leaf([1.0]), 2).requires_grad
    assert sg.is_grad_enabled()
    with sg.no_grad():
        product(leaf([1.0]))
        assert not sg.is_grad_enabled()


def test_a_mode_decorator_made_in_one_mode_restores_the_callers():
    sg.set_grad_enabled(True)

    @sg.set_grad_enabled(True)
    def recorded() -> bool:
        return sg.is_grad_enabled()

    with sg.no_grad():
        assert recorded() and not sg.is_grad_enabled()


def test_the_mode_survives_an_exception():
    with pytest.raises(ValueError, match="mine"), sg.no_grad():
        raise ValueError("mine")
    assert sg.is_grad_enabled()


def test_the_mode_is_the_threads_own():
    seen = []

    @sg.no_grad()
    def look(inside: threading.Barrier) -> None:
        inside.wait()
        seen.append(sg.is_grad_enabled())
        inside.wait()

    def work(inside: threading.Barrier) -> None:
        look(inside)
        seen.append(sg.is_grad_enabled())

    inside = threading.Barrier(3)
    threads = [threading.Thread(target=work, args=(inside,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    inside.wait()
    assert sg.is_grad_enabled()
    inside.wait()
    for thread in threads:
        thread.join()
    assert sorted(seen) == [False, False, True, True]


# detach, detach_, stop_gradient


def test_detach_shares_memory_and_version_but_no_graph():
    x = leaf([1.0, 2.0])
    y = x * 2
    cut = y.detach()
    assert not cut.requires_grad and cut.is_leaf and y.requires_grad
    cut.add_(1)
    assert np.array_equal(y.numpy(), [3.0, 5.0]) and y._version == cut._version == 1


def test_detach_in_place_makes_a_leaf():
    x = leaf([1.0])
    y = x * 2
    assert y.detach_() is y
    assert y.is_leaf and not y.requires_grad
    z = y.requires_grad_() * 3
    z.backward()
    assert x.grad is None and y.grad.item() == 3.0
    with pytest.raises(RuntimeError, match=r"Can't detach views in-place\. Use detach"):
        (x * 2)[0].detach_()


def test_stop_gradient_is_the_other_side_of_requires_grad():
    x = sg.tensor(np.ones(1))
    assert x.stop_gradient
    x.stop_gradient = False
    assert x.requires_grad
    x.requires_grad = False
    assert x.stop_gradient


@pytest.mark.parametrize("view", [False, True])
def test_stop_gradient_on_a_non_leaf_cuts_the_graph_there(view):
    x = leaf([1.0, 2.0])
    y = (x * 2)[0] if view else x * 2
    y.stop_gradient = True
    assert y.is_leaf
    (y * x).sum().backward()
    assert np.array_equal(x.grad.numpy(), [2.0, 2.0] if view else [2.0, 4.0])


def test_requires_grad_of_a_non_leaf_cannot_be_cleared_and_integers_cannot_have_it():
    with pytest.raises(RuntimeError, match=r"leaf variables.*detach"):
        (leaf([1.0]) * 2).requires_grad = False
    with pytest.raises(TypeError, match="floating point"):
        sg.arange(3).requires_grad_()


# Generators and coroutines

DECORATORS = {
    "no_grad": sg.no_grad,
    "no_grad()": sg.no_grad(),
    "set_grad_enabled(False)": lambda function: sg.set_grad_enabled(False)(function),
    "inference_mode": sg.inference_mode,
    "inference_mode()": sg.inference_mode(),
}


@pytest.mark.parametrize("name", DECORATORS)
def test_a_decorated_generator_runs_in_the_mode_and_its_caller_in_its_own(name):
    inside: list[bool] = []

    @DECORATORS[name]
    def generate(first: str):
        try:
            inside.append(sg.is_grad_enabled())
            sent = yield first
            inside.append(sg.is_grad_enabled())
            try:
                yield sent
            except KeyError as error:
                inside.append(sg.is_grad_enabled())
                yield error.args[0]
            return "returned"
        finally:
            inside.append(sg.is_grad_enabled())

    generator = generate("first")
    assert next(generator) == "first" and sg.is_grad_enabled()
    assert generator.send("sent") == "sent" and sg.is_grad_enabled()
    assert generator.throw(KeyError("thrown")) == "thrown" and sg.is_grad_enabled()
    with pytest.raises(StopIteration) as end:
        next(generator)
    assert end.value.value == "returned" and inside == [False] * 4 and sg.is_grad_enabled()
    closed = generate("first")
    with sg.no_grad():
        next(closed)
    closed.close()
    assert inside == [False] * 6 and sg.is_grad_enabled() and generate.__name__ == "generate"


def test_enable_grad_decorates_a_generator_within_no_grad():
    @sg.enable_grad()
    def generate():
        yield sg.is_grad_enabled()

    with sg.no_grad():
        assert list(generate()) == [True] and not sg.is_grad_enabled()


@pytest.mark.parametrize("name", DECORATORS)
def test_a_decorated_coroutine_runs_in_the_mode_and_others_meanwhile_in_theirs(name):
    inside: list[bool] = []
    meanwhile: list[bool] = []

    @DECORATORS[name]
    async def work() -> str:
        for _ in range(3):
            inside.append(sg.is_grad_enabled())
            await asyncio.sleep(0)
        return "done"

    async def other() -> None:
        for _ in range(3):
            meanwhile.append(sg.is_grad_enabled())
            await asyncio.sleep(0)

    async def both() -> list[object]:
        return await asyncio.gather(work(), other(), work())

    assert asyncio.run(both()) == ["done", None, "done"]
    assert inside == [False] * 6 and meanwhile == [True] * 3 and sg.is_grad_enabled()


def test_a_decorated_coroutine_passes_exceptions_and_cancellation_on():
    inside: list[bool] = []

    @sg.no_grad()
    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            inside.append(sg.is_grad_enabled())

    async def cancel() -> None:
        task = asyncio.ensure_future(work())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert inside == [False] and sg.is_grad_enabled()


def test_a_decorated_asynchronous_generator_runs_in_the_mode():
    inside: list[bool] = []

    @sg.no_grad()
    async def generate():
        try:
            for number in range(3):
                inside.append(sg.is_grad_enabled())
                await asyncio.sleep(0)
                yield number
        finally:
            inside.append(sg.is_grad_enabled())

    async def read() -> list[int]:
        assert [number async for number in generate()] == [0, 1, 2] and sg.is_grad_enabled()
        stopped = generate()
        first = await anext(stopped)
        await stopped.aclose()
        return [first]

    assert asyncio.run(read()) == [0] and inside == [False] * 6 and sg.is_grad_enabled()


# inference_mode


def test_inference_mode_records_nothing_and_says_that_it_is_on():
    x = leaf([1.0])
    with sg.inference_mode():
        y = x * x
        assert sg.is_inference_mode_enabled() and not sg.is_grad_enabled()
        with sg.inference_mode(False):
            assert not sg.is_inference_mode_enabled() and (x * x).requires_grad
        assert sg.is_inference_mode_enabled() and not sg.is_grad_enabled()
    assert not y.requires_grad and not sg.is_inference_mode_enabled() and sg.is_grad_enabled()


def test_a_refused_change_of_an_inference_tensor_changes_nothing():
    with sg.inference_mode():
        y = sg.ones(3)
    for change in (lambda: y.add_(1), lambda: y.view(-1).mul_(2), lambda: y[0:1].fill_(7), lambda: sg.exp(y, out=y)):
        with pytest.raises(InferenceTensorError, match="Inplace update to inference tensor"):
            change()
    assert y.tolist() == [1.0, 1.0, 1.0]


def test_a_product_of_inference_tensors_that_require_gradients_is_refused():
    with sg.inference_mode():
        y = sg.ones(3, requires_grad=True)
    with pytest.raises(InferenceTensorError, match=r"cannot be saved for backward.*mul saves 'self'"):
        y * y


def test_a_model_made_in_inference_mode_runs_there_in_half_precision():
    with sg.inference_mode():
        layer = sg.nn.Linear(2, 3)
        with sg.autocast("cpu"):
            assert layer(sg.ones(1, 2)).dtype == sg.bfloat16


def test_replaced_memory_may_be_that_of_an_inference_tensor():
    with sg.inference_mode():
        made = sg.ones(2)
    x = sg.zeros(2)
    x.add_(1)
    x.data = made
    assert x.is_inference()
    x.data = sg.zeros(2)
    assert not x.is_inference()
    assert x.add_(1)._version >= 1


def test_threads_make_inference_tensors_only_in_their_own_mode():
    found = []
    with sg.inference_mode():
        thread = threading.Thread(target=lambda: found.append(sg.ones(1).is_inference()))
        thread.start()
        thread.join()
        found.append(sg.ones(1).is_inference())
    found.append(sg.ones(1).is_inference())
    assert found == [False, True, False]
    assert inferring == []


def test_grad_mode_within_inference_mode_is_on_but_records_nothing():
    x = leaf([1.0])
    with sg.inference_mode():
        with sg.enable_grad():
            assert sg.is_grad_enabled() and not (x * x).requires_grad
            with sg.no_grad():
                assert not sg.is_grad_enabled()
            with sg.inference_mode(False):
                assert sg.is_grad_enabled() and (x * x).requires_grad
            assert sg.is_grad_enabled() and not (x * x).requires_grad
        sg.set_grad_enabled(True)
        assert sg.is_grad_enabled() and not (x * x).requires_grad
    assert sg.is_grad_enabled() and (x * x).requires_grad


def test_a_thread_that_ends_in_inference_mode_leaves_nothing_behind():
    thread = threading.Thread(target=sg.inference_mode().__enter__)
    thread.start()
    thread.join()
    assert inferring == []


def test_modes_are_found_where_pytorch_has_them():
    from spillgrad.autograd import grad_mode

    for name in ("no_grad", "enable_grad", "set_grad_enabled", "inference_mode"):
        assert getattr(sg.autograd, name) is getattr(sg, name) is getattr(grad_mode, name)
    assert sg.autograd.grad_mode is grad_mode
