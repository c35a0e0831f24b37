"""Layers that pad the last one, two or three dimensions, by one width on all sides or by a list of widths."""

from collections.abc import Sequence

from spillgrad.errors import ArgumentError
from spillgrad.nn.module import Module
from spillgrad.ops import padding as ops
from spillgrad.tensor import Tensor

__all__ = [
    "CircularPad1d", "CircularPad2d", "CircularPad3d", "ConstantPad1d", "ConstantPad2d", "ConstantPad3d",
    "ReflectionPad1d", "ReflectionPad2d", "ReflectionPad3d", "ReplicationPad1d", "ReplicationPad2d",
    "ReplicationPad3d", "ZeroPad1d", "ZeroPad2d", "ZeroPad3d",
]  # fmt: skip


class _Pad(Module):
    """Pads the last `_dims` dimensions; the widths are (before, after) for each, beginning with the last dimension."""

    _dims: int
    _mode: str

    def __init__(self, padding: int | Sequence[int]) -> None:
        super().__init__()
        widths = (padding,) * (2 * self._dims) if isinstance(padding, int) else tuple(padding)
        if len(widths) != 2 * self._dims:
            raise ArgumentError(
                f"{type(self).__name__}: got padding {padding}; wanted one width, or {2 * self._dims} of them"
            )
        self.padding = widths

    def forward(self, x: Tensor) -> Tensor:
        return ops.pad(x, self.padding, self._mode)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class _ConstantPad(_Pad):
    _mode = "constant"

    def __init__(self, padding: int | Sequence[int], value: float) -> None:
        super().__init__(padding)
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        return ops.pad(x, self.padding, value=self.value)

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class CircularPad1d(_Pad):
    """Pad the last dimension with the elements of its opposite end.

    Parameters
    ----------
    padding : int or sequence of int
        One width for all sides, or the widths (before, after).

    Raises
    ------
    ArgumentError
        If there is another number of widths.
    """

    _dims, _mode = 1, "circular"


class ReflectionPad1d(_Pad):
    """Pad the last dimension with its mirror image.

    Parameters
    ----------
    padding : int or sequence of int
        One width for all sides, or the widths (before, after).

    Raises
    ------
    ArgumentError
        If there is another number of widths.
    """

    _dims, _mode = 1, "reflect"


class ReplicationPad1d(_Pad):
    """Pad the last dimension with copies of its edge elements.

    Parameters
    ----------
    padding : int or sequence of int
        One width for all sides, or the widths (before, after).

    Raises
    ------
    ArgumentError
        If there is another number of widths.
    """

    _dims, _mode = 1, "replicate"


class ZeroPad1d(_Pad):
    """Pad the last dimension with zeros.

    Parameters
    ----------
    padding : int or sequence of int
        One width for all sides, or the widths (before, after).

    Raises
    ------
    ArgumentError
        If there is another number of widths.
    """

    _dims, _mode = 1, "constant"


class ConstantPad1d(_ConstantPad):
    """Pad the last dimension with `value`.

    Parameters
    ----------
    padding : int or sequence of int
        One width for all sides, or the widths (before, after).
    value : float
        Value of the padding.

    Raises
    ------
    ArgumentError
        If there is another number of widths.
    """

    _dims = 1


class CircularPad2d(_Pad):
    """Pad the last two dimensions with the elements of their opposite ends.

    Parameters
    ----------
    padding : int or sequence of int
        One width for all sides, or the widths (left, right, above, below).

    Raises
    ------
    ArgumentError
        If there is another number of widths.
    """

    _dims, _mode = 2, "circular"


class ReflectionPad2d(_Pad):
    """Pad the last two dimensions with their mirror image.

    Parameters
    ----------
    padding : int or sequence of int
        One width for all sides, or the widths (left, right, above, below).

    Raises
    ------
    ArgumentError
        If there is another number of widths.
    """

    _dims, _mode = 2, "reflect"


class ReplicationPad2d(_Pad):
    """Pad the last two dimensions with copies of their edge elements.

    Parameters
    ----------
    padding : int or sequence of int
        One width for all sides, or the widths (left, right, above, below).

    Raises
    ------
    ArgumentError
        If there is another number of widths.
    """

    _dims, _mode = 2, "replicate"


class ZeroPad2d(_Pad):
    """Pad the last two dimensions with zeros.

    Parameters
    ----------
    padding : int or sequence of int
        One width for all sides, or the widths (left, right, above, below).

    Raises
    ------
    ArgumentError
        If there is another number of widths.
    """

    _dims, _mode = 2, "constant"


class ConstantPad2d(_ConstantPad):
    """Pad the last two dimensions with `value`.

    Parameters
    ----------
    padding : int or sequence of int
        One width for all sides, or the widths (left, right, above, below).
    value : float
        Value of the padding.

    Raises
    ------
    ArgumentError
        If there is another number of widths.
    """

    _dims = 2


class CircularPad3d(_Pad):
    """Pad the last three dimensions with the elements of their opposite ends.

    Parameters
    ----------
    padding : int or sequence of int
        One width for all sides, or the widths (left, right, above, below, front, back).

    Raises
    ------
    ArgumentError
        If there is another number of widths.
    """

    _dims, _mode = 3, "circular"


class ReflectionPad3d(_Pad):
    """Pad the last three dimensions with their mirror image.

    Parameters
    ----------
    padding : int or sequence of int
        One width for all sides, or the widths (left, right, above, below, front, back).

    Raises
    ------
    ArgumentError
        If there is another number of widths.
    """

    _dims, _mode = 3, "reflect"


class ReplicationPad3d(_Pad):
    """Pad the last three dimensions with copies of their edge elements.

    Parameters
    ----------
    padding : int or sequence of int
        One width for all sides, or the widths (left, right, above, below, front, back).

    Raises
    ------
    ArgumentError
        If there is another number of widths.
    """

    _dims, _mode = 3, "replicate"


class ZeroPad3d(_Pad):
    """Pad the last three dimensions with zeros.

    Parameters
    ----------
    padding : int or sequence of int
        One width for all sides, or the widths (left, right, above, below, front, back).

    Raises
    ------
    ArgumentError
        If there is another number of widths.
    """

    _dims, _mode = 3, "constant"


class ConstantPad3d(_ConstantPad):
    """Pad the last three dimensions with `value`.

    Parameters
    ----------
    padding : int or sequence of int
        One width for all sides, or the widths (left, right, above, below, front, back).
    value : float
        Value of the padding.

    Raises
    ------
    ArgumentError
        If there is another number of widths.
    """

    _dims = 3
