"""Convolution and its two derivatives, as matrix products over patches that are never copied.

The convolution multiplies the matrix of all patches with the weights; the weight's gradient multiplies its transpose
with the gradient of the output. The derivative by the input is a convolution of the output's gradient; with a stride,
the positions of the image are divided into stride x stride phases, each with its own taps. Each element of a result is
one sum, which one thread computes, so results do not depend on the number of threads.
Source: Chetlur et al. 2014, "cuDNN: efficient primitives for deep learning" (the implicit matrix product).
"""

import math
from typing import Any

import numpy as np

from spillgrad_kernels.cpu import copying, depthwise
from spillgrad_kernels.cpu.conv_plans import Layer, correlation, weight_gradient
from spillgrad_kernels.cpu.conv_product import (
    add_gradients,
    correlate,
    fill_strips,
    pack_gradients,
    pack_weights,
    unpack_gradients,
)
from spillgrad_kernels.cpu.microkernel import RUN
from spillgrad_kernels.cpu.strips import Strip, words_of
from spillgrad_kernels.device_array import on_device
from spillgrad_kernels.memory import buffers
from spillgrad_kernels.threads.dispatch import grain_of, parallel_for
from spillgrad_kernels.windows import Windows

# With one input channel, a group of this many outputs costs less as a product than as sums of shifted planes.
_MANY_OUTPUTS = 16


def _strips_of(images: np.ndarray, strip: Strip, beyond: int) -> np.ndarray:
    """Return the strips of all planes of `images`.

    `beyond` is how many elements a kernel may read beyond the last strip. Images that are their own strips are not
    copied if `beyond` is 0.
    """
    height, width = images.shape[2:]
    planes = images.reshape(-1, height, width)
    if beyond == 0 and strip == Strip((0, 0), (1, 1), (1, 1), height, width):
        return planes.reshape(-1)
    memory = buffers.scratch(len(planes) * strip.size + beyond, images.dtype)
    strips = memory[: len(planes) * strip.size].reshape(len(planes), -1)
    parallel_for(fill_strips, len(planes), grain_of(strip.size), planes, words_of(strip), strips)
    return memory


