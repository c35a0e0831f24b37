"""Convolution, transposed convolution and the weight's gradient: bilinear operations, each the others' derivative.

Convolutions of complex numbers are products of their parts, and each derivative conjugates the other operand.
Signals are computed as images of one row; volumes as images whose channels are those of all slices in a window.
"""

import functools
from collections.abc import Callable

import numpy as np

from spillgrad.errors import ArgumentError, ShapeError
from spillgrad.ops.arithmetic import add
from spillgrad.ops.array_casts import products_by_parts, require_inexact
from spillgrad.ops.autocast import require_products_dtype
from spillgrad.ops.complex_views import conjugate
from spillgrad.ops.convert import contiguous
from spillgrad.ops.operation import operation
from spillgrad.ops.rearrange import constant_pad, crop
from spillgrad.ops.reduce import sum
from spillgrad.ops.shape import permute, reshape
from spillgrad.ops.sliding_windows import sum_windows, windows_along
from spillgrad.ops.window_arguments import Sizes, as_image, as_pair, as_signal, sizes, windows_over
from spillgrad.tensor import Tensor
from spillgrad_kernels.cpu import conv as kernels
from spillgrad_kernels.windows import Windows

__all__ = ["conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"]

_computed = functools.partial(products_by_parts, device_takes_half=True)


