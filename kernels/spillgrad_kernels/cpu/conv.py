"""Convolution and its two derivatives, as matrix products over patches that are never copied.

The convolution multiplies the matrix of all patches with the weights; the weight's gradient multiplies its transpose
with the gradient of the output. The derivative by the input is a convolution of the output's gradient; with a stride,
the positions of the image are divided into stride x stride phases, each with its own taps. Each element of a result is
one sum, which one thread computes, so results do not depend on the number of threads.
Source: Chetlur et al. 2014, "cuDNN: efficient primitives for deep learning" (the implicit matrix product).
"""

import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from spillgrad_kernels.cpu import copying, depthwise
from spillgrad_kernels.cpu.conv_product import (
    TILE_RUNS,
    add_gradients,
    correlate,
    fill_strips,
    pack_gradients,
    pack_weights,
    unpack_gradients,
)
from spillgrad_kernels.cpu.microkernel import RUN
from spillgrad_kernels.cpu.product import DEPTH
from spillgrad_kernels.cpu.product_tile import TILE_ROWS, TILE_VECTORS, VECTOR_BYTES
from spillgrad_kernels.cpu.strips import Phase, Strip, phases_of_input, phases_of_output
from spillgrad_kernels.device_array import on_device
from spillgrad_kernels.memory import buffers
from spillgrad_kernels.threads.dispatch import grain_of, parallel_for
from spillgrad_kernels.windows import Pair, Windows

# The most tiles of a task, and the number of tasks that share a result evenly among several threads.
_TILES = 16
_TASKS = 16
# The number of multiply-adds that pays for another thread.
_GRAIN = 1 << 18
# Images are computed in chunks whose strips stay in the last cache.
_CHUNK_BYTES = 4 << 20
# What an element of the result costs, in steps of the product, where neighbouring windows are not neighbours in the
# result: such elements are written one by one.
_SCATTERED_STEPS = 48
# This many weights are enough work for a task, if it adds up their gradients over all positions.
_PART_WEIGHTS = 1024
# With one input channel, a group of this many outputs costs less as a product than as sums of shifted planes.
_MANY_OUTPUTS = 16


