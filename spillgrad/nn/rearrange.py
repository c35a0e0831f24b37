"""Layers that rearrange elements."""

from collections.abc import Sequence

from spillgrad.nn.function_layer import FunctionLayer
from spillgrad.ops import rearrange, shape, sliding_windows
from spillgrad.tensor import Tensor

__all__ = ["ChannelShuffle", "Flatten", "Fold", "PixelShuffle", "PixelUnshuffle", "Unflatten", "Unfold"]


class Flatten(FunctionLayer):
    """Join the dimensions from `start_dim` to `end_dim` into one.

    Parameters
    ----------
    start_dim : int, default 1
        First dimension to join.
    end_dim : int, default -1
        Last dimension to join.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.nn.Flatten()(sg.zeros(2, 3, 4)).shape
    (2, 12)
    """

    _function = shape.flatten
    start_dim: int = 1
    end_dim: int = -1


class Unflatten(FunctionLayer):
    """Split one dimension into several dimensions.

    Parameters
    ----------
    dim : int
        Dimension to split.
    unflattened_size : sequence of int
        Sizes of the new dimensions; one of them may be -1, and follows from the others.
    """

    dim: int
    unflattened_size: Sequence[int]

    def _set_up(self) -> None:
        self.unflattened_size = tuple(self.unflattened_size)

    def forward(self, x: Tensor) -> Tensor:
        """Return the input with the dimension split.

        Parameters
        ----------
        x : Tensor
            Of any shape that has the dimension.

        Returns
        -------
        Tensor
            Of the shape of `x`, with `unflattened_size` in place of the dimension's size.
        """
        return shape.unflatten(x, self.dim, self.unflattened_size)


class PixelShuffle(FunctionLayer):
    """Rearrange r² channels as r × r pixels.

    The input has shape (..., C r², H, W), the result (..., C, H r, W r).

    Parameters
    ----------
    upscale_factor : int
        The factor r.
    """

    _function = rearrange.pixel_shuffle
    upscale_factor: int


class PixelUnshuffle(FunctionLayer):
    """Rearrange r × r pixels as r² channels.

    The input has shape (..., C, H r, W r), the result (..., C r², H, W).

    Parameters
    ----------
    downscale_factor : int
        The factor r.
    """

    _function = rearrange.pixel_unshuffle
    downscale_factor: int


class ChannelShuffle(FunctionLayer):
    """Interleave groups of channels.

    The input has shape (N, C, ...), the result the same.

    Parameters
    ----------
    groups : int
        Number of groups.
    """

    _function = rearrange.channel_shuffle
    groups: int


class Unfold(FunctionLayer):
    """Return the sliding windows of images as columns.

    The input has shape (N, C, H, W), the result (N, C · kernel elements, windows).

    Parameters
    ----------
    kernel_size : int or sequence of int
        Size of the window.
    dilation : int or sequence of int, default 1
        Distance between elements of a window.
    padding : int or sequence of int, default 0
        Width of padding on both sides.
    stride : int or sequence of int, default 1
        Distance between windows.
    """

    _function = sliding_windows.unfold_image
    kernel_size: int | Sequence[int]
    dilation: int | Sequence[int] = 1
    padding: int | Sequence[int] = 0
    stride: int | Sequence[int] = 1


class Fold(FunctionLayer):
    """Add windows, one in each column, into images, at the positions from which `Unfold` takes them.

    The input has shape (N, C · kernel elements, windows), the result (N, C, H, W).

    Parameters
    ----------
    output_size : int or sequence of int
        Height and width of the images.
    kernel_size : int or sequence of int
        Size of the window.
    dilation : int or sequence of int, default 1
        Distance between elements of a window.
    padding : int or sequence of int, default 0
        Width of padding on both sides.
    stride : int or sequence of int, default 1
        Distance between windows.
    """

    _function = sliding_windows.fold
    output_size: int | Sequence[int]
    kernel_size: int | Sequence[int]
    dilation: int | Sequence[int] = 1
    padding: int | Sequence[int] = 0
    stride: int | Sequence[int] = 1
