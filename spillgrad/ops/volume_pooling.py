"""Pool volumes: first each of their slices as an image, then along the depth.

The sum of a box is the sum of its slices' sums. Its first largest element is in the first slice that has that element.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from spillgrad.errors import ShapeError
from spillgrad.ops.arithmetic import pow
from spillgrad.ops.array_casts import require_floats
from spillgrad.ops.pooling import (
    OutputSize,
    adapted_maxima,
    adapted_means,
    averaged,
    largest,
    output_sizes,
    root_of_sums,
    unpooled,
    whole_means,
)
from spillgrad.ops.shape import reshape
from spillgrad.ops.window_arguments import Sizes, sizes
from spillgrad.tensor import Tensor

__all__ = ["adaptive_avg_pool3d", "adaptive_max_pool3d", "avg_pool3d", "lp_pool3d", "max_pool3d", "max_unpool3d"]


def _slices(name: str, input: Tensor) -> Tensor:
    """Return volumes (N, C, D, H, W) or (C, D, H, W) as images (N * C, D, H, W) whose channels are slices."""
    if input.ndim not in (4, 5):
        raise ShapeError(f"{name}: got input {input.shape}; wanted 5 dimensions, or 4 without a batch")
    require_floats(name, input.dtype)
    return reshape(input, (math.prod(input.shape[:-3]), *input.shape[-3:]))


def _columns(slices: Tensor) -> Tensor:
    """Return pooled slices (n, D, h, w) as images (n, 1, D, h * w), whose columns run along the depth."""
    n, depth, height, width = slices.shape
    return reshape(slices, (n, 1, depth, height * width))


def _volumes(columns: Tensor, slices: Tensor, input: Tensor) -> Tensor:
    return reshape(columns, (*input.shape[:-3], columns.shape[2], *slices.shape[2:]))


class _Boxes(NamedTuple):
    """The options of the pooling windows over slices, or of the windows over columns."""

    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]


def _boxes(
    name: str, kernel_size: Sizes, stride: Sizes | None, padding: Sizes, dilation: Sizes = 1
) -> tuple[_Boxes, _Boxes]:
    """Split the options of boxes into the options of windows over slices and of windows over columns."""
    whole = [
        sizes(name, option, value, 3, least)
        for option, value, least in (
            ("kernel_size", kernel_size, 1), ("stride", kernel_size if stride in (None, (), []) else stride, 1),
            ("padding", padding, 0), ("dilation", dilation, 1),
        )
    ]  # fmt: skip
    columns = [(option[0], least) for option, least in zip(whole, (1, 1, 0, 1), strict=True)]
    return _Boxes(*(option[1:] for option in whole)), _Boxes(*columns)


def _with_places(
    values: Tensor, depths: Tensor, places: Tensor, slices: Tensor, input: Tensor, return_indices: bool
) -> Any:
    """Return the largest elements; with `return_indices`, also their indices in volumes, from those in slices."""
    result = _volumes(values, slices, input)
    if not return_indices:
        return result
    n, _, count, width = values.shape
    within = np.take_along_axis(places.array.reshape(n, -1), depths.array.reshape(n, count * width), 1)
    height_width = input.shape[-2] * input.shape[-1]
    found = depths.array.reshape(n, -1) // max(width, 1) * height_width + within
    return result, Tensor.wrap(found.reshape(result.shape))


def max_pool3d(
    input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> Any:  # fmt: skip
    """Return the largest element of each box of volumes.

    Of equal elements, the first is taken; NaN counts as larger than any number.

    Parameters
    ----------
    input : Tensor
        Of shape (N, C, D, H, W) or (C, D, H, W), of floating-point numbers.
    kernel_size : int or sequence of int
        Size of a window, one for all dimensions or one for each.
    stride : int or sequence of int, optional
        Distance between windows; by default, the size of a window.
    padding : int or sequence of int, default 0
        Elements added at both ends, at most half a window; they are never the result.
    dilation : int or sequence of int, default 1
        Distance between the elements of a window.
    ceil_mode : bool, default False
        Whether to add a window that begins inside and reaches beyond the end.
    return_indices : bool, default False
        Whether to return the indices of the elements, too.

    Returns
    -------
    Tensor or tuple of Tensor
        Of shape (N, C, d, h, w) or (C, d, h, w); with `return_indices`, also the index of each element in the flattened
        volume.

    Raises
    ------
    ShapeError
        For other numbers of dimensions, if no box fits, or if a box sees nothing but padding.
    ArgumentError
        If a size is out of range, or more than half of a window may be padding.
    DtypeError
        For integers and complex numbers.
    """
    name = "max_pool3d"
    slices = _slices(name, input)
    over_slices, over_columns = _boxes(name, kernel_size, stride, padding, dilation)
    pooled, places = largest(name, slices, 2, True, *over_slices, ceil_mode)
    values, depths = largest(name, _columns(pooled), 2, True, *over_columns, ceil_mode)
    return _with_places(values, depths, places, pooled, input, return_indices)


def avg_pool3d(
    input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    """Return the mean of each box of volumes.

    Parameters
    ----------
    input : Tensor
        Of shape (N, C, D, H, W) or (C, D, H, W), of floating-point numbers.
    kernel_size : int or sequence of int
        Size of a window, one for all dimensions or one for each.
    stride : int or sequence of int, optional
        Distance between windows; by default, the size of a window.
    padding : int or sequence of int, default 0
        Zeros added at both ends, at most half a window.
    ceil_mode : bool, default False
        Whether to add a window that begins inside and reaches beyond the end.
    count_include_pad : bool, default True
        Whether added zeros count as elements of a window.
    divisor_override : int, optional
        What sums are divided by; by default, the number of elements.

    Returns
    -------
    Tensor
        Of shape (N, C, d, h, w) or (C, d, h, w).

    Raises
    ------
    ShapeError
        For other numbers of dimensions, or if no window fits.
    ArgumentError
        If a size is out of range, more than half of a window may be padding, or the divisor is 0.
    DtypeError
        For integers and complex numbers.
    """
    name = "avg_pool3d"
    slices = _slices(name, input)
    over_slices, over_columns = _boxes(name, kernel_size, stride, padding)

    def mean(images: Tensor, boxes: _Boxes, divisor: int | None) -> Tensor:
        return averaged(
            name, images, 2, boxes.kernel_size, boxes.stride, boxes.padding, ceil_mode, count_include_pad, divisor
        )

    pooled = mean(slices, over_slices, None if divisor_override is None else 1)
    return _volumes(mean(_columns(pooled), over_columns, divisor_override), pooled, input)


def adaptive_avg_pool3d(input: Tensor, output_size: OutputSize) -> Tensor:
    """Return the means of a grid of boxes that cover a volume.

    Parameters
    ----------
    input : Tensor
        Of shape (N, C, D, H, W) or (C, D, H, W).
    output_size : int, sequence of int or None
        Depth, height and width of the grid, or one number for all; None keeps the size of the input.

    Returns
    -------
    Tensor
        Of shape (N, C, d, h, w) or (C, d, h, w), where (d, h, w) is `output_size`.

    Raises
    ------
    ShapeError
        For other numbers of dimensions.
    ArgumentError
        If `output_size` has two sizes, or more than three.
    DtypeError
        For integers, and for complex numbers unless there is one box.
    """
    name = "adaptive_avg_pool3d"
    if (means := whole_means(name, input, output_size, 3)) is not None:
        return means
    depth, *rest = output_sizes(name, output_size, 3)
    pooled = adapted_means(name, _slices(name, input), rest, 2)
    return _volumes(adapted_means(name, _columns(pooled), (depth, None), 2), pooled, input)


def adaptive_max_pool3d(input: Tensor, output_size: OutputSize, return_indices: bool = False) -> Any:
    """Return the largest elements of a grid of boxes that cover a volume.

    Of equal elements, the first is taken; NaN counts as larger than any number.

    Parameters
    ----------
    input : Tensor
        Of shape (N, C, D, H, W) or (C, D, H, W), of floating-point numbers.
    output_size : int, sequence of int or None
        Depth, height and width of the grid, or one number for all; None keeps the size of the input.
    return_indices : bool, default False
        Whether to return the indices of the elements, too.

    Returns
    -------
    Tensor or tuple of Tensor
        Of shape (N, C, d, h, w) or (C, d, h, w), where (d, h, w) is `output_size`; with `return_indices`, also the
        index of each element in the flattened volume.

    Raises
    ------
    ShapeError
        For other numbers of dimensions.
    ArgumentError
        If `output_size` has two sizes, or more than three.
    DtypeError
        For integers and complex numbers.
    """
    name = "adaptive_max_pool3d"
    depth, *rest = output_sizes(name, output_size, 3)
    pooled, places = adapted_maxima(name, _slices(name, input), rest, 2, True)
    values, depths = adapted_maxima(name, _columns(pooled), (depth, None), 2, True)
    return _with_places(values, depths, places, pooled, input, return_indices)


def lp_pool3d(
    input: Tensor, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
) -> Tensor:
    """Return ``(sum x**p)**(1/p)`` of each box of volumes.

    Parameters
    ----------
    input : Tensor
        Of shape (N, C, D, H, W) or (C, D, H, W), of floating-point numbers.
    norm_type : float
        The power p: 1 gives the sum, inf the largest element.
    kernel_size : int or sequence of int
        Size of a window, one for all dimensions or one for each.
    stride : int or sequence of int, optional
        Distance between windows; by default, the size of a window.
    ceil_mode : bool, default False
        Whether to add a window that begins inside and reaches beyond the end.

    Returns
    -------
    Tensor
        Of shape (N, C, d, h, w) or (C, d, h, w).

    Raises
    ------
    ShapeError
        For other numbers of dimensions, or if no window fits.
    DtypeError
        For complex numbers.

    Notes
    -----
    Where the sum is not positive the result is 0, and so is the gradient (PyTorch's is NaN).
    """
    if norm_type == math.inf:
        return max_pool3d(input, kernel_size, stride, ceil_mode=ceil_mode)  # type: ignore[no-any-return]
    means = avg_pool3d(pow(input, float(norm_type)), kernel_size, stride, ceil_mode=ceil_mode)
    return root_of_sums(means, sizes("lp_pool3d", "kernel_size", kernel_size, 3, 1), float(norm_type))


def max_unpool3d(
    input: Tensor, indices: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    """Return zeros with each element at the index from which `max_pool3d` took it.

    Parameters
    ----------
    input : Tensor
        Of shape (N, C, d, h, w) or (C, d, h, w): the largest elements.
    indices : Tensor
        Of the shape of `input`: the indices that `max_pool3d` returned.
    kernel_size : int or sequence of int
        Size of a window, one for all dimensions or one for each.
    stride : int or sequence of int, optional
        Distance between windows; by default, the size of a window.
    padding : int or sequence of int, default 0
        The padding of the pooling.
    output_size : sequence of int, optional
        Depth, height and width of the volumes, as its last numbers. Volumes of several sizes give the same pooled size;
        this chooses one of them.

    Returns
    -------
    Tensor
        Of shape (N, C, D, H, W) or (C, D, H, W).

    Raises
    ------
    ShapeError
        If shapes do not fit.
    ArgumentError
        If no volume of `output_size` gives the pooled size.
    """
    return unpooled("max_unpool3d", input, indices, 3, kernel_size, stride, padding, output_size)
