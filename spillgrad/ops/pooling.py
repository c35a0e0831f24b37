"""Pooling: one number for each window of an image."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spillgrad.device.device import filled
from spillgrad.errors import ArgumentError, ShapeError
from spillgrad.ops.arithmetic import mul, pow
from spillgrad.ops.array_casts import on_floats, require_floats
from spillgrad.ops.clamp_where import where
from spillgrad.ops.comparison import gt
from spillgrad.ops.indexing import gather, scatter
from spillgrad.ops.operation import operation
from spillgrad.ops.reduce import mean
from spillgrad.ops.shape import reshape
from spillgrad.ops.window_arguments import Sizes, as_image, as_pair, as_signal, sizes, windows_over
from spillgrad.tensor import Tensor
from spillgrad_kernels.cpu import pooling as kernels
from spillgrad_kernels.cpu.indexing import scatter_add
from spillgrad_kernels.device_array import is_on_device, on_device
from spillgrad_kernels.windows import Pair, Ranges, Windows, adaptive_ranges, ranges

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_max_pool1d", "adaptive_max_pool2d", "avg_pool1d",
    "avg_pool2d", "lp_pool1d", "lp_pool2d", "max_pool1d", "max_pool2d", "max_unpool1d", "max_unpool2d",
]  # fmt: skip

Shape = tuple[int, ...]

_ranges = functools.lru_cache(maxsize=256)(ranges)


def _max_forward(self: np.ndarray, down: Ranges, across: Ranges) -> tuple[np.ndarray, np.ndarray]:
    return on_floats(lambda x: kernels.max_pool(x, down, across), self, device_takes_half=True)


@on_device("pooling")
def spread_maxima(grad: np.ndarray, indices: np.ndarray, image: Pair, down: Ranges, across: Ranges) -> np.ndarray:
    """Return images of zeros with the gradient of each window added at the index of the window's largest element.

    Shapes: grad and indices (in the flattened image) (N, C, h, w), result (N, C, *image).
    """
    planes = grad.shape[0] * grad.shape[1]
    zeros = np.broadcast_to(grad.dtype.type(0), (planes, math.prod(image)))
    taken = (planes, math.prod(grad.shape[2:]))
    flat = indices.reshape(taken), grad.reshape(taken)
    return scatter_add(zeros, 1, *flat).reshape(*grad.shape[:2], *image)


def _max_spread(self: np.ndarray, indices: np.ndarray, image: Pair, down: Ranges, across: Ranges) -> np.ndarray:
    return on_floats(lambda g: spread_maxima(g, indices, image, down, across), self, device_takes_half=True)


def _taken_from(g: Tensor, indices: Tensor) -> Tensor:
    planes, image, taken = indices.shape[0] * indices.shape[1], math.prod(g.shape[2:]), math.prod(indices.shape[2:])
    return reshape(gather(reshape(g, (planes, image)), 1, reshape(indices, (planes, taken))), indices.shape)


_max_pool: Any = operation(
    "max_pool2d_with_indices", _max_forward, outputs=("result", "indices"),
    self=lambda grads, indices, self_shape, down, across: _spread_max(grads[0], indices, self_shape[2:], down, across),
)  # fmt: skip
_spread_max: Callable[..., Tensor] = operation("max_pool2d_with_indices_backward", _max_spread, self=_taken_from)


Scales = tuple[float, ...]


def _mean_forward(self: np.ndarray, down: Ranges, across: Ranges, y_scales: Scales, x_scales: Scales) -> np.ndarray:
    scales = _as_taken(self, y_scales, x_scales)
    return on_floats(lambda x: kernels.mean_pool(x, down, across, *scales), self, device_takes_half=True)


def _mean_spread(
    self: np.ndarray, image: Any, down: Ranges, across: Ranges, y_scales: Scales, x_scales: Scales
) -> np.ndarray:
    scales = _as_taken(self, y_scales, x_scales)
    return on_floats(
        lambda g: kernels.mean_pool_backward(g, image, down, across, *scales), self, device_takes_half=True
    )


def _as_taken(array: np.ndarray, *scales: Scales) -> Any:
    """Return the scales as kernels for `array` expect them: unchanged if it is on a device, as arrays if on the CPU."""
    return scales if is_on_device(array) else [np.array(numbers) for numbers in scales]


_mean_pool: Callable[..., Tensor] = operation(
    "avg_pool2d", _mean_forward,
    self=lambda g, self_shape, down, across, y_scales, x_scales: _spread_mean(
        g, self_shape[2:], down, across, y_scales, x_scales
    ),
)  # fmt: skip
_spread_mean: Callable[..., Tensor] = operation(
    "avg_pool2d_backward", _mean_spread,
    self=lambda g, down, across, y_scales, x_scales: _mean_pool(g, down, across, y_scales, x_scales),
)  # fmt: skip


def _scaled(images: Tensor, down: Ranges, across: Ranges, *scales: np.ndarray) -> Tensor:
    return _mean_pool(images, down, across, *[tuple(each.tolist()) for each in scales])


def _as_images(name: str, input: Tensor, dims: int) -> Tensor:
    """Return signals (`dims` 1) or images (`dims` 2), with or without a batch, as (N, C, H, W)."""
    if input.ndim not in (dims + 1, dims + 2):
        raise ShapeError(
            f"{name}: got input {input.shape}; wanted {dims + 2} dimensions, or {dims + 1} without a batch"
        )
    require_floats(name, input.dtype)
    if input.ndim == dims + 1:
        input = reshape(input, (1, *input.shape))
    return as_image(input) if dims == 1 else input


def _like_input(result: Tensor, input: Tensor, dims: int) -> Tensor:
    if dims == 1:
        result = as_signal(result)
    return reshape(result, result.shape[1:]) if input.ndim == dims + 1 else result


def _pool_windows(
    name: str, images: Tensor, dims: int, kernel_size: Sizes, stride: Sizes | None, padding: Sizes, dilation: Sizes,
    ceil_mode: bool,
) -> Windows:  # fmt: skip
    size = sizes(name, "kernel_size", kernel_size, dims, 1)
    steps = size if stride is None or stride == () or stride == [] else sizes(name, "stride", stride, dims, 1)
    before, spacing = sizes(name, "padding", padding, dims, 0), sizes(name, "dilation", dilation, dims, 1)
    if any(pad > (gap * (count - 1) + 1) // 2 for pad, gap, count in zip(before, spacing, size, strict=True)):
        raise ArgumentError(f"{name}: got padding {before} for a kernel of {size}; at most half of it may be padding")
    if dims == 1:
        size, steps, before, spacing = (1, *size), (1, *steps), (0, *before), (1, *spacing)
    return windows_over(name, images.shape[2:], size, steps, before, before, spacing, ceil_mode)


def largest(name: str, input: Tensor, dims: int, return_indices: bool, *options: Any) -> Any:
    """Return the largest element of each window of signals or images, and with `return_indices` its index."""
    images = _as_images(name, input, dims)
    windows = _pool_windows(name, images, dims, *options)
    down, across = _ranges(windows)
    if any((found.starts >= found.stops).any() for found in (down, across)):
        raise ShapeError(
            f"{name}: got an image of {windows.image}, dilation {windows.dilation} and padding {windows.padding}; a "
            "window sees nothing but padding and has no largest element: pad less"
        )
    return _taken(images, input, dims, return_indices, down, across)


def _taken(images: Tensor, input: Tensor, dims: int, return_indices: bool, down: Ranges, across: Ranges) -> Any:
    result, indices = _max_pool(images, down, across)
    result = _like_input(result, input, dims)
    return (result, _like_input(indices, input, dims)) if return_indices else result


def max_pool2d(
    input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> Any:  # fmt: skip
    """Return the largest element of each window of images.

    Of equal elements, the first is taken; NaN counts as larger than any number.

    Parameters
    ----------
    input : Tensor
        Of shape (N, C, H, W) or (C, H, W), of floating-point numbers.
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
        Of shape (N, C, h, w) or (C, h, w); with `return_indices`, also the index of each element in the flattened
        image.

    Raises
    ------
    ShapeError
        For other numbers of dimensions, if no window fits, or if a window sees nothing but padding.
    ArgumentError
        If a size is out of range, or more than half of a window may be padding.
    DtypeError
        For integers and complex numbers.

    Examples
    --------
    >>> import spillgrad as sg
    >>> image = sg.arange(16, dtype="float32").reshape(1, 4, 4)
    >>> sg.max_pool2d(image, 2).tolist()
    [[[5.0, 7.0], [13.0, 15.0]]]
    """
    return largest("max_pool2d", input, 2, return_indices, kernel_size, stride, padding, dilation, ceil_mode)


def max_pool1d(
    input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> Any:  # fmt: skip
    """Return the largest element of each window of signals.

    Of equal elements, the first is taken; NaN counts as larger than any number.

    Parameters
    ----------
    input : Tensor
        Of shape (N, C, L) or (C, L), of floating-point numbers.
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
        Of shape (N, C, l) or (C, l); with `return_indices`, also the index of each element in its signal.

    Raises
    ------
    ShapeError
        For other numbers of dimensions, if no window fits, or if a window sees nothing but padding.
    ArgumentError
        If a size is out of range, or more than half of a window may be padding.
    DtypeError
        For integers and complex numbers.
    """
    return largest("max_pool1d", input, 1, return_indices, kernel_size, stride, padding, dilation, ceil_mode)


def averaged(
    name: str, input: Tensor, dims: int, kernel_size: Sizes, stride: Sizes | None, padding: Sizes, ceil_mode: bool,
    count_include_pad: bool, divisor_override: int | None,
) -> Tensor:  # fmt: skip
    """Return the mean of each window of signals or images (see `avg_pool2d`)."""
    images = _as_images(name, input, dims)
    windows = _pool_windows(name, images, dims, kernel_size, stride, padding, 1, ceil_mode)
    down, across = _ranges(windows)
    if divisor_override is not None:
        if divisor_override == 0:
            raise ArgumentError(f"{name}: got divisor_override 0; it must not be zero")
        scales = [np.full(windows.grid[0], 1 / divisor_override), np.ones(windows.grid[1])]
    else:
        scales = []
        for d, found in enumerate((down, across)):
            begins = np.arange(windows.grid[d]) * windows.stride[d] - windows.padding[d]
            # Padding counts, but not the part of a window of ceil_mode beyond the padding.
            padded = np.minimum(begins + windows.size[d], windows.image[d] + windows.padding[d]) - begins
            scales.append(1 / (padded if count_include_pad else found.stops - found.starts))
    return _like_input(_scaled(images, down, across, *scales), input, dims)


def avg_pool2d(
    input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    """Return the mean of each window of images.

    Parameters
    ----------
    input : Tensor
        Of shape (N, C, H, W) or (C, H, W), of floating-point numbers.
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
        Of shape (N, C, h, w) or (C, h, w).

    Raises
    ------
    ShapeError
        For other numbers of dimensions, or if no window fits.
    ArgumentError
        If a size is out of range, more than half of a window may be padding, or the divisor is 0.
    DtypeError
        For integers and complex numbers.
    """
    return averaged(
        "avg_pool2d", input, 2, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


def avg_pool1d(
    input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:  # fmt: skip
    """Return the mean of each window of signals.

    Parameters
    ----------
    input : Tensor
        Of shape (N, C, L) or (C, L), of floating-point numbers.
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

    Returns
    -------
    Tensor
        Of shape (N, C, l) or (C, l).

    Raises
    ------
    ShapeError
        For other numbers of dimensions, or if no window fits.
    ArgumentError
        If a size is out of range, or more than half of a window may be padding.
    DtypeError
        For integers and complex numbers.
    """
    return averaged("avg_pool1d", input, 1, kernel_size, stride, padding, ceil_mode, count_include_pad, None)


OutputSize = int | Sequence[int | None] | None


def output_sizes(name: str, output_size: OutputSize, dims: int) -> tuple[int | None, ...]:
    """Return a size for each dimension; None keeps the input's. Raises ArgumentError unless there are one or `dims`."""
    wanted = (output_size,) * dims if output_size is None or isinstance(output_size, int) else tuple(output_size)
    if len(wanted) != dims:
        raise ArgumentError(f"{name}: got output_size {output_size}; wanted {_COUNTS[dims]}")
    return wanted


