"""Sliding windows, and the addition of windows at the places they came from: each is the other's derivative."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad.errors import ArgumentError, ShapeError
from spillgrad.ops.array_casts import by_parts
from spillgrad.ops.declaration import declare
from spillgrad.ops.operation import operation
from spillgrad.ops.rearrange import constant_pad, crop
from spillgrad.ops.shape import normalize_dim, reshape
from spillgrad.ops.window_arguments import Sizes, sizes, windows_over
from spillgrad.tensor import Tensor
from spillgrad_kernels.device_array import is_on_device, on_device
from spillgrad_kernels.memory.buffers import zeros
from spillgrad_kernels.windows import Pair, Windows

Shape = tuple[int, ...]


# --- Along one dimension ---------------------------------------------------------------------------------------------


def _windows(self: np.ndarray, dim: int, size: int, step: int, spacing: int) -> np.ndarray:
    count = (self.shape[dim] - spacing * (size - 1) - 1) // step + 1 if size else self.shape[dim] // step + 1
    shape = (*self.shape[:dim], count, *self.shape[dim + 1 :], size)
    strides = (*self.strides[:dim], self.strides[dim] * step, *self.strides[dim + 1 :], self.strides[dim] * spacing)
    return _strided(self, shape, strides)


def _strided(array: Any, shape: Shape, strides: Shape) -> np.ndarray:
    """Return a view of the array's memory with the given shape and strides (in bytes)."""
    view, writeable = np.lib.stride_tricks.as_strided, array.flags.writeable
    if is_on_device(array):
        array = array.view_by(view, shape, strides, writeable=writeable)
    else:
        array = view(array, shape, strides, writeable=writeable)
    return array  # type: ignore[no-any-return]


@on_device("windows")
def sum_along(windows: np.ndarray, dim: int, step: int, spacing: int, length: int) -> np.ndarray:
    """Return zeros of size `length` along `dim`, with the elements of windows added at the places they came from.

    Shapes: the last dimension of `windows` is a window. Windows are `step` apart, and their elements `spacing` apart.
    """
    count, size = windows.shape[dim], windows.shape[-1]
    out = zeros((*windows.shape[:dim], length, *windows.shape[dim + 1 : -1]), windows.dtype)
    for k in range(size):
        first = k * spacing
        out[(slice(None),) * dim + (slice(first, first + step * count - step + 1, step),)] += windows[..., k]
    return out


def _summed_windows(self: np.ndarray, dim: int, size: int, step: int, spacing: int, length: int) -> np.ndarray:
    return by_parts(lambda windows: sum_along(windows, dim, step, spacing, length), self, device_takes_half=True)


windows_along: Callable[..., Tensor] = operation(
    "unfold", _windows, view=True,
    self=lambda g, dim, size, step, spacing, self_shape: sum_windows(g, dim, size, step, spacing, self_shape[dim]),
)  # fmt: skip
sum_windows: Callable[..., Tensor] = operation(
    "unfold_backward", _summed_windows,
    self=lambda g, dim, size, step, spacing, self_shape: _first(
        windows_along(g, dim, size, step, spacing), dim, self_shape[dim]
    ),
)  # fmt: skip


def _first(windows: Tensor, dim: int, count: int) -> Tensor:
    """Return the first windows along a dimension; further ones may fit where nothing was added."""
    return windows if windows.shape[dim] == count else windows[(slice(None),) * dim + (slice(count),)]


