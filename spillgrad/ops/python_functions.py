"""Methods that call a function of Python for each element."""

from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad.errors import GraphError, ShapeError
from spillgrad.ops.declaration import declare
from spillgrad.ops.inplace import copy_
from spillgrad.tensor import Tensor

__all__: list[str] = []  # methods alone


def _overwrite(name: str, tensor: Tensor, callable: Callable[..., Any], *columns: list[Any]) -> Tensor:
    if tensor.requires_grad:
        raise GraphError(f"Can't call {name}() on Variable that requires grad. Use var.detach().{name}() instead.")
    values = np.array([callable(*elements) for elements in zip(*columns, strict=True)])
    return copy_(tensor, Tensor.wrap(values.astype(tensor.numpy_dtype).reshape(tensor.shape)).to(tensor.device))


@declare(method=True)
def apply_(tensor: Tensor, callable: Callable[[Any], Any]) -> Tensor:
    """Replace each element by what a Python function returns for it; return the tensor.

    It is slow.

    Parameters
    ----------
    tensor : Tensor
        Of any shape.
    callable : callable
        Takes a number, and returns one.

    Returns
    -------
    Tensor
        The tensor itself.

    Raises
    ------
    GraphError
        For a tensor that requires a gradient.
    """
    return _overwrite("apply_", tensor, callable, tensor.reshape(-1).tolist())


@declare(method=True)
def map_(self: Tensor, tensor: Tensor, callable: Callable[[Any, Any], Any]) -> Tensor:
    """Replace each element by what a Python function returns for it and that of another tensor; return the tensor.

    It is slow.

    Parameters
    ----------
    tensor : Tensor
        Broadcasts to the shape of the one to change.
    callable : callable
        Takes two numbers, and returns one.

    Returns
    -------
    Tensor
        The tensor itself.

    Raises
    ------
    GraphError
        For a tensor that requires a gradient.
    ShapeError
        If `tensor` does not broadcast.
    """
    if np.broadcast_shapes(self.shape, tensor.shape) != self.shape:
        raise ShapeError(f"map_: got shapes {tuple(self.shape)} and {tuple(tensor.shape)}; the second must broadcast")
    others = tensor.detach().expand(self.shape).reshape(-1).tolist()
    return _overwrite("map_", self, callable, self.reshape(-1).tolist(), others)
