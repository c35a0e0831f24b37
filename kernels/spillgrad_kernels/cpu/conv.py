"""Convolution and its two derivatives, as matrix products over patches that are gathered a block at a time.

The convolution and its derivative by the input are one computation, `_correlate`. At each position of a grid,
`_correlate` multiplies weights with the image's elements at fixed offsets from the position, called taps. For the
derivative with a stride, the positions of the image are divided into stride x stride phases. All positions of a phase
have the same taps, so each element of the result is one sum, which one thread computes. Results do not depend on the
number of threads.
Source: Chetlur et al. 2014, "cuDNN: efficient primitives for deep learning" (the implicit matrix product).
"""

import math
from typing import Any

import numpy as np

from spillgrad_kernels.cpu import copying, depthwise, reductions
from spillgrad_kernels.cpu.pointers import array_at, copy_bytes
from spillgrad_kernels.cpu.product import product, workspace_size
from spillgrad_kernels.cpu.product_tile import TILE_ROWS, VECTOR_BYTES, like_of
from spillgrad_kernels.device_array import on_device
from spillgrad_kernels.jit.compile import jit
from spillgrad_kernels.memory import buffers
from spillgrad_kernels.tables.integer_math import round_up
from spillgrad_kernels.threads.dispatch import parallel_for
from spillgrad_kernels.windows import Pair, Windows

# The number of positions of a block of patches, and of rows (channel and tap) that are gathered at a time: 256 KiB of
# float32, which stay in the second-level cache beside their packed copy.
_BLOCK_POSITIONS = 256
_BLOCK_ROWS = 256
# The number of multiply-adds that pays for another thread.
_GRAIN = 1 << 18
# The number of tasks into which a large result is cut, so that several threads share it evenly.
_TASKS = 16
# The fewest output channels that pay for a further task, which has to gather the same patches.
_MIN_ROWS = 96
# Columns of a weight's gradient that a task computes: enough that gathering the output's gradient again costs little.
_WEIGHT_COLUMNS = 512


