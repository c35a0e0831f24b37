"""Questions about a tensor that PyTorch answers by functions, too."""

from typing import Any

from spillgrad.tensor import Tensor

__all__ = ["is_complex", "is_floating_point", "is_inference", "is_signed", "is_tensor", "numel", "typename"]


def is_tensor(obj: Any) -> bool:
    """Return whether an object is a tensor.

    Parameters
    ----------
    obj : object
        Any object.

    Returns
    -------
    bool
        Whether it is a `Tensor`.
    """
    return isinstance(obj, Tensor)


def numel(input: Tensor) -> int:
    """Return the number of elements.

    Parameters
    ----------
    input : Tensor
        Of any shape.

    Returns
    -------
    int
        The product of the sizes.
    """
    return input.numel()


def is_floating_point(input: Tensor) -> bool:
    """Return whether the elements are real floating-point numbers.

    Parameters
    ----------
    input : Tensor
        Of any shape.

    Returns
    -------
    bool
        Whether the dtype is of floating-point numbers.
    """
    return input.is_floating_point()


def is_complex(input: Tensor) -> bool:
    """Return whether the elements are complex numbers.

    Parameters
    ----------
    input : Tensor
        Of any shape.

    Returns
    -------
    bool
        Whether the dtype is complex64 or complex128.
    """
    return input.is_complex()


def is_signed(input: Tensor) -> bool:
    """Return whether the elements can be negative.

    Parameters
    ----------
    input : Tensor
        Of any shape.

    Returns
    -------
    bool
        False for bool and unsigned integers.
    """
    return input.is_signed()


def is_inference(input: Tensor) -> bool:
    """Return whether the tensor's memory was made in `inference_mode`.

    Parameters
    ----------
    input : Tensor
        Of any shape.

    Returns
    -------
    bool
        Whether it was.
    """
    return input.is_inference()


def typename(obj: Any) -> str:
    """Return the name of a tensor's type, or of the class of another object.

    Parameters
    ----------
    obj : object
        A tensor, a class, or any other object.

    Returns
    -------
    str
        A name such as "torch.FloatTensor".
    """
    if isinstance(obj, Tensor):
        return str(obj.type())
    kind = obj if isinstance(obj, type) else type(obj)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
