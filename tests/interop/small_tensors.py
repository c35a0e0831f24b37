"""What small tensors are to `save_on_disk` of every framework: they share arrays, and come back as they were."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spillgrad.errors import SavedTensorError

ENOUGH = 300  # tensors, so that what is held of those before is looked at


class SmallTensors:
    """The tests of small tensors; a framework says how its tensors are made, changed and compared."""

    save_on_disk: Any
    about: Any  # what a tensor is, but for its values
    bits: Any  # the values of a tensor
    tensor: Any  # of an array

    def grad(self, tensor: Any) -> None:
        """Have gradients of a tensor computed anew."""
        raise NotImplementedError

    def view_as_int32(self, tensor: Any) -> Any:
        raise NotImplementedError

    def place(self, packed: Any) -> Any:
        """Return where the copy of a packed tensor is."""
        raise NotImplementedError

    def spilling(self, directory: Path, budget: int | str = "1MiB", **options: Any) -> Any:
        return self.save_on_disk(directory, ram_budget=budget, min_bytes=0, **options)

    def fill(self, spill: Any) -> list[Any]:
        packed = [spill.pack_hook(self.tensor(np.full(100, i, np.float32))) for i in range(ENOUGH)]
        spill.flush()
        return packed

    @pytest.mark.parametrize("codec", [None, "lossless", "bf16", "int8"])
    def test_views_come_back_as_they_lie_over_one_copy_that_no_codec_alters(self, directory: Path, codec: str | None):
        spill = self.spilling(directory, codec=codec)
        base = self.tensor(np.random.default_rng(0).standard_normal((6, 8), np.float32))
        dense = [base, base.t(), base[1:4, ::2]]
        packed = [spill.pack_hook(view) for view in dense]
        assert len({id(self.place(each)) for each in packed}) == 1
        views = [
            *dense,
            base.flatten()[5:],
            base[2],
            base[:, 3].expand([4, 6]),
            self.view_as_int32(base),
        ]
        wanted = [(self.about(view), self.bits(view)) for view in views]
        packed = [spill.pack_hook(view) for view in views]
        del base, dense, views
        others = self.fill(spill)
        for _ in range(2):
            got = [spill.unpack_hook(each) for each in packed]
            assert [(self.about(view), self.bits(view)) for view in got] == wanted
        del got, others, packed
        assert (spill.stats().live_bytes, spill.stats().ram_bytes) == (0, 0)

    @pytest.mark.parametrize("is_held", [True, False])
    @pytest.mark.parametrize("before", [True, False])
    def test_a_change_in_place_raises_whenever_it_came(self, directory: Path, is_held: bool, before: bool):
        spill = self.spilling(directory)
        x, untouched = self.tensor(np.ones(10)), self.tensor(np.ones(10))
        packed = [spill.pack_hook(each) for each in (x, x[3:], untouched)]
        others = [] if before else self.fill(spill)
        x.add_(self.tensor(np.ones(10)))
        again, wanted = spill.pack_hook(x), self.bits(x)
        assert self.place(again) is not self.place(packed[0])
        if not is_held:
            del x
        others += self.fill(spill)
        for each in packed[:2]:
            with pytest.raises(
                SavedTensorError, match=r"modified by an inplace operation: .* is at version 1; expected"
            ):
                spill.unpack_hook(each)
        assert self.bits(spill.unpack_hook(again)) == wanted
        assert self.bits(spill.unpack_hook(packed[2])) == self.bits(untouched)

    def test_a_backward_that_changes_a_small_tensor_spoils_no_other(self, directory: Path):
        spill = self.spilling(directory)
        one = self.tensor(np.ones(10))
        packed = [spill.pack_hook(self.tensor(np.ones(10))) for _ in range(2)]
        spill.unpack_hook(packed[0]).add_(one)
        assert self.bits(spill.unpack_hook(packed[1])) == self.bits(one)

    @pytest.mark.parametrize("budget", [0, "32KiB", "1MiB"])
    def test_gradients_of_small_tensors_are_the_same_twice_over(self, directory: Path, budget: int | str):
        def loss(w: Any) -> Any:
            y = w
            for i in range(300):
                y = (y * (1 + i % 3)).tanh() + w.exp()
            return (y * y).sum()

        values = np.random.default_rng(0).standard_normal(20)
        plain, spilled = self.tensor(values), self.tensor(values)
        self.grad(plain)
        loss(plain).backward()
        spill = self.spilling(directory, budget)
        for _ in range(2):
            self.grad(spilled)
            with spill:
                found = loss(spilled)
            found.backward(retain_graph=True)
            found.backward()
            assert self.bits(spilled.grad) == self.bits(plain.grad + plain.grad)
            del found
            assert (spill.stats().live_bytes, spill.stats().ram_bytes) == (0, 0)
