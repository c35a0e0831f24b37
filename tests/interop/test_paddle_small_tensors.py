"""Small tensors that Paddle saves share arrays of the store, and come back as they were."""

from pathlib import Path
from typing import Any

import pytest

paddle = pytest.importorskip("paddle", reason="`make test-peers` installs Paddle")


from spillgrad.errors import SavedTensorError  # noqa: E402
from spillgrad.interop.paddle import save_on_disk  # noqa: E402
from tests.interop.paddle_models import about, bits  # noqa: E402

ENOUGH = 300  # tensors, so that what is held of those before is looked at


def spilling(directory: Path, **options: Any) -> Any:
    return save_on_disk(directory, ram_budget="1MiB", min_bytes=0, **options)


def fill(spill: Any) -> list[Any]:
    packed = [spill.pack_hook(paddle.full([100], float(i))) for i in range(ENOUGH)]
    spill.flush()
    return packed


@pytest.mark.parametrize("codec", [None, "lossless", "bf16", "int8"])
def test_views_come_back_as_they_lie_over_one_copy_that_no_codec_alters(directory: Path, codec: str | None):
    spill = spilling(directory, codec=codec)
    base = paddle.randn([6, 8])
    views = [base, base.t(), base[1:4, ::2], base.flatten()[5:], base[2], base[:, 3].expand([4, 6]), base.view("int32")]
    wanted = [(about(view), bits(view)) for view in views]
    packed = [spill.pack_hook(view) for view in (base, base.t(), base[1:4, ::2])]
    assert len({id(each.spilled._place) for each in packed}) == 1
    packed = [spill.pack_hook(view) for view in views]
    del base, views
    others = fill(spill)
    for _ in range(2):
        got = [spill.unpack_hook(each) for each in packed]
        assert [(about(view), bits(view)) for view in got] == wanted
    del got, others, packed
    assert (spill.stats().live_bytes, spill.stats().ram_bytes) == (0, 0)


@pytest.mark.parametrize("is_held", [True, False])
@pytest.mark.parametrize("before", [True, False])
def test_a_change_in_place_raises_whenever_it_came(directory: Path, is_held: bool, before: bool):
    spill = spilling(directory)
    x, untouched = paddle.ones([10]), paddle.ones([10])
    packed = [spill.pack_hook(each) for each in (x, x[3:], untouched)]
    others = [] if before else fill(spill)
    x.add_(paddle.ones([10]))
    again, wanted = spill.pack_hook(x), bits(x)
    if not is_held:
        del x
    others += fill(spill)
    for each in packed[:2]:
        with pytest.raises(SavedTensorError, match=r"modified by an inplace operation: .* is at version 1; expected"):
            spill.unpack_hook(each)
    assert bits(spill.unpack_hook(again)) == wanted
    assert bits(spill.unpack_hook(packed[2])) == bits(untouched)


def test_a_backward_that_changes_a_small_tensor_spoils_no_other(directory: Path):
    spill = spilling(directory)
    packed = [spill.pack_hook(paddle.ones([10])) for _ in range(2)]
    spill.unpack_hook(packed[0]).scale_(2.0)
    assert bits(spill.unpack_hook(packed[1])) == bits(paddle.ones([10]))


@pytest.mark.parametrize("budget", [0, "32KiB", "1MiB"])
def test_gradients_of_small_tensors_are_the_same_twice_over(directory: Path, budget: int | str):
    def loss(w: Any) -> Any:
        y = w
        for i in range(300):
            y = (y * (1 + i % 3)).tanh() + w.exp()
        return (y * y).sum()

    values = paddle.randn([20], dtype="float64")
    plain, spilled = values.clone(), values.clone()
    plain.stop_gradient = spilled.stop_gradient = False
    loss(plain).backward()
    spill = save_on_disk(directory, ram_budget=budget, min_bytes=0)
    for _ in range(2):
        spilled.clear_gradient()
        with spill:
            found = loss(spilled)
        found.backward(retain_graph=True)
        found.backward()
        assert bits(spilled.grad) == bits(plain.grad + plain.grad)
        del found
        assert (spill.stats().live_bytes, spill.stats().ram_bytes) == (0, 0)


def test_twenty_thousand_small_tensors_come_back_and_take_little_of_the_disk(directory: Path):
    def gradient(context: Any) -> Any:
        w = paddle.full([32], 0.5)
        w.stop_gradient = False
        x = w
        with context:
            for _ in range(10_000):
                x = x.sin() + w.exp()  # saves x, and what exp returns
        if context is spill:
            spill.flush()
            stats = spill.stats()
            assert stats.live_bytes >= 19_999 * 128
            assert stats.disk_bytes <= 1.3 * 20_000 * 128
        x.sum().backward()
        return w.grad

    spill = spilling(directory)
    assert bits(gradient(spill)) == bits(gradient(paddle.enable_grad()))
    assert spill.stats().live_bytes == 0