def _adaptive(name: str, input: Tensor, output_size: OutputSize, dims: int) -> tuple[Tensor, tuple[Ranges, Ranges]]:
    images = _as_images(name, input, dims)
    wanted = output_sizes(name, output_size, dims)
    image = images.shape[2:]
    if not all(image):
        raise ShapeError(f"{name}: got input {input.shape}; the images have no elements")
    kept = [have if size is None else size for size, have in zip(wanted, image[-dims:], strict=True)]
    grid = ((1,) * (2 - dims)) + sizes(name, "output_size", kept, dims, 0)
    return images, adaptive_ranges(as_pair(image), as_pair(grid))


def whole_means(name: str, input: Tensor, output_size: OutputSize, dims: int) -> Tensor | None:
    """Return the mean of each whole signal, image or volume of complex numbers; None if there is more than one window.

    Return None for real numbers, too: their means come from the kernels that take any grid.
    """
    if not input.is_complex() or input.ndim not in (dims + 1, dims + 2):
        return None
    one_window = set(output_sizes(name, output_size, dims)) == {1}
    return mean(input, tuple(range(-dims, 0)), keepdim=True) if one_window else None


_COUNTS = {1: "one integer", 2: "one or two integers", 3: "one or three integers"}


def adapted_means(name: str, input: Tensor, output_size: OutputSize, dims: int) -> Tensor:
    """Return the means of windows that cover signals or images in a grid of `output_size`; None keeps a size."""
    if (means := whole_means(name, input, output_size, dims)) is not None:
        return means
    images, (down, across) = _adaptive(name, input, output_size, dims)
    scales = [1 / (found.stops - found.starts) for found in (down, across)]
    return _like_input(_scaled(images, down, across, *scales), input, dims)