def _forward(kernel: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    def forward(
        input: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, windows: Windows, groups: int
    ) -> np.ndarray:
        return _computed(lambda x, w, b: kernel(x, w, b, windows, groups), input, weight, bias)

    return forward


def _weight_forward(output: np.ndarray, input: np.ndarray, windows: Windows, groups: int) -> np.ndarray:
    return _computed(lambda g, x, _: kernels.conv_weight(g, x, windows, groups), output, input)


def _bias_gradient(g: Tensor) -> Tensor:
    return sum(g, (0, 2, 3))


_conv: Callable[..., Tensor] = operation(
    "convolution", _forward(kernels.conv),
    input=lambda g, weight, windows, groups: _conv_transpose(g, conjugate(weight), None, windows, groups),
    weight=lambda g, input, windows, groups: _conv_weight(g, conjugate(input), windows, groups),
    bias=_bias_gradient,
)  # fmt: skip
# From the convolution's output and weight to its input.
_conv_transpose: Callable[..., Tensor] = operation(
    "conv_transpose", _forward(kernels.conv_input),
    input=lambda g, weight, windows, groups: _conv(g, conjugate(weight), None, windows, groups),
    weight=lambda g, input, windows, groups: _conv_weight(conjugate(input), g, windows, groups),
    bias=_bias_gradient,
)  # fmt: skip
# From the convolution's output and input to its weight.
_conv_weight: Callable[..., Tensor] = operation(
    "conv_weight", _weight_forward,
    output=lambda g, input, windows, groups: _conv(conjugate(input), g, None, windows, groups),
    input=lambda g, output, windows, groups: _conv_transpose(conjugate(output), g, None, windows, groups),
)  # fmt: skip


def conv2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Sizes | str = 0,
    dilation: Sizes = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """Return, for every window of the images, the sum of the window's elements times the weights, plus the bias.

    Parameters
    ----------
    input : Tensor
        Of shape (N, C, H, W) or (C, H, W).
    weight : Tensor
        Of shape (M, C / groups, kh, kw).
    bias : Tensor, optional
        Of shape (M,).
    stride : int or pair of int, default 1
        Distance of neighbouring windows.
    padding : int, pair of int, "valid" or "same", default 0
        Number of zeros on each side. "valid" adds none; "same", only for stride 1, keeps the size.
    dilation : int or pair of int, default 1
        Distance of neighbouring elements of a window.
    groups : int, default 1
        Number of groups of channels that are convolved apart; it divides C and M.

    Returns
    -------
    Tensor
        Of shape (N, M, h, w), or (M, h, w) without a batch.

    Raises
    ------
    ShapeError
        If the shapes do not fit together, or no window fits.
    DtypeError
        If the dtypes differ, or are of integers.
    ArgumentError
        If an option is out of range.

    Examples
    --------
    >>> import spillgrad as sg
    >>> x, w = sg.ones(1, 1, 4, 4), sg.ones(2, 1, 3, 3)
    >>> tuple(sg.nn.functional.conv2d(x, w, padding=1).shape)
    (1, 2, 4, 4)
    """
    return _convolved("conv2d", input, weight, bias, stride, padding, dilation, groups, 2)


def conv1d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Sizes | str = 0,
    dilation: Sizes = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """Return, for every window of the signals, the sum of the window's elements times the weights, plus the bias.

    Parameters
    ----------
    input : Tensor
        Of shape (N, C, L) or (C, L).
    weight : Tensor
        Of shape (M, C / groups, k).
    bias : Tensor, optional
        Of shape (M,).
    stride : int, default 1
        Distance of neighbouring windows.
    padding : int, "valid" or "same", default 0
        Number of zeros on each side. "valid" adds none; "same", only for stride 1, keeps the size.
    dilation : int, default 1
        Distance of neighbouring elements of a window.
    groups : int, default 1
        Number of groups of channels that are convolved apart; it divides C and M.

    Returns
    -------
    Tensor
        Of shape (N, M, l), or (M, l) without a batch.

    Raises
    ------
    ShapeError
        If the shapes do not fit together, or no window fits.
    DtypeError
        If the dtypes differ, or are of integers.
    ArgumentError
        If an option is out of range.
    """
    return _convolved("conv1d", input, weight, bias, stride, padding, dilation, groups, 1)


def conv3d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Sizes | str = 0,
    dilation: Sizes = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """Return, for every window of the volumes, the sum of the window's elements times the weights, plus the bias.

    The slices that a window along the depth reaches are copied next to each other.

    Parameters
    ----------
    input : Tensor
        Of shape (N, C, D, H, W) or (C, D, H, W).
    weight : Tensor
        Of shape (M, C / groups, kd, kh, kw).
    bias : Tensor, optional
        Of shape (M,).
    stride : int or triple of int, default 1
        Distance of neighbouring windows.
    padding : int, triple of int, "valid" or "same", default 0
        Number of zeros on each side. "valid" adds none; "same", only for stride 1, keeps the size.
    dilation : int or triple of int, default 1
        Distance of neighbouring elements of a window.
    groups : int, default 1
        Number of groups of channels that are convolved apart; it divides C and M.

    Returns
    -------
    Tensor
        Of shape (N, M, d, h, w), or (M, d, h, w) without a batch.

    Raises
    ------
    ShapeError
        If the shapes do not fit together, or no window fits.
    DtypeError
        If the dtypes differ, or are of integers.
    ArgumentError
        If an option is out of range.
    """
    return _convolved("conv3d", input, weight, bias, stride, padding, dilation, groups, 3)


def conv_transpose2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Sizes = 0,
    output_padding: Sizes = 0, groups: int = 1, dilation: Sizes = 1,
) -> Tensor:  # fmt: skip
    """Return a larger image: for each input element, the weights times the element are added to the element's window.

    This is the derivative of `conv2d` by the input of `conv2d`.

    Parameters
    ----------
    input : Tensor
        Of shape (N, C, h, w) or (C, h, w).
    weight : Tensor
        Of shape (C, M / groups, kh, kw).
    bias : Tensor, optional
        Of shape (M,).
    stride : int or pair of int, default 1
        Distance of neighbouring windows of the result.
    padding : int or pair of int, default 0
        Number of rows or columns that are cut off each side.
    output_padding : int or pair of int, default 0
        If `conv2d` maps several image sizes to the size of `input`, it chooses among these: how much the result is
        larger than the least; below the stride or the dilation.
    groups : int, default 1
        Number of groups of channels that are convolved apart; it divides C and M.
    dilation : int or pair of int, default 1
        Distance of neighbouring elements of a window.

    Returns
    -------
    Tensor
        Of shape (N, M, H, W), or (M, H, W) without a batch.

    Raises
    ------
    ShapeError
        If the shapes do not fit together, or nothing is left.
    DtypeError
        If the dtypes differ, or are of integers.
    ArgumentError
        If an option is out of range.
    """
    return _transposed("conv_transpose2d", input, weight, bias, stride, padding, output_padding, groups, dilation, 2)