def _padded_bias(bias: np.ndarray | None, layer: Layer, dtype: np.dtype[Any]) -> np.ndarray:
    """Return the bias of each column of all panels, with zeros for columns without an output."""
    padded = np.zeros((layer.groups, layer.panels // layer.groups * layer.columns), dtype)
    if bias is not None:
        padded[:, : layer.outputs // layer.groups] = bias.reshape(layer.groups, -1)
    return padded


def _run(
    images: np.ndarray, windows: Windows, of_input: bool, weights: np.ndarray, bias: np.ndarray | None, groups: int,
    out: np.ndarray,
) -> None:  # fmt: skip
    """Compute `out` from `images` (see `correlation`). `weights` is contiguous."""
    layer = Layer(windows, len(images), images.shape[1], out.shape[1], groups, out.itemsize)
    plan = correlation(layer, of_input)
    outputs, channel = layer.outputs // groups, math.prod(out.shape[2:]) * out.itemsize
    if not plan.sees_all:
        if bias is None:
            out.fill(0)
        else:
            copying.copy(np.broadcast_to(bias[:, None, None], out.shape), out)
    if not plan.packed:
        return
    packed = buffers.scratch(plan.packed, out.dtype)
    parallel_for(
        pack_weights, plan.units, plan.grain, weights, plan.phases, plan.weight_steps, plan.lane,
        weights.nbytes // groups, outputs, layer.panels, packed,
    )  # fmt: skip
    shift = _padded_bias(bias, layer, out.dtype)
    group_bytes = layer.channels // groups * plan.strip.size * out.itemsize
    for chunk in plan.chunks:
        strips = _strips_of(images[chunk.images], plan.strip, plan.beyond)
        parallel_for(
            correlate, chunk.tasks, chunk.grain, strips, group_bytes, chunk.phases, chunk.lines, plan.steps, packed,
            shift, outputs, channel, out[chunk.images],
        )  # fmt: skip


@on_device("conv")
def conv(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, windows: Windows, groups: int) -> np.ndarray:
    """Return, for each window and output channel, the sum of the window's elements times the weights, plus the bias.

    Shapes: x (N, C, *image), weight (M, C / groups, *size), bias (M,), result (N, M, *grid). Any memory layout.
    """
    count, outputs = len(x), len(weight)
    out = buffers.empty((count, outputs, *windows.grid), x.dtype)
    if not out.size:
        return out
    windows = _in_rows(windows)
    weight = np.ascontiguousarray(weight).reshape(*weight.shape[:2], *windows.size)
    x, result = np.ascontiguousarray(x).reshape(*x.shape[:2], *windows.image), out
    out = out.reshape(count, outputs, *windows.grid)
    if weight.shape[1] == 1 and outputs // groups < _MANY_OUTPUTS:
        shift = np.zeros(outputs, x.dtype) if bias is None else np.ascontiguousarray(bias)
        by_group = weight.reshape(groups, -1, *windows.size)
        depthwise.convolve(x, by_group, shift.reshape(groups, -1), windows, _grouped(out, groups))
        return result
    _run(x, windows, False, weight, bias, groups, out)
    return result


def _in_rows(windows: Windows) -> Windows:
    """Return windows over images of one column as windows over images of one row, which lie in memory as they do."""
    if not (windows.image[1] == windows.grid[1] == windows.size[1] == 1 and windows.padding[1] == 0):
        return windows
    return Windows(*[(1, pair[0]) if name != "padding" else (0, pair[0]) for name, pair in vars(windows).items()])


def _grouped(images: np.ndarray, groups: int) -> np.ndarray:
    return images.reshape(images.shape[0], groups, images.shape[1] // groups, *images.shape[2:])


@on_device("conv")
def conv_input(
    grad: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, windows: Windows, groups: int
) -> np.ndarray:
    """Return the gradient of `conv` with respect to its input, plus a bias: the transposed convolution.

    Shapes: grad (N, M, *grid), weight (M, C / groups, *size), bias (C,), result (N, C, *image). Any memory layout.
    """
    count, channels = len(grad), weight.shape[1] * groups
    out = buffers.empty((count, channels, *windows.image), grad.dtype)
    if not out.size:
        return out
    windows = _in_rows(windows)
    grad = np.ascontiguousarray(grad).reshape(*grad.shape[:2], *windows.grid)
    weight = np.ascontiguousarray(weight).reshape(*weight.shape[:2], *windows.size)
    result, out = out, out.reshape(count, channels, *windows.image)
    if weight.shape[1] == 1:
        shift = np.zeros(channels, grad.dtype) if bias is None else np.ascontiguousarray(bias)
        by_group = weight.reshape(groups, -1, *windows.size)
        depthwise.input_gradient(_grouped(grad, groups), by_group, shift, windows, out)
        return result
    _run(grad, windows, True, weight, bias, groups, out)
    return result


@on_device("conv")
def conv_weight(grad: np.ndarray, x: np.ndarray, windows: Windows, groups: int) -> np.ndarray:
    """Return the gradient of `conv` with respect to its weight.

    Shapes: grad (N, M, *grid), x (N, C, *image), result (M, C / groups, *size). Any memory layout.
    """
    outputs, channels = grad.shape[1] // groups, x.shape[1] // groups
    shape = (groups * outputs, channels, *windows.size)
    windows = _in_rows(windows)
    grad = np.ascontiguousarray(grad).reshape(*grad.shape[:2], *windows.grid)
    x = np.ascontiguousarray(x).reshape(*x.shape[:2], *windows.image)
    if not len(x) * math.prod(windows.grid) or not math.prod(shape):
        return buffers.zeros(shape, x.dtype)
    if channels == 1:
        return depthwise.weight_gradient(_grouped(grad, groups), x, windows).reshape(shape)
    layer = Layer(windows, len(x), x.shape[1], grad.shape[1], groups, x.itemsize)
    plan, columns, panels = weight_gradient(layer), layer.columns, layer.panels
    sums = buffers.scratch(math.prod(plan.shape_of_sums), x.dtype).reshape(plan.shape_of_sums)
    plane, strip_bytes = math.prod(windows.grid), plan.strip.size * x.itemsize
    for chunk in plan.chunks:
        strips = _strips_of(x[chunk.images], plan.strip, plan.beyond)
        images = chunk.images.stop - chunk.images.start
        packed = buffers.scratch(images * plane * panels * columns, x.dtype)
        parallel_for(
            pack_gradients, images * panels, grain_of(plane * columns),
            grad[chunk.images].reshape(images, groups, outputs, plane), packed,
        )  # fmt: skip
        parallel_for(
            add_gradients, chunk.tasks, chunk.grain, strips, channels * strip_bytes, strip_bytes, plan.runs,
            chunk.lines, packed, outputs, plan.tiles, chunk.images.start == 0, sums,
        )  # fmt: skip
    taps = plan.taps
    out = buffers.empty((groups, outputs, channels, taps), x.dtype)
    parallel_for(
        unpack_gradients, panels * -(-channels // RUN), grain_of(columns * RUN * taps), sums, taps, out
    )  # fmt: skip
    return out.reshape(shape)