def _tasks_of(work: int) -> int:
    """Return how many tasks, of `work` multiply-adds each, are enough to justify another thread."""
    return max(1, _GRAIN // max(work, 1))


def _tiles_of(tiles: int, others: int) -> int:
    """Return how many of `tiles` tiles a task computes, if it is one of `others` tasks that compute the same tiles."""
    return max(1, min(_TILES, tiles * others // _TASKS))


def _strips_of(images: np.ndarray, strip: Strip, beyond: int) -> tuple[np.ndarray, int]:
    """Return the strips of all planes of `images`, and the number of elements of each.

    `beyond` is how many elements a kernel may read beyond the last strip. Images that are their own strips are not
    copied if `beyond` is 0.
    """
    height, width = images.shape[2:]
    planes = images.reshape(-1, height, width)
    if beyond == 0 and strip == Strip((0, 0), (1, 1), (1, 1), height, width):
        return planes.reshape(-1), height * width
    memory = buffers.scratch(len(planes) * strip.size + beyond, images.dtype)
    strips = memory[: len(planes) * strip.size].reshape(len(planes), -1)
    parallel_for(fill_strips, len(planes), grain_of(strip.size), planes, strip.words(), strips)
    return memory, strip.size


def _chunks(images: int, bytes_each: int) -> Iterator[slice]:
    """Return slices of a batch: chunks of about the same number of images, with at most `_CHUNK_BYTES` bytes."""
    chunks = -(-images // max(1, min(images, _CHUNK_BYTES // max(bytes_each, 1))))
    return (slice(images * i // chunks, images * (i + 1) // chunks) for i in range(chunks))


def _best_for_runs(lines: np.ndarray, depth: int, size: int) -> np.ndarray:
    """Return `lines`, of images, rows and columns of windows, with the dimension last that is best cut into runs.

    A dimension whose size `RUN` does not divide computes positions that do not exist. Those of rows and columns lie
    less than a strip beyond the last window, those of images would lie further.
    """

    def cost(dim: int) -> float:
        count, _, step = map(int, lines[dim])
        return -(-count // RUN) * RUN / count * depth + (0 if step == size else _SCATTERED_STEPS)

    last = min((2, 1) if lines[0, 0] % RUN else (2, 1, 0), key=cost)
    return lines[[d for d in range(3) if d != last] + [last]]


def _packed_sizes(outputs: int, groups: int, size: int) -> tuple[int, int]:
    """Return the number of columns of a panel, and of panels of all groups."""
    columns: int = TILE_VECTORS * VECTOR_BYTES // size
    return columns, groups * -(-outputs // columns)


def _padded_bias(bias: np.ndarray | None, outputs: int, groups: int, dtype: np.dtype[Any]) -> np.ndarray:
    """Return the bias of each column of all panels, with zeros for columns without an output."""
    columns, panels = _packed_sizes(outputs, groups, dtype.itemsize)
    padded = np.zeros((groups, panels // groups * columns), dtype)
    if bias is not None:
        padded[:, :outputs] = bias.reshape(groups, outputs)
    return padded


@functools.lru_cache(256)
def _distances(phase: Phase, of_weights: bool, channels: int, channel_bytes: int, size: int) -> np.ndarray:
    """Return the distance in bytes of each channel and tap, in the weights or in the strips."""
    taps = phase.weight_taps if of_weights else phase.taps
    distances: np.ndarray = (np.arange(channels)[:, None] * channel_bytes + taps * size).reshape(-1)
    return distances


def _run(
    images: np.ndarray, strip: Strip, phases: list[Phase], steps: Pair, weights: np.ndarray, strides: Pair,
    bias: np.ndarray | None, groups: int, out: np.ndarray,
) -> None:  # fmt: skip
    """Compute `out` phase by phase. `strides` are the bytes between the weights of neighbouring outputs and channels.

    `weights` is contiguous.
    """
    size = out.itemsize
    channels, outputs = images.shape[1] // groups, out.shape[1] // groups
    columns, panels = _packed_sizes(outputs, groups, size)
    if channels == 0 or not all(len(phase.taps) for phase in phases):  # some positions see nothing
        if bias is None:
            out.fill(0)
        else:
            copying.copy(np.broadcast_to(bias[:, None, None], out.shape), out)
    seen = []  # the phases whose positions see taps, with their packed weights
    for phase in phases:
        depth = channels * len(phase.taps)
        if depth == 0:
            continue
        packed = buffers.scratch(panels * columns * depth, out.dtype)
        parallel_for(
            pack_weights, panels * -(-depth // DEPTH), grain_of(columns * min(depth, DEPTH)), weights,
            _distances(phase, True, channels, strides[1], size), strides[0], weights.nbytes // groups, outputs, packed,
        )  # fmt: skip
        seen.append((phase, packed))
    shift = _padded_bias(bias, outputs, groups, out.dtype)
    plane, row = math.prod(out.shape[2:]) * size, out.shape[3] * size
    in_place = all(phase.grid[1] % RUN == 0 for phase, _ in seen)
    for chunk in _chunks(len(images), images.shape[1] * strip.size * size):
        part, target = images[chunk], out[chunk]
        strips, strip_size = _strips_of(part, strip, 0 if in_place else RUN * strip.size)
        for phase, packed in seen:
            depth = channels * len(phase.taps)
            distances = _distances(phase, False, channels, strip_size * size, size)
            lines = np.array([
                (len(part), images.shape[1] * strip_size * size, out.shape[1] * plane),
                (phase.grid[0], strip.columns * size, steps[0] * row),
                (phase.grid[1], size, steps[1] * size),
            ])  # fmt: skip
            if not in_place:
                lines = _best_for_runs(lines, depth, size)
            tiles = -(-int(lines[0, 0] * lines[1, 0] * -(-lines[2, 0] // RUN)) // TILE_RUNS)
            most = _tiles_of(tiles, panels)
            parallel_for(
                correlate, -(-tiles // most) * panels, _tasks_of(most * TILE_ROWS * columns * depth), strips,
                channels * strip_size * size, distances, packed, shift, lines, most, outputs, plane,
                phase.first[0] * row + phase.first[1] * size, target,
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
    strip, phases = phases_of_output(windows)
    _run(x, strip, phases, (1, 1), weight, (weight.strides[0], weight.strides[1]), bias, groups, out)
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
    strip, phases = phases_of_input(windows)
    _run(grad, strip, phases, windows.stride, weight, (weight.strides[1], weight.strides[0]), bias, groups, out)
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
    strip, [phase] = phases_of_output(windows)
    places = phase.taps
    taps, size = len(places), x.itemsize
    columns, panels = _packed_sizes(outputs, groups, size)
    in_runs = -(-channels // RUN)
    tiles = -(-in_runs * taps // TILE_RUNS)
    plane = math.prod(windows.grid)
    # Few weights are summed up in parts, which several threads compute. The parts do not depend on the processor.
    parts = max(1, min(_TASKS // -(-math.prod(shape) // _PART_WEIGHTS), len(x) * plane // (4 * DEPTH)))
    shape_of_sums = parts, groups, panels // groups, tiles * TILE_ROWS, columns
    sums = buffers.scratch(math.prod(shape_of_sums), x.dtype).reshape(shape_of_sums)
    most = _tiles_of(tiles, panels * parts)
    for chunk in _chunks(len(x), (x.shape[1] * strip.size + plane * panels * columns) * size):
        strips, strip_size = _strips_of(x[chunk], strip, (in_runs * RUN - channels) * strip.size)
        images = chunk.stop - chunk.start
        packed = buffers.scratch(images * plane * panels * columns, x.dtype)
        parallel_for(
            pack_gradients, images * panels, grain_of(plane * columns),
            grad[chunk].reshape(images, groups, outputs, plane), packed,
        )  # fmt: skip
        runs = (np.arange(in_runs)[:, None] * (RUN * strip_size) + places).reshape(-1)
        runs = np.pad(runs, (0, tiles * TILE_RUNS - runs.size), mode="edge") * size
        lines = np.array([
            (images, x.shape[1] * strip_size * size), (windows.grid[0], strip.columns * size), (windows.grid[1], size)
        ])  # fmt: skip
        parallel_for(
            add_gradients, -(-tiles // most) * panels * parts,
            _tasks_of(most * TILE_ROWS * columns * images * plane // parts), strips, channels * strip_size * size,
            strip_size * size, runs, lines, packed, outputs, most, chunk.start == 0, sums,
        )  # fmt: skip
    out = buffers.empty((groups, outputs, channels, taps), x.dtype)
    parallel_for(unpack_gradients, panels * in_runs, grain_of(columns * RUN * taps), sums, taps, out)
    return out.reshape(shape)
