"""The layer that does nothing."""

from typing import Any

from spillgrad.nn.module import Module
from spillgrad.tensor import Tensor

__all__ = ["Identity"]


class Identity(Module):
    """Return the input; the constructor ignores all arguments, so that it can replace any layer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return x