def adaptive_avg_pool2d(input: Tensor, output_size: OutputSize) -> Tensor:
    """Return the means of a grid of windows that cover an image.

    Parameters
    ----------
    input : Tensor
        Of shape (N, C, H, W) or (C, H, W).
    output_size : int, sequence of int or None
        Height and width of the grid, or one number for both; None keeps the size of the input.

    Returns
    -------
    Tensor
        Of shape (N, C, h, w) or (C, h, w), where (h, w) is `output_size`.

    Raises
    ------
    ShapeError
        For other numbers of dimensions.
    ArgumentError
        If `output_size` has more than two sizes.
    DtypeError
        For integers, and for complex numbers unless there is one window.
    """
    return adapted_means("adaptive_avg_pool2d", input, output_size, 2)


def adaptive_avg_pool1d(input: Tensor, output_size: OutputSize) -> Tensor:
    """Return the means of a given number of windows that cover a signal.

    Parameters
    ----------
    input : Tensor
        Of shape (N, C, L) or (C, L).
    output_size : int, sequence of int or None
        Number of windows; None keeps the size of the input.

    Returns
    -------
    Tensor
        Of shape (N, C, output_size) or (C, output_size).

    Raises
    ------
    ShapeError
        For other numbers of dimensions.
    ArgumentError
        If `output_size` is not one integer.
    DtypeError
        For integers, and for complex numbers unless there is one window.
    """
    return adapted_means("adaptive_avg_pool1d", input, output_size, 1)


