"""Questions about a tensor that PyTorch answers by functions, too."""

from typing import Any

from spillgrad.tensor import Tensor

__all__ = ["is_complex", "is_floating_point", "is_inference", "is_signed", "is_tensor", "numel", "typename"]


def is_tensor(obj: Any) -> bool:
    """Return whether an object is a tensor."""
    return isinstance(obj, Tensor)


def numel(input: Tensor) -> int:
    """Return the number of elements."""
    return input.numel()


def is_floating_point(input: Tensor) -> bool:
    """Return whether the elements are real floating-point numbers."""
    return input.is_floating_point()


def is_complex(input: Tensor) -> bool:
    """Return whether the elements are complex numbers."""
    return input.is_complex()


def is_signed(input: Tensor) -> bool:
    """Return whether the elements can be negative."""
    return input.is_signed()


def is_inference(input: Tensor) -> bool:
    """Return whether the tensor's memory was made in `inference_mode`."""
    return input.is_inference()


def typename(obj: Any) -> str:
    """Return the name of a tensor's type, such as "torch.FloatTensor"; of another object, that of its class."""
    if isinstance(obj, Tensor):
        return str(obj.type())
    kind = obj if isinstance(obj, type) else type(obj)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
