"""PyTorch's module `torch.nested`, of tensors with rows of unequal length: refused, with what to do instead."""

from typing import Any, NoReturn

from spillgrad.errors import UnsupportedError

__all__ = ["as_nested_tensor", "narrow", "nested_tensor", "nested_tensor_from_jagged", "to_padded_tensor"]


def _refused(name: str) -> NoReturn:
    raise UnsupportedError(
        f"nested.{name}: spillgrad has no tensors with rows of unequal length; pad the rows by "
        "nn.utils.rnn.pad_sequence, and give attention a mask of the padding"
    )


def nested_tensor(*args: Any, **kwargs: Any) -> Any:
    """Raise UnsupportedError: rows of unequal length are padded."""
    _refused("nested_tensor")


def as_nested_tensor(*args: Any, **kwargs: Any) -> Any:
    """Raise UnsupportedError, as `nested_tensor` does."""
    _refused("as_nested_tensor")


def nested_tensor_from_jagged(*args: Any, **kwargs: Any) -> Any:
    """Raise UnsupportedError, as `nested_tensor` does."""
    _refused("nested_tensor_from_jagged")


def narrow(*args: Any, **kwargs: Any) -> Any:
    """Raise UnsupportedError, as `nested_tensor` does."""
    _refused("narrow")


def to_padded_tensor(*args: Any, **kwargs: Any) -> Any:
    """Raise UnsupportedError, as `nested_tensor` does."""
    _refused("to_padded_tensor")