def adapted_maxima(name: str, input: Tensor, output_size: OutputSize, dims: int, return_indices: bool) -> Any:
    """Return the largest elements of windows that cover signals or images in a grid of `output_size`."""
    images, (down, across) = _adaptive(name, input, output_size, dims)
    return _taken(images, input, dims, return_indices, down, across)


def adaptive_max_pool2d(input: Tensor, output_size: OutputSize, return_indices: bool = False) -> Any:
    """Return the largest elements of a grid of windows that cover an image.

    Of equal elements, the first is taken; NaN counts as larger than any number.

    Parameters
    ----------
    input : Tensor
        Of shape (N, C, H, W) or (C, H, W), of floating-point numbers.
    output_size : int, sequence of int or None
        Height and width of the grid, or one number for both; None keeps the size of the input.
    return_indices : bool, default False
        Whether to return the indices of the elements, too.

    Returns
    -------
    Tensor or tuple of Tensor
        Of shape (N, C, h, w) or (C, h, w), where (h, w) is `output_size`; with `return_indices`, also the index of each
        element in the flattened image.

    Raises
    ------
    ShapeError
        For other numbers of dimensions.
    ArgumentError
        If `output_size` has more than two sizes.
    DtypeError
        For integers and complex numbers.
    """
    return adapted_maxima("adaptive_max_pool2d", input, output_size, 2, return_indices)