@jit
def _span(across: int, step: int, width: int, columns: int) -> Any:
    """Return the range (first, stop) of the grid columns from which a tap reaches a column inside the image.

    The image has `width` columns, the grid has `columns`. From grid column j, the tap reaches column
    j * `step` + `across` of the image.
    """
    low = min(max(-(across // step), 0), columns)
    return low, min(max((width - across + step - 1) // step, low), columns)


@jit
def _find_runs(
    images: Any, taps: Any, steps: Any, by_phases: bool, grid: Any, first: int, count: int, runs: Any, ends: Any
) -> None:  # fmt: skip
    """Write to `runs` the elements that each tap reaches from grid positions `first` to `first` + `count` - 1.

    A run is a series of the image's elements. Three numbers describe a run: the offset in bytes of the first element in
    group 0 and channel 0, the grid position of the first element minus `first`, and the number of elements. `ends[t]`
    is set to the number of runs of taps 0 to t. Positions are numbered along the columns of the grid, then its rows,
    then the images. `by_phases` is explained in `_in_phases`.
    """
    height, width, size = images.shape[3], images.shape[4], images.itemsize
    found = 0
    for t in range(taps.shape[0]):
        down, across = taps[t, 0], taps[t, 1]
        low, high = _span(across, steps[1], width, grid[1])
        step, shift = steps[1], across  # of the grid's columns in a row of the image, as it lies in memory
        if by_phases:
            step, shift = 1, across // steps[1]
            for phase in range(across % steps[1]):
                shift += (width - phase + steps[1] - 1) // steps[1]
        image, place = first // (grid[0] * grid[1]), first % (grid[0] * grid[1])
        i, j, done, begun = place // grid[1], place % grid[1], 0, found
        while done < count:
            length = min(grid[1] - j, count - done)
            y = i * steps[0] + down
            begin, end = max(low - j, 0), min(high - j, length)
            if 0 <= y < height and begin < end:
                source = image * images.strides[0] + (y * width + (j + begin) * step + shift) * size
                last = found - 1
                if (
                    found > begun
                    and steps[1] == 1
                    and runs[last, 1] + runs[last, 2] == done + begin
                    and runs[last, 0] + runs[last, 2] * size == source
                ):
                    runs[last, 2] += end - begin
                else:
                    runs[found, 0] = source
                    runs[found, 1] = done + begin
                    runs[found, 2] = end - begin
                    found += 1
            done += length
            j = 0
            i += 1
            if i == grid[0]:
                i = 0
                image += 1
        ends[t] = found


@jit
def _gather(images: Any, group: int, channel: int, runs: Any, ends: Any, patches: Any) -> None:
    """Copy the runs of all taps to the rows of `patches`: first all taps of `channel`, then those of the next channel.

    Elements of `patches` outside the runs are not written; the caller has set them to 0. Elements of a run are
    neighbours in memory.
    """
    size = images.itemsize
    for first_row in range(0, patches.shape[0], ends.size):
        source = np.intp(images.ctypes.data) + group * images.strides[1] + channel * images.strides[2]
        begin = 0
        for t in range(ends.size):
            target = np.intp(patches[first_row + t].ctypes.data)
            for r in range(begin, ends[t]):
                copy_bytes(target + runs[r, 1] * size, source + runs[r, 0], runs[r, 2] * size)
            begin = ends[t]
        channel += 1


@jit
def _scatter(block: Any, bias: Any, group: int, channel: int, step: int, runs: Any, count: int, out: Any) -> None:
    """Write the rows of `block`, plus the bias of each row's channel, to the first `count` runs of `out`.

    Row r is channel `channel` + r of `group`. Elements of a run are `step` columns apart in `out`.
    """
    for r in range(block.shape[0]):
        target = np.intp(out.ctypes.data) + group * out.strides[1] + (channel + r) * out.strides[2]
        shift = bias[group, channel + r]
        for run in runs[:count]:
            results = block[r, run[1] : run[1] + run[2]]
            places = array_at(out, target + run[0], (run[2] - 1) * step + 1)
            if step == 1:
                for i in range(results.size):
                    places[i] = results[i] + shift
            else:
                for i in range(results.size):
                    places[i * step] = results[i] + shift


@jit
def _correlate(
    start: int, stop: int, images: Any, weights: Any, bias: Any, starts: Any, tap_counts: Any, taps: Any, phases: Any,
    in_steps: Any, out_steps: Any, grid: Any, rows: int, block: int, channel_block: int, scratch_size: int, out: Any,
) -> None:  # fmt: skip
    channels, outputs = images.shape[2], out.shape[2]
    positions = out.shape[0] * grid[0] * grid[1]
    blocks, row_blocks = (positions + block - 1) // block, (outputs + rows - 1) // rows
    size = images.itemsize
    most_taps, most_runs = taps.shape[1], block // grid[1] + 2
    runs, ends = np.empty((max(most_taps, 1) * most_runs, 3), np.int64), np.empty(max(most_taps, 1), np.int64)
    patches = np.empty((channel_block * most_taps, block), images.dtype)
    results = np.empty((rows, block), images.dtype)
    scratch = np.empty(scratch_size, images.dtype)
    for task in range(start, stop):
        # Using the array within the loop keeps it alive. Numba frees an array after its last use, even if its address
        # is used later.
        workspace = round_up(np.intp(scratch.ctypes.data), VECTOR_BYTES)
        group, rest = task // (blocks * row_blocks), task % (blocks * row_blocks)
        first, first_output = rest // row_blocks * block, rest % row_blocks * rows
        count, height = min(block, positions - first), min(rows, outputs - first_output)
        for f in range(phases.shape[0]):
            tap_count = tap_counts[f]
            depth = channels * tap_count
            if depth == 0:
                results[:height, :count] = 0
            _find_runs(images, taps[f, :tap_count], in_steps, True, grid, first, count, runs, ends)
            patches[:] = 0
            a = np.intp(weights.ctypes.data) + (starts[f] + (group * outputs + first_output) * depth) * size
            for channel in range(0, depth and channels, channel_block):
                deep = min(channel_block, channels - channel) * tap_count
                _gather(images, group, channel, runs, ends[:tap_count], patches[:deep])
                at_results = np.intp(results.ctypes.data)
                product(
                    like_of(images), height, count, deep, (a + channel * tap_count * size, depth * size, size),
                    (np.intp(patches.ctypes.data), block * size, size), (at_results, block * size, size),
                    (at_results if channel > 0 else 0, block * size, size), workspace,
                )  # fmt: skip
            _find_runs(out, phases[f : f + 1], out_steps, False, grid, first, count, runs, ends)
            _scatter(results[:height], bias, group, first_output, out_steps[1], runs, ends[0], out)


@jit
def _correlate_gradients(
    start: int, stop: int, grads: Any, images: Any, taps: Any, no_tap: Any, steps: Any, no_steps: Any, grid: Any,
    channel_block: int, block: int, chunk: int, scratch_size: int, out: Any,
) -> None:  # fmt: skip
    """Set each part of `out` to the share of the weight's gradient that one chunk of grid positions contributes.

    The share is the matrix product of the output's gradient and the patches, summed over the chunk's positions.
    """
    chunks, outputs, channels, tap_count = out.shape[0], out.shape[2], out.shape[3], out.shape[4]
    positions = images.shape[0] * grid[0] * grid[1]
    channel_blocks = (channels + channel_block - 1) // channel_block
    size = images.itemsize
    runs, ends = np.empty((tap_count * (block // grid[1] + 2), 3), np.int64), np.empty(tap_count, np.int64)
    gradients = np.empty((outputs, block), images.dtype)
    patches = np.empty((channel_block * tap_count, block), images.dtype)
    scratch = np.empty(scratch_size, images.dtype)
    for task in range(start, stop):
        # Using the array within the loop keeps it alive. Numba frees an array after its last use, even if its address
        # is used later.
        workspace = round_up(np.intp(scratch.ctypes.data), VECTOR_BYTES)
        group, rest = task // (chunks * channel_blocks), task % (chunks * channel_blocks)
        part, channel = rest // channel_blocks, rest % channel_blocks * channel_block
        deep, last = min(channel_block, channels - channel) * tap_count, min((part + 1) * chunk, positions)
        sums = out[part, group, :, channel:]
        for first in range(part * chunk, last, block):
            count = min(block, last - first)
            _find_runs(grads, no_tap, no_steps, False, grid, first, count, runs, ends)
            _gather(grads, group, 0, runs, ends[:1], gradients)
            patches[:] = 0
            _find_runs(images, taps, steps, True, grid, first, count, runs, ends)
            _gather(images, group, channel, runs, ends, patches[:deep])
            at_sums = np.intp(sums.ctypes.data)
            product(
                like_of(images), outputs, deep, count, (np.intp(gradients.ctypes.data), block * size, size),
                (np.intp(patches.ctypes.data), size, block * size), (at_sums, sums.strides[0], size),
                (at_sums if first > part * chunk else 0, sums.strides[0], size), workspace,
            )  # fmt: skip


# --- From images, weights and windows to the kernels -----------------------------------------------------------------


def _taps(windows: Windows) -> np.ndarray:
    """Return the offsets (down, across) of a window's elements from the window's position, as array (elements, 2)."""
    lines = [
        np.arange(size) * dilation - padding
        for size, dilation, padding in zip(windows.size, windows.dilation, windows.padding, strict=True)
    ]
    return np.stack(np.meshgrid(*lines, indexing="ij"), -1).reshape(-1, 2)


def _every(elements: list[int]) -> slice:
    """Return a slice that selects the evenly spaced indices `elements`. Copying a slice is faster than indexing."""
    step = elements[1] - elements[0] if len(elements) > 1 else 1
    return slice(elements[0], elements[-1] + 1, step) if elements else slice(0)


def _in_phases(images: np.ndarray, step: int, taps: np.ndarray) -> np.ndarray:
    """Return images in whose rows all columns of a phase are neighbours: columns 0, `step`, 2 `step` and so on first.

    What a tap reaches from neighbouring positions are neighbours in memory then. The columns of a phase that no tap
    reaches are left uninitialized.
    """
    if step == 1:
        return images
    result = buffers.empty(images.shape, images.dtype)
    done = 0
    for phase in range(min(step, images.shape[-1])):
        columns = images[..., phase::step]
        if phase in taps[:, 1] % step:
            copying.copy(columns, result[..., done : done + columns.shape[-1]])
        done += columns.shape[-1]
    return result


def _grouped(images: np.ndarray, groups: int) -> np.ndarray:
    return images.reshape(images.shape[0], groups, images.shape[1] // groups, *images.shape[2:])


def _grain(work: int) -> int:
    """Return how many tasks, of `work` multiply-adds each, are enough to justify another thread."""
    return max(1, _GRAIN // max(work, 1))


def _split(positions: int, outputs: int, groups: int) -> tuple[int, int, int]:
    """Return the number of rows and of positions of the block that a task computes, and the number of tasks."""
    blocks = max(1, -(-positions // _BLOCK_POSITIONS))
    block = round_up(-(-positions // blocks), 2 * VECTOR_BYTES // 4)
    blocks = -(-positions // block)
    rows = outputs
    if groups * blocks < _TASKS:
        rows = min(outputs, max(_MIN_ROWS, round_up(-(-outputs * groups * blocks // _TASKS), TILE_ROWS)))
    return rows, block, groups * blocks * -(-outputs // rows)


def _pair(values: Pair) -> np.ndarray:
    return np.array(values, np.int64)


@on_device("conv")
def conv(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, windows: Windows, groups: int) -> np.ndarray:
    """Return, for each window and output channel, the sum of the window's elements times the weights, plus the bias.

    Shapes: x (N, C, *image), weight (M, C / groups, *size), bias (M,), result (N, M, *grid). Any memory layout.
    """
    count, outputs = len(x), len(weight)
    out = buffers.empty((count, outputs, *windows.grid), x.dtype)
    if not out.size:
        return out
    shift = np.zeros(outputs, x.dtype) if bias is None else np.ascontiguousarray(bias)
    weight = np.ascontiguousarray(weight)
    x = np.ascontiguousarray(x)
    taps = _taps(windows)
    if weight.shape[1] == 1:
        by_group = weight.reshape(groups, -1, *windows.size)
        depthwise.convolve(x, by_group, shift.reshape(groups, -1), windows, _grouped(out, groups))
        return out
    phase = np.zeros((1, 2), np.int64)
    x = _in_phases(x, windows.stride[1], taps)
    _run(x, weight, shift, [taps], phase, windows.stride, (1, 1), windows.grid, groups, out)
    return out


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
    shift = np.zeros(channels, grad.dtype) if bias is None else np.ascontiguousarray(bias)
    grad = np.ascontiguousarray(grad)
    if weight.shape[1] == 1:
        by_group = np.ascontiguousarray(weight).reshape(groups, -1, *windows.size)
        depthwise.input_gradient(_grouped(grad, groups), by_group, shift, windows, out)
        return out
    # For each dimension and phase: the window elements that fall on the phase's positions. Each is paired with an
    # offset: the window's number minus the position's number in the phase.
    reach = [
        [
            [(t, (phase + padding - t * dilation) // stride) for t in range(size)
             if (phase + padding - t * dilation) % stride == 0]
            for phase in range(min(stride, image))
        ]
        for size, stride, padding, dilation, image in zip(
            windows.size, windows.stride, windows.padding, windows.dilation, windows.image, strict=True
        )
    ]  # fmt: skip
    phases = [(i, j) for i in range(len(reach[0])) for j in range(len(reach[1]))]
    by_group = weight.reshape(groups, -1, *weight.shape[1:]).swapaxes(1, 2)
    weights = buffers.empty((weight.size,), weight.dtype)
    taps_of, written = [], 0
    for i, j in phases:
        down, across = reach[0][i], reach[1][j]
        taps_of.append(np.array([(y, x) for _, y in down for _, x in across], np.int64).reshape(-1, 2))
        of_phase = by_group[..., _every([t for t, _ in down]), _every([t for t, _ in across])]
        weights[written : written + of_phase.size].reshape(of_phase.shape)[...] = of_phase
        written += of_phase.size
    grid = -(-windows.image[0] // windows.stride[0]), -(-windows.image[1] // windows.stride[1])
    _run(grad, weights, shift, taps_of, np.array(phases), (1, 1), windows.stride, grid, groups, out)
    return out


def _run(
    images: np.ndarray, weights: np.ndarray, bias: np.ndarray, taps_of: list[np.ndarray], phases: np.ndarray,
    in_steps: Pair, out_steps: Pair, grid: Pair, groups: int, out: np.ndarray,
) -> None:  # fmt: skip
    """Compute `out` by `_correlate`. `weights` is flat: an array (groups, outputs, channels, taps) for each phase."""
    images, out = _grouped(images, groups), _grouped(out, groups)
    counts = np.array([len(taps) for taps in taps_of])
    taps = np.zeros((len(taps_of), max(counts), 2), np.int64)
    for row, used in zip(taps, taps_of, strict=True):
        row[: len(used)] = used
    sizes = out.shape[1] * out.shape[2] * images.shape[2] * counts
    rows, block, tasks = _split(len(images) * math.prod(grid), out.shape[2], groups)
    channel_block = min(images.shape[2], max(1, _BLOCK_ROWS // max(1, taps.shape[1])))
    parallel_for(
        _correlate, tasks, _grain(rows * block * images.shape[2] * int(counts.sum())), images, weights.reshape(-1),
        bias.reshape(groups, -1), np.cumsum(sizes) - sizes, counts, taps, phases, _pair(in_steps), _pair(out_steps),
        _pair(grid), rows, block, channel_block,
        workspace_size(rows, block, channel_block * taps.shape[1], out.itemsize), out,
    )  # fmt: skip


@on_device("conv")
def conv_weight(grad: np.ndarray, x: np.ndarray, windows: Windows, groups: int) -> np.ndarray:
    """Return the gradient of `conv` with respect to its weight.

    Shapes: grad (N, M, *grid), x (N, C, *image), result (M, C / groups, *size). Any memory layout.
    """
    outputs, channels = grad.shape[1], x.shape[1] // groups
    shape = (outputs, channels, *windows.size)
    grad, x = np.ascontiguousarray(grad), np.ascontiguousarray(x)
    taps = _taps(windows)
    positions = len(x) * math.prod(windows.grid)
    if not positions or not math.prod(shape):
        return buffers.zeros(shape, x.dtype)
    if channels == 1:
        return depthwise.weight_gradient(_grouped(grad, groups), x, windows).reshape(shape)
    channel_block = min(channels, max(1, _WEIGHT_COLUMNS // len(taps)))
    tasks = groups * -(-channels // channel_block)
    chunks = min(-(-_TASKS // tasks), -(-positions // _BLOCK_POSITIONS))
    chunk = round_up(-(-positions // chunks), _BLOCK_POSITIONS)
    chunks = -(-positions // chunk)
    block = min(_BLOCK_POSITIONS, chunk)
    parts = buffers.empty((chunks, groups, outputs // groups, channels, len(taps)), x.dtype)
    columns = channel_block * len(taps)
    x = _in_phases(x, windows.stride[1], taps)
    parallel_for(
        _correlate_gradients, tasks * chunks, _grain(outputs // groups * columns * chunk),
        _grouped(grad, groups), _grouped(x, groups), taps, np.zeros((1, 2), np.int64), _pair(windows.stride),
        _pair((1, 1)), _pair(windows.grid), channel_block, block, chunk,
        workspace_size(outputs // groups, columns, block, x.itemsize), parts,
    )  # fmt: skip
    return (parts[0] if chunks == 1 else reductions.sum(parts, (0,))).reshape(shape)