@declare(method=True)
def unfold(input: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Return a view of all windows along a dimension.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    dimension : int
        Dimension of the windows.
    size : int
        Number of indices in a window.
    step : int
        Distance between windows.

    Returns
    -------
    Tensor
        A view; `dimension` counts the windows, and a new last dimension has the elements of a window.

    Raises
    ------
    ArgumentError
        If a window is larger than the dimension, or the step is not positive.
    DimensionError
        If the dimension is out of range.
    """
    dim = normalize_dim("unfold", dimension, input.ndim)
    source = input if input.ndim else reshape(input, 1)
    length = source.shape[dim]
    if not 0 <= size <= length or step < 1:
        raise ArgumentError(
            f"unfold: got size {size} and step {step}; dimension {dim} of a tensor of shape {input.shape} has "
            f"{length} indices, and the step is at least 1"
        )
    return windows_along(source, dim, size, step, 1)


# --- Over images -----------------------------------------------------------------------------------------------------


def _patches(self: np.ndarray, kernel: Pair, dilation: Pair, stride: Pair, counts: Pair) -> np.ndarray:
    n, c, y, x = self.strides
    strides = (n, c, dilation[0] * y, dilation[1] * x, stride[0] * y, stride[1] * x)
    return _strided(self, (*self.shape[:2], *kernel, *counts), strides).copy()


@on_device("windows")
def sum_over_images(patches: np.ndarray, dilation: Pair, stride: Pair, size: Pair) -> np.ndarray:
    """Return images of zeros with the elements of patches added at the places they came from.

    Shapes: patches (N, C, rows, columns, down, across) for a grid of down x across patches, result (N, C, *size).
    """
    n, c, rows, columns, *counts = patches.shape
    out = zeros((n, c, *size), patches.dtype)
    for i in range(rows):
        for j in range(columns):
            places: list[Any] = [
                slice(first, first + step * count - step + 1, step)
                for first, step, count in zip((i * dilation[0], j * dilation[1]), stride, counts, strict=True)
            ]
            out[(slice(None), slice(None), *places)] += patches[:, :, i, j]
    return out


def _summed_patches(self: np.ndarray, dilation: Pair, stride: Pair, size: Pair) -> np.ndarray:
    return by_parts(lambda patches: sum_over_images(patches, dilation, stride, size), self, device_takes_half=True)


_im2col: Callable[..., Tensor] = operation(
    "im2col", _patches, self=lambda g, dilation, stride, self_shape: _col2im(g, dilation, stride, self_shape[2:])
)
_col2im: Callable[..., Tensor] = operation(
    "col2im", _summed_patches,
    self=lambda g, dilation, stride, self_shape: _im2col(g, self_shape[2:4], dilation, stride, self_shape[4:]),
)  # fmt: skip


def _image_windows(
    name: str, image: Shape, kernel_size: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes
) -> Windows:
    """Return the windows that slide over images that are padded with zeros."""
    kernel, spread = sizes(name, "kernel_size", kernel_size, 2, 1), sizes(name, "dilation", dilation, 2, 1)
    border, step = sizes(name, "padding", padding, 2, 0), sizes(name, "stride", stride, 2, 1)
    return windows_over(name, image, kernel, step, border, border, spread)


def _borders(windows: Windows) -> tuple[tuple[int, int], ...]:
    return (0, 0), (0, 0), *((border, border) for border in windows.padding)


def unfold_image(
    input: Tensor, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1
) -> Tensor:
    """Return the windows of images as columns.

    Parameters
    ----------
    input : Tensor
        Of shape (N, C, H, W) or (C, H, W).
    kernel_size : int or sequence of int
        Height and width of a window.
    dilation : int or sequence of int, default 1
        Distance between the elements of a window.
    padding : int or sequence of int, default 0
        Zeros added at both ends.
    stride : int or sequence of int, default 1
        Distance between windows.

    Returns
    -------
    Tensor
        Of shape (N, C * kernel elements, windows), or without N.

    Raises
    ------
    ShapeError
        For other numbers of dimensions, or if no window fits.
    """
    if input.ndim not in (3, 4):
        raise ShapeError(f"unfold: got a tensor of shape {input.shape}; wanted (N, C, H, W) or (C, H, W)")
    images = input if input.ndim == 4 else reshape(input, (1, *input.shape))
    windows = _image_windows("unfold", images.shape[2:], kernel_size, dilation, padding, stride)
    if any(windows.padding):
        images = constant_pad(images, _borders(windows), 0.0)
    columns = _im2col(images, windows.size, windows.dilation, windows.stride, windows.grid)
    shape = (images.shape[1] * math.prod(windows.size), math.prod(windows.grid))
    return reshape(columns, (images.shape[0], *shape) if input.ndim == 4 else shape)


def fold(
    input: Tensor, output_size: Sizes, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1
) -> Tensor:
    """Return images of zeros with windows added at the places where `nn.functional.unfold` takes them.

    Parameters
    ----------
    input : Tensor
        Of shape (N, C * kernel elements, windows), or without N: each column is a window.
    output_size : int or sequence of int
        Height and width of the images.
    kernel_size : int or sequence of int
        Height and width of a window.
    dilation : int or sequence of int, default 1
        Distance between the elements of a window.
    padding : int or sequence of int, default 0
        Zeros that were added at both ends.
    stride : int or sequence of int, default 1
        Distance between windows.

    Returns
    -------
    Tensor
        Of shape (N, C, H, W) or (C, H, W).

    Raises
    ------
    ShapeError
        If shapes do not fit.
    """
    size = sizes("fold", "output_size", output_size, 2, 1)
    windows = _image_windows("fold", size, kernel_size, dilation, padding, stride)
    window, count = math.prod(windows.size), math.prod(windows.grid)
    if input.ndim not in (2, 3) or input.shape[-2] % window or input.shape[-1] != count:
        raise ShapeError(
            f"fold: got a tensor of shape {input.shape}; wanted (N, C * {window}, {count}), or that without N, for "
            f"images of {size}"
        )
    batch = input.shape[0] if input.ndim == 3 else 1
    patches = reshape(input, (batch, input.shape[-2] // window, *windows.size, *windows.grid))
    padded = tuple([pixels + 2 * border for pixels, border in zip(size, windows.padding, strict=True)])
    images = _col2im(patches, windows.dilation, windows.stride, padded)
    if any(windows.padding):
        images = crop(images, _borders(windows))
    return images if input.ndim == 3 else reshape(images, images.shape[1:])
