"""PyTorch's memory formats and layouts, which programs pass on. Tensors here are dense, and new ones row-major.

A format says in which order the elements of a tensor lie in memory; values and shapes do not depend on it. The kernels
take every order, and gain nothing from another than the row-major one, so that formats are accepted and not obeyed.
"""

from typing import Any

from spillgrad.errors import OperandError, UnsupportedError

__all__ = [
    "channels_last", "channels_last_3d", "contiguous_format", "layout", "memory_format", "preserve_format", "strided",
]  # fmt: skip


class memory_format:
    """The name of an order of elements in memory, which changes nothing; new tensors are row-major.

    Parameters
    ----------
    name : str
        PyTorch's name, such as "channels_last".
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"torch.{self._name}"


class layout(memory_format):
    """The name of a way to store a tensor.

    Parameters
    ----------
    name : str
        PyTorch's name; tensors here are "strided".
    """


contiguous_format = memory_format("contiguous_format")
preserve_format = memory_format("preserve_format")
channels_last = memory_format("channels_last")
channels_last_3d = memory_format("channels_last_3d")
strided = layout("strided")

_OPTIONS = {"layout", "memory_format", "pin_memory"}


def require_dense(name: str, options: dict[str, Any]) -> None:
    """Accept `layout=strided`, and any `memory_format` and `pin_memory`, which change nothing.

    Raises UnsupportedError for another layout. Raises OperandError (a TypeError) for other options.
    """
    unknown = options.keys() - _OPTIONS
    if unknown:
        raise OperandError(f"{name}() got an unexpected keyword argument '{min(unknown)}'")
    if options.get("layout") not in (None, strided):
        raise UnsupportedError(f"{name}: got layout={options['layout']}; make a dense tensor, layout=strided")


def lies_in(shape: tuple[int, ...], strides: tuple[int, ...], format: memory_format) -> bool:
    """Return whether elements of a shape and strides lie in memory without gaps, with the channels last."""
    if len(shape) != {channels_last: 4, channels_last_3d: 5}.get(format):
        return False
    expected = 1
    for d in (1, *range(len(shape) - 1, 1, -1), 0):
        if shape[d] != 1 and strides[d] != expected:
            return False
        expected *= shape[d]
    return True
