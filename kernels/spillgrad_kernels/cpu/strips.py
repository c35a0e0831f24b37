"""Strips: planes of images with their padding, in which an element of a window is at a fixed distance from its window.

A plane is copied to a strip, row after row. In the strip, an element of the window lies at a fixed distance from the
window's position, whatever the position. With a stride, a strip holds the phases of the plane after one another, so
neighbouring positions are neighbours in memory.
"""

import functools
from typing import Any, NamedTuple

import numpy as np

from spillgrad_kernels.cpu.pointers import array_at, copy_bytes
from spillgrad_kernels.cpu.product_tile import VECTOR_BYTES, like_of
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

    def words(self) -> np.ndarray:
        """Return the fields as an array, for kernels."""
        return np.array([*self.origin, *self.steps, *self.phases, self.rows, self.columns])


@functools.lru_cache(256)
def strip_of_windows(windows: Windows) -> tuple[Strip, np.ndarray]:
    """Return the strip of an image under `windows`, and the places of the first window's elements in it.

    Window (i, j) of the grid lies i * `columns` + j elements further.
    """
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
    places = [
        strip.place(i * windows.dilation[0], j * windows.dilation[1])
        for i in range(windows.size[0])
        for j in range(windows.size[1])
    ]
    return strip, np.array(places)


@jit
def fill(strip: Any, words: Any, plane: Any) -> None:
    """Copy a plane to a strip. What lies around the plane in the strip is not written; the caller has set it to 0."""
    top, left, down, across, phases_down, phases_across, rows, columns = words
    like, size = like_of(plane), plane.itemsize
    lanes = VECTOR_BYTES // size
    height, width = plane.shape
    from_plane, to_strip = np.intp(plane.ctypes.data), np.intp(strip.ctypes.data)
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
                    copy_bytes(target, source, width * size)
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

    def _copy_alternate(like: np.ndarray, first: int, present: int, source: int, target: int) -> None:
        """Copy every other element at address `source`, from number `first` (0 or 1) on, to address `target`.

        At most two vectors are read, and no more than `present` elements.
        """
        seen = array_at(like, source, min(present, 2 * VECTOR_BYTES // like.itemsize))[first::2]
        array_at(like, target, len(seen))[:] = seen

else:

    @vector_code
    def _copy_alternate(emit: Emitter, first: Any, present: Any, source: Any, target: Any) -> None:
        builder, lanes, integer = emit.builder, emit.lanes, present.type

        def chosen(low: Any, high: Any) -> Any:
            even = emit.shuffle(low, high, list(range(0, 2 * lanes, 2)))
            odd = emit.shuffle(low, high, list(range(1, 2 * lanes, 2)))
            return builder.select(builder.icmp_signed("==", first, first.type(0)), even, odd)

        is_whole = builder.icmp_signed(">=", present, integer(2 * lanes))
        with builder.if_else(is_whole) as (whole, rest):
            with whole:  # masks would cost more than the copy
                emit.store(chosen(emit.load_nth(source, 0), emit.load_nth(source, 1)), target)
            with rest:
                low = emit.load_some(source, emit.first_lanes(present))
                beyond = emit.first_lanes(builder.sub(present, integer(lanes)))
                high = emit.load_some(emit.shifted(source, lanes), beyond)
                count = builder.ashr(builder.sub(builder.add(present, integer(1)), first), integer(1))
                emit.store_some(chosen(low, high), target, emit.first_lanes(count))
