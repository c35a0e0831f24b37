"""Small tensors that Paddle saves share arrays of the store, and come back as they were."""

from pathlib import Path
from typing import Any

import pytest

paddle = pytest.importorskip("paddle", reason="`make test-peers` installs Paddle")


from spillgrad.interop.paddle import save_on_disk  # noqa: E402
from tests.interop.paddle_models import about, bits  # noqa: E402
from tests.interop.small_tensors import SmallTensors  # noqa: E402


class TestSmallTensors(SmallTensors):
    save_on_disk = save_on_disk
    about, bits = staticmethod(about), staticmethod(bits)
    tensor = staticmethod(paddle.to_tensor)

    def grad(self, tensor: Any) -> None:
        tensor.stop_gradient = False
        tensor.clear_gradient()

    def view_as_int32(self, tensor: Any) -> Any:
        return tensor.view("int32")

    def place(self, packed: Any) -> Any:
        return packed.spilled._place

    def test_twenty_thousand_small_tensors_come_back_and_take_little_of_the_disk(self, directory: Path):
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

        spill = self.spilling(directory)
        assert bits(gradient(spill)) == bits(gradient(paddle.enable_grad()))
        assert spill.stats().live_bytes == 0
