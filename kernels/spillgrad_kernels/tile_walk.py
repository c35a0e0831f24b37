"""Walks over arrays of one shape and any strides: tile by tile, along the dimension in which most arrays are dense.

Memory is addressed by integers, so that one machine code serves every layout.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from spillgrad_kernels.jit.compile import jit
from spillgrad_kernels.layout import Layout, Shape

# The fewest elements that pay for another thread: 8,192 cheap elements take about as long as handing half of them over.
GRAIN = 1 << 13
# Elements of a tile: about a microsecond of work. Finding the tile takes 20 ns.
_TILE = 4096


class TileWalk(NamedTuple):
    """How a kernel walks over arrays in tiles. There are `tiles` tiles, and a whole tile has `tile` elements.

    The first row of `loops` holds the sizes of the dimensions; the last two dimensions are rows and columns. The second
    row holds the sizes of a tile. Each further row holds the strides of one array, in bytes.
    """

    loops: np.ndarray
    tiles: int
    tile: int
    order: tuple[int, ...]  # the dimensions, outermost first

    @property
    def steps(self) -> list[int]:
        """The stride of each array, in bytes, from one column to the next."""
        return self.loops[2:, -1].tolist()  # type: ignore[no-any-return]

    @property
    def grain(self) -> int:
        """The number of tiles that are enough to justify another thread."""
        return max(1, GRAIN // self.tile)


def tile_walk(shape: Shape, arrays: Sequence[Layout], side: int | None = None) -> TileWalk:
    """Return the walk over arrays that are broadcast to `shape`, in `side` x `side` tiles; by default, in long rows."""
    steps = [array.broadcast_strides(len(shape)) for array in arrays]
    sizes_of = [array.dtype.itemsize for array in arrays]
    # The dimension in which the fewest arrays have gaps becomes the innermost. The others go by stride, largest first.
    order = sorted(
        reversed(range(len(shape))),
        key=lambda d: (
            sum(abs(own[d]) > size for own, size in zip(steps, sizes_of, strict=True)),
            sum(abs(own[d]) for own in steps),
        ),
    )[::-1]
    sizes: list[int] = []
    strides_of: list[list[int]] = []  # per dimension, outermost first: each array's stride
    for d in order:
        here = [own[d] for own in steps]
        if shape[d] == 1:
            continue
        if sizes and strides_of[-1] == [stride * shape[d] for stride in here]:
            sizes[-1] *= shape[d]
            strides_of[-1] = here
        else:
            sizes.append(shape[d])
            strides_of.append(here)
    while len(sizes) < 2:
        sizes.insert(0, 1)
        strides_of.insert(0, sizes_of)
    columns = min(sizes[-1], side or _TILE)
    rows = min(sizes[-2], side or max(1, _TILE // max(columns, 1)))
    tile = [*[1] * (len(sizes) - 2), rows, columns]
    loops = np.array([sizes, tile, *zip(*strides_of, strict=True)], np.int64)
    loops.setflags(write=False)
    tiles = math.prod(-(-size // part) for size, part in zip(sizes, tile, strict=True)) if math.prod(shape) else 0
    return TileWalk(loops, tiles, max(1, rows * columns), tuple(order))


@jit
def locate(loops: Any, dims: int, tile: int, place: Any) -> None:
    """Add the offset of tile number `tile` to each array's address, in place; `place` begins with these addresses.

    Then write the tile's numbers of rows and columns to `place`, after the addresses. `loops` is the flattened
    `TileWalk.loops`; its first row has `dims` numbers.
    """
    arrays = len(loops) // dims - 2
    for d in range(dims - 1, -1, -1):
        size, part = loops[d], loops[dims + d]
        parts = (size + part - 1) // part
        rest = tile // parts
        index = (tile - rest * parts) * part
        tile = rest
        for i in range(arrays):
            place[i] += index * loops[(2 + i) * dims + d]
        if d >= dims - 2:
            place[arrays + d - (dims - 2)] = min(part, size - index)