def conv_transpose1d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Sizes = 0,
    output_padding: Sizes = 0, groups: int = 1, dilation: Sizes = 1,
) -> Tensor:  # fmt: skip
    """Return a longer signal: for each input element, the weights times the element are added to the element's window.

    This is the derivative of `conv1d` by the input of `conv1d`.

    Parameters
    ----------
    input : Tensor
        Of shape (N, C, l) or (C, l).
    weight : Tensor
        Of shape (C, M / groups, k).
    bias : Tensor, optional
        Of shape (M,).
    stride : int, default 1
        Distance of neighbouring windows of the result.
    padding : int, default 0
        Number of elements that are cut off each side.
    output_padding : int, default 0
        If `conv1d` maps several lengths to the length of `input`, it chooses among these: how much the result is longer
        than the least; below the stride or the dilation.
    groups : int, default 1
        Number of groups of channels that are convolved apart; it divides C and M.
    dilation : int, default 1
        Distance of neighbouring elements of a window.

    Returns
    -------
    Tensor
        Of shape (N, M, L), or (M, L) without a batch.

    Raises
    ------
    ShapeError
        If the shapes do not fit together, or nothing is left.
    DtypeError
        If the dtypes differ, or are of integers.
    ArgumentError
        If an option is out of range.
    """
    return _transposed("conv_transpose1d", input, weight, bias, stride, padding, output_padding, groups, dilation, 1)


def conv_transpose3d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Sizes = 0,
    output_padding: Sizes = 0, groups: int = 1, dilation: Sizes = 1,
) -> Tensor:  # fmt: skip
    """Return a larger volume: for each input element, the weights times the element are added to the element's window.

    This is the derivative of `conv3d` by the input of `conv3d`.

    Parameters
    ----------
    input : Tensor
        Of shape (N, C, d, h, w) or (C, d, h, w).
    weight : Tensor
        Of shape (C, M / groups, kd, kh, kw).
    bias : Tensor, optional
        Of shape (M,).
    stride : int or triple of int, default 1
        Distance of neighbouring windows of the result.
    padding : int or triple of int, default 0
        Number of slices, rows or columns that are cut off each side.
    output_padding : int or triple of int, default 0
        If `conv3d` maps several sizes to the size of `input`, it chooses among these: how much the result is larger
        than the least; below the stride or the dilation.
    groups : int, default 1
        Number of groups of channels that are convolved apart; it divides C and M.
    dilation : int or triple of int, default 1
        Distance of neighbouring elements of a window.

    Returns
    -------
    Tensor
        Of shape (N, M, D, H, W), or (M, D, H, W) without a batch.

    Raises
    ------
    ShapeError
        If the shapes do not fit together, or nothing is left.
    DtypeError
        If the dtypes differ, or are of integers.
    ArgumentError
        If an option is out of range.
    """
    return _transposed("conv_transpose3d", input, weight, bias, stride, padding, output_padding, groups, dilation, 3)


