"""Methods of tensors as functions: questions about a tensor, and tensors without graph."""

from typing import Any

from spillgrad.ops.declaration import declare
from spillgrad.ops.inplace import fill_
from spillgrad.tensor import Tensor

__all__ = ["detach", "detach_", "fill", "get_device", "is_distributed", "is_nonzero", "is_same_size"]


def fill(input: Tensor, value: Any) -> Tensor:
    """Return a tensor of the same shape and dtype with all elements equal to one value.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    value : float or Tensor
        The value; a tensor has no dimensions.

    Returns
    -------
    Tensor
        A new tensor.
    """
    return fill_(input.clone(), value)


def detach(input: Tensor) -> Tensor:
    """Return a tensor over the same memory that has no graph.

    Parameters
    ----------
    input : Tensor
        Of any shape.

    Returns
    -------
    Tensor
        An in-place change of either tensor changes both.
    """
    return input.detach()


def detach_(input: Tensor) -> Tensor:
    """Turn the tensor into a leaf that requires no gradient; return it.

    Parameters
    ----------
    input : Tensor
        Of any shape.

    Returns
    -------
    Tensor
        The tensor itself.

    Raises
    ------
    GraphError
        For a view with a graph.
    """
    return input.detach_()


def is_nonzero(input: Tensor) -> bool:
    """Return whether the only element is not zero.

    Parameters
    ----------
    input : Tensor
        Of one element.

    Returns
    -------
    bool
        Whether it is not zero.

    Raises
    ------
    ArgumentError
        For more or fewer elements.
    """
    return bool(input)


def is_same_size(input: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same shape.

    Parameters
    ----------
    input, other : Tensor
        Of any shapes.

    Returns
    -------
    bool
        Whether the shapes are equal.
    """
    return input.shape == other.shape


@declare(method=True)
def is_distributed(input: Tensor) -> bool:
    """Return False, as PyTorch does for every tensor.

    Parameters
    ----------
    input : Tensor
        Of any shape.

    Returns
    -------
    bool
        False.
    """
    return False


@declare(method=True)
def record_stream(input: Tensor, stream: Any) -> None:
    """Do nothing: one stream does all work, so that memory is never in use elsewhere.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    stream : object
        Not used.
    """


@declare(method=True)
def get_device(input: Tensor) -> int:
    """Return the number of the tensor's CUDA device.

    Parameters
    ----------
    input : Tensor
        Of any shape.

    Returns
    -------
    int
        The number; -1 on the CPU.
    """
    return 0 if input.is_cuda else -1
