"""`compose`: the inner pair packs first, the outer one packs what that returns."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.autograd.graph import compose, save_on_cpu, saved_tensors_hooks
from spillgrad.errors import HookTypeError, SavedTensorError
from tests.ops.checks import leaf

RNG = np.random.default_rng(0)


def noted(name: str, calls: list[str], by: float) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Hooks that note their calls and change what they see, so that a wrong order gives wrong values."""

    def pack(x: sg.Tensor) -> sg.Tensor:
        calls.append(f"{name}.pack")
        return x * by + by

    def unpack(x: sg.Tensor) -> sg.Tensor:
        calls.append(f"{name}.unpack")
        return (x - by) / by

    return pack, unpack


def to_half(x: sg.Tensor) -> sg.Tensor:
    return x.to(sg.bfloat16) if x.dtype == sg.float32 else x


def from_half(x: sg.Tensor) -> sg.Tensor:
    return x.to(sg.float32) if x.dtype == sg.bfloat16 else x


HALF = (to_half, from_half)


def test_the_inner_pair_packs_first_and_unpacks_last():
    calls: list[str] = []
    x = leaf([1.0, 2.0, 4.0])
    with compose(noted("outer", calls, 2.0), noted("inner", calls, 8.0)) as hooks:
        y = x * sg.tensor([1.0, 3.0, 5.0])
    assert calls == ["inner.pack", "outer.pack"]
    assert hooks.pack_hook(sg.tensor([1.0])).tolist() == [34.0]
    calls.clear()
    y.sum().backward()
    assert calls == ["outer.unpack", "inner.unpack"]
    assert x.grad is not None
    assert x.grad.tolist() == [1.0, 3.0, 5.0]


def test_more_than_two_pairs_chain():
    calls: list[str] = []
    names = [noted(name, calls, by) for name, by in (("a", 2.0), ("b", 4.0), ("c", 8.0))]
    for chained in (compose(names[0], compose(names[1], names[2])), compose(compose(names[0], names[1]), names[2])):
        x = leaf([1.0, 2.0])
        with chained:
            y = x * sg.tensor([3.0, 4.0])
        y.sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [3.0, 4.0]
        assert calls == ["c.pack", "b.pack", "a.pack", "a.unpack", "b.unpack", "c.unpack"]
        calls.clear()


def squared(outer: Any, inner: Any) -> tuple[np.ndarray, np.ndarray]:
    """A gradient with all in RAM, and the same through two pairs of hooks."""
    data = RNG.standard_normal((80, 60)).astype(np.float32)
    gradients = []
    for context in (sg.enable_grad(), compose(outer, inner)):
        x = sg.tensor(data, requires_grad=True)
        with context:
            y = (x * 2).tanh().sum()
        y.backward()
        assert x.grad is not None
        gradients.append(x.grad.numpy())
    return gradients[0], gradients[1]


def test_bfloat16_then_disk(tmp_path: Path):
    spill = sg.save_on_disk(tmp_path, ram_budget=0)
    exact, got = squared(spill, HALF)
    assert spill.stats().written_bytes == 80 * 60 * 2
    np.testing.assert_allclose(got, exact, atol=0.02)
    assert not np.array_equal(got, exact)
    assert spill.stats().live_bytes == 0


@pytest.mark.parametrize("as_inner", [False, True])
def test_a_hook_object_is_taken_wherever_it_returns_what_is_wanted(tmp_path: Path, as_inner: bool):
    objects = [save_on_cpu(), sg.save_on_disk(tmp_path, ram_budget=0), saved_tensors_hooks(*HALF)]
    if as_inner:
        exact, got = squared(save_on_cpu(), objects[-1])
        np.testing.assert_allclose(got, exact, atol=0.02)
    else:
        for outer in objects[:2]:
            exact, got = squared(outer, (lambda x: x, lambda x: x))
            np.testing.assert_array_equal(got, exact)


def test_an_inner_pair_that_packs_no_tensor_is_refused():
    x = leaf([1.0, 2.0])
    with (
        compose(HALF, save_on_cpu()),
        pytest.raises(HookTypeError, match="the inner pack hook returned tuple; wanted a Tensor"),
    ):
        x * x


@pytest.mark.parametrize("pair", [None, (1, 2), (len,), (len, None), save_on_cpu, [len, len]])
def test_what_is_no_pair_of_hooks_is_refused(pair: object):
    for arguments, who in [((pair, HALF), "outer"), ((HALF, pair), "inner")]:
        with pytest.raises(HookTypeError, match=f"compose: got {type(pair).__name__} as {who}; wanted an object"):
            compose(*arguments)


def test_an_outer_pack_hook_that_changes_what_lies_between_is_refused():
    def spoil(x: sg.Tensor) -> sg.Tensor:
        return x.mul_(2)

    x = leaf([1.0, 2.0])
    with (
        compose((spoil, lambda x: x), (lambda x: x.clone(), lambda x: x)),
        pytest.raises(SavedTensorError, match="in place"),
    ):
        x * sg.tensor([1.0, 3.0])


def test_it_is_reenterable_and_leaves_no_hook_behind():
    calls: list[str] = []
    both = compose(noted("outer", calls, 2.0), noted("inner", calls, 4.0))
    x = leaf([1.0])
    for _ in range(2):
        with both:
            y = x * sg.tensor([3.0])
        y.backward()
    x * sg.tensor([3.0])
    assert calls == ["inner.pack", "outer.pack", "outer.unpack", "inner.unpack"] * 2


def test_the_composed_hooks_work_on_their_own(tmp_path: Path):
    both = compose(sg.save_on_disk(tmp_path, ram_budget=0), HALF)
    x = leaf(RNG.standard_normal(5000).astype(np.float32))
    y = x.tanh()
    y.grad_fn._raw_saved_result.register_hooks(both.pack_hook, both.unpack_hook)  # type: ignore[union-attr]
    y.sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), 1 - np.tanh(x.detach().numpy()) ** 2, atol=0.02)


def test_only_selects_for_both_and_neither_may_have_one_of_its_own():
    calls: list[str] = []
    x = leaf([1.0, 2.0])
    both = compose(noted("a", calls, 2.0), noted("b", calls, 4.0), only=lambda saved: saved.op == "tanh")
    with both:
        y = (x * x).tanh()
    assert calls == ["b.pack", "a.pack"]
    y.sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), 2 * x.detach().numpy() * (1 - np.tanh([1.0, 4.0]) ** 2), rtol=1e-12)
    with pytest.raises(HookTypeError, match="compose: got inner with only="):
        compose(save_on_cpu(), both)
    with pytest.raises(HookTypeError, match="compose: got outer with only="):
        compose(save_on_cpu(only=lambda saved: True), HALF)