def _transposed(
    name: str, input: Tensor, weight: Tensor, bias: Tensor | None, stride: Sizes, padding: Sizes, output_padding: Sizes,
    groups: int, dilation: Sizes, dims: int,
) -> Tensor:  # fmt: skip
    _check_operands(name, input, weight, bias, groups, dims)
    if input.shape[-dims - 1] != weight.shape[0] or weight.shape[0] % groups:
        raise ShapeError(
            f"{name}: got input {input.shape}, weight {weight.shape} and groups {groups}; the input needs the weight's "
            f"{weight.shape[0]} channels, and the groups must divide them"
        )
    if bias is not None and bias.shape != (weight.shape[1] * groups,):
        raise ShapeError(f"{name}: got bias {bias.shape}; wanted one for each of {weight.shape[1] * groups} channels")
    steps, before, extra, spacing = (
        sizes(name, option, value, dims, least)
        for option, value, least in (
            ("stride", stride, 1), ("padding", padding, 0), ("output_padding", output_padding, 0),
            ("dilation", dilation, 1),
        )
    )  # fmt: skip
    if any(added >= max(step, gap) for added, step, gap in zip(extra, steps, spacing, strict=True)):
        raise ArgumentError(
            f"{name}: got output_padding {extra}; it must be below the stride {steps} or the dilation {spacing}"
        )
    grid, size = input.shape[-dims:], weight.shape[2:]
    image = tuple(
        [(grid[d] - 1) * steps[d] - 2 * before[d] + spacing[d] * (size[d] - 1) + extra[d] + 1 for d in range(dims)]
    )
    if min(image) < 1 or not all(grid):
        raise ShapeError(f"{name}: got input {input.shape} and padding {before}; nothing is left of the output")
    batch = reshape(input, (1, *input.shape)) if input.ndim == dims + 1 else input
    if dims == 1:
        batch, weight = as_image(batch), as_image(weight)
        size, steps, before, spacing, image, grid = (
            (least, *values)
            for least, values in ((1, size), (1, steps), (0, before), (1, spacing), (1, image), (1, grid))
        )
    windows = Windows(*[as_pair(values[-2:]) for values in (size, steps, before, spacing, image, grid)])
    if dims == 3:
        result = _laid_over_volumes(batch, weight, windows, groups, steps[0], spacing[0], before[0], image[0])
        result = result if bias is None else add(result, reshape(bias, (-1, 1, 1, 1)))
    else:
        result = _conv_transpose(batch, weight, bias, windows, groups)
    result = as_signal(result) if dims == 1 else result
    return reshape(result, result.shape[1:]) if input.ndim == dims + 1 else result


def _laid_over_volumes(
    input: Tensor, weight: Tensor, windows: Windows, groups: int, step: int, spacing: int, before: int, depth: int
) -> Tensor:
    """Compute the transposed convolution of each slice as an image, and add the results that overlap in depth."""
    n, channels, count = input.shape[:3]
    inner, span = weight.shape[1:3]
    slices = reshape(permute(input, (0, 2, 1, 3, 4)), (n * count, channels, *input.shape[3:]))
    kernel = reshape(weight, (channels, inner * span, *weight.shape[3:]))
    laid = _conv_transpose(slices, kernel, None, windows, groups)
    apart = permute(reshape(laid, (n, count, inner * groups, span, *laid.shape[2:])), (0, 2, 1, 4, 5, 3))
    volumes = sum_windows(apart, 2, span, step, spacing, depth + 2 * before)
    whole = (0, 0)
    return contiguous(crop(volumes, (whole, whole, (before, before), whole, whole))) if before else volumes


def _convolved_volumes(
    input: Tensor, weight: Tensor, bias: Tensor | None, windows: Windows, groups: int, step: int, spacing: int,
    padding: tuple[int, int],
) -> Tensor:  # fmt: skip
    """Convolve volumes as images, whose channels are the channels of all slices that a window reaches."""
    outputs, inner, span = weight.shape[:3]
    whole = (0, 0)
    volumes = constant_pad(input, (whole, whole, padding, whole, whole), 0.0) if any(padding) else input
    slices = windows_along(volumes, 2, span, step, spacing)
    n, channels, count, height, width, _ = slices.shape
    images = reshape(permute(slices, (0, 2, 1, 5, 3, 4)), (n * count, channels * span, height, width))
    kernel = reshape(weight, (outputs, inner * span, *weight.shape[3:]))
    result = _conv(images, kernel, bias, windows, groups)
    return contiguous(permute(reshape(result, (n, count, outputs, *result.shape[2:])), (0, 2, 1, 3, 4)))