def adaptive_max_pool1d(input: Tensor, output_size: OutputSize, return_indices: bool = False) -> Any:
    """Return the largest elements of a given number of windows that cover a signal.

    Of equal elements, the first is taken; NaN counts as larger than any number.

    Parameters
    ----------
    input : Tensor
        Of shape (N, C, L) or (C, L), of floating-point numbers.
    output_size : int, sequence of int or None
        Number of windows; None keeps the size of the input.
    return_indices : bool, default False
        Whether to return the indices of the elements, too.

    Returns
    -------
    Tensor or tuple of Tensor
        Of shape (N, C, output_size) or (C, output_size); with `return_indices`, also the index of each element in its
        signal.

    Raises
    ------
    ShapeError
        For other numbers of dimensions.
    ArgumentError
        If `output_size` is not one integer.
    DtypeError
        For integers and complex numbers.
    """
    return adapted_maxima("adaptive_max_pool1d", input, output_size, 1, return_indices)


def _power_mean(name: str, input: Tensor, norm_type: float, dims: int, options: tuple[Any, ...]) -> Tensor:
    """Return (sum x**p)**(1/p) of each window; 0, with gradient 0, where the sum is not positive."""
    kernel_size = sizes(name, "kernel_size", options[0], dims, 1)
    if norm_type == math.inf:
        return largest(name, input, dims, False, *options[:2], 0, 1, options[2])  # type: ignore[no-any-return]
    powers = pow(input, norm_type)
    means = averaged(name, powers, dims, kernel_size, options[1], 0, options[2], True, None)
    return root_of_sums(means, kernel_size, norm_type)


def root_of_sums(means: Tensor, kernel_size: tuple[int, ...], norm_type: float) -> Tensor:
    """Return sum**(1 / norm_type) of each window, given its mean; 0, with gradient 0, if the sum is not positive."""
    sums = mul(means, math.prod(kernel_size))
    positive = gt(sums, 0)
    return where(positive, pow(where(positive, sums, 1.0), 1 / norm_type), 0.0)  # type: ignore[no-any-return]


def lp_pool2d(
    input: Tensor, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
) -> Tensor:
    """Return ``(sum x**p)**(1/p)`` of each window of images.

    Parameters
    ----------
    input : Tensor
        Of shape (N, C, H, W) or (C, H, W), of floating-point numbers.
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
        Of shape (N, C, h, w) or (C, h, w).

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
    return _power_mean("lp_pool2d", input, float(norm_type), 2, (kernel_size, stride, ceil_mode))


def lp_pool1d(
    input: Tensor, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
) -> Tensor:
    """Return ``(sum x**p)**(1/p)`` of each window of signals.

    Parameters
    ----------
    input : Tensor
        Of shape (N, C, L) or (C, L), of floating-point numbers.
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
        Of shape (N, C, l) or (C, l).

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
    return _power_mean("lp_pool1d", input, float(norm_type), 1, (kernel_size, stride, ceil_mode))


