"""Strips: planes of images with their padding, in which an element of a window is at a fixed distance from its window.

A plane is copied to a strip, row after row. In the strip, an element of the window lies at a fixed distance from the
window's position, whatever the position. With a stride, a strip holds the phases of the plane after one another, so
neighbouring positions are neighbours in memory.
"""

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from spillgrad_kernels.cpu.pointers import array_at
from spillgrad_kernels.cpu.product_tile import VECTOR_BYTES
from spillgrad_kernels.cpu.vector_instructions import Emitter, vector_code
from spillgrad_kernels.jit.compile import DISABLE_JIT, jit
from spillgrad_kernels.windows import Pair, Windows


class Strip(NamedTuple):
    """How planes lie in a strip: element (y, x) has the row `y + origin[0]` and the column `x + origin[1]`.

    Rows and columns are divided into phases by `steps`; the first `phases` of them are stored. A phase has `rows` x
    `columns` elements.
    """

    origin: Pair
    steps: Pair
    phases: Pair
    rows: int
    columns: int

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.phases[0] * self.phases[1] * self.rows * self.columns

    def place(self, row: int, column: int) -> int:
        """Return the index of the element in a row and a column, counted before they are divided into phases."""
        phase = row % self.steps[0] * self.phases[1] + column % self.steps[1]
        return (phase * self.rows + row // self.steps[0]) * self.columns + column // self.steps[1]


@functools.lru_cache(256)
def words_of(strip: Strip) -> np.ndarray:
    """Return the fields of a strip as an array, for kernels; the last is the number of columns."""
    return np.array([*strip.origin, *strip.steps, *strip.phases, strip.rows, strip.columns])


@dataclass(frozen=True, eq=False)
class Phase:
    """The positions of a result with the same taps: rows and columns from `first` on, at the steps of the phases.

    `grid` is their number. `taps` are the places of the taps in a strip, seen from the first position; `weight_taps`
    are the taps' numbers.
    """

    first: Pair
    grid: Pair
    taps: np.ndarray
    weight_taps: np.ndarray


@functools.lru_cache(256)
def phases_of_output(windows: Windows) -> tuple[Strip, list[Phase]]:
    """Return the strip of a convolution's input, and the only phase of its output."""
    reach = [(size - 1) * dilation for size, dilation in zip(windows.size, windows.dilation, strict=True)]
    rows, columns = (
        max(grid + far // step, -(-(image + padding) // step))
        for grid, far, step, image, padding in zip(
            windows.grid, reach, windows.stride, windows.image, windows.padding, strict=True
        )
    )
    # Windows of one element in a dimension see one row or column in `stride`: the first phase.
    down, across = (
        1 if size == 1 or dilation % step == 0 else step
        for size, dilation, step in zip(windows.size, windows.dilation, windows.stride, strict=True)
    )
    strip = Strip(windows.padding, windows.stride, (down, across), rows, columns)
    taps = [
        strip.place(i * windows.dilation[0], j * windows.dilation[1])
        for i in range(windows.size[0])
        for j in range(windows.size[1])
    ]
    return strip, [Phase((0, 0), windows.grid, np.array(taps), np.arange(len(taps)))]


@functools.lru_cache(256)
def phases_of_input(windows: Windows) -> tuple[Strip, list[Phase]]:
    """Return the strip of the output's gradient, and the phases of the input's."""
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
    grids = [
        [-(-(image - phase) // stride) for phase in range(min(stride, image))]
        for stride, image in zip(windows.stride, windows.image, strict=True)
    ]
    origin, far = [], []
    for dim in range(2):
        offsets = [(offset, grid) for taps, grid in zip(reach[dim], grids[dim], strict=True) for _, offset in taps]
        before = max([0, *(-offset for offset, _ in offsets)])
        origin.append(before)
        far.append(before + max([windows.grid[dim], *(offset + grid for offset, grid in offsets)]))
    strip = Strip((origin[0], origin[1]), (1, 1), (1, 1), far[0], far[1])
    phases = []
    for i, down in enumerate(reach[0]):
        for j, across in enumerate(reach[1]):
            taps = [
                (strip.place(origin[0] + y, origin[1] + x), t * windows.size[1] + u)
                for t, y in down for u, x in across
            ]  # fmt: skip
            places, numbers = np.array(taps, np.int64).reshape(-1, 2).T
            phases.append(Phase((i, j), (grids[0][i], grids[1][j]), places, numbers))
    return strip, phases


@jit
def fill(like: Any, to_strip: int, words: Any, from_plane: int, height: int, width: int) -> None:
    """Copy a plane at address `from_plane` to a strip at address `to_strip`.

    What lies around the plane in the strip is not written; the caller has set it to 0.
    """
    top, left, down, across, phases_down, phases_across, rows, columns = words
    size = like.itemsize
    lanes = VECTOR_BYTES // size
    for phase_down in range(phases_down):
        begin = (phase_down - top) % down  # the first row of the plane in this phase
        first_line = phase_down * phases_across * rows + (top + begin) // down
        for phase_across in range(phases_across):
            first = (phase_across - left) % across
            if first >= width:
                continue
            target = to_strip + ((first_line + phase_across * rows) * columns + (left + first) // across) * size
            for y in range(begin, height, down):
                source = from_plane + y * width * size
                if across == 1:
                    for done in range(0, width, lanes):
                        _copy_vector(like, width - done, source + done * size, target + done * size)
                elif across == 2:
                    for done in range(0, width, 2 * lanes):
                        _copy_alternate(like, first, width - done, source + done * size, target + done // 2 * size)
                else:
                    count = (width - first + across - 1) // across
                    run, seen = array_at(like, target, count), array_at(like, source, width)
                    for i in range(count):
                        run[i] = seen[first + across * i]
                target += columns * size


if DISABLE_JIT:

    def _copy_vector(like: np.ndarray, present: int, source: int, target: int) -> None:
        """Copy a vector, but at most `present` elements, from address `source` to address `target`."""
        count = min(present, VECTOR_BYTES // like.itemsize)
        array_at(like, target, count)[:] = array_at(like, source, count)

    def _copy_alternate(like: np.ndarray, first: int, present: int, source: int, target: int) -> None:
        """Copy every other element at address `source`, from number `first` (0 or 1) on, to address `target`.

        At most two vectors are read, and no more than `present` elements.
        """
        seen = array_at(like, source, min(present, 2 * VECTOR_BYTES // like.itemsize))[first::2]
        array_at(like, target, len(seen))[:] = seen

else:

    @vector_code
    def _copy_vector(emit: Emitter, present: Any, source: Any, target: Any) -> None:
        builder = emit.builder
        with builder.if_else(builder.icmp_signed(">=", present, present.type(emit.lanes))) as (whole, rest):
            with whole:  # masks would cost more than the copy
                emit.store(emit.load(source), target)
            with rest:
                mask = emit.first_lanes(present)
                emit.store_some(emit.load_some(source, mask), target, mask)

    @vector_code
    def _copy_alternate(emit: Emitter, first: Any, present: Any, source: Any, target: Any) -> None:
        builder, lanes, integer = emit.builder, emit.lanes, present.type

        def chosen(low: Any, high: Any) -> Any:
            even = emit.shuffle(low, high, list(range(0, 2 * lanes, 2)))
            odd = emit.shuffle(low, high, list(range(1, 2 * lanes, 2)))
            return builder.select(builder.icmp_signed("==", first, first.type(0)), even, odd)

        is_whole = builder.icmp_signed(">=", present, integer(2 * lanes))
        with builder.if_else(is_whole) as (whole, rest):
            with whole:
                emit.store(chosen(emit.load_nth(source, 0), emit.load_nth(source, 1)), target)
            with rest:
                low = emit.load_some(source, emit.first_lanes(present))
                beyond = emit.first_lanes(builder.sub(present, integer(lanes)))
                high = emit.load_some(emit.shifted(source, lanes), beyond)
                count = builder.ashr(builder.sub(builder.add(present, integer(1)), first), integer(1))
                emit.store_some(chosen(low, high), target, emit.first_lanes(count))