def _check_operands(name: str, input: Tensor, weight: Tensor, bias: Tensor | None, groups: int, dims: int) -> None:
    if input.ndim not in (dims + 1, dims + 2) or weight.ndim != dims + 2 or 0 in weight.shape:
        raise ShapeError(
            f"{name}: got input {input.shape} and weight {weight.shape}; wanted {dims + 2} dimensions each (an input "
            f"without a batch has {dims + 1}), and no empty weight"
        )
    if groups < 1:
        raise ArgumentError(f"{name}: got groups {groups}; wanted an integer from 1 on")
    require_inexact(name, input.dtype)
    require_products_dtype(name, input, weight=weight, bias=bias)


def _convolved(
    name: str, input: Tensor, weight: Tensor, bias: Tensor | None, stride: Sizes, padding: Sizes | str,
    dilation: Sizes, groups: int, dims: int,
) -> Tensor:  # fmt: skip
    _check_operands(name, input, weight, bias, groups, dims)
    channels, outputs = input.shape[-dims - 1], weight.shape[0]
    if channels != weight.shape[1] * groups or outputs % groups:
        raise ShapeError(
            f"{name}: got input {input.shape}, weight {weight.shape} and groups {groups}; the input needs "
            f"{weight.shape[1] * groups} channels (the weight's times groups), and the groups must divide {outputs}"
        )
    if bias is not None and bias.shape != (outputs,):
        raise ShapeError(f"{name}: got bias {bias.shape}; wanted one for each of {outputs} output channels")
    steps, spacing = sizes(name, "stride", stride, dims, 1), sizes(name, "dilation", dilation, dims, 1)
    before, after = _padding(name, padding, weight.shape[2:], steps, spacing)
    if input.ndim == dims + 1:
        result = _convolved(
            name, reshape(input, (1, *input.shape)), weight, bias, stride, padding, dilation, groups, dims
        )
        return reshape(result, result.shape[1:])
    if dims == 1:
        input, weight = as_image(input), as_image(weight)
        steps, spacing, before, after = (1, *steps), (1, *spacing), (0, *before), (0, *after)
    if dims == 3 and spacing[0] * (weight.shape[2] - 1) >= input.shape[2] + before[0] + after[0]:
        raise ShapeError(
            f"{name}: got input {input.shape} and weight {weight.shape} (dilation {spacing}, padding {before}); not "
            "one window fits along the depth: pad more, or take a smaller kernel"
        )
    size, step, first, last, gap = [values[-2:] for values in (weight.shape, steps, before, after, spacing)]
    windows = windows_over(name, input.shape[-2:], size, step, first, last, gap)
    if dims == 3:
        return _convolved_volumes(input, weight, bias, windows, groups, steps[0], spacing[0], (before[0], after[0]))
    result = _conv(input, weight, bias, windows, groups)
    return as_signal(result) if dims == 1 else result


def _padding(
    name: str, padding: Sizes | str, size: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return two tuples: the numbers of zeros before each dimension, and those after each dimension."""
    if padding == "same":
        if max(stride) > 1:
            raise ArgumentError(f'{name}: got padding "same" and stride {stride}; it takes stride 1: give integers')
        total = [gap * (count - 1) for gap, count in zip(dilation, size, strict=True)]
        return tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
    if isinstance(padding, str) and padding != "valid":
        raise ArgumentError(f'{name}: got padding {padding!r}; accepted are integers, "same" and "valid"')
    both = sizes(name, "padding", 0 if isinstance(padding, str) else padding, len(size), 0)
    return both, both
