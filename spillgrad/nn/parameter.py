"""Tensors that a module registers: parameters, which are trained, and buffers, which are not."""

from typing import Any

from spillgrad.tensor import Tensor

__all__ = ["Buffer", "Parameter"]


class Parameter(Tensor):
    """A leaf tensor that modules register when it is assigned to one of their attributes; shares memory with `data`."""

    def __init__(self, data: Any = (), requires_grad: bool = True) -> None:
        self._share(data, requires_grad)

    def __repr__(self) -> str:
        return f"Parameter containing:\n{super().__repr__()}"


class Buffer(Tensor):
    """A tensor that modules register as a buffer when it is assigned to one of their attributes.

    It shares memory with `data`. State dicts leave it out unless it is `persistent`.
    """

    persistent = True

    def __init__(self, data: Any = (), *, persistent: bool = True) -> None:
        self._share(data, False)
        self.persistent = persistent