def unpooled(
    name: str, input: Tensor, indices: Tensor, dims: int, kernel_size: Sizes, stride: Sizes | None, padding: Sizes,
    output_size: Sequence[int] | None,
) -> Tensor:  # fmt: skip
    """Return zeros with each element of `input` at its index in `indices`, from which max pooling took it."""
    if input.ndim not in (dims + 1, dims + 2) or input.shape != indices.shape:
        raise ShapeError(
            f"{name}: Expected shape of indices to be that of the input ({dims + 2} dimensions, or {dims + 1} "
            f"without a batch), but got {indices.shape} and {input.shape}"
        )
    size = sizes(name, "kernel_size", kernel_size, dims, 1)
    steps = size if stride is None else sizes(name, "stride", stride, dims, 1)
    before = sizes(name, "padding", padding, dims, 0)
    image = [(input.shape[d - dims] - 1) * steps[d] - 2 * before[d] + size[d] for d in range(dims)]
    if output_size is not None:
        wanted = tuple(output_size)[-dims:]
        if len(wanted) != dims or any(abs(wanted[d] - image[d]) >= steps[d] for d in range(dims)):
            raise ArgumentError(
                f"{name}: invalid output_size {tuple(output_size)}; each must be less than the stride {steps} "
                f"away from {tuple(image)}"
            )
        image = list(wanted)
    places = math.prod(image)
    # A check would wait for the device: its kernels skip places out of range.
    looks = indices.numel() and not is_on_device(indices.array)
    if looks and not (int(indices.array.min()) >= 0 and int(indices.array.max()) < places):
        raise ArgumentError(
            f"{name}: got indices outside an image of {tuple(image)}; give those that max pooling returned"
        )
    lead = input.shape[:-dims]
    rows = math.prod(lead)
    zeros = Tensor.wrap(filled(input.device, (rows, places), input.dtype, 0))
    placed = scatter(zeros, 1, reshape(indices, (rows, -1)), reshape(input, (rows, -1)))
    return reshape(placed, (*lead, *image))


def max_unpool2d(
    input: Tensor, indices: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    """Return zeros with each element at the index from which `max_pool2d` took it.

    Parameters
    ----------
    input : Tensor
        Of shape (N, C, h, w) or (C, h, w): the largest elements.
    indices : Tensor
        Of the shape of `input`: the indices that `max_pool2d` returned.
    kernel_size : int or sequence of int
        Size of a window, one for all dimensions or one for each.
    stride : int or sequence of int, optional
        Distance between windows; by default, the size of a window.
    padding : int or sequence of int, default 0
        The padding of the pooling.
    output_size : sequence of int, optional
        Height and width of the images, as its last numbers. Images of several sizes give the same pooled size; this
        chooses one of them.

    Returns
    -------
    Tensor
        Of shape (N, C, H, W) or (C, H, W).

    Raises
    ------
    ShapeError
        If shapes do not fit.
    ArgumentError
        If no image of `output_size` gives the pooled size.
    """
    return unpooled("max_unpool2d", input, indices, 2, kernel_size, stride, padding, output_size)


def max_unpool1d(
    input: Tensor, indices: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    """Return zeros with each element at the index from which `max_pool1d` took it.

    Parameters
    ----------
    input : Tensor
        Of shape (N, C, l) or (C, l): the largest elements.
    indices : Tensor
        Of the shape of `input`: the indices that `max_pool1d` returned.
    kernel_size : int or sequence of int
        Size of a window.
    stride : int or sequence of int, optional
        Distance between windows; by default, the size of a window.
    padding : int or sequence of int, default 0
        The padding of the pooling.
    output_size : sequence of int, optional
        Size of the signal, as its last number. Signals of several sizes give the same pooled size; this chooses one of
        them.

    Returns
    -------
    Tensor
        Of shape (N, C, L) or (C, L).

    Raises
    ------
    ShapeError
        If shapes do not fit.
    ArgumentError
        If no signal of `output_size` gives the pooled size.
    """
    return unpooled("max_unpool1d", input, indices, 1, kernel_size, stride, padding, output_size)
