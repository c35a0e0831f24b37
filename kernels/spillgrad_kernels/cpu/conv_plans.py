"""Plans of convolutions: what all calls with the same shapes share, so that a call need not work it out again."""

import functools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from spillgrad_kernels.cpu.conv_product import TILE_RUNS
from spillgrad_kernels.cpu.microkernel import RUN
from spillgrad_kernels.cpu.product import DEPTH
from spillgrad_kernels.cpu.product_tile import TILE_ROWS, TILE_VECTORS, VECTOR_BYTES
from spillgrad_kernels.cpu.strips import Phase, Strip, phases_of_input, phases_of_output
from spillgrad_kernels.threads.dispatch import grain_of
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


class Layer(NamedTuple):
    """The shapes of a convolution: its windows, its images, the channels of the images and of the result, its groups.

    `size` is the number of bytes of an element.
    """

    windows: Windows
    images: int
    channels: int
    outputs: int
    groups: int
    size: int

    @property
    def columns(self) -> int:
        """The number of columns of a panel of packed weights or gradients."""
        columns: int = TILE_VECTORS * VECTOR_BYTES // self.size
        return columns

    @property
    def panels(self) -> int:
        """The number of panels of all groups, if the result's channels are the columns."""
        return self.groups * -(-(self.outputs // self.groups) // self.columns)


class Chunk(NamedTuple):
    """Images that are computed at once, and arguments of the kernel: `lines`, the number of `tasks`, and the grain.

    `phases` is empty for the gradient of a weight.
    """

    images: slice
    phases: np.ndarray
    lines: np.ndarray
    tasks: int
    grain: int


class Correlation(NamedTuple):
    """The plan of a convolution or of its derivative by the input.

    `phases`, `weight_steps` and `steps` are arguments of `pack_weights` and `correlate`. Weights of neighbouring
    columns lie `lane` bytes apart; all weights take `packed` elements, and `units` of work with the grain `grain` to
    pack. `beyond` is how many elements the kernel may read beyond the last strip. `sees_all` says whether each position
    of the result sees at least one weight.
    """

    strip: Strip
    sees_all: bool
    phases: np.ndarray
    weight_steps: np.ndarray
    steps: np.ndarray
    lane: int
    packed: int
    units: int
    grain: int
    beyond: int
    chunks: tuple[Chunk, ...]


class WeightGradient(NamedTuple):
    """The plan of the gradient of a weight: `shape_of_sums` and `runs` are as `add_gradients` takes them."""

    strip: Strip
    taps: int
    beyond: int
    shape_of_sums: tuple[int, ...]
    runs: np.ndarray
    tiles: int
    chunks: tuple[Chunk, ...]


def _tasks_of(work: int) -> int:
    """Return how many tasks, of `work` multiply-adds each, are enough to justify another thread."""
    return max(1, _GRAIN // max(work, 1))


def _tiles_of(tiles: int, others: int) -> int:
    """Return how many of `tiles` tiles a task computes, if it is one of `others` tasks that compute the same tiles."""
    return max(1, min(_TILES, tiles * others // _TASKS))


def _slices(images: int, bytes_each: int) -> Iterator[slice]:
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


def _distances(taps: np.ndarray, channels: int, channel_bytes: int, size: int) -> np.ndarray:
    """Return the distance in bytes of each channel and tap."""
    distances: np.ndarray = (np.arange(channels)[:, None] * channel_bytes + taps * size).reshape(-1)
    return distances


@functools.lru_cache(256)
def correlation(layer: Layer, of_input: bool) -> Correlation:
    """Return the plan of a convolution or, if `of_input`, of its derivative by the input, as `layer` sees it."""
    windows, size = layer.windows, layer.size
    channels, outputs = layer.channels // layer.groups, layer.outputs // layer.groups
    strip, every = phases_of_input(windows) if of_input else phases_of_output(windows)
    spacing: Pair = windows.stride if of_input else (1, 1)
    shape = windows.image if of_input else windows.grid
    seeing = [phase for phase in every if channels * len(phase.taps)]
    taps = math.prod(windows.size)
    # The weight's dimensions are (outputs, channels) of the convolution, so the derivative's the other way round.
    lane, channel_bytes = (taps * size, outputs * taps * size) if of_input else (channels * taps * size, taps * size)
    columns, panels = layer.columns, layer.panels
    in_place = all(phase.grid[1] % RUN == 0 for phase in seeing)
    depths = [channels * len(phase.taps) for phase in seeing]

    def steps_of(of_weights: bool) -> np.ndarray:
        apart = channel_bytes if of_weights else strip.size * size
        found = [_distances(phase.weight_taps if of_weights else phase.taps, channels, apart, size) for phase in seeing]
        return np.concatenate([np.zeros(0, np.int64), *found])

    def chunk(images: slice) -> Chunk:
        found = [_phase(layer, strip, phase, spacing, shape, images.stop - images.start) for phase in seeing]
        lines = [
            own if in_place else _best_for_runs(own, depth, size) for own, depth in zip(found, depths, strict=True)
        ]
        table: list[tuple[int, ...]] = []
        end, begin, work = 0, 0, 0
        for phase, own, depth in zip(seeing, lines, depths, strict=True):
            tiles = -(-int(own[0, 0] * own[1, 0] * -(-own[2, 0] // RUN)) // TILE_RUNS)
            most = _tiles_of(tiles, panels)
            tasks = -(-tiles // most) * panels
            first = (phase.first[0] * shape[1] + phase.first[1]) * size
            table.append((end + tasks, depth, begin, first, most))
            end, begin, work = end + tasks, begin + depth, work + tasks * most * TILE_ROWS * columns * depth
        return Chunk(
            images, np.array(table, np.int64).reshape(-1, 5), np.array(lines, np.int64).reshape(-1, 3, 3), end,
            _tasks_of(work // max(end, 1)),
        )  # fmt: skip

    chunks = tuple(map(chunk, _slices(layer.images, layer.channels * strip.size * size)))
    return Correlation(
        strip, len(seeing) == len(every), chunks[0].phases, steps_of(True), steps_of(False), lane,
        panels * columns * sum(depths), panels * sum(-(-depth // DEPTH) for depth in depths),
        grain_of(columns * min(max(depths, default=1), DEPTH)), 0 if in_place else RUN * strip.size, chunks,
    )  # fmt: skip


def _phase(layer: Layer, strip: Strip, phase: Phase, spacing: Pair, shape: Pair, images: int) -> np.ndarray:
    """Return the sizes and distances of a phase's positions (see `correlate`) in images, rows and columns."""
    size, row = layer.size, shape[1] * layer.size
    return np.array([
        (images, layer.channels * strip.size * size, layer.outputs * shape[0] * row),
        (phase.grid[0], strip.columns * size, spacing[0] * row),
        (phase.grid[1], size, spacing[1] * size),
    ])  # fmt: skip


@functools.lru_cache(256)
def weight_gradient(layer: Layer) -> WeightGradient:
    """Return the plan of the gradient of a convolution's weight."""
    windows, size = layer.windows, layer.size
    channels, outputs = layer.channels // layer.groups, layer.outputs // layer.groups
    strip, [phase] = phases_of_output(windows)
    taps, columns, panels = len(phase.taps), layer.columns, layer.panels
    in_runs = -(-channels // RUN)
    tiles = -(-in_runs * taps // TILE_RUNS)
    plane = math.prod(windows.grid)
    # Few weights are summed up in parts, which several threads compute. The parts do not depend on the processor.
    weights = layer.groups * outputs * channels * taps
    parts = max(1, min(_TASKS // -(-weights // _PART_WEIGHTS), layer.images * plane // (4 * DEPTH)))
    runs = (np.arange(in_runs)[:, None] * (RUN * strip.size) + phase.taps).reshape(-1)
    runs = np.pad(runs, (0, tiles * TILE_RUNS - runs.size), mode="edge") * size
    most = _tiles_of(tiles, panels * parts)

    def chunk(images: slice) -> Chunk:
        count = images.stop - images.start
        lines = np.array([
            (count, layer.channels * strip.size * size), (windows.grid[0], strip.columns * size),
            (windows.grid[1], size),
        ])  # fmt: skip
        grain = _tasks_of(most * TILE_ROWS * columns * count * plane // parts)
        return Chunk(images, np.empty((0, 5), np.int64), lines, -(-tiles // most) * panels * parts, grain)

    chunks = _slices(layer.images, (layer.channels * strip.size + plane * panels * columns) * size)
    shape = parts, layer.groups, panels // layer.groups, tiles * TILE_ROWS, columns
    beyond = (in_runs * RUN - channels) * strip.size
    return WeightGradient(strip, taps, beyond, shape, runs, most, tuple(map(chunk, chunks)))
